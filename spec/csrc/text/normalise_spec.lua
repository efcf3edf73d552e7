local core = require "ane.core"

local function n(text, form) return assert(core.normalise(text, form)) end

-- Values: Unicode Standard Annex 15, figures 3 to 6 and tables; Hangul: the standard, 3.12.
describe("normal forms", function()
  it("of the annex's figures", function()
    for _, row in ipairs {
      { "\u{212b}", "\u{c5}", "A\u{30a}", "\u{c5}", "A\u{30a}" },
      { "\u{2126}", "\u{3a9}", "\u{3a9}", "\u{3a9}", "\u{3a9}" },
      { "\u{f4}", "\u{f4}", "o\u{302}", "\u{f4}", "o\u{302}" },
      { "\u{1e69}", "\u{1e69}", "s\u{323}\u{307}", "\u{1e69}", "s\u{323}\u{307}" },
      { "\u{1e0b}\u{323}", "\u{1e0d}\u{307}", "d\u{323}\u{307}", "\u{1e0d}\u{307}", "d\u{323}\u{307}" },
      { "q\u{307}\u{323}", "q\u{323}\u{307}", "q\u{323}\u{307}", "q\u{323}\u{307}", "q\u{323}\u{307}" },
      { "\u{fb01}", "\u{fb01}", "\u{fb01}", "fi", "fi" },
      { "2\u{2075}", "2\u{2075}", "2\u{2075}", "25", "25" },
      { "\u{1e9b}\u{323}", "\u{1e9b}\u{323}", "\u{17f}\u{323}\u{307}", "\u{1e69}", "s\u{323}\u{307}" },
      { "\u{1111}\u{1171}\u{11b6}", "\u{d4db}", "\u{1111}\u{1171}\u{11b6}", "\u{d4db}", "\u{1111}\u{1171}\u{11b6}" },
      { "\u{ff8a}\u{ff9f}", "\u{ff8a}\u{ff9f}", "\u{ff8a}\u{ff9f}", "\u{30d1}", "\u{30cf}\u{309a}" },
    } do
      local text = row[1]
      assert.same({ table.unpack(row, 2) }, { n(text, "nfc"), n(text, "nfd"), n(text, "nfkc"), n(text, "nfkd") }, text)
    end
  end)

  it("leave ASCII, NUL and bytes that are no text alone", function()
    local text = "plain \0 text\xff\xe2\x82 e\xcc"
    for _, form in ipairs { "nfc", "nfd", "nfkc", "nfkd" } do assert.equal(text, n(text, form)) end
    assert.equal("", n("", "nfc"))
    assert.equal("\xff\u{e9}\xff", n("\xffe\u{301}\xff", "nfc"))
  end)

  it("take linear time on a long run of marks", function()
    local text = "a" .. ("\u{301}\u{323}"):rep(200000)
    local started = os.clock()
    local out = n(text, "nfc")
    assert.is_true(os.clock() - started < 20)
    assert.equal("\u{1ea1}", out:sub(1, 3)) -- the dot below, of the lower class, comes first and is joined
    assert.equal(#text, #out) -- three bytes for three
  end)

  it("refuse an unknown name", function()
    assert.has_error(function() core.normalise("a", "nfx") end)
  end)
end)
