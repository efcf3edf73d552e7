--- The vocabulary of a GGUF file as a tokenizer.json and a tokenizer_config.json of the Hugging Face tokenizers library.
-- Needs ane.core. Usage: `local files, why = from_gguf.files(source)`
--
-- The two kinds of llama.cpp's converter are known: "gpt2" (byte-level BPE: merges, and a named pre-tokenizer) and "llama"
-- (SentencePiece BPE: scores). For the second the file has no merges. They are made as transformers makes them from a SentencePiece
-- model (SentencePieceExtractor): each pair of tokens that form a token is a merge, and merges go by descending score.

local core = require "ane.core"

local M = {}

local KEY, MARK = "tokenizer.ggml.", "\u{2581}"
local NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4
-- Of llama.cpp for files of the kind "llama".
local LLAMA_IDS = { bos = 1, eos = 2, unknown = 0 }

-- Raises a reason why the vocabulary has no such form; M.files returns it.
local function refuse(form, ...) error({ reason = form:format(...) }, 0) end

local function list(source, key)
  local found = source:meta(KEY .. key)
  return type(found) == "table" and found or refuse("%s%s is missing", KEY, key)
end

-- The spelling of a special token, or nil.
local function special(source, tokens, name, default)
  local id = source:meta(("%s%s_token_id"):format(KEY, name)) or default
  local spelling = math.type(id) == "integer" and tokens[id + 1]
  if spelling then return spelling, id end
end

-- Added tokens: control, unknown and user-defined tokens, which are found in a text before all else.
local function added_tokens(tokens, kinds)
  local added = {}
  for i, token in ipairs(tokens) do
    local kind = kinds[i]
    if kind == CONTROL or kind == USER or kind == UNKNOWN then
      added[#added + 1] = {
        id = i - 1, content = token, special = kind ~= USER, single_word = false, lstrip = false, rstrip = false, normalized = false,
      }
    end
  end
  return core.json_array(added)
end

local function vocabulary(tokens)
  local ids = {}
  for i, token in ipairs(tokens) do
    if type(token) ~= "string" then refuse("token %d is not a text", i - 1) end
    if not utf8.len(token) then refuse("token %d is not UTF-8", i - 1) end
    ids[token] = ids[token] or i - 1
  end
  return ids
end

-- Adds the begin and end tokens to a text, as the file says.
local function post_processor(source, tokens, defaults)
  local around, used = {}, {}
  local function put(name, id)
    local spelling, at = special(source, tokens, name, id)
    if not spelling then return end
    used[spelling] = { id = spelling, ids = core.json_array { at }, tokens = core.json_array { spelling } }
    around[#around + 1] = { SpecialToken = { id = spelling, type_id = 0 } }
  end
  local function wanted(name, default)
    local flag = source:meta(("%sadd_%s_token"):format(KEY, name))
    if flag == nil then return default end
    return flag
  end
  local function sequence(name, kind) around[#around + 1] = { Sequence = { id = name, type_id = kind } } end
  local function template(names)
    around = {}
    for i, name in ipairs(names) do
      if wanted("bos", defaults.add_bos) then put("bos", defaults.bos) end
      sequence(name, i - 1)
      if wanted("eos", false) then put("eos", defaults.eos) end
    end
    return core.json_array(around)
  end
  local single, pair = template { "A" }, template { "A", "B" }
  if not next(used) then return nil end
  return { type = "TemplateProcessing", single = single, pair = pair, special_tokens = used }
end

local function byte_level(source, tokens, words)
  local name = source:meta(KEY .. "pre")
  local pre = type(name) == "string" and core.pretokenizer(name)
  if not pre then refuse("the pre-tokenizer %s is unknown", tostring(name)) end
  if not pre.splits or pre.ignore_merges == nil or pre.sentence then refuse("the pre-tokenizer %s cannot be written in this form", name) end
  local steps = {}
  for i, pattern in ipairs(pre.splits) do
    if pattern:find("(*", 1, true) then refuse("the pre-tokenizer %s has a pattern that the library cannot read", name) end
    steps[i] = { type = "Split", pattern = { Regex = pattern }, behavior = "Isolated", invert = false }
  end
  steps[#steps + 1] = { type = "ByteLevel", add_prefix_space = false, trim_offsets = false, use_regex = false }
  return {
    pre_tokenizer = { type = "Sequence", pretokenizers = core.json_array(steps) },
    decoder = { type = "ByteLevel", add_prefix_space = false, trim_offsets = false, use_regex = false },
    post_processor = post_processor(source, tokens, { add_bos = pre.add_bos }),
    model = {
      type = "BPE", fuse_unk = false, byte_fallback = false, ignore_merges = pre.ignore_merges, vocab = words,
      merges = core.json_array(list(source, "merges")),
    },
  }
end

-- The merges that make the tokens, as "left right". Merges of equal score are in the order of transformers: first the one with the longer
-- left part, then the one with the longer right part.
local function merges_of(tokens, scores, kinds, words)
  local merges = {}
  for i, token in ipairs(tokens) do
    for cut in utf8.codes((kinds[i] or NORMAL) == NORMAL and token or "") do
      local left, right = token:sub(1, cut - 1), token:sub(cut)
      if cut > 1 and words[left] and words[right] then
        merges[#merges + 1] = { left, right, scores[i], utf8.len(left), utf8.len(right) }
      end
    end
  end
  table.sort(merges, function(a, b)
    for _, k in ipairs { 3, 4, 5 } do
      if a[k] ~= b[k] then return a[k] > b[k] end
    end
    return a[1] .. " " .. a[2] < b[1] .. " " .. b[2]
  end)
  for i, m in ipairs(merges) do merges[i] = m[1] .. " " .. m[2] end
  return core.json_array(merges)
end

local function sentence_pieces(source, tokens, words, kinds)
  if source:meta(KEY .. "remove_extra_whitespaces") then refuse "the vocabulary drops white space, for which the library has no step" end
  local scores, prefix = list(source, "scores"), source:meta(KEY .. "add_space_prefix") ~= false
  local normal, decode = {}, {
    { type = "Replace", pattern = { String = MARK }, content = " " }, { type = "ByteFallback" }, { type = "Fuse" },
  }
  if prefix then
    normal[1] = { type = "Prepend", prepend = MARK }
    decode[#decode + 1] = { type = "Strip", content = " ", start = 1, stop = 0 }
  end
  normal[#normal + 1] = { type = "Replace", pattern = { String = " " }, content = MARK }
  return {
    normalizer = { type = "Sequence", normalizers = core.json_array(normal) },
    decoder = { type = "Sequence", decoders = core.json_array(decode) },
    post_processor = post_processor(source, tokens, { add_bos = true, bos = LLAMA_IDS.bos, eos = LLAMA_IDS.eos }),
    model = {
      type = "BPE", fuse_unk = true, byte_fallback = true, ignore_merges = false, vocab = words,
      unk_token = special(source, tokens, "unknown", LLAMA_IDS.unknown), merges = merges_of(tokens, scores, kinds, words),
    },
  }
end

local function files(source)
  local kind, tokens = source:meta(KEY .. "model"), list(source, "tokens")
  local kinds, words = source:meta(KEY .. "token_type") or {}, vocabulary(tokens)
  local make = ({ gpt2 = byte_level, llama = sentence_pieces })[kind]
  if not make then refuse("a vocabulary of the kind %s cannot be written in this form", tostring(kind)) end
  local found = make(source, tokens, words, kinds)
  found.version, found.added_tokens = "1.0", added_tokens(tokens, kinds)
  local ids = kind == "llama" and LLAMA_IDS or {}
  local config = {
    tokenizer_class = "PreTrainedTokenizerFast", -- the classes of families replace parts of tokenizer.json
    bos_token = special(source, tokens, "bos", ids.bos), eos_token = special(source, tokens, "eos", ids.eos),
    pad_token = special(source, tokens, "padding"), unk_token = special(source, tokens, "unknown", ids.unknown),
    chat_template = source:meta "tokenizer.chat_template", clean_up_tokenization_spaces = false,
  }
  return {
    ["tokenizer.json"] = core.json_encode(found, { sort = true }),
    ["tokenizer_config.json"] = core.json_encode(config, { sort = true, indent = 2 }),
  }
end

--- The files of a GGUF source. They split texts as `ane` does. If the original tokenizer normalises texts, these files do not, because a
-- GGUF file does not record it.
-- @param source an open GGUF file, see ane.core.open
-- @return {[file name] = text}; or nil and the reason if the vocabulary has no such form
function M.files(source)
  local ok, result = pcall(files, source)
  if ok then return result end
  if type(result) == "table" and result.reason then return nil, result.reason end
  error(result, 0)
end

return M
