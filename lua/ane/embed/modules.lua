--- Steps after a model's hidden states: pooling, dense layers, normalisation. They and the prompts come from
-- sentence-transformers' folders or from GGUF.
-- Needs ane.core and ane.tokenizer.fields. Usage: `local modules = modules.read(bundle)`
--
-- modules.json of a sentence-transformers folder lists the modules: the model, Pooling, any number of Dense, Normalize, in this
-- order. config_sentence_transformers.json has the prompts. GGUF has a pooling type and the weights of the dense layers;
-- llama.cpp normalises its embeddings. An encoder with neither uses mean pooling, as in sentence-transformers.

local core = require "ane.core"
local fields = require "ane.tokenizer.fields"

local M = {}

local get, fail, NONE = fields.get, fields.fail, fields.NONE

-- Names of sentence-transformers' pooling modes -> those of session:pooled.
local POOLINGS = {
  cls = "cls", lasttoken = "last", mean = "mean", max = "max", mean_sqrt_len_tokens = "mean_sqrt", weightedmean = "weighted_mean",
}
-- The flags of older files, in the order in which their vectors are concatenated.
local FLAGS = {
  { "pooling_mode_cls_token", "cls" }, { "pooling_mode_max_tokens", "max" }, { "pooling_mode_mean_tokens", "mean" },
  { "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt" }, { "pooling_mode_weightedmean_tokens", "weighted_mean" },
  { "pooling_mode_lasttoken", "last" },
}
-- llama.cpp's pooling types.
local GGUF_POOLINGS = { "mean", "cls", "last" }

local ACTIVATIONS = { Identity = "identity", Tanh = "tanh" }

-- Readers of modules. Each adds to the settings; `path` is the module's folder.
local MODULES = {}

function MODULES.Transformer() end

-- ---- Pooling ---------------------------------------------------------------------------------------------------------------

local function named_poolings(config, where)
  local mode = config.pooling_mode
  local list = {}
  for _, name in ipairs(type(mode) == "table" and mode or { mode }) do
    list[#list + 1] = POOLINGS[name] or fail("unsupported", "%s: pooling_mode '%s' is not known", where, tostring(name))
  end
  return list
end

function MODULES.Pooling(out, path)
  local where = path .. "/config.json"
  local config = fields.read_json(where, where) or fail("notfound", "%s is missing", where)
  local list = config.pooling_mode and named_poolings(config, where) or {}
  for _, flag in ipairs(config.pooling_mode and {} or FLAGS) do
    if get(config, flag[1], "boolean", where, false) then list[#list + 1] = flag[2] end
  end
  out.poolings = list[1] and list or { "mean" }
  out.include_prompt = get(config, "include_prompt", "boolean", where, true)
end

-- ---- After pooling ---------------------------------------------------------------------------------------------------------

function MODULES.Normalize(out) out.normalise = true end

-- A matrix or vector of a source as a tensor.
local function tensor_of(source, name)
  local info = source:tensor(name)
  if not info then return nil end
  local raw, message, code = source:read(name)
  if not raw then fail(code, "%s", message) end
  return core.tensor(info.shape, raw)
end

function MODULES.Dense(out, path)
  local where = path .. "/config.json"
  local config = fields.read_json(where, where) or fail("notfound", "%s is missing", where)
  local name = get(config, "activation_function", "string", where, "torch.nn.modules.activation.Tanh")
  local act = ACTIVATIONS[name:match "[^.]*$"] or fail("unsupported", "%s: activation_function %s is not known", where, name)
  local source <close>, message, code = core.open(path .. "/model.safetensors")
  if not source then fail(code, "%s", message) end
  local weight = tensor_of(source, "linear.weight") or fail("format", "%s/model.safetensors: no tensor linear.weight", path)
  out.dense[#out.dense + 1] = { weight = weight, bias = tensor_of(source, "linear.bias"), act = act }
end

-- ---- Files -----------------------------------------------------------------------------------------------------------------

-- Reads prompts by name, the default prompt and the similarity function.
local function read_prompts(out, folder)
  local name = "config_sentence_transformers.json"
  local config = fields.read_json(folder .. "/" .. name, name)
  if not config then return end
  for key, text in pairs(get(config, "prompts", "object", name, {})) do
    if text ~= core.null then out.prompts[key] = fields.check(text, "string", name .. ": prompts." .. key) end
  end
  out.default_prompt = get(config, "default_prompt_name", "string", name, NONE)
  out.similarity = get(config, "similarity_fn_name", "string", name, NONE)
end

local function read_length(out, folder)
  local name = "sentence_bert_config.json"
  local config = fields.read_json(folder .. "/" .. name, name)
  out.max_length = config and get(config, "max_seq_length", "natural", name, NONE)
end

-- modules.json is an array, but fields.read_json expects an object.
local function read_modules(folder)
  local path = folder .. "/modules.json"
  if core.path_kind(path) ~= "file" then return nil end
  local text, message, code = core.read_file(path)
  if not text then fail(code, "%s", message) end
  local list
  list, message, code = core.json_decode(text)
  if list == nil then fail(code, "modules.json: %s", message) end
  return fields.check(list, "array", "modules.json")
end

local function read_folder(out, folder)
  read_length(out, folder)
  read_prompts(out, folder)
  local list = read_modules(folder)
  if not list then return end
  for i, module in ipairs(list) do
    local where = ("modules.json[%d]"):format(i - 1)
    fields.check(module, "object", where)
    local name, path = get(module, "type", "string", where), get(module, "path", "string", where)
    if path:find("..", 1, true) or path:find "^/" then fail("format", "%s: path '%s' leads out of the folder", where, path) end
    local read = MODULES[name:match "[^.]*$"] or fail("unsupported", "%s: module %s is not known", where, name)
    read(out, path == "" and folder or folder .. "/" .. path)
  end
end

local function read_gguf(out, cfg, source)
  local pooling = GGUF_POOLINGS[cfg.meta("pooling_type", "whole") or 0]
  out.poolings, out.normalise = { pooling or "mean" }, true
  for _, name in ipairs { "dense_2", "dense_3" } do
    local weight = tensor_of(source, name .. ".weight")
    if weight then out.dense[#out.dense + 1] = { weight = weight, bias = tensor_of(source, name .. ".bias"), act = "identity" } end
  end
end

--- The settings of a model's embeddings.
-- @param bundle of a loaded model
-- @return {poolings = list of names of session:pooled, include_prompt, dense = list of {weight, bias, act}, normalise, prompts = {name =
-- text}, default_prompt (name), max_length (tokens), similarity (nil: cosine)}; or nil, message, code
function M.read(bundle)
  local cfg = bundle.config
  local out = { poolings = { "mean" }, include_prompt = true, dense = {}, normalise = false, prompts = {} }
  return fields.try(function()
    if cfg.format == "hf" and cfg.folder then read_folder(out, cfg.folder)
    elseif cfg.format == "gguf" then read_gguf(out, cfg, bundle.source) end
    return out
  end)
end

return M
