-- UTF-8 by table 3-7 of Unicode 15, against Lua's strict decoder, and the maximal subparts of 3.9, D93b.
local testing = require("ane.core").testing

-- Length of the character at the start of s by the utf8 library; nil where it is ill-formed.
local function length_of(s)
  for n = 1, math.min(4, #s) do
    local count = utf8.len(s:sub(1, n))
    local code = count == 1 and utf8.codepoint(s, 1)
    if code and not (code >= 0xD800 and code <= 0xDFFF) and code <= 0x10FFFF then return n end
  end
end

describe("utf8", function()
  it("accepts what is well-formed and nothing else, over all first and second bytes", function()
    for first = 0, 255 do
      for second = 0, 255 do
        local s = string.char(first, second) .. "\x80\xBF"
        local n = length_of(s)
        local step = testing.utf8(s)
        assert.equal(n or false, step > 0 and step, ("%02X %02X"):format(first, second))
      end
    end
  end)

  it("checks third and fourth bytes", function()
    for byte = 0, 255 do
      local good = byte >= 0x80 and byte <= 0xBF
      assert.equal(good and 3 or -2, (testing.utf8("\xE2\x82" .. string.char(byte))))
      assert.equal(good and 4 or -3, (testing.utf8("\xF0\x9F\x98" .. string.char(byte))))
    end
  end)

  it("says where a text ends inside a sequence", function()
    for _, s in ipairs { "é", "€", "😀" } do
      for n = 1, #s do
        local step, cut, whole, run = testing.utf8(s:sub(1, n))
        assert.same({ n == #s and n or -n, n < #s, n == #s and n or 0, n == #s and n or 0 }, { step, cut, whole, run })
        step, cut, whole = testing.utf8("ab" .. s:sub(1, n))
        assert.same({ 1, false, n == #s and n + 2 or 2 }, { step, cut, whole })
      end
    end
    assert.same({ 0, false, 0, 0, "" }, { testing.utf8 "" })
    assert.equal(3, (select(3, testing.utf8 "\x80\x80\x80"))) -- no sequence that more bytes could complete
  end)

  it("finds the length of the well-formed text at the start", function()
    local text = ("0123456é€😀"):rep(50)
    assert.equal(#text, (select(4, testing.utf8(text))))
    for at = 1, #text do
      local bad = text:sub(1, at - 1) .. "\xFF" .. text:sub(at)
      local len = utf8.len(text:sub(1, at - 1)) and at - 1 or (select(2, utf8.len(text:sub(1, at - 1)))) - 1
      assert.equal(len, (select(4, testing.utf8(bad))))
    end
  end)

  it("puts one U+FFFD for each maximal subpart", function()
    local mark = "\u{FFFD}"
    local cases = { -- Unicode 15, tables 3-8 to 3-11
      { "\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", mark:rep(8) .. "A" },
      { "\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", mark:rep(8) .. "A" },
      { "\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", mark:rep(5) .. "A" .. mark:rep(2) .. "B" },
      { "\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", mark:rep(4) .. "A" },
      { "a\0b", "a\0b" },
    }
    for _, case in ipairs(cases) do assert.equal(case[2], (select(5, testing.utf8(case[1])))) end
  end)
end)
