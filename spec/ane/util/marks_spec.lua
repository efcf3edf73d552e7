-- Marks in a text of which only the beginning is known.
local marks = require "ane.util.marks"

describe("marks", function()
  it("are found by their first place; of several at one place, the one named first", function()
    assert.same({ 3, "<b>", 0 }, { marks.find("a <b> <a>", { "<a>", "<b>" }) })
    assert.same({ 1, "xa", 0 }, { marks.find("xab", { "xa", "xab" }) })
    assert.same({ 1, "xab", 0 }, { marks.find("xab", { "xab", "xa" }) })
  end)

  it("that may have begun hold back the end of the text, and no more", function()
    local function held(...) return (select(3, marks.find(...))) end
    assert.equal(4, held("Hello <|en", { "<|end|>" }))
    assert.equal(2, held("aa", { "aab" }))
    assert.equal(3, held("xaab", { "b!", "aab!" }))
    assert.equal(0, held("abc", { "xyz" }))
    assert.equal(0, held("abc", {}))
    assert.equal(1, held("a.", { ".*" }))
  end)
end)
