--- Which files of a repository make a model. Needs ane.util.keys.
-- Usage: `local names, main = choose.files(list, "Q4_K_M")`

local sorted = require "ane.util.keys"

local M = {}

-- "NAME-00001-of-00003.gguf": the name without its number, the number and the count; else nil.
local function part_of(name)
  local base, i, n = name:match "^(.*)%-(%d%d%d%d%d)%-of%-(%d%d%d%d%d)%.gguf$"
  if base then return base, tonumber(i), tonumber(n) end
end

-- GGUF models of a list of names, as main file -> list of all its files, without projectors and importance files. The second result is a
-- message about a missing part if a split model is incomplete, else nil.
local function gguf_models(names)
  local models, parts = {}, {}
  for _, name in ipairs(names) do
    local base, i, n = part_of(name)
    local file = (name:match "^.*/(.*)$" or name):lower()
    if name:match "%.gguf$" and not file:find "mmproj" and not file:find "imatrix" then
      if not base then
        models[name] = { name }
      else
        parts[base] = parts[base] or { n = n }
        parts[base][i] = name
      end
    end
  end
  local missing
  for base, list in pairs(parts) do
    local whole = true
    for i = 1, list.n do
      if whole and not list[i] then
        whole, missing = false, ("%s: part %d of %d is not in the repository"):format(base, i, list.n)
      end
    end
    if whole then models[list[1]] = table.move(list, 1, list.n, 1, {}) end
  end
  return models, missing
end

-- Whether a name has a quantisation as a word: "q4_k_m" in "model-Q4_K_M.gguf", in "Q4_K_M/model-00001-of-00002.gguf".
local function has_quant(name, quant)
  name, quant = "/" .. name:lower(), quant:lower()
  local at = 1
  while true do
    local first, last = name:find(quant, at, true)
    if not first then return false end
    if name:sub(first - 1, first - 1):find "[-._/]" and name:sub(last + 1, last + 1):find "[-._/]" then return true end
    at = first + 1
  end
end

local function listed(list) return table.concat(list, ", ") end

local function one_gguf(models, quant, missing)
  local found = {}
  for name in pairs(models) do
    if has_quant(name, quant) then found[name] = true end
  end
  local list = sorted(found)
  if #list == 1 then return models[list[1]], list[1] end
  if #list == 0 then
    if missing and has_quant(missing:match "^[^:]*" .. "-", quant) then return nil, missing, "notfound" end
    if next(models) == nil then return nil, "no GGUF file is in the repository, so there is no quantisation " .. quant, "notfound" end
    return nil, ("no file of the quantisation %s: choose %s"):format(quant, listed(sorted(models))), "notfound"
  end
  return nil, ("several files have the quantisation %s: name one of %s"):format(quant, listed(list)), "invalid"
end

-- Files of a folder that a model is opened from; weights in safetensors, and what else is read.
local FOLDER = { "%.safetensors$", "%.json$", "%.jinja$", "%.model$", "%.txt$" }
local LEFT_OUT = { "^original/", "^onnx/", "^openvino/", "^consolidated", "^runs/", "^%.", "/%.", "^checkpoint" }

local function folder_files(names)
  local list, weights = {}, false
  for _, name in ipairs(names) do
    local wanted = false
    for _, pattern in ipairs(FOLDER) do wanted = wanted or name:match(pattern) ~= nil end
    for _, pattern in ipairs(LEFT_OUT) do wanted = wanted and not name:match(pattern) end
    if wanted then list[#list + 1] = name end
    weights = weights or wanted and name:match "%.safetensors$" ~= nil
  end
  return weights and list or nil
end

-- A file that is named, with the others that it needs.
local function named(names, set, file)
  local base, _, n = part_of(file)
  if base then
    local list = {}
    for i = 1, n do
      list[i] = ("%s-%05d-of-%05d.gguf"):format(base, i, n)
      if not set[list[i]] then return nil, ("%s: part %d of %d is not in the repository"):format(file, i, n), "notfound" end
    end
    return list, list[1]
  end
  if file:match "%.gguf$" then return { file }, file end
  local list = { file }
  for _, name in ipairs(names) do -- an ONNX file's data; the configuration and tokenizer of its folder or of the repository
    local beside = name:sub(1, #file) == file and name ~= file
    local config = not name:find("/", 1, true) or name:match "^(.*/)" == file:match "^(.*/)"
    if beside or config and (name:match "%.json$" or name:match "%.jinja$" or name:match "%.model$") then list[#list + 1] = name end
  end
  return list, file
end

--- The files of a model.
-- @param names of all files of the repository
-- @param wanted a file's name, a quantisation, or nil
-- @return list of names, the one to be opened ("" for the folder itself); or nil, message, code
function M.files(names, wanted)
  local set = {}
  for _, name in ipairs(names) do set[name] = true end
  if wanted and set[wanted] then return named(names, set, wanted) end
  local models, missing = gguf_models(names)
  if wanted and wanted:find "[/]" or wanted and wanted:match "%.%l+$" then
    return nil, ("%s is not in the repository: it has %s"):format(wanted, listed(names)), "notfound"
  end
  if wanted then return one_gguf(models, wanted, missing) end
  local list = sorted(models)
  if #list == 1 then return models[list[1]], list[1] end
  if #list > 1 then
    local found, main = one_gguf(models, "Q4_K_M")
    if found then return found, main end
    return nil, "several models are in the repository: name one of " .. listed(list), "invalid"
  end
  local folder = folder_files(names)
  if folder then return folder, "" end
  if missing then return nil, missing, "notfound" end
  if #names == 0 then return nil, "the repository has no files", "notfound" end
  return nil, "no GGUF file and no safetensors are in the repository: name a file of " .. listed(names), "unsupported"
end

return M
