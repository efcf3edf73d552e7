--- Compares SentencePiece models with what `sentencepiece` made of texts (spec/golden/sentencepiece_models.py).
-- Usage: `local set = sentencepiece.read(path); local differences = sentencepiece.compare(set, "bpe")`

local core = require "ane.core"
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

-- Bytes [start, stop) as sentencepiece counts them: bytes of one character have its place, blanks that go belong to what follows.
local function flat(text, spans)
  local out = {}
  for _, span in ipairs(spans) do
    local a, b = span[1] - 1, span[2]
    if a < b then
      while a > 0 and (text:byte(a + 1) or 0) & 0xC0 == 0x80 do a = a - 1 end
      while b < #text and text:byte(b + 1) & 0xC0 == 0x80 do b = b + 1 end
    end
    out[#out + 1], out[#out + 2] = a, b
  end
  return out
end

-- Each is within the other, or one is empty.
local function alike(a, b)
  if #a ~= #b then return false end
  for i = 1, #a, 2 do
    local empty = a[i] == a[i + 1] or b[i] == b[i + 1]
    local within = a[i] <= b[i] and b[i + 1] <= a[i + 1] or b[i] <= a[i] and a[i + 1] <= b[i + 1]
    if not (empty or within) then return false end
  end
  return true
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
    elseif r[3] ~= 0 and not alike(r[3], flat(text, spans)) then add("offsets", text, r[3], flat(text, spans)) end
    if decoded ~= r[2] then add("decoded", text, r[2], decoded) end
  end
  t:close()
  return out
end

return M
