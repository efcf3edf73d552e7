-- tokenizer.json against the `tokenizers` library: spec/golden/tokenizer_pipelines.py made the fixture.
local core = require "ane.core"
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

  local function replace(from, to) return { type = "Replace", pattern = { String = from }, content = to } end

  local function chain(key, n, make)
    local list = {}
    for i = 1, n do list[i] = make(i) end
    return { type = "Sequence", [key] = list }
  end

  -- a -> b * 100 -> c * 10,000 -> ...
  local function explosion(i) return replace(string.char(96 + i), string.char(97 + i):rep(100)) end

  it("limits the growth of a text in normalisers, and names the normaliser", function()
    local t = assert(pipelines.open(set, { name = "x", model = "bytes", normalizer = chain("normalizers", 4, explosion) }))
    local ids, message, code = t:encode "a"
    assert.same({ nil, "range" }, { ids, code })
    assert.is_truthy(message:find("normalizer.normalizers[2] makes a text of more than 65568 bytes", 1, true), message)
    assert.is_truthy(message:find("the most is 32 bytes for each byte of the text and 65536 more", 1, true), message)
    assert.equal(1, #assert(t:encode "x")) -- the limit is for what a text becomes
    local pattern = { type = "Replace", pattern = { Regex = "x" }, content = ("y"):rep(70000) }
    t = assert(pipelines.open(set, { name = "x", model = "bytes", normalizer = pattern }))
    assert.is_truthy(select(2, t:encode "x"):find("normalizer makes a text of more", 1, true))
  end)

  it("limits the growth over all parts of a text", function()
    local added = { { id = 60000, content = "<s>", special = true, normalized = false } }
    local t = assert(pipelines.open(set, {
      name = "x", model = "bytes", normalizer = replace("a", ("b"):rep(60000)), added_tokens = added,
    }))
    assert.equal(60000, #assert(t:encode "a"))
    assert.equal("range", (select(3, t:encode("a<s>a<s>a", { special = true }))))
  end)

  it("limits the growth of a text in pre-tokenizers", function()
    local doubled = chain("pretokenizers", 40, function() return { type = "ByteLevel", add_prefix_space = false, use_regex = false } end)
    local t = assert(pipelines.open(set, { name = "x", model = "bytes", pre_tokenizer = doubled }))
    local ids, message, code = t:encode "\u{e9}"
    assert.same({ nil, "range" }, { ids, code })
    assert.is_truthy(message:find("pre_tokenizer.pretokenizers[", 1, true), message)
  end)

  it("limits the growth of tokens in decoders, and names the decoder", function()
    assert.equal("range", refused("decoder.decoders[2] makes texts of more than", { decoder = chain("decoders", 4, explosion) }))
    local pattern = { type = "Replace", pattern = { Regex = "a" }, content = ("b"):rep(70000) }
    assert.equal("range", refused("decoder makes texts of more than", { decoder = pattern }))
  end)

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
      ["pre_tokenizer.pattern: pattern a(b: "] = {
        pre_tokenizer = { type = "Split", pattern = { Regex = "a(b" }, behavior = "Removed", invert = false },
      },
      ["normalizer.normalizers[0]: pattern a(b: "] = {
        normalizer = { type = "Sequence", normalizers = { { type = "Replace", pattern = { Regex = "a(b" }, content = "" } } },
      },
      ["decoder: pattern [b-a]: "] = { decoder = { type = "Replace", pattern = { Regex = "[b-a]" }, content = "" } },
      ["post_processor: type 'Other'"] = { post_processor = { type = "Other" } },
    } do
      assert.equal("unsupported", refused(part, fields), part)
    end
    assert.equal("format", refused("normalizer: must be an object", { normalizer = "NFC" }))
    assert.equal("format", refused("added_tokens[0].id", { added_tokens = { { id = -1, content = "x" } } }))
    assert.equal("format", refused("added_tokens: ", { added_tokens = { { id = 3, content = "nobody" } } }))
  end)

  it("finds bytes that are not UTF-8 and have no token", function()
    local folder = os.tmpname()
    os.remove(folder)
    assert(core.make_folder(folder))
    local level = { type = "ByteLevel", add_prefix_space = false, trim_offsets = true, use_regex = false }
    local json = core.json_encode {
      model = { type = "BPE", vocab = { a = 0, b = 1, ["\u{c3}"] = 2, ["\u{100}"] = 3 }, merges = core.json_array() }, -- a, b, 0xc3, 0x00
      pre_tokenizer = level, decoder = level,
    }
    assert(core.write_file(folder .. "/tokenizer.json", json))
    local t = assert(require("ane.tokenizer").new(folder))
    os.execute("rm -r " .. folder)
    assert.same({ 0, 1 }, t:encode "a\xffb")
    for text, at in pairs { ["a\xffb"] = 2, ["a\xc3b\xfe"] = 4, ["\xc3\xc3\xff\xff"] = 3, ["\xed\xa0\x80"] = 1 } do
      assert.equal(at, t:_lost(text))
    end
    for _, text in ipairs { "", "abz\u{e9}", "a\xc3", "\xc3\xc3" } do assert.is_nil(t:_lost(text)) end
  end)
end)
