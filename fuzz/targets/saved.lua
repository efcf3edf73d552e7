--- Saved sessions (also those of --prompt-cache): they are restored into a session, which is then fed. Each input is tried as it is, and
-- with its checksum corrected.
local ane = require "ane"
local numbers = require "lib.numbers"
local promise = require "lib.promise"
local scratch = require "lib.scratch"

local M = {}

local IDS = { 1, 17, 30, 5, 9, 2 }
local model = assert(ane.load("spec/fixtures/gguf/llama-odd.gguf", { threads = 1, context = 32 }))

local TABLE = {}
for i = 0, 255 do
  local c = i
  for _ = 1, 8 do c = c & 1 == 1 and 0xEDB88320 ~ c >> 1 or c >> 1 end
  TABLE[i] = c
end

-- CRC-32 of zlib.
local function crc(s)
  local c = 0xFFFFFFFF
  for i = 1, #s do c = TABLE[(c ~ s:byte(i)) & 255] ~ c >> 8 end
  return c ~ 0xFFFFFFFF
end

--- Changes fields of 4 and 8 bytes at the places of chunk headers as well as bytes.
function M.mutate(data, most, random, bytes)
  if #data < 53 or random(3) == 0 then return bytes(data, most) end
  local places = {}
  local at = 41
  while at + 12 <= #data and #places < 64 do
    local name, size = string.unpack("<I4I8", data, at)
    places[#places + 1] = at
    if name > #data or size < 0 or size > #data then break end
    at = at + 12 + name + size
  end
  at = places[1 + random(#places)] + random(16)
  local n = numbers[1 + random(#numbers)]
  local width = random(2) == 0 and 4 or 8
  return (data:sub(1, at - 1) .. string.pack("<i8", n):sub(1, width) .. data:sub(at + width)):sub(1, most)
end

local function restore(data)
  local path = scratch.write("session.ane", data)
  local session = assert(model:session())
  if promise.keep("restore", session:restore(path)) then
    if session.length > 0 then session:argmax() end
    promise.keep("feed", session:feed { 3, 4 })
    session:rewind(1)
    promise.keep("fork", session:fork()):close()
  end
  session:close()
end

function M.run(data)
  restore(data)
  if #data > 16 then restore(data:sub(1, -5) .. string.pack("<I4", crc(data:sub(1, -5)))) end
end

function M.seeds()
  local session <close> = assert(model:session())
  assert(session:feed(IDS))
  assert(session:save(scratch.path .. "/seed.ane", "a note"))
  return { { "llama", scratch.read(scratch.path .. "/seed.ane") } }
end

return M
