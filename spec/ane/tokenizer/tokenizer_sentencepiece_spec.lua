-- tokenizer.model against `sentencepiece`: spec/golden/sentencepiece_models.py made the fixture.
local core = require "ane.core"
local sentencepiece = require "support.sentencepiece"

describe("ane.tokenizer, of a SentencePiece model", function()
  local set = sentencepiece.read "spec/fixtures/tokenizer/sentencepiece.json"
  for name in pairs(set.models) do
    it("gives ids, texts and offsets of the library: " .. name, function() assert.same({}, sentencepiece.compare(set, name)) end)
  end

  it("takes the tokens beside the model", function()
    local t = assert(sentencepiece.open(core.base64_decode(set.models.bpe), {
      ["added_tokens.json"] = '{"<|end|>": 421}',
      ["tokenizer_config.json"] = '{"add_eos_token": true, "eos_token": "</s>"}',
    }))
    local ids = t:encode("x<|end|>")
    assert.equal(421, ids[#ids - 1])
    assert.equal(t.eos, ids[#ids])
    assert.equal(t.bos, ids[1])
  end)

  it("never crashes on a cut or changed file, and refuses what is none", function()
    local bytes = core.base64_decode(set.models.unigram)
    local refused = 0
    for n = 0, #bytes - 1, #bytes // 150 do
      local t, message = sentencepiece.open(bytes:sub(1, n))
      if t then t:close() else
        refused = refused + 1
        assert.is_truthy(message:find("tokenizer.model", 1, true), message)
      end
    end
    assert.is_true(refused > 100)
  end)
end)
