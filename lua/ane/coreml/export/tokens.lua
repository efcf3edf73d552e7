--- The tokenizer of a model as files of a package set.
-- Needs ane.core. Usage: `local files = tokens.write(bundle, folder, try)`

local core = require "ane.core"

local M = {}

-- What ane.tokenizer reads in a folder; config.json is not among them: the set has its own.
local FILES = {
  "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json",
  "chat_template.jinja", "chat_template.json", "vocab.json", "merges.txt",
}

local VOCABULARY, TEMPLATES = "tokenizer.gguf", "additional_chat_templates"

--- Is this a name that write may give a file or folder?
function M.is_own(name)
  for _, own in ipairs(FILES) do
    if name == own then return true end
  end
  return name == VOCABULARY or name == TEMPLATES
end

-- Keys that a vocabulary in GGUF needs.
local function is_vocabulary(key) return key:find "^tokenizer%." or key == "general.architecture" or key == "general.name" end

-- A GGUF file without tensors: the vocabulary and the chat template of another one.
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
-- @param try raises what the core reports
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

return M
