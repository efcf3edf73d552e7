local core = require "ane.core"

local folder = "spec/fixtures/tokenizer/"
local cases = assert(core.json_decode(assert(core.read_file(folder .. "cases.json"))))

local function load(name) return assert(core.tokenizer(assert(core.open(folder .. name)))) end

describe("decoding", function()
  for name, list in pairs(cases.decode) do
    it("puts U+FFFD for broken UTF-8 as the tokenizers library does: " .. name, function()
      local tokenizer = load(name)
      for _, case in ipairs(list) do
        assert.equal(case.decoded, tokenizer:decode(case.ids, false, true))
        assert.equal(case.decoded_skip_special, tokenizer:decode(case.ids, true, true))
      end
    end)
  end

  it("replaces maximal subparts, one mark each (Unicode, table 3-8)", function()
    local tokenizer = load("llama.gguf")
    local bytes = "a\xf1\x80\x80\xe1\x80\xc2b\x80c\x80\xbfd\xf0\x80\x80\x41\xed\xa0\x80\xf4\x90\x80\x80"
    local ids = tokenizer:encode(bytes)
    assert.equal(bytes, tokenizer:decode(ids))
    local r = "\u{fffd}"
    local want = "a" .. r:rep(3) .. "b" .. r .. "c" .. r:rep(2) .. "d" .. r:rep(3) .. "A" .. r:rep(7)
    assert.equal(want, tokenizer:decode(ids, false, true))
  end)

  it("holds back what a later token may complete, and nothing else", function()
    local tokenizer = load("llama.gguf")
    local decoder = tokenizer:decoder()
    local out = {}
    for byte in ("\u{20ac}x\xe2\x28\xff\u{1f600}"):gmatch(".") do out[#out + 1] = decoder:push(tokenizer:encode(byte)[1]) end
    assert.same({ "", "", "\u{20ac}", "x", "", "\xe2(", "\xff", "", "", "", "\u{1f600}" }, out)
    decoder:push(tokenizer:encode("\xf0")[1])
    assert.equal("\xf0", decoder:flush())
    assert.equal("", decoder:flush())
    decoder:push(tokenizer:encode("\xf0")[1])
    decoder:reset()
    assert.equal("", decoder:flush())
  end)

  it("is the same in a stream as in one call", function()
    math.randomseed(3)
    for _, name in ipairs { "llama.gguf", "gemma3.gguf", "spm-prefix.gguf", "gemma4.gguf" } do
      local tokenizer = load(name)
      for _, skip in ipairs { true, false } do
        for _ = 1, 100 do
          local ids, decoder, out = {}, tokenizer:decoder(skip), {}
          for i = 1, 30 do
            ids[i] = math.random(0, tokenizer:n_vocab() + 3) -- some are beyond the vocabulary
            out[i] = decoder:push(ids[i])
          end
          out[31] = decoder:flush()
          assert.equal(tokenizer:decode(ids, skip), table.concat(out))
        end
      end
    end
  end)

  it("drops the space that encoding put in front, once", function()
    local tokenizer = load("spm-prefix.gguf")
    for _, text in ipairs { "a", " a", "  a b", "" } do assert.equal(text, tokenizer:decode(tokenizer:encode(text))) end
    local decoder = tokenizer:decoder(true)
    local ids = tokenizer:encode("a b", true, true)
    local out = {}
    for i, id in ipairs(ids) do out[i] = decoder:push(id) end
    assert.equal("a b", table.concat(out))
  end)

  it("leaves control tokens out on request, user-defined ones never", function()
    local tokenizer = load("qwen2.gguf")
    local ids = tokenizer:encode("a<|im_end|><tool_call>b", true)
    assert.equal("a<|im_end|><tool_call>b", tokenizer:decode(ids))
    assert.equal("a<tool_call>b", tokenizer:decode(ids, true))
  end)
end)
