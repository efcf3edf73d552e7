--- The tokenizer of a folder in Hugging Face layout, with its special tokens and chat templates.
-- Needs ane.core, ane.tokenizer.fields, ane.tokenizer.json, ane.tokenizer.sentencepiece and ane.util.paths.
--
-- The pipeline is in tokenizer.json, or in tokenizer.model (SentencePiece) when there is no tokenizer.json. Special tokens are
-- in tokenizer_config.json, special_tokens_map.json and added_tokens.json. The ids that end a reply are in
-- generation_config.json or config.json. Chat templates are in tokenizer_config.json, chat_template.json,
-- chat_template.jinja and additional_chat_templates/*.jinja. sentence_bert_config.json says whether texts are lowercased first.
-- Usage: `local parts = folder.open("models/x")`

local core = require "ane.core"
local fields = require "ane.tokenizer.fields"
local json = require "ane.tokenizer.json"
local paths = require "ane.util.paths"
local sentencepiece = require "ane.tokenizer.sentencepiece"

local M = {}

local fail = fields.fail

local function exists(path) return core.path_kind(path) == "file" end

local function read(path)
  local text, message, code = core.read_file(path)
  if not text then fail(code, "%s", message) end
  return text
end

-- ---- Special tokens ------------------------------------------------------------------------------------------------

-- The text of a token given as a string or as an AddedToken object; nil for null.
local function token_text(value, path)
  if value == nil or value == core.null then return nil end
  if type(value) == "table" then return fields.get(value, "content", "string", path) end
  return fields.check(value, "string", path)
end

-- A function from a spelling to its id or nil, for use before the tokenizer exists.
local function finder(vocabulary, description)
  local added = {}
  for _, token in ipairs(description.added or {}) do added[token.content] = token.id end
  return function(text) return text and (added[text] or vocabulary:find(text)) or nil end
end

-- The ids of a member that is one id or a list of ids; nil when it is missing.
local function id_list(object, key, path)
  local value = object[key]
  if value == nil or value == core.null then return nil end
  if math.type(value) == "integer" then return { value } end
  fields.check(value, "array", path .. "." .. key)
  local out = {}
  for i, id in ipairs(value) do out[i] = fields.check(id, "integer", ("%s.%s[%d]"):format(path, key, i - 1)) end
  return out
end

-- The ids of bos, eos, unk and pad. tokenizer_config.json takes precedence over special_tokens_map.json.
local function special_ids(side, find)
  local ids = {}
  for _, name in ipairs { "bos", "eos", "unk", "pad" } do
    for _, file in ipairs { "tokenizer_config.json", "special_tokens_map.json" } do
      local object = side[file]
      if object and not ids[name] then ids[name] = find(token_text(object[name .. "_token"], ("%s: %s_token"):format(file, name))) end
    end
  end
  return ids
end

-- ---- Chat templates ------------------------------------------------------------------------------------------------

local function add_templates(out, value, path)
  if value == nil or value == core.null then return end
  if type(value) == "string" then
    out.default = value
    return
  end
  for i, entry in ipairs(fields.check(value, "array", path)) do
    local place = ("%s[%d]"):format(path, i - 1)
    fields.check(entry, "object", place)
    out[fields.get(entry, "name", "string", place)] = fields.get(entry, "template", "string", place)
  end
end

-- Templates by name. Later files override earlier files, as in transformers.
local function chat_templates(folder, side)
  local out = {}
  if side["tokenizer_config.json"] then
    add_templates(out, side["tokenizer_config.json"].chat_template, "tokenizer_config.json: chat_template")
  end
  local old = fields.read_json(folder .. "/chat_template.json", "chat_template.json")
  if old then add_templates(out, old.chat_template, "chat_template.json: chat_template") end
  if exists(folder .. "/chat_template.jinja") then out.default = read(folder .. "/chat_template.jinja") end
  local more = folder .. "/additional_chat_templates"
  if core.path_kind(more) == "folder" then
    for _, name in ipairs(core.list_dir(more) or {}) do
      local plain = name:match "^(.+)%.jinja$"
      if plain then out[plain] = read(more .. "/" .. name) end
    end
  end
  return out
end

-- ---- Pipelines -----------------------------------------------------------------------------------------------------

-- The added tokens of a SentencePiece model: {id: AddedToken} in tokenizer_config.json, {content: id} in added_tokens.json.
local function more_tokens(side)
  local out, seen = {}, {}
  local config, plain = side["tokenizer_config.json"], side["added_tokens.json"]
  for key, token in pairs(config and fields.get(config, "added_tokens_decoder", "object", "tokenizer_config.json", {}) or {}) do
    local path = "tokenizer_config.json: added_tokens_decoder." .. tostring(key)
    local id = math.tointeger(tonumber(key))
    if not id or id < 0 or id >= 0x7fffffff then fail("format", "%s: keys must be ids from 0 to 2^31 - 2", path) end
    fields.check(token, "object", path)
    local content = fields.get(token, "content", "string", path)
    seen[id] = true
    local special = fields.get(token, "special", "boolean", path, false)
    out[#out + 1] = { id = id, content = content, special = special, flags = json.added_flags(token, path) }
  end
  for content, id in pairs(plain or {}) do
    fields.check(id, "natural", "added_tokens.json: " .. content)
    if id >= 0x7fffffff then fail("format", "added_tokens.json: %s: must be an id from 0 to 2^31 - 2, but is %d", content, id) end
    if not seen[id] then out[#out + 1] = { id = id, content = content, special = false, flags = 0 } end
  end
  table.sort(out, function(a, b) return a.id < b.id end)
  return out
end

-- Sets d.head and d.tail, the tokens around a text. Returns whether to add them by default. tokenizer_config.json overrides the
-- post-processor (transformers, tokenization_utils_tokenizers.py). A SentencePiece model adds its begin token unless
-- tokenizer_config.json says otherwise.
local function default_ends(d, config, ids, plain)
  local add_bos = config and fields.get(config, "add_bos_token", "boolean", "tokenizer_config.json", fields.NONE)
  local add_eos = config and fields.get(config, "add_eos_token", "boolean", "tokenizer_config.json", fields.NONE)
  if add_bos == nil and add_eos == nil then
    add_bos, add_eos = plain and ids.bos ~= nil or #(d.head or {}) > 0, #(d.tail or {}) > 0
  else
    if add_bos then d.head = { ids.bos } end
    if add_eos then d.tail = { ids.eos } end
    if plain and add_bos == nil then add_bos = ids.bos ~= nil end
  end
  if #(d.head or {}) == 0 then d.head = { ids.bos } end
  if #(d.tail or {}) == 0 then d.tail = { ids.eos } end
  return (add_bos or false) and #d.head > 0, (add_eos or false) and #d.tail > 0
end

-- The classes of tokenizer_config.json that give a model no token types, unless model_input_names asks for them (transformers 5).
local UNTYPED = { PreTrainedTokenizerFast = true, TokenizersBackend = true }

-- Does the model read token types? model_input_names says so, else the class of the tokenizer.
local function reads_types(config)
  local path = "tokenizer_config.json"
  local inputs = config and fields.get(config, "model_input_names", "array", path, fields.NONE)
  for _, name in ipairs(inputs or {}) do
    if name == "token_type_ids" then return true end
  end
  if inputs then return false end
  return not UNTYPED[config and fields.get(config, "tokenizer_class", "string", path, "")]
end

-- The parts of a pair, all of type 0.
local function untyped(pair)
  local out = {}
  for i, part in ipairs(pair or {}) do out[i] = { id = part.id, text = part.text, type = 0 } end
  return pair and out
end

local SIDE = { "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json", "config.json" }

local function read_side(folder)
  local side = {}
  for _, name in ipairs(SIDE) do side[name] = fields.read_json(folder .. "/" .. name, name) end
  return side
end

-- The ids that end a reply: from generation_config.json, else from config.json, else from its text_config.
local function reply_ends(side)
  local generation, config = side["generation_config.json"], side["config.json"]
  local ids = generation and id_list(generation, "eos_token_id", "generation_config.json")
  if not ids and config then
    ids = id_list(config, "eos_token_id", "config.json")
    local text = config.text_config
    if not ids and type(text) == "table" then ids = id_list(text, "eos_token_id", "config.json: text_config") end
  end
  return ids or {}
end

-- The name of the file with the pipeline.
local function find_file(folder)
  for _, name in ipairs { "tokenizer.json", "tokenizer.model" } do
    if exists(folder .. "/" .. name) then return name end
  end
  fail("notfound", "the folder has neither tokenizer.json nor tokenizer.model")
end

-- do_lower_case of sentence-transformers: texts are lowercased before all other steps, unless a step does it.
local function add_lowercase(d, folder)
  local name = "sentence_bert_config.json"
  local config = fields.read_json(folder .. "/" .. name, name)
  if not config or not fields.get(config, "do_lower_case", "boolean", name, false) then return end
  for _, step in ipairs(d.normalisers or {}) do
    if step.kind == "lower" then return end
  end
  d.normalisers = d.normalisers or {}
  table.insert(d.normalisers, 1, { kind = "lower", place = name .. ": do_lower_case" })
end

-- Returns the vocabulary, the description, and for a SentencePiece model its fields. Error messages name the file.
local function pipeline(folder, name)
  local reader = name == "tokenizer.json" and json or sentencepiece
  local vocabulary, d, info = fields.try(reader.read, read(folder .. "/" .. name))
  if not vocabulary then fail(info, "%s: %s", name, d) end
  return vocabulary, d, info
end

local function open(folder)
  local name = find_file(folder)
  local vocabulary, d, info = pipeline(folder, name)
  local side = read_side(folder)
  if info then d.added = more_tokens(side) end
  add_lowercase(d, folder)
  local ids = special_ids(side, finder(vocabulary, d))
  for _, key in ipairs { "bos", "eos", "pad" } do ids[key] = ids[key] or info and info[key] end
  ids.unk = ids.unk or d.unk
  local head, tail = d.head or {}, d.tail or {} -- from the post-processor
  local add_bos, add_eos = default_ends(d, side["tokenizer_config.json"], ids, info ~= nil)
  local raw, message, code = core.tokenizer(vocabulary, d)
  if not raw then fail(code, "%s: %s", name, message) end
  return {
    raw = raw, bos = ids.bos, eos = ids.eos, unk = ids.unk, pad = ids.pad, add_bos = add_bos, add_eos = add_eos,
    head = #head > 0 and head or nil, tail = #tail > 0 and tail or nil,
    pair = reads_types(side["tokenizer_config.json"]) and d.pair or untyped(d.pair),
    ends = reply_ends(side), chat_templates = chat_templates(folder, side),
  }
end

--- Opens the tokenizer of a folder, or of the folder of a tokenizer.json or tokenizer.model.
-- @return {raw (core tokenizer), bos, eos, unk, pad (ids or nil), add_bos, add_eos, ends (ids that end a reply), head, tail, pair (of the
-- post-processor, or nil), chat_templates (texts by name)}; or nil, message, code: "notfound" when there is no tokenizer
function M.open(path)
  local folder = path
  if core.path_kind(path) == "file" then folder = paths.folder_of(path) end
  local result, message, code = fields.try(open, folder)
  if not result then return nil, ("%s: %s"):format(folder, message), code end
  return result
end

return M
