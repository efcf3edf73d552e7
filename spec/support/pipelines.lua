--- Compares tokenizer.json pipelines with what the `tokenizers` library made of texts (spec/golden/tokenizer_pipelines.py).
-- Usage: `local set = pipelines.read(path); for _, case in ipairs(set.cases) do pipelines.compare(set, case) end`

local core = require "ane.core"
local spans_of = require "support.spans"
local Tokenizer = require "ane.tokenizer"
local writer = require "support.safetensors_writer"

local M = {}

function M.read(path) return assert(core.json_decode(assert(core.read_file(path)))) end

--- The tokenizer of a case; or nil, message, code.
function M.open(set, case)
  local folder = writer.folder { ["tokenizer.json"] = { json = {
    version = "1.0", model = set.models[case.model], added_tokens = case.added_tokens, normalizer = case.normalizer,
    pre_tokenizer = case.pre_tokenizer, post_processor = case.post_processor, decoder = case.decoder,
  } } }
  local tokenizer, message, code = Tokenizer.new(folder)
  writer.remove(folder)
  return tokenizer, message, code
end

local function same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  if #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

local function show(x)
  if type(x) ~= "table" then return ("%q"):format(tostring(x)) end
  return "{" .. table.concat(x, " ") .. "}"
end

--- Every difference of a case, as lines of text.
function M.compare(set, case)
  local t, message = M.open(set, case)
  if not t then return { ("%s: %s"):format(case.name, message) } end
  local out = {}
  local function check(text, what, want, got, why, equal)
    if got and (equal or same)(want, got) then return end
    out[#out + 1] = ("%s: %s of %q: wanted %s, got %s"):format(case.name, what, text, show(want), show(got or why))
  end
  for index, r in pairs(case.results) do
    local text = set.texts[math.tointeger(index) + 1]
    local ids, spans = t:encode(text, { special = true, offsets = true })
    check(text, "ids", r[1], ids, spans)
    if r[2] ~= core.null then
      local plain, why = t:encode(text)
      check(text, "plain ids", r[2] == 0 and r[1] or r[2], plain, why)
    end
    local whole = r[3] == 0 and text or r[3]
    local short = r[4] == 0 and text or r[4] == 1 and whole or r[4]
    check(text, "decoded", whole, t:decode(r[1], { utf8 = "replace" }))
    check(text, "decoded without special", short, t:decode(r[1], { utf8 = "replace", skip_special = true }))
    if r[5] and ids and same(r[1], ids) then
      check(text, "offsets", r[5], spans_of.flat(text, spans), nil, case.exact and same or spans_of.alike)
    end
  end
  t:close()
  return out
end

return M
