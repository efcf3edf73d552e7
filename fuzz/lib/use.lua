--- What is done with a model that loads: its information, a run of two tokens, and for some inputs also quantise and export.
-- Usage: `use.model(path, data)`

local ane = require "ane"
local promise = require "lib.promise"
local scratch = require "lib.scratch"

local M = {}

M.OPTIONS = { threads = 1, context = 16 }

--- What graphs that run op by op may hold: less than the memory that a fuzz target may have (fuzz/run).
M.RUN_MEMORY = 64 << 20

-- A number below n that depends on the input. It chooses the slow uses of the input.
local function share(data, n)
  local sum = #data
  for i = 1, #data, 1 + #data // 64 do sum = sum * 31 + data:byte(i) & 0xFFFFFF end
  return sum % n
end

-- The uses of models that write no text. A model has one of them and refuses the others.
local function read(model, ids)
  promise.keep("classify", model:classify(ids))
  promise.keep("embed", model:embed(ids))
  promise.keep("rerank", model:rerank(nil, { ids }))
end

local function run(model)
  local ids = model.vocab > 2 and { 1, 2 } or { 0 }
  local result = promise.keep("generate", model:generate(ids, { max_tokens = 2, ignore_eos = true, details = true }))
  if not result then return read(model, ids) end
  local session = promise.keep("session", model:session())
  if not session then return end
  if promise.keep("feed", session:feed(ids, { want = "all" })) then
    session:argmax()
    session:rewind(1)
  end
  session:close()
end

local function speak(model)
  local tokenizer = model.tokenizer
  if not tokenizer then return end
  local ids = promise.keep("encode", tokenizer:encode("Hello, wörld 12\n"))
  if ids then promise.keep("decode", tokenizer:decode(ids)) end
end

local function convert(model, data)
  local kind = share(data, 8)
  if kind == 0 then promise.keep("quantise", model:quantise(scratch.path .. "/q.gguf", { weights = "q4_0", threads = 1 }))
  elseif kind == 1 then promise.keep("quantise", model:quantise(scratch.path .. "/q.gguf", { weights = "q4_k", threads = 1 }))
  elseif kind == 2 then
    promise.keep("export", model:export(scratch.path .. "/set", { weights = "int8", context = 16, max_t = 2, threads = 1 }))
  elseif kind == 3 then promise.keep("plan", model:plan { weights = "lut4", context = 16 })
  end
  scratch.remove "q.gguf"
  scratch.remove "set"
end

local function options_with(more)
  local options = {}
  for key, value in pairs(M.OPTIONS) do options[key] = value end
  for key, value in pairs(more or {}) do options[key] = value end
  return options
end

--- Loads and uses a model.
-- @param data the input, which chooses the slow uses
-- @param more options of load
-- @return whether it loaded
function M.model(path, data, more)
  local options = options_with(more)
  if share(data, 3) == 0 then options.activations = "fp32" end
  if share(data, 2) == 0 then options.isa = "ref" end
  local model = promise.keep("load", ane.load(path, options))
  if not model then return false end
  model:info()
  model:weights_report()
  run(model)
  speak(model)
  convert(model, data)
  model:close()
  return true
end

--- Loads and runs a set of packages.
function M.set(path)
  local model = promise.keep("load", ane.load(path, options_with { run_memory = M.RUN_MEMORY }))
  if not model then return end
  model:info()
  run(model)
  model:close()
end

--- Walks the tensors of a file: names, shapes, and the numbers of the small ones.
function M.tensors(path)
  local source = promise.keep("open", require "ane.core".open(path))
  if not source then return end
  for _, key in ipairs(source:keys()) do source:meta(key) end
  for i, tensor in ipairs(source:tensors()) do
    if i > 64 then break end
    local count = 1.0
    for _, d in ipairs(tensor.shape) do count = count * d end
    if count <= 65536 then promise.keep("read", source:read(tensor.name)) end
  end
  source:close()
end

return M
