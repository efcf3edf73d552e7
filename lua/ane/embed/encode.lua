--- Inputs of encoders: one or many, texts or lists of ids, as sequences truncated to the model's length. A sequence that the model takes,
-- but that is longer than its context, is an error.
-- Needs ane.util.list, and ane.model if it checks.
-- Usage: `local sequences, single = encode.inputs(bundle, {"a", "b"}, {max_length = 256})`

local list_of = require "ane.util.list"

local M = {}

--- Most tokens of a sequence.
function M.most(bundle)
  local program = bundle.program
  if bundle.config.both_sides then return math.min(program:context(), program:max_chunk()) end
  return program:context()
end

--- The maximum tokens of a text. Longer texts are truncated.
-- @param asked the option max_length, or nil
-- @param own what the model's files say, or nil
function M.length(bundle, asked, own)
  local cfg = bundle.config
  local least = math.min(asked or own or cfg.context_length or math.maxinteger, cfg.max_positions or math.maxinteger)
  return math.min(least, 1 << 31)
end

--- Checks that a sequence of n tokens is not longer than the model was loaded for.
-- @return true; or nil, message, code
function M.fits(bundle, n)
  local most = M.most(bundle)
  if n <= most then return true end
  local what = "%d tokens, the model was loaded with a context of %d: give option context a larger number, or option max_length "
    .. "one of at most %d"
  return nil, what:format(n, most, most), "range"
end

-- Ids are a whole sequence, to which nothing is added and of which nothing is cut off.
local function check_ids(bundle, ids, asked, level)
  local known, most = bundle.program:n_ids(), M.most(bundle)
  local fault = list_of.ids_fault(ids)
  if fault then error(fault, level + 1) end
  for i, id in ipairs(ids) do
    if id >= known then return nil, ("id %d at place %d is not in 0 .. %d"):format(id, i, known - 1), "range" end
  end
  if #ids == 0 then return nil, "the list of ids is empty", "range" end
  if #ids > most then return nil, ("%d ids, but the model takes at most %d"):format(#ids, most), "range" end
  local before = asked.prompt and "prompt" or asked.prefix and "prefix"
  if before then return nil, ("option %s cannot be combined with token ids, which are whole sequences"):format(before), "invalid" end
  if asked.max_length and #ids > asked.max_length then
    return nil, ("%d ids, but option max_length is %d, and ids are not truncated"):format(#ids, asked.max_length), "range"
  end
  return { ids = ids }
end

--- The tokenizer of a model.
-- @return tokenizer; or nil, message, code
function M.tokenizer(bundle)
  if bundle.tokenizer then return bundle.tokenizer end
  local why = bundle.tokenizer_error
  return nil, "the model has no tokenizer: give token ids instead of texts" .. (why and " (" .. why .. ")" or ""), "unsupported"
end

-- Encodes a text, after opts.prefix, or takes a list of ids.
local function one(bundle, input, opts, level)
  if type(input) == "table" then return check_ids(bundle, input, opts.asked, level + 1) end
  local tokenizer, message, code = M.tokenizer(bundle)
  if not tokenizer then return nil, message, code end
  local ids, truncated
  ids, truncated, code = tokenizer:_sequence((opts.prefix or "") .. input, { special = opts.special, max_length = opts.max_length })
  if not ids then return nil, truncated, code end
  if #ids == 0 then return nil, "a text is empty: the model adds no tokens to it", "range" end
  local fits
  fits, message, code = M.fits(bundle, #ids)
  if not fits then return nil, message, code end
  return { ids = ids, truncated = truncated }
end

--- Sequences of an input: a text, a list of ids, or a list of either.
-- @param opts prefix (before each text), special, max_length; asked: the caller's prompt, prefix and max_length, for lists of ids
-- @param what the input is called in errors, raised at `level`
-- @return list of {ids, truncated (a text lost tokens)}, whether it is a single input; or nil, message, code
function M.inputs(bundle, input, opts, what, level)
  local kind = type(input)
  local single = kind == "string" or kind == "table" and math.type(input[1]) == "integer"
  if kind ~= "string" and kind ~= "table" then
    error(("%s must be a text, a list of token ids, or a list of them, but is %s"):format(what, list_of.kind(input)), level + 1)
  end
  local fault = not single and list_of.fault(input)
  if fault then error(("%s %s"):format(what, fault), level + 1) end
  local out = {}
  for i, entry in ipairs(single and { input } or input) do
    if type(entry) ~= "string" and type(entry) ~= "table" then
      error(("%s: entry %d is a %s, not a text or a list of token ids"):format(what, i, type(entry)), level + 1)
    end
    local sequence, message, code = one(bundle, entry, opts, level + 1)
    if not sequence then return nil, single and message or ("entry %d: %s"):format(i, message), code end
    out[i] = sequence
  end
  return out, single
end

return M
