-- Objects of which all but one text is encoded once give the JSON of an encoder that encodes all.
local core = require "ane.core"
local frame = require "ane.serve.frame"

-- Texts with everything that JSON escapes, and bytes that are no UTF-8.
local TEXTS = {
  "", "a", " hello", '"', "\\", '\\"', "\n\r\t\b\f", "\0", "\1\2\1", "x\1\2\1y", "\127", "é€😀", "\xff\xfe", "\xe2\x82", "%1", "%%",
  "</script>", ("long "):rep(1000),
}

local function chunk(text)
  return {
    id = 'quoted "%1" \1', object = "chunk", created = 1764000000, usage = core.null,
    choices = core.json_array { { index = 0, delta = { content = text }, logprobs = core.null } },
  }
end

describe("a frame", function()
  it("gives the JSON of the whole value", function()
    local encode = frame.new(chunk)
    for _, text in ipairs(TEXTS) do
      assert.same(core.json_decode(core.json_encode(chunk(text))), core.json_decode(encode(text)), text)
    end
  end)

  it("builds the value once", function()
    local built = 0
    local encode = frame.new(function(text)
      built = built + 1
      return { text = text }
    end)
    for _, text in ipairs(TEXTS) do assert.equal(core.json_encode { text = text }, encode(text)) end
    assert.equal(1, built)
  end)

  it("is right where another text equals its mark", function()
    for _, other in ipairs { "\1\2\1", '"\1\2\1"' } do
      local function build(text) return { text = text, other = other, list = { other } } end
      local encode = frame.new(build)
      for _, text in ipairs(TEXTS) do assert.same(core.json_decode(core.json_encode(build(text))), core.json_decode(encode(text))) end
    end
  end)
end)
