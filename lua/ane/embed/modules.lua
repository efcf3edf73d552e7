--- Steps after a model's hidden states: pooling, dense layers, normalisation. They and the prompts come from
-- sentence-transformers' folders or from GGUF.
-- Needs ane.core, ane.embed.steps, ane.tokenizer.fields and ane.util.paths. Usage: `local modules = modules.read(bundle)`
--
-- modules.json of a sentence-transformers folder lists the modules: the model, Pooling, then Dense, LayerNorm, Dropout and Normalize
-- in any order and number. config_sentence_transformers.json has the prompts. GGUF has a pooling type and the weights of the dense
-- layers; llama.cpp normalises its embeddings. An encoder with neither uses mean pooling, as in sentence-transformers.

local core = require "ane.core"
local fields = require "ane.tokenizer.fields"
local paths = require "ane.util.paths"
local steps = require "ane.embed.steps"

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

-- Readers of modules. Each adds to the settings; `path` is the module's folder.
local MODULES = {}

function MODULES.Transformer(_, path, out_folder)
  if path ~= out_folder then fail("unsupported", "%s/modules.json: the model in '%s' is not beside it", out_folder, path) end
end

function MODULES.Dropout() end -- does nothing but in training

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
  local key = config.embedding_dimension and "embedding_dimension" or "word_embedding_dimension"
  local width = get(config, key, "natural", where, NONE)
  if width and out.width and width ~= out.width then
    fail("shape", "%s: %s is %d, the model's states have %d channels", where, key, width, out.width)
  end
  if not list[1] and (config.pooling_mode or config.pooling_mode_mean_tokens == false) then
    fail("unsupported", "%s: no pooling mode is chosen", where)
  end
  out.poolings = list[1] and list or { "mean" } -- a file without the flag has the mean
  out.include_prompt = get(config, "include_prompt", "boolean", where, true)
end

-- ---- After pooling ---------------------------------------------------------------------------------------------------------

local function add(out, step) out.steps[#out.steps + 1] = step end

function MODULES.Normalize(out) add(out, { kind = "normalise" }) end

-- A matrix or vector of a source as a tensor.
local function tensor_of(source, name)
  local info = source:tensor(name)
  if not info then return nil end
  local raw, message, code = source:read(name)
  if not raw then fail(code, "%s", message) end
  if not steps.is_finite(core.tensor({ #raw // 4 }, raw)) then
    fail("invalid", "%s: tensor %s has an element that is not finite", source:path(), name)
  end
  return core.tensor(info.shape, raw)
end

-- The config.json of a module, its path, and its weights, to be closed.
local function parts_of(path)
  local where = path .. "/config.json"
  local config = fields.read_json(where, where) or fail("notfound", "%s is missing", where)
  local source, message, code = core.open(path .. "/model.safetensors")
  if not source then fail(code, "%s", message) end
  return config, where, source
end

local function needed(source, name) return tensor_of(source, name) or fail("format", "%s: no tensor %s", source:path(), name) end

local function same_shape(tensor, shape, where, name)
  local got = tensor:shape()
  if #got ~= #shape or got[1] ~= shape[1] or got[2] ~= shape[2] then
    local what = "%s/model.safetensors: %s has the shape [%s], but must have [%s]"
    fail("shape", what, where, name, table.concat(got, ", "), table.concat(shape, ", "))
  end
  return tensor
end

-- Refuses a dense layer that takes the states of tokens, or whose result is not the embedding: other kinds of models have them.
local function check_names(config, where)
  for _, key in ipairs { "module_input_name", "module_output_name" } do
    local name = get(config, key, "string", where, "sentence_embedding")
    if name ~= "sentence_embedding" then fail("unsupported", "%s: %s is '%s', known is sentence_embedding", where, key, name) end
  end
end

-- Checks that the sizes in a module's configuration are those of its weights.
local function check_sizes(config, where, sizes)
  for key, size in pairs(sizes) do
    local said = config[key] == nil and size or fields.check(config[key], "natural", where .. "." .. key)
    if said ~= size then fail("shape", "%s: %s is %d, the weights have %d", where, key, said, size) end
  end
end

-- What is added to the result: nothing, the input, or a product with it.
local function residual_of(config, where, source, path, shape)
  if not get(config, "use_residual", "boolean", where, false) then return nil end
  if shape[1] == shape[2] then return true end
  return same_shape(needed(source, "residual.weight"), shape, path, "residual.weight")
end

function MODULES.Dense(out, path)
  local config, where, source <close> = parts_of(path)
  check_names(config, where)
  local name = get(config, "activation_function", "string", where, "torch.nn.modules.activation.Tanh")
  local act = steps.class_of(name)
  if steps.ACTIVATIONS[act] == nil then
    fail("unsupported", "%s: activation_function %s is not known; known are %s", where, name, steps.activation_names())
  end
  get(config, "bias", "boolean", where, true)
  local weight, bias = needed(source, "linear.weight"), tensor_of(source, "linear.bias")
  local shape = weight:shape()
  if #shape ~= 2 then fail("shape", "%s/model.safetensors: linear.weight is not a matrix", path) end
  check_sizes(config, where, { in_features = shape[2], out_features = shape[1] })
  if bias then same_shape(bias, { shape[1] }, path, "linear.bias") end
  local residual = residual_of(config, where, source, path, shape)
  local name_of_weight = path .. "/model.safetensors: linear.weight"
  add(out, { kind = "dense", weight = weight, bias = bias, act = act, residual = residual, where = name_of_weight })
end

function MODULES.LayerNorm(out, path)
  local config, where, source <close> = parts_of(path)
  local weight = needed(source, "norm.weight")
  check_sizes(config, where, { dimension = weight:shape()[1] })
  local bias = same_shape(needed(source, "norm.bias"), weight:shape(), path, "norm.bias")
  add(out, { kind = "norm", weight = weight, bias = bias, eps = 1e-5 }) -- torch.nn.LayerNorm
end

-- ---- Files -----------------------------------------------------------------------------------------------------------------

-- Reads prompts by name, the default prompt, the similarity function and the length of truncated vectors.
local function read_prompts(out, folder)
  local name = folder .. "/config_sentence_transformers.json"
  local config = fields.read_json(name, name)
  if not config then return end
  for key, text in pairs(get(config, "prompts", "object", name, {})) do
    if text ~= core.null then out.prompts[key] = fields.check(text, "string", name .. ": prompts." .. key) end
  end
  out.default_prompt = get(config, "default_prompt_name", "string", name, NONE)
  out.similarity = get(config, "similarity_fn_name", "string", name, NONE)
  out.truncate = get(config, "truncate_dim", "natural", name, NONE)
  if out.truncate == 0 then fail("format", "%s: truncate_dim is 0", name) end
end

--- The maximum tokens of a text in sentence-transformers: max_seq_length of sentence_bert_config.json; where it is missing, the
-- smaller of model_max_length of tokenizer_config.json and max_position_embeddings of config.json.
-- @param folder path
-- @return number; nil: no file says; raises failures of ane.tokenizer.fields
function M.length(folder)
  local function field(name, key, kind)
    local path = folder .. "/" .. name
    local config = fields.read_json(path, path)
    return config and get(config, key, kind, path, NONE)
  end
  local most = field("sentence_bert_config.json", "max_seq_length", "natural")
  if most then return most end
  local tokenizer = field("tokenizer_config.json", "model_max_length", "number") -- a float of 1e30 where there is no limit
  local positions = field("config.json", "max_position_embeddings", "number")
  most = math.min(tokenizer or math.huge, positions and positions > 0 and positions or math.huge)
  return most >= 1 and most < math.maxinteger and math.floor(most) or nil
end

-- modules.json is an array, but fields.read_json expects an object.
local function read_modules(folder)
  local path = folder .. "/modules.json"
  if core.path_kind(path) ~= "file" then return nil end
  local text, message, code = core.read_file(path)
  if not text then fail(code, "%s", message) end
  local list
  list, message, code = core.json_decode(text)
  if list == nil then fail(code, "%s: %s", path, message) end
  return fields.check(list, "array", path)
end

local function read_folder(out, folder)
  out.max_length = M.length(folder)
  read_prompts(out, folder)
  local list = read_modules(folder)
  if not list then return end
  for i, module in ipairs(list) do
    local where = ("%s/modules.json[%d]"):format(folder, i - 1)
    fields.check(module, "object", where)
    local name, path = get(module, "type", "string", where), get(module, "path", "string", where)
    if path ~= "" and not paths.is_inside(path) then fail("format", "%s: path '%s' leads out of the folder", where, path) end
    if paths.is_linked(folder, path) then fail("format", "%s: path '%s' is a symbolic link", where, path) end
    local read = MODULES[steps.class_of(name)] or fail("unsupported", "%s: module %s is not known", where, name)
    read(out, path == "" and folder or folder .. "/" .. path, folder)
  end
  local last = out.steps[#out.steps]
  if last and last.kind == "normalise" then out.normalise, out.steps[#out.steps] = true, nil end
end

local function read_gguf(out, type, source)
  out.poolings, out.normalise = { GGUF_POOLINGS[type or 0] or "mean" }, true
  for _, name in ipairs { "dense_2", "dense_3" } do
    local weight, bias, where = tensor_of(source, name .. ".weight"), tensor_of(source, name .. ".bias"), name .. ".weight"
    if weight then add(out, { kind = "dense", weight = weight, bias = bias, act = "Identity", where = where }) end
  end
end

-- Refuses a dense layer that does not take vectors of the width before it.
local function check_widths(out, width)
  for _, step in ipairs(out.steps) do
    if step.kind == "dense" then
      local rows, cols = table.unpack(step.weight:shape())
      if cols ~= width then fail("shape", "%s must have %d columns, but is [%d, %d]", step.where, width, rows, cols) end
      width = rows
    end
  end
end

--- The settings of a model's embeddings.
-- @param bundle of a loaded model
-- @return {poolings = list of names of session:pooled, include_prompt, steps = list of ane.embed.steps after pooling, normalise (whether
-- the last step scales to length 1), prompts = {name = text}, default_prompt (name), max_length (tokens), similarity (nil: cosine),
-- truncate (numbers of a vector that are kept, after all steps; nil: all), width (channels of the states; nil: not
-- known)}; or nil, message, code
function M.read(bundle)
  local cfg = bundle.config
  local out = { poolings = { "mean" }, include_prompt = true, steps = {}, normalise = false, prompts = {}, width = cfg.d_model }
  return fields.try(function()
    if cfg.format == "hf" and cfg.folder then read_folder(out, cfg.folder)
    elseif cfg.format == "gguf" then read_gguf(out, cfg.meta("pooling_type", "whole"), bundle.source)
    elseif cfg.pooling_type then read_gguf(out, cfg.pooling_type, bundle.source) end
    if cfg.d_model and not cfg.n_scores then check_widths(out, #out.poolings * cfg.d_model) end
    return out
  end)
end

--- What a GGUF file can hold of the settings of a sentence-transformers folder.
-- @param config of ane.model.config
-- @return pooling type (1 mean, 2 first token, 3 last token; nil: no type says it), list of what a file with this type lacks; nil, {}
-- where the folder has no modules.json; or nil, message, code
function M.for_gguf(config)
  if core.path_kind(config.folder .. "/modules.json") ~= "file" then return nil, {} end
  local out, message, code = M.read { config = config }
  if not out then return nil, message, code end
  local most
  most, message, code = fields.try(function() return M.length(config.folder) or math.huge end)
  if not most then return nil, message, code end
  local lacks, type = {}, nil
  for i, name in ipairs(GGUF_POOLINGS) do
    if #out.poolings == 1 and out.poolings[1] == name then type = i end
  end
  if not type then return nil, { "pooling " .. table.concat(out.poolings, ", ") } end
  if #out.steps > 0 then return nil, { ("%d layers after the pooling"):format(#out.steps) } end
  if next(out.prompts) then lacks[#lacks + 1] = "prompts" end
  if most < (config.context_length or math.huge) then lacks[#lacks + 1] = ("max_seq_length %d"):format(most) end
  if not out.include_prompt then lacks[#lacks + 1] = "include_prompt" end
  if out.truncate then lacks[#lacks + 1] = "truncate_dim" end
  if out.similarity and out.similarity ~= "cosine" then lacks[#lacks + 1] = "similarity_fn_name" end
  if not out.normalise then lacks[#lacks + 1] = "that vectors are not normalised" end
  return type, lacks
end

--- The steps of a classifier that follows the pooling, as cfg.classifier describes it (ane.recipe.head).
-- @param bundle of a loaded model
-- @return list of ane.embed.steps, which end with the scores; or nil, message, code
function M.classifier(bundle)
  local about, source, list = bundle.config.classifier, bundle.source, {}
  local function part(stem, kind, more)
    if not stem then return end
    local step = { kind = kind, weight = needed(source, stem .. ".weight"), bias = tensor_of(source, stem .. ".bias") }
    for key, value in pairs(more) do step[key] = value end
    list[#list + 1] = step
  end
  return fields.try(function()
    part(about.dense, "dense", { act = about.act or "tanh" })
    part(about.norm, "norm", { eps = bundle.config.norm_eps })
    part(about.output, "dense", {})
    return list
  end)
end

--- The dense layers, where all steps are layers that packages and assets compute: with the activation Identity or Tanh, without residual.
-- @param modules of read
-- @return list of {kind, weight, bias, act}; or nil, message, "unsupported"
function M.dense(modules)
  for _, step in ipairs(modules.steps) do
    if step.kind ~= "dense" then
      return nil, ("a step '%s' between pooling and result cannot be exported"):format(step.kind), "unsupported"
    end
    if step.residual then return nil, "a dense layer with use_residual cannot be exported", "unsupported" end
    if step.act ~= "Identity" and step.act ~= "Tanh" then
      return nil, ("a dense layer with the activation %s cannot be exported; Identity and Tanh can"):format(step.act), "unsupported"
    end
  end
  return modules.steps
end

return M
