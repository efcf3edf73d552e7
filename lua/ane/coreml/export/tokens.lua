--- The tokenizer of a model as files of a package set.
-- Needs ane.core and ane.tokenizer.from_gguf. Usage: `local files = tokens.write(bundle, folder, try)`

local core = require "ane.core"
local from_gguf = require "ane.tokenizer.from_gguf"

local M = {}

-- The files that ane.tokenizer reads in a folder. config.json is not among them, because the set has its own.
local FILES = {
  "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json",
  "chat_template.jinja", "chat_template.json", "vocab.json", "merges.txt", "sentence_bert_config.json",
}

local VOCABULARY, TEMPLATES = "tokenizer.gguf", "additional_chat_templates"

--- Returns whether this is the name of a file or folder that write may make.
function M.is_own(name)
  for _, own in ipairs(FILES) do
    if name == own then return true end
  end
  return name == VOCABULARY or name == TEMPLATES
end

-- Keys that a GGUF vocabulary needs.
local function is_vocabulary(key) return key:find "^tokenizer%." or key == "general.architecture" or key == "general.name" end

-- Writes a GGUF file without tensors: the vocabulary and the chat template of another file.
local function write_gguf(source, path, try)
  local writer <close> = try(core.gguf_writer(path, 1))
  local any = false
  for _, key in ipairs(source:keys()) do
    if is_vocabulary(key) then
      any = any or key:find "^tokenizer%." ~= nil
      try(writer:copy(source, key))
    end
  end
  if not any then return false end
  try(writer:begin())
  try(writer:commit())
  return true
end

local function copy_file(from, to, try)
  try(core.write_file(to, try(core.read_file(from))))
end

local function copy_templates(from, folder, names, try)
  local inner = TEMPLATES
  if core.path_kind(from .. "/" .. inner) ~= "folder" then return end
  try(folder:remove(inner))
  try(folder:make(inner))
  names[#names + 1] = inner
  for _, name in ipairs(try(core.list_dir(from .. "/" .. inner))) do
    if name:find "%.jinja$" then copy_file(from .. "/" .. inner .. "/" .. name, folder:path() .. "/" .. inner .. "/" .. name, try) end
  end
end

--- Writes them into the folder of the set.
-- @param try raises the core's errors
-- @return {names (in the folder), tokenizer (key of runtime_meta.json, or nil)}
function M.write(bundle, folder, try)
  local from = bundle.config.folder
  if not from then
    local wrote = write_gguf(bundle.source, folder:path() .. "/" .. VOCABULARY, try)
    return { names = wrote and { VOCABULARY } or {}, tokenizer = wrote and VOCABULARY or nil }
  end
  local names = {}
  for _, name in ipairs(FILES) do
    if core.path_kind(from .. "/" .. name) == "file" then
      copy_file(from .. "/" .. name, folder:path() .. "/" .. name, try)
      names[#names + 1] = name
    end
  end
  copy_templates(from, folder, names, try)
  return { names = names }
end

--- Adds tokenizer.json and tokenizer_config.json where the model is a GGUF file: other programs read no tokenizer.gguf.
-- @return names of the files; nil, or why the vocabulary has no such form
function M.write_json(bundle, folder, try)
  local names = {}
  if bundle.config.folder then return names end
  local files, why = from_gguf.files(bundle.source)
  for name, text in pairs(files or {}) do
    try(core.write_file(folder:path() .. "/" .. name, text))
    names[#names + 1] = name
  end
  return names, why
end

return M
