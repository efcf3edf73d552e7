--- Tests one build in one environment, in a few seconds: models of all formats are loaded and run on every ISA level, quantised,
-- exported, run as packages, saved and restored, in pools. Prints a hash of all bits and texts, which must be the same everywhere.
-- The hash does not depend on which ISA levels the machine has: each must give the bits of the first, or the program fails.
-- usage (from the root of the tree): lua scripts/machines/smoke.lua [--threads N]      ANE_BUILD names the build folder;
-- ANE_SMOKE_ALL=1 also prints the hash of each part.

local build = os.getenv "ANE_BUILD" or "build/release"
package.path = "./lua/?.lua;./lua/?/init.lua;./models/?.lua;./spec/?.lua;" .. package.path
package.cpath = "./" .. build .. "/?.so;" .. package.cpath

local ane = require "ane"
local core = require "ane.core"
local programs = require "support.programs"

local MODELS = {
  "gguf/llama-q8_0.gguf", "gguf/llama-kquants.gguf", "gguf/qwen2-bf16.gguf", "gguf/gemma3-q8_0.gguf", "gguf/gpt_oss-odd.gguf",
  "hf/llama", "hf/gemma4-odd", "hf/qwen3_moe-odd", "hf/zaya-odd", "gguf/qwen3_5-odd.gguf", "hf/mamba2-odd",
}
local IDS = { 1, 17, 30, 5, 9, 2, 33, 12, 40 }
local threads = arg[1] == "--threads" and assert(math.tointeger(arg[2])) or 2

local all = {}
local function add(text)
  all[#all + 1] = core.sha256(text)
  if os.getenv "ANE_SMOKE_ALL" then print(#all, all[#all]:sub(1, 16)) end
end

-- Makes a folder whose name has blanks and letters outside ASCII. The caller removes it.
local function folder()
  local path = os.tmpname()
  os.remove(path)
  path = path .. " \u{e9}\u{4f60} x"
  assert(os.execute(("mkdir '%s'"):format(path)))
  return path
end

local function levels(path)
  local first
  for _, isa in ipairs(core.isa_list()) do
    local p <close> = programs.open(path, { isa = isa, threads = threads, context = 64, chunk = 16 })
    local s <close> = assert(p:session { context = 64, kv = "fp16" })
    local logits = programs.feed(s, IDS, 4)
    first = first or logits
    assert(logits == first, path .. ": other bits on " .. isa)
  end
  add(first)
end

local function replies(path)
  local model <close> = assert(ane.load(path, { threads = threads, context = 64 }))
  for _, reply in ipairs(assert(model:generate_many({ IDS, { 5, 6 } }, { max_tokens = 8, ignore_eos = true, details = true }))) do
    add(table.concat(reply.ids, " "))
  end
end

local function written(path)
  local place = folder()
  local model <close> = assert(ane.load(path, { threads = threads, context = 64 }))
  assert(model:quantise(place .. "/q.gguf", { weights = "q4_k" }))
  add(assert(core.read_file(place .. "/q.gguf")))
  assert(model:export(place .. "/packages", { weights = "int8", context = 64 }))
  local packages <close> = assert(ane.load(place .. "/packages", { threads = threads }))
  add(table.concat(assert(packages:generate(IDS, { max_tokens = 6, ignore_eos = true, details = true })).ids, " "))
  local s <close> = assert(model:session())
  assert(s:feed(IDS))
  assert(s:save(place .. "/s"))
  local t <close> = assert(model:session())
  assert(t:restore(place .. "/s"))
  add(t.length .. "")
  assert(os.execute(("rm -r '%s'"):format(place)))
end

for _, name in ipairs(MODELS) do
  local path = "spec/fixtures/" .. name
  levels(path)
  replies(path)
end
written "spec/fixtures/gguf/llama-q8_0.gguf"

local tokenizer = assert(ane.load "spec/fixtures/gguf/llama-q8_0.gguf").tokenizer
add(table.concat(tokenizer:encode("Gr\u{fc}\u{df}e, \u{4f60}\u{597d} \xff 3.14"), " "))
print(core.sha256(table.concat(all)):sub(1, 16))
