-- tokenizer.json against the `tokenizers` library: spec/golden/tokenizer_pipelines.py made the fixture.
local pipelines = require "support.pipelines"

describe("ane.tokenizer, of a tokenizer.json", function()
  local set = pipelines.read "spec/fixtures/tokenizer/pipelines.json"
  for _, case in ipairs(set.cases) do
    it("gives ids, texts and offsets of the library: " .. case.name, function() assert.same({}, pipelines.compare(set, case)) end)
  end

  local function refused(part, fields)
    local case = { name = "x", model = "bytes" }
    for key, value in pairs(fields) do case[key] = value end
    local t, message, code = pipelines.open(set, case)
    assert.is_nil(t)
    assert.is_truthy(message:find("tokenizer.json: " .. part, 1, true), message)
    return code
  end

  it("refuses what it does not know, and says where it stands", function()
    local split = { type = "Split", pattern = { Regex = "x" }, behavior = "Removed", invert = false }
    for part, fields in pairs {
      ["pre_tokenizer: type 'UnicodeScripts' is not supported"] = { pre_tokenizer = { type = "UnicodeScripts" } },
      ["normalizer.normalizers[1]: type 'Nonsense'"] = {
        normalizer = { type = "Sequence", normalizers = { { type = "NFC" }, { type = "Nonsense" } } },
      },
      ["decoder: type 'CTC'"] = { decoder = { type = "CTC", pad_token = "x", word_delimiter_token = "|", cleanup = true } },
      ["pre_tokenizer.pretokenizers[0].behavior: 'Sideways'"] = {
        pre_tokenizer = { type = "Sequence", pretokenizers = { { type = "Split", pattern = split.pattern, behavior = "Sideways" } } },
      },
      ["pattern a(b: "] = { pre_tokenizer = { type = "Split", pattern = { Regex = "a(b" }, behavior = "Removed", invert = false } },
      ["post_processor: type 'Other'"] = { post_processor = { type = "Other" } },
    } do
      assert.equal("unsupported", refused(part, fields), part)
    end
    assert.equal("format", refused("normalizer: wanted an object", { normalizer = "NFC" }))
    assert.equal("format", refused("added_tokens[0].id", { added_tokens = { { id = -1, content = "x" } } }))
    assert.equal("format", refused("added_tokens: ", { added_tokens = { { id = 3, content = "nobody" } } }))
  end)
end)
