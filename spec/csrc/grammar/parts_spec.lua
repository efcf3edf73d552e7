-- Texts of parts: literals, patterns and JSON values one behind the other.
local core = require "ane.core"

local CITY = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false}'

-- Calls of two tools, one behind the other.
local function calls()
  return assert(core.grammar("parts", {
    { 1, 2, "literal", "<call>at " }, { 1, 3, "literal", "<call>atom " }, { 2, 4, "json", CITY }, { 3, 4, "json", '{"type": "integer"}' },
    { 4, 5, "literal", "</call>" }, { 5, 1, "literal", "\n" }, ends = { 5 },
  }))
end

-- Whether a text is taken, whether it may end, and what must follow.
local function read(grammar, text)
  local matcher = assert(grammar:matcher())
  local taken = matcher:push(text)
  if not taken then return false end
  return true, matcher:accepts(), matcher:forced()
end

describe("parts", function()
  it("take their texts, and end at an end", function()
    local grammar = calls()
    assert.same({ true, true, "" }, { read(grammar, '<call>at {"city": "Rom"}</call>') })
    assert.same({ true, true, "" }, { read(grammar, '<call>atom -12</call>\n<call>at {"city":"x"}</call>') })
    assert.same({ true, false, "<call>at" }, { read(grammar, '<call>atom 7</call>\n') })
    for _, text in ipairs { "<call>at 12", '<call>at {"town"', "<call>atom 12 <", "<call>atom 1<call>", "x", "<call>atom </call>" } do
      assert.is_false(read(grammar, text), text)
    end
  end)

  it("force what leaves no choice", function()
    local grammar = calls()
    assert.same({ true, false, "<call>at" }, { read(grammar, "") })
    assert.same({ true, false, "/call>" }, { read(grammar, "<call>atom 1<") })
    assert.same({ true, false, "</call>" }, { read(grammar, '<call>at {"city": ""}') })
  end)

  it("go back to any place, into values before the last one too", function()
    local matcher = assert(calls():matcher())
    assert.is_true(matcher:push "<call>atom 12")
    local before = matcher:pushes()
    assert.is_true(matcher:push '3</call>\n<call>atom 99999</call>')
    matcher:rewind(before)
    assert.is_true(matcher:push "</call>")
    assert.is_true(matcher:accepts())
    matcher:rewind(before)
    assert.is_false(matcher:push ".5")
    assert.is_true(matcher:push ".0</call>")
  end)

  it("leave a pattern where it cannot go on", function()
    local grammar = assert(core.grammar("parts", { { 1, 2, "literal", "<" }, { 2, 3, "pattern", "(?:(?!>>)[^])*>>" },
      { 3, 1, "literal", ";" }, ends = { 3 } }))
    assert.same({ true, true, "" }, { read(grammar, "<a > b\u{e9}>>;<>>") })
    assert.same({ true, false, "<" }, { read(grammar, "<>>;") })
    assert.is_false(read(grammar, "<a>>>"))
    assert.is_false(read(grammar, "<a\xff"))
  end)

  it("refuse edges that do not fit together", function()
    local function refused(list, want, code)
      local grammar, message, got = core.grammar("parts", list)
      assert.same({ nil, code or "invalid" }, { grammar, got })
      assert.matches(want, message)
    end
    refused({ { 1, 2, "literal", "a" }, { 1, 2, "literal", "ab" }, ends = { 2 } }, "start of another: ab")
    refused({ { 1, 2, "literal", "ab" }, { 1, 2, "literal", "a" }, ends = { 2 } }, "start of another: a")
    refused({ { 1, 2, "literal", "" }, ends = { 2 } }, "empty")
    refused({ { 1, 2, "json", "true" }, { 1, 2, "literal", "a" }, ends = { 2 } }, "the only one of its state")
    refused({ { 1, 2, "literal", "a" }, { 1, 2, "pattern", "b" }, ends = { 2 } }, "the only one of its state")
    refused({ { 1, 2, "pattern", "b*" }, ends = { 2 } }, "empty text", "unsupported")
    refused({ { 1, 2, "literal", "a" }, ends = { 3 } }, "an end is not a state")
    refused({ { 1, 2, "json", '{"minLength": "x"}' }, ends = { 2 } }, "minLength")
    assert.has_error(function() core.grammar("parts", { { 1, 2, "word", "a" }, ends = { 2 } }) end, "part 1 is not a part")
  end)
end)
