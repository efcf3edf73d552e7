--- Compares SentencePiece models with what `sentencepiece` made of texts (spec/golden/sentencepiece_models.py).
-- Usage: `local set = sentencepiece.read(path); local differences = sentencepiece.compare(set, "bpe")`

local core = require "ane.core"
local spans_of = require "support.spans"
local Tokenizer = require "ane.tokenizer"
local writer = require "support.safetensors_writer"

local M = {}

function M.read(path) return assert(core.json_decode(assert(core.read_file(path)))) end

local function show(x) return type(x) == "table" and "{" .. table.concat(x, " ") .. "}" or ("%q"):format(tostring(x)) end

--- The tokenizer of a model's bytes, with other files beside it (name -> bytes).
function M.open(bytes, files)
  local all = { ["tokenizer.model"] = bytes }
  for name, file in pairs(files or {}) do all[name] = file end
  local folder = writer.folder(all)
  local tokenizer, message, code = Tokenizer.new(folder)
  writer.remove(folder)
  return tokenizer, message, code
end

--- Every difference of a model, as lines of text.
function M.compare(set, name)
  local t, message = M.open(core.base64_decode(set.models[name]))
  if not t then return { name .. ": " .. message } end
  local out = {}
  local function add(what, text, want, got)
    out[#out + 1] = ("%s: %s of %q: wanted %s, got %s"):format(name, what, text, show(want), show(got))
  end
  for i, r in ipairs(set.results[name]) do
    local text = set.texts[i]
    local ids, spans = t:encode(text, { bos = false, offsets = true })
    local decoded = t:decode(r[1], { utf8 = "replace" })
    if show(ids) ~= show(r[1]) then add("ids", text, r[1], ids or spans)
    elseif r[3] ~= 0 and not spans_of.alike(r[3], spans_of.flat(text, spans)) then
      add("offsets", text, r[3], spans_of.flat(text, spans))
    end
    if decoded ~= r[2] then add("decoded", text, r[2], decoded) end
  end
  t:close()
  return out
end

return M
