--- ONNX bundles: a folder with genai_config.json (ONNX Runtime GenAI), a folder with a model.onnx, or a single file.
-- Needs ane.core, ane.model.config.ceilings, ane.model.loader, ane.util.failure, ane.util.units, ane.onnx.rebuild and ane.tokenizer. If a
-- recipe computes exactly what the graph does, the model runs by that recipe. Otherwise the graph itself runs, op by op. What no
-- configuration states is read from the graph's inputs.
-- Usage: `local bundle = assert(require("ane.onnx").load(source, path, opts))`

local ceilings = require "ane.model.config.ceilings"
local core = require "ane.core"
local failure = require "ane.util.failure"
local units = require "ane.util.units"

local M = {}

local refuse = failure.raise -- caught by load

-- ---- Configuration --------------------------------------------------------------------------------------------------

local function read_json(path)
  local text = core.read_file(path)
  if not text then return nil end
  local value, message = core.json_decode(text)
  if type(value) ~= "table" then refuse("format", "%s: %s", path, message or "holds no object") end
  return value
end

local function table_or_empty(v) return type(v) == "table" and v or {} end

-- The value v if it is an integer from `least` to the ceiling of the key `what` in config.json; else nil.
local function whole(v, least, what)
  local n = type(v) == "number" and math.tointeger(v)
  return n and n >= least and n <= ceilings.of(what) and n or nil
end

-- The first of two values that is an integer of at least 1 and at most the ceiling; nil if none is.
local function count(what, first, second) return whole(first, 1, what) or whole(second, 1, what) end

local function text(v) return type(v) == "string" and v or nil end

local function id_list(v)
  local out = {}
  for _, id in ipairs(type(v) == "table" and v or { v }) do
    out[#out + 1] = whole(id, 0, "vocab_size")
  end
  return out
end

-- The folder of the tokenizer: the model's, or its parent, as for models in a folder onnx/.
local function tokenizer_folder(folder)
  for _, at in ipairs { folder, folder .. "../" } do
    for _, name in ipairs { "tokenizer.json", "tokenizer.model" } do
      if core.path_kind(at .. name) == "file" then return at end
    end
  end
  return folder
end

-- One configuration for all kinds of files. Keys are those of ane.model.config where they mean the same. All of it is a hint:
-- shapes, rope, windows and norms come from the graph.
local function read_config(folder)
  local genai = read_json(folder .. "genai_config.json")
  local model = table_or_empty(genai and genai.model)
  local decoder = table_or_empty(model.decoder)
  local hf = genai and {} or table_or_empty(read_json(folder .. "config.json") or read_json(folder .. "../config.json"))
  local ends = genai and {} or table_or_empty(read_json(folder .. "generation_config.json") or
    read_json(folder .. "../generation_config.json"))
  local cfg = {
    architecture = text(model.type) or text(hf.model_type) or "onnx",
    context_length = count("max_position_embeddings", model.context_length, hf.max_position_embeddings),
    vocab_size = count("vocab_size", model.vocab_size, hf.vocab_size),
    n_layer = count("num_hidden_layers", decoder.num_hidden_layers, hf.num_hidden_layers),
    n_head = count("num_attention_heads", decoder.num_attention_heads, hf.num_attention_heads),
    d_model = count("hidden_size", decoder.hidden_size, hf.hidden_size),
    bos_id = whole(model.bos_token_id, 0, "vocab_size") or whole(hf.bos_token_id, 0, "vocab_size"),
    eos_ids = id_list(model.eos_token_id or ends.eos_token_id or hf.eos_token_id), folder = tokenizer_folder(folder),
  }
  cfg.n_head_kv = count("num_key_value_heads", decoder.num_key_value_heads, hf.num_key_value_heads) or cfg.n_head
  cfg.head_dim = count("head_dim", decoder.head_size, hf.head_dim) or (cfg.d_model and cfg.n_head and cfg.d_model // cfg.n_head)
  return cfg, decoder
end

-- ---- Roles of inputs and outputs ------------------------------------------------------------------------------------

--- Usual names of caches, for graphs whose configuration names none; %d is the layer.
local CACHES = {
  { past = "past_key_values.%d.key", present = "present.%d.key" },
  { past = "past_key_values.%d.value", present = "present.%d.value" },
  { past = "past.%d.conv", present = "present.%d.conv" },
  { past = "past_conv.%d", present = "present_conv.%d" },
  { past = "past_%d.key", present = "present_%d.key" },
  { past = "past_%d.value", present = "present_%d.value" },
}

-- {input template, output template} pairs of a configuration: "past_X_names" goes with "present_X_names".
local function cache_names(decoder)
  local inputs, outputs, list = table_or_empty(decoder.inputs), table_or_empty(decoder.outputs), {}
  for key, past in pairs(inputs) do
    local kind = type(key) == "string" and key:match "^past_(.+)_names$"
    local present = kind and outputs["present_" .. kind .. "_names"]
    if text(past) and text(present) then list[#list + 1] = { past = past, present = present } end
  end
  table.sort(list, function(a, b) return a.past < b.past end)
  for _, pair in ipairs(CACHES) do list[#list + 1] = pair end
  return list
end

-- The layer number in a name that matches a template with one %d; nil if it does not match. The comparison is plain, without
-- patterns, because names and templates come from files.
local function layer_of(template, name)
  local at = template:find("%d", 1, true)
  if not at or template:find("%d", at + 2, true) then return nil end
  local head, tail = template:sub(1, at - 1), template:sub(at + 2)
  if #name <= #head + #tail or name:sub(1, #head) ~= head or (tail ~= "" and name:sub(-#tail) ~= tail) then return nil end
  return name:sub(#head + 1, #name - #tail):match "^%d+$"
end

local function fill(template, layer)
  local at = template:find("%d", 1, true)
  return at and template:sub(1, at - 1) .. layer .. template:sub(at + 2)
end

-- The caches of a graph: every input that matches a template, with the output of the same layer. `rows` is the number of tokens that a
-- cache of a sliding window holds, and 0 for a cache that grows.
local function find_caches(inputs, outputs, decoder)
  local given, used, states = {}, {}, {}
  for _, io in ipairs(outputs) do given[io.name] = true end
  local sliding = table_or_empty(decoder.sliding_window)
  local slides = {}
  for _, layer in ipairs(table_or_empty(sliding.layers)) do slides[tostring(layer)] = true end
  local rows = (whole(sliding.window_size, 1, "rows") or 0) + (whole(sliding.cache_slack, 0, "rows") or 0)
  for _, pair in ipairs(cache_names(decoder)) do
    for _, io in ipairs(inputs) do
      local layer = not used[io.name] and layer_of(pair.past, io.name)
      local present = layer and fill(pair.present, layer)
      if present and given[present] then
        used[io.name] = true
        states[#states + 1] = { past = io.name, present = present, rows = slides[layer] and rows or 0 }
      end
    end
  end
  return states
end

-- The name of an input or output: the configured one, else the first usual one that the graph has; nil if it has none of them.
-- @param list inputs or outputs of the graph
-- @param ... usual names
local function role(list, configured, ...)
  for _, name in ipairs { text(configured) or ..., ... } do
    for _, io in ipairs(list) do
      if io.name == name then return name end
    end
  end
end

local function find_roles(source, path, decoder)
  local inputs, outputs = core.onnx_io(source)
  local from, to = table_or_empty(decoder.inputs), table_or_empty(decoder.outputs)
  local roles = {
    ids = role(inputs, from.input_ids, "input_ids"), mask = role(inputs, from.attention_mask, "attention_mask"),
    positions = role(inputs, from.position_ids, "position_ids"),
    past_length = role(inputs, from.past_sequence_length, "past_sequence_length"),
    total_length = role(inputs, from.total_sequence_length or from.current_sequence_length, "total_sequence_length"),
    logits = role(outputs, to.logits, "logits"), states = find_caches(inputs, outputs, decoder),
  }
  if not roles.ids then refuse("unsupported", "%s: the graph has no input input_ids: it is not a model that runs on token ids", path) end
  if not roles.logits then refuse("unsupported", "%s: the graph has no output logits", path) end
  for _, io in ipairs(outputs) do
    if io.name == roles.logits then roles.vocab = math.tointeger(io.shape and io.shape[#io.shape]) end
  end
  return roles
end

-- ---- Loading --------------------------------------------------------------------------------------------------------

-- The default context in tokens: the least of the model's own, 4096, and what fits in the memory of runs (at least 64). A run holds the
-- cache twice in float32: before its tokens and after them.
local function default_context(cfg, run_memory)
  local bytes_per_token = 2 * (2 * 4) * (cfg.n_layer or 0) * (cfg.n_head_kv or 0) * (cfg.head_dim or 0) -- twice keys and values
  local most = run_memory or core.memory().available // 2
  local fits = most > 0 and bytes_per_token > 0 and most // bytes_per_token or 4096
  return math.min(cfg.context_length or 4096, 4096, math.max(fits, 64))
end

-- Tokens of one run, from 16 to 256, so that their logits (float32) take at most 64 MiB if there are more than 16; 16 if the vocabulary is
-- unknown.
local function chunk_of(roles) return roles.vocab and math.max(16, math.min(256, (1 << 24) // roles.vocab)) or 16 end

-- Refuses options that the graph engine does not support: it keeps weights as stored and computes in float32.
local function check_options(path, opts)
  if opts.mixed then refuse("unsupported", "%s: option mixed: the graph engine runs weights as the file stores them", path) end
  if opts.weights and opts.weights ~= "file" then
    refuse("unsupported", "%s: option weights is %s: the graph engine runs weights as the file stores them", path, opts.weights)
  end
end

-- @return the tokenizer; or nil and why the model has none. A damaged tokenizer raises.
local function find_tokenizer(folder)
  local tokenizer, message, code = failure.border(folder, require("ane.tokenizer").new, folder)
  if tokenizer then return tokenizer end
  if code == "notfound" or code == "unsupported" then return nil, message end
  refuse(code, "%s", message)
end

-- Builds the model by a recipe.
-- @return bundle; or nil and why no recipe covers the graph
local function by_recipe(source, path, opts, cfg, roles, given)
  local found, reason = require("ane.onnx.rebuild").find(source, roles, cfg, given)
  if not found then return nil, reason end
  local bundle, message, code = require("ane.model.loader").complete(path, found.recipe, found.config, found.source, opts)
  if not bundle then refuse(code, "%s", message) end
  bundle.engine = "recipe"
  return bundle
end

local function by_graph(source, path, opts, cfg, roles)
  check_options(path, opts)
  local run_memory = units.read_bytes(opts.run_memory)
  local tokenizer, tokenizer_error = find_tokenizer(cfg.folder)
  if tokenizer and #cfg.eos_ids > 0 then tokenizer.eos_ids = cfg.eos_ids end
  local context = opts.context or default_context(cfg, run_memory)
  local progress = opts.progress
  local program, message, code = core.graph_program(source, {
    isa = opts.isa, threads = opts.threads, progress = progress and function(done, total) progress("load", done, total) end,
    ids = roles.ids, mask = roles.mask, positions = roles.positions, past_length = roles.past_length,
    total_length = roles.total_length, logits = roles.logits, states = roles.states, kv_heads = cfg.n_head_kv, head_size = cfg.head_dim,
    context = context, chunk = chunk_of(roles), run_memory = run_memory,
  })
  if not program then refuse(code, "%s", message) end
  program = require("ane.onnx.session").program(program)
  opts.kv, opts.activations = "fp32", "fp32" -- this engine has no other, so info reports these
  return {
    program = program, source = source, config = cfg, tokenizer = tokenizer, tokenizer_error = tokenizer_error,
    eos_ids = #cfg.eos_ids > 0 and cfg.eos_ids or tokenizer and tokenizer.eos_ids or {}, architecture = cfg.architecture, engine = "graph",
    bytes = source:bytes(), context = context,
  }
end

-- The configuration beside the graph, and the roles of its inputs and outputs.
local function read(source)
  local found = failure.try(failure.border(source:path(), function()
    local cfg, decoder = read_config(source:path():match "^(.*/)" or "./")
    return { config = cfg, roles = find_roles(source, source:path(), decoder) }
  end))
  return found.config, found.roles
end

local function load(source, path, opts)
  local cfg, roles = read(source)
  local reason
  if opts.engine ~= "graph" then
    local given, message, code
    if opts.recipe then
      given, message, code = require("ane.model.loader").find_recipe(cfg.architecture, opts.recipe)
      if not given then refuse(code, "%s: %s", path, message) end
    end
    local made
    made, reason = by_recipe(source, path, opts, cfg, roles, given)
    if made then return made end
    if opts.engine == "recipe" or given then
      refuse("unsupported", "%s: engine recipe: no recipe computes this graph: %s; engine = \"graph\" runs the graph itself", path, reason)
    end
  elseif opts.recipe then
    refuse("invalid", "%s: option recipe has no meaning with engine = \"graph\"", path)
  end
  local bundle = by_graph(source, path, opts, cfg, roles)
  bundle.engine_reason = reason and "no recipe computes this graph: " .. reason or "asked for"
  return bundle
end

--- Makes a model of an open ONNX source.
-- @param source of core.open
-- @param path as the user gave it, for messages
-- @param opts as ane.model.loader's; engine ("recipe", "graph"; nil: recipe where one matches). With the graph engine weights must be
-- "file", and kv and activations become "fp32", which is what runs
-- @return bundle as of ane.model.loader, with engine and, for "graph", engine_reason; or nil, message, code
function M.load(source, path, opts)
  return failure.catch(load, source, path, opts)
end

return M
