--- Reads adapters in the layout of PEFT: a folder with adapter_config.json and adapter_model.safetensors.
-- Needs ane.core, ane.util.failure and ane.util.json_value. Format: huggingface.co/docs/peft, "Checkpoint format".
-- Usage: `local file = peft.read "folder"`

local core = require "ane.core"
local failure = require "ane.util.failure"
local shown = require("ane.util.json_value").shown

local raise, try = failure.raise, failure.try

local M = {}

-- Fields that change the computation and are not supported: any value but nil, null, false and empty lists is refused.
local REFUSED = {
  "layer_replication", "trainable_token_indices", "alora_invocation_tokens", "megatron_config", "velora_config",
  "monteclora_config", "arrow_config",
}
local KNOWN_USE = { use_dora = true, use_rslora = true }

local function is_set(v)
  return v ~= nil and v ~= core.null and v ~= false and not (type(v) == "table" and next(v) == nil)
end

-- peft.LoraConfig.bias
local BIASES = { none = true, all = true, lora_only = true }

local function check_config(path, config)
  if config.peft_type ~= "LORA" then
    raise("unsupported", "%s: peft_type must be LORA, but is %s", path, shown(config.peft_type))
  end
  for _, key in ipairs(REFUSED) do
    if is_set(config[key]) then raise("unsupported", "%s: %s is set, which is not supported", path, key) end
  end
  for key, value in pairs(config) do
    if key:find "^use_" and is_set(value) and not KNOWN_USE[key] then
      raise("unsupported", "%s: %s is set, which is not supported", path, key)
    end
  end
  for _, key in ipairs { "use_rslora", "use_dora", "fan_in_fan_out", "lora_bias" } do
    local v = config[key]
    if v ~= nil and v ~= core.null and type(v) ~= "boolean" then
      raise("format", "%s: %s must be true or false, but is %s", path, key, shown(v))
    end
  end
  if config.bias ~= nil and not BIASES[config.bias] then
    raise("format", "%s: bias must be none, all or lora_only, but is %s", path, shown(config.bias))
  end
  for _, key in ipairs { "rank_pattern", "alpha_pattern" } do
    local v = config[key]
    if v ~= nil and v ~= core.null and (type(v) ~= "table" or #v > 0) then
      raise("format", "%s: %s must be an object of modules and numbers, but is %s", path, key, shown(v))
    end
  end
  if math.type(config.r) ~= "integer" or config.r < 1 then
    raise("format", "%s: r must be a whole number, but is %s", path, shown(config.r))
  end
  if type(config.lora_alpha) ~= "number" then
    raise("format", "%s: lora_alpha must be a number, but is %s", path, shown(config.lora_alpha))
  end
end

-- A grammar of the modules that a key of a pattern table matches, as PEFT's get_pattern_key does: by the whole name, or by the part after
-- a dot. Matching by a grammar takes linear time whatever the key is; a Lua pattern could backtrack for very long.
local function grammar_of(path, key)
  local grammar, message, code = core.grammar("regex", "(.*\\.)?(" .. key .. ")$")
  if grammar then return grammar end
  if code == "memory" then raise(code, "%s: %s", path, message) end
  raise("unsupported", "%s: the pattern %q is a regular expression that is not supported: %s", path, key, message)
end

-- The Lua pattern of a key in which only "." has a meaning, any character; nil for other keys. Adapters with a rank of their own for each
-- module have hundreds of such keys, and a grammar takes milliseconds to make.
local function plain_of(key)
  return not key:find "[^%w_.-]" and "^" .. key:gsub("%-", "%%-") .. "$" or nil
end

-- The patterns of rank_pattern or alpha_pattern in the order of the file; the first match counts. The decoded table has no order,
-- so each key is looked up in the text.
local function patterns(path, text, config, field)
  local list, from = {}, text:find(('"%s"'):format(field), 1, true) or 1
  for key, value in pairs(type(config[field]) == "table" and config[field] or {}) do
    if type(value) ~= "number" then raise("format", "%s: %s[%q] is not a number", path, field, key) end
    local plain = plain_of(key)
    local at = text:find(core.json_encode(key), from, true) or 0
    list[#list + 1] = { at = at, key = key, value = value, plain = plain, grammar = not plain and grammar_of(path, key) or nil }
  end
  table.sort(list, function(a, b)
    if a.at ~= b.at then return a.at < b.at end
    return a.key < b.key
  end)
  return list
end

local DOT = ("."):byte()

-- Does a pattern match the name of a module?
local function matches(path, row, module)
  if row.plain then
    local before = #module - #row.key -- module names are ASCII: "." is a byte
    return (before == 0 or before > 0 and module:byte(before) == DOT) and module:find(row.plain, before + 1) ~= nil
  end
  local matcher <close>, message, code = row.grammar:matcher()
  if not matcher then raise(code, "%s: %s", path, message) end
  local taken
  taken, message, code = matcher:push(module)
  if taken == nil then raise(code, "%s: the pattern %q: %s", path, row.key, message) end
  return taken and matcher:accepts()
end

local function find(path, list, module, default)
  for _, row in ipairs(list) do
    if matches(path, row, module) then return row.value end
  end
  return default
end

-- Meaning of the ends of tensor names. Names of weights of the whole model come last.
local PARTS = {
  { ".lora_A.weight", "a" }, { ".lora_B.weight", "b" }, { ".lora_embedding_A", "a", true }, { ".lora_embedding_B", "b", true },
  { ".lora_magnitude_vector", "magnitude" }, { ".lora_magnitude_vector.weight", "magnitude" }, { ".lora_B.bias", "low_bias" },
  { ".base_layer.weight", "values" }, { ".base_layer.bias", "bias" }, { ".modules_to_save.weight", "values" },
  { ".modules_to_save.bias", "bias" }, { ".weight", "values" }, { ".bias", "bias" },
}

local function classify(name)
  local plain = name:match "^base_model%.model%.(.+)$"
  for _, row in ipairs(plain and PARTS or {}) do
    local ending, part, embedding = row[1], row[2], row[3]
    if plain:sub(-#ending) == ending then return plain:sub(1, -#ending - 1), part, embedding end
  end
end

-- Order of the parameters of one module that may both be targets. PEFT nests their adapters: the last is outermost.
local ORDER = { gate_up_proj = 1, up_proj = 1, down_proj = 2 }

-- The parameters of a module that target_parameters names, in the order of the class. Parameters but weight are those of experts.
local function parameters_of(path, config, module)
  local list, seen = {}, {}
  for _, target in ipairs(type(config.target_parameters) == "table" and config.target_parameters or {}) do
    local last = type(target) == "string" and target:match "([^.]+)$"
    local name = last and (last == "weight" or module:find "experts$") and module .. "." .. last
    if name and (name == target or name:sub(-#target - 1) == "." .. target) and not seen[last] then
      seen[last] = true
      list[#list + 1] = last
    end
  end
  for _, last in ipairs(#list > 1 and list or {}) do
    if not ORDER[last] then raise("unsupported", "%s: parameter %s of module %s is adapted beside others", path, last, module) end
  end
  table.sort(list, function(a, b) return (ORDER[a] or 0) < (ORDER[b] or 0) end)
  return list
end

-- The module of a product's tensor and the parameter that it changes: X.base_layer.lora_A belongs to the parameter before that of
-- X.lora_A. The parameter is nil if the module is not a target as a parameter.
local function target_of(path, config, module, name)
  local plain, depth = module, 0
  while plain:find "%.base_layer$" do plain, depth = plain:sub(1, -12), depth + 1 end
  local list = parameters_of(path, config, plain)
  if #list == 0 then return module end
  if depth >= #list then raise("format", "%s: tensor %s is for a parameter that target_parameters does not name", path, name) end
  return plain, list[#list - depth]
end

local function ends_with(module, name) return module == name or module:sub(-#name - 1) == "." .. name end

-- Is a module with a product among target_modules, if that is a list of names?
local function is_target(config, module)
  local list = config.target_modules
  if type(list) ~= "table" then return true end -- a regular expression, "all-linear", or none
  for _, name in ipairs(list) do
    if type(name) == "string" and ends_with(module, name) then return true end
  end
  return false
end

local function collect(path, source, config)
  local modules, order = {}, {}
  for _, t in ipairs(source:tensors()) do
    local module, part, embedding = classify(t.name)
    if not module then raise("format", "%s: tensor %s does not belong to a LoRA adapter", path, t.name) end
    local parameter
    if part == "a" or part == "b" then module, parameter = target_of(path, config, module, t.name) end
    local key = parameter and parameter ~= "weight" and module .. "." .. parameter or module
    local m = modules[key]
    if not m then
      m = { module = module, embedding = false }
      modules[key] = m
      order[#order + 1] = m
    end
    m.parameter = m.parameter or parameter
    if m[part] then raise("format", "%s: tensors %s and %s are the same part of one module", path, m[part].name, t.name) end
    m[part], m.embedding = t, m.embedding or embedding or false
    if (part == "a" or part == "b") and not parameter and not is_target(config, module) then
      raise("format", "%s: tensor %s is for module %s, which target_modules does not name", path, t.name, module)
    end
  end
  if #order == 0 then raise("format", "%s: holds no tensors", path) end
  return order
end

-- Sets rank and scale of a module with a product.
local function measure(path, m, config, ranks, alphas)
  if not m.a and not m.b then
    if m.magnitude or m.low_bias then
      raise("format", "%s: tensor %s has no lora_A and lora_B beside it", path, (m.magnitude or m.low_bias).name)
    end
    return
  end
  if not m.a or not m.b then
    local lacks = (m.embedding and "lora_embedding_" or "lora_") .. (m.a and "B" or "A")
    raise("format", "%s: tensor %s has no %s beside it", path, (m.a or m.b).name, lacks)
  end
  if #m.a.shape ~= 2 or #m.b.shape ~= 2 then raise("shape", "%s: tensors %s and %s are not matrices", path, m.a.name, m.b.name) end
  local key = m.parameter and m.module .. "." .. m.parameter or m.module
  local rank = find(path, ranks, key, config.r)
  if m.parameter and m.parameter ~= "weight" then m.experts = m.a.shape[1] // rank end
  local all = rank * (m.experts or 1)
  if m.a.shape[1] ~= all or m.b.shape[2] ~= all or all < 1 then
    raise("shape", "%s: tensors %s [%d, %d] and %s [%d, %d] are not of rank %d, which the configuration gives", path, m.a.name,
      m.a.shape[1], m.a.shape[2], m.b.name, m.b.shape[1], m.b.shape[2], rank)
  end
  local alpha = find(path, alphas, key, config.lora_alpha)
  m.rank, m.scale = rank, alpha / (config.use_rslora == true and math.sqrt(rank) or rank)
  m.rows, m.cols = m.b.shape[1], m.a.shape[2]
  if config.use_dora == true and not m.magnitude then
    raise("format", "%s: use_dora is set, and module %s has no lora_magnitude_vector", path, m.module)
  end
end

--- Finds an adapter of PEFT at a path.
-- @return the path of adapter_config.json, that of adapter_model.safetensors; nil: there is none
function M.find(path)
  local folder = path:match "^(.*)/adapter_model%.safetensors$" or path
  local config = folder .. "/adapter_config.json"
  if core.path_kind(config) == "file" then return config, folder .. "/adapter_model.safetensors" end
end

--- Reads the description of each module. Its tensors stay in the file until they are needed.
-- @param path folder
-- @return {path, source (open), modules = list of {module, rank, scale, rows, cols, a, b, embedding, magnitude, low_bias, bias,
-- values: tensors of the source; parameter (target_parameters names it), experts (their number in a parameter that stacks them: a
-- [experts * rank, cols], b [rows, rank * experts])}, naming = "hf", sha256}; raises failures
function M.read(path)
  local config_path, data_path = M.find(path)
  local text = try(core.read_file(config_path))
  local config, fault = core.json_decode(text)
  if type(config) ~= "table" then raise("format", "%s: %s", config_path, fault or "no object") end
  check_config(config_path, config)
  if core.path_kind(data_path) ~= "file" then raise("notfound", "%s: no adapter_model.safetensors beside it", config_path) end
  local source = try(core.open(data_path))
  local ok, result = pcall(function()
    local modules = collect(data_path, source, config)
    local ranks, alphas = patterns(config_path, text, config, "rank_pattern"), patterns(config_path, text, config, "alpha_pattern")
    for _, m in ipairs(modules) do measure(data_path, m, config, ranks, alphas) end
    local sha256 = core.sha256(text .. try(core.sha256_file(data_path)))
    return { path = path, source = source, modules = modules, naming = "hf", sha256 = sha256 }
  end)
  if ok then return result end
  source:close()
  error(result, 0)
end

return M
