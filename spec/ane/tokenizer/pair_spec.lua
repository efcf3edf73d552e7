-- Texts between the tokens of their family, and pairs of texts, as the tokenizers library makes them (spec/golden/embedding_texts.py).
local core = require "ane.core"
local hf = require "support.hf"
local steps = require "ane.tokenizer.steps"
local tokenizer = require "ane.tokenizer"

local GOLDEN = assert(core.json_decode(assert(core.read_file(hf.path "bert" .. "/texts.json"))))

local function plain(list) return { table.unpack(list) } end

describe("sequence", function()
  local t = assert(tokenizer.new(hf.path "bert"))
  teardown(function() t:close() end)

  it("gives the library's ids, cut behind the text", function()
    for _, row in ipairs(GOLDEN.texts) do
      assert.same(plain(row.ids), assert(t:sequence(row.text, { max_length = 128 })), row.text)
    end
  end)
end)

describe("pair", function()
  local t = assert(tokenizer.new(hf.path "bert"))
  teardown(function() t:close() end)

  it("gives the library's ids and types; the longer text is cut first", function()
    for _, row in ipairs(GOLDEN.pairs) do
      local ids, types = assert(t:pair(row.a, row.b, { max_length = row.max_length }))
      assert.same(plain(row.ids), ids)
      assert.same(plain(row.types), types)
    end
  end)

  it("takes control tokens for text unless told otherwise", function()
    local sep = t:id "[SEP]"
    local function count(opts)
      local n = 0
      for _, id in ipairs((t:pair("a [SEP] b", "c", opts))) do n = n + (id == sep and 1 or 0) end
      return n
    end
    assert.equal(2, count())
    assert.equal(3, count { special = true })
  end)

  it("follows the post-processor", function()
    local bert = { type = "BertProcessing", sep = { "[SEP]", 3 }, cls = { "[CLS]", 2 } }
    for _, list in pairs { bert.sep, bert.cls } do core.json_array(list) end
    local _, _, parts = steps.ends(bert)
    assert.same(steps.bert_pair(2, 3), parts)
    bert.type = "RobertaProcessing"
    _, _, parts = steps.ends(bert)
    assert.same(steps.roberta_pair(2, 3), parts)
  end)
end)
