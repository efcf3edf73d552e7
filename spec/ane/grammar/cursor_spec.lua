-- Positions in the texts of grammars.
local cursor = require "ane.grammar.cursor"

local function at(text, position) return { text = text, at = position, depth = 0 } end

local function fault_of(...)
  local ok, why = pcall(...)
  assert.is_false(ok)
  return why.message
end

describe("a cursor", function()
  it("takes what a pattern matches at its position", function()
    local self = at("abc1", 2)
    assert.equal("bc", cursor.take(self, "%a+"))
    assert.is_nil(cursor.take(self, "%a+"))
    assert.equal("1", cursor.take(self, "%d"))
    assert.equal(5, self.at)
  end)

  it("names line and column of a fault", function()
    assert.equal("line 1, column 1: wrong", fault_of(cursor.fail, at("ab", 1), "wrong"))
    assert.equal("line 3, column 2: wrong", fault_of(cursor.fail, at("ab\n\ncd", 6), "wrong"))
  end)

  it("finds the line of a fault behind long lines in one pass", function() -- lines times their length would take hours
    local text = ("a"):rep(1 << 20) .. "\n" .. ("b"):rep(1 << 20) .. "\n"
    assert.equal("line 3, column 1: wrong", fault_of(cursor.fail, at(text, #text + 1), "wrong"))
    assert.equal("line 2, column 1048577: wrong", fault_of(cursor.fail, at(text, #text), "wrong"))
  end)

  it("makes characters, but no halves of surrogate pairs", function()
    assert.equal("\u{20ac}", cursor.character(at("", 1), "20ac"))
    assert.equal("\u{10ffff}", cursor.character(at("", 1), "0010ffff"))
    for _, digits in ipairs { "d800", "dfff", "110000" } do
      assert.equal("line 1, column 1: the escape names no character", fault_of(cursor.character, at("", 1), digits))
    end
  end)

  it("allows 200 groups in groups", function()
    local self = at("", 1)
    for _ = 1, 200 do cursor.enter(self) end
    assert.matches("nested more than 200 deep", fault_of(cursor.enter, self))
  end)
end)
