--- safetensors files beside a fixed config.json.
local use = require "lib.use"
local mutate_json = require "lib.mutate_json"
local scratch = require "lib.scratch"
local writer = require "support.safetensors_writer"

local FIXTURE = "spec/fixtures/hf/starcoder2-odd"

local M = {}

local header = mutate_json.mutator { "F32", "F16", "BF16", "U8", "I64", "F8_E4M3", "BOOL", "data_offsets", "dtype", "shape" }

--- Changes the header. The stored length of the header is right for 15 of 16 inputs.
function M.mutate(data, most, random, bytes)
  if #data < 8 then return bytes(data, most) end
  local length = string.unpack("<I8", data)
  if length < 0 or length > #data - 8 then length = #data - 8 end
  local text = header(data:sub(9, 8 + length), most - (#data - length), random, bytes)
  return string.pack("<i8", random(16) == 0 and #text + random(9) - 4 or #text) .. text .. data:sub(9 + length)
end

local folder = scratch.folder "safetensors"
scratch.write("safetensors/config.json", scratch.read(FIXTURE .. "/config.json"))

function M.run(data)
  use.tensors(scratch.write("safetensors/model.safetensors", data))
  use.model(folder, data)
end

-- Blocks and scales of a stack of MXFP4 matrices, and tensors of the types that starcoder2 does not have.
local function kinds()
  local function zeros(n) return ("\0"):rep(n) end
  return writer.bytes { metadata = { format = "pt" }, tensors = {
    { name = "w_blocks", dtype = "U8", shape = { 2, 40, 1, 16 }, data = zeros(1280) },
    { name = "w_scales", dtype = "U8", shape = { 2, 40, 1 }, data = zeros(80) },
    { name = "h", dtype = "F16", shape = { 2, 3 }, data = zeros(12) }, { name = "b", dtype = "BF16", shape = { 4 }, data = zeros(8) },
    { name = "e", dtype = "F8_E4M3", shape = { 4 }, data = zeros(4) }, { name = "i", dtype = "I64", shape = {}, data = zeros(8) },
    { name = "t", dtype = "BOOL", shape = { 3 }, data = zeros(3) },
  } }
end

function M.seeds()
  return { { "starcoder2", scratch.read(FIXTURE .. "/model.safetensors") }, { "kinds", (kinds()) } }
end

return M
