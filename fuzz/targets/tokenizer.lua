--- tokenizer.json and tokenizer_config.json of a folder.
local Tokenizer = require "ane.tokenizer"
local bundle = require "lib.bundle"
local core = require "ane.core"
local mutate_json = require "lib.mutate_json"
local promise = require "lib.promise"
local scratch = require "lib.scratch"
local words = require "lib.words"

local M = {}

local WORDS = {
  "BPE", "Unigram", "WordPiece", "WordLevel", "ByteLevel", "Metaspace", "Split", "Sequence", "Whitespace", "BertPreTokenizer", "Digits",
  "Punctuation", "Replace", "NFKC", "NFC", "Lowercase", "Prepend", "StripAccents", "Precompiled", "BertNormalizer", "TemplateProcessing",
  "ByteFallback", "Fuse", "Strip", "CTC", "Isolated", "Removed", "MergedWithPrevious", "add_prefix_space", "byte_fallback", "unk_token",
  "\\\\p{L}+", "(?i:'s)|\\\\s+(?!\\\\S)", "(a+)+$", "vocab", "merges", "added_tokens", "normalizer", "pre_tokenizer", "decoder",
  "post_processor",
  "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges", "unk_id", "prepend_scheme", "always", "never", "first",
}
M.words = WORDS

M.mutate = bundle.mutator(mutate_json.mutator(WORDS))

local folder = scratch.folder "tokenizer"
local NAMES = { "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json" }

function M.run(data)
  local parts = bundle.split(data)
  for _, name in ipairs(NAMES) do
    scratch.remove("tokenizer/" .. name)
    if parts[name] then scratch.write("tokenizer/" .. name, parts[name]) end
  end
  local tokenizer = promise.keep("tokenizer", Tokenizer.new(folder))
  if tokenizer then words.use(tokenizer) end
end

-- A tokenizer whose parts are those of a case of the fixture.
local function seed(fixture, i, config)
  local case = fixture.cases[i]
  local json = { version = "1.0", model = fixture.models[case.model], added_tokens = case.added_tokens }
  for _, key in ipairs { "normalizer", "pre_tokenizer", "post_processor", "decoder" } do json[key] = case[key] end
  local text = core.json_encode(json, { sort = true })
  return text and { ("case-%d"):format(i), bundle.join { { "tokenizer.json", text }, { "tokenizer_config.json", config } } }
end

function M.seeds()
  local fixture = assert(core.json_decode(scratch.read "spec/fixtures/tokenizer/pipelines.json"))
  local out = {}
  for i = 1, #fixture.cases, 6 do out[#out + 1] = seed(fixture, i,
    '{"add_bos_token":true,"bos_token":"<s>","eos_token":{"content":"</s>"}}') end
  return out
end

return M
