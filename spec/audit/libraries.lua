--- Tokenizers of tokenizer.json and of SentencePiece: ids, offsets and decoded texts of random texts are those of Python's libraries
-- `tokenizers` and `sentencepiece`, over many pipelines. Needs a Python with both (the environment's PYTHON).
local pipelines = require "support.pipelines"
local reference = require "audit.reference"
local sentencepiece = require "support.sentencepiece"

local M = { cases = 1 }

function M.missing() return reference.missing "tokenizers" or reference.missing "sentencepiece" end

-- The set that a script of spec/golden makes, with random texts.
local function made(d, script, read)
  local path = os.tmpname()
  reference.run(("spec/golden/%s.py %s --random 100 %d"):format(script, path, d.below(1 << 30)))
  local set = read(path)
  os.remove(path)
  return set
end

-- Of the texts of all pipelines, the share that may differ: the libraries' tables of Unicode are of other versions, so characters of
-- the last years are marks or punctuation here and not there.
local SHARE = 0.001

local function judge(differences, compared)
  if #differences > SHARE * compared then
    error(("%d differences in %d texts; the first:\n%s"):format(#differences, compared, differences[1]), 0)
  end
end

local function append(list, more) table.move(more, 1, #more, #list + 1, list) end

function M.case(d)
  local set, found = made(d, "tokenizer_pipelines", pipelines.read), {}
  for _, case in ipairs(set.cases) do append(found, pipelines.compare(set, case)) end
  judge(found, #set.cases * #set.texts)
  local models = 0
  set, found = made(d, "sentencepiece_models", sentencepiece.read), {}
  for name in pairs(set.models) do
    append(found, sentencepiece.compare(set, name))
    models = models + 1
  end
  judge(found, models * #set.texts)
end

return M
