--- Resumed batches: the parts "journal" and "output" are the files that a run with `resume` finds.
local ane = require "ane"
local bundle = require "lib.bundle"
local mutate_json = require "lib.mutate_json"
local numbers = require "lib.numbers"
local promise = require "lib.promise"
local scratch = require "lib.scratch"

local M = { lines = true }

local model = assert(ane.load("spec/fixtures/gguf/llama-q8_0.gguf", { threads = 1, context = 32 }))
local INPUT = scratch.write("rows.jsonl", '{"prompt":"a"}\n{"prompt":"b"}\n{"prompt":"c"}\n')
local OUTPUT = scratch.path .. "/out.jsonl"

local settings = mutate_json.mutator { "ane_batch", "max_tokens" }

--- Changes the settings in the first line, or a field of a record.
local function journal(text, most, random, bytes)
  local line = text:match "^[^\n]*\n" or ""
  if random(4) == 0 then return settings(line, most, random, bytes):gsub("\n", "") .. "\n" .. text:sub(#line + 1) end
  if #text < #line + 32 then return bytes(text, most) end
  local record = #line + 32 * random((#text - #line) // 32)
  local at, size = table.unpack(({ { 0, 8 }, { 8, 8 }, { 16, 4 }, { 20, 4 }, { 24, 8 } })[1 + random(5)])
  return text:sub(1, record + at) .. string.pack("<i8", numbers[1 + random(#numbers)]):sub(1, size) .. text:sub(record + at + size + 1)
end

M.mutate = bundle.mutator { function(text, most, _, bytes) return bytes(text, most) end, journal = journal }

local function batch(resume)
  return ane.batch(model, { input = INPUT, output = OUTPUT, body = { max_tokens = 2 }, resume = resume })
end

local function remove()
  for _, name in ipairs { "out.jsonl", "out.jsonl.journal" } do scratch.remove(name) end
end

function M.run(data)
  local parts = bundle.split(data)
  scratch.write("out.jsonl.journal", parts.journal or data)
  scratch.write("out.jsonl", parts.output or "")
  promise.keep("batch", batch(true))
  remove()
end

function M.seeds()
  assert(batch(false))
  local whole, output = scratch.read(OUTPUT .. ".journal"), scratch.read(OUTPUT)
  remove()
  local long = #whole:match "^[^\n]*\n" + 16 -- the length of the first line
  return {
    { "line-of-2-gb", bundle.join {
      { "journal", whole:sub(1, long) .. "\xFF\xFF\xFF\x7F" .. whole:sub(long + 5) }, { "output", output } } },
    { "whole", bundle.join { { "journal", whole }, { "output", output } } },
    { "cut", bundle.join { { "journal", whole:sub(1, -45) }, { "output", (output:gsub("\n[^\n]*\n$", "\n")) } } },
  }
end

return M
