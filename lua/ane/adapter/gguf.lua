--- Reads adapters in GGUF, as llama.cpp's convert_lora_to_gguf.py writes them: X.lora_a and X.lora_b for each tensor X of the base.
-- Needs ane.core and ane.util.failure. Usage: `local file = gguf.read "adapter.gguf"`

local core = require "ane.core"
local failure = require "ane.util.failure"

local raise, try = failure.raise, failure.try

local M = {}

local function check_meta(path, source)
  local kind, sort = source:meta "general.type", source:meta "adapter.type"
  if kind ~= "adapter" then raise("format", "%s: general.type must be adapter, but is %s", path, tostring(kind)) end
  if sort ~= "lora" then raise("unsupported", "%s: adapter.type must be lora, but is %s", path, tostring(sort)) end
  if source:meta "adapter.alora.invocation_tokens" then
    raise("unsupported", "%s: adapter.alora.invocation_tokens is set, which is not supported", path)
  end
end

local function collect(path, source)
  local modules, order = {}, {}
  for _, t in ipairs(source:tensors()) do
    local base, part = t.name:match "^(.+)%.lora_([ab])$"
    local module = base and base:match "^(.+)%.weight$"
    if not module then raise("format", "%s: tensor %s does not belong to a LoRA adapter", path, t.name) end
    if #t.shape == 3 and base:find "_exps" then
      raise("unsupported", "%s: tensor %s is for stacked experts, whose adapters are read from PEFT folders only", path, t.name)
    end
    if #t.shape ~= 2 then raise("shape", "%s: tensor %s is not a matrix", path, t.name) end
    if not modules[module] then
      modules[module] = { module = module, embedding = module == "token_embd" }
      order[#order + 1] = modules[module]
    end
    modules[module][part] = t
  end
  return order
end

-- Sets rank and scale. The A of the embedding is stored [ids, rank], as a table of rows.
local function measure(path, m, alpha)
  if not m.a or not m.b then raise("format", "%s: tensor %s has no %s beside it", path, (m.a or m.b).name, m.a and "lora_b" or "lora_a") end
  local a, b = m.a.shape, m.b.shape
  local rank, cols = a[1], a[2]
  if m.embedding then rank, cols = a[2], a[1] end
  if b[2] ~= rank then
    raise("shape", "%s: tensors %s [%d, %d] and %s [%d, %d] must have the same rank", path, m.a.name, a[1], a[2], m.b.name, b[1], b[2])
  end
  m.rank, m.rows, m.cols, m.by_rows = rank, b[1], cols, m.embedding
  m.scale = alpha and alpha ~= 0 and alpha / rank or 1 -- as in llama.cpp, only the user's scale applies if alpha is 0
end

--- Reads what an adapter says of each tensor.
-- @param path of the file
-- @return as ane.adapter.peft.read, naming = "gguf", architecture; raises failures
function M.read(path)
  local source = try(core.open(path))
  local ok, result = pcall(function()
    if source:format() ~= "gguf" then raise("format", "%s: must be a PEFT folder or a GGUF file, but is neither", path) end
    check_meta(path, source)
    local alpha, modules = source:meta "adapter.lora.alpha", collect(path, source)
    for _, m in ipairs(modules) do measure(path, m, alpha) end
    return {
      path = path, source = source, modules = modules, naming = "gguf", architecture = source:meta "general.architecture",
      sha256 = try(core.sha256_file(path)),
    }
  end)
  if ok then return result end
  source:close()
  error(result, 0)
end

return M
