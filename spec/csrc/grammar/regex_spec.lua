-- Patterns: held to what ECMA-262 says of each construct; limits end quickly and are errors.
local core = require "ane.core"

local function pattern(text) return assert(core.grammar("regex", text)) end

local function matches(grammar, text)
  local matcher = assert(grammar:matcher())
  local taken = assert(matcher:push(text) ~= nil and matcher) and matcher:pushes() == 1
  return taken and matcher:accepts()
end

-- pattern, texts that it matches, texts that it does not
local ROWS = {
  { "ab*(c|d){2,3}", { "acc", "abbbcdc" }, { "ac", "accccc", "b", "" } },
  { "", { "" }, { "a" } },
  { "a{3}", { "aaa" }, { "aa", "aaaa" } },
  { "a{2,}", { "aa", "aaaaa" }, { "a" } },
  { "a{,2}", { "a{,2}" }, { "a", "aa" } },
  { "(?:a|b)+?c", { "abac" }, { "c" } },
  { "[^a-c\\d]x", { "dx", "éx", "€x", "\u{10ffff}x" }, { "ax", "1x", "x", "\xffx" } },
  { "[\\w.-]+@\\w+", { "a.b-c@d" }, { "@d", "a b@c" } },
  { "[a\\-z]", { "a", "-", "z" }, { "b" } },
  { "[\\s\\S]", { "\n", "x", "\u{2028}" }, { "", "xx" } },
  { "\\s+", { " \t\n\u{a0}\u{feff}" }, { "x" } },
  { ".", { "x", "é", "\u{1f600}" }, { "\n", "\r", "\u{2028}", "\x80" } },
  { "\\x41\\u00e9\\u{1F600}\\ud83d\\ude00\\cJ\\/", { "Aé\u{1f600}\u{1f600}\n/" }, { "A" } },
  { "\\p{Lu}\\p{Ll}*\\P{L}", { "Éa1", "A " }, { "aA1", "Aaa" } },
  { "^a$", { "a" }, { "" } },
  { "a^b", {}, { "ab" } },
  { "(?=.*\\d)(?=.*[a-z])\\w{4,6}", { "a1bc", "1234z" }, { "abcd", "1234", "a1", "a1bcdefg" } },
  { "((?!cat).)*", { "dog", "ca", "" }, { "a cat", "cat" } },
  { "(?!.*--)[a-z-]+", { "a-b-c" }, { "a--b" } },
  { "\\bcat\\b.*", { "cat", "cat dog" }, { "cats", "cat_" } },
  { "a\\Bb.*", { "abc" }, { "a b" } },
  { "(?i)abC", { "ABC", "abc", "aBc" }, { "ab" } },
  { "(?<year>\\d{4})-(?<month>\\d\\d)", { "2026-11" }, { "26-11" } },
  { "(a?){3}b", { "b", "aaab" }, { "aaaab" } },
  { "(|a)+b", { "b", "aab" }, { "" } },
}

describe("patterns", function()
  for _, row in ipairs(ROWS) do
    it("match as they say: " .. row[1], function()
      local ok, grammar = pcall(pattern, row[1])
      if not ok then
        assert.same({}, row[2]) -- nothing matches: such a grammar is refused
        return
      end
      for _, text in ipairs(row[2]) do assert.is_true(matches(grammar, text), text) end
      for _, text in ipairs(row[3]) do assert.is_false(matches(grammar, text), text) end
    end)
  end

  it("that cannot be followed exactly are refused by name and place", function()
    for text, why in pairs {
      ["(a)\\1"] = "back references are not supported at character 5",
        ["(?<=a)b"] = "look-behind assertions are not supported at character 4",
      ["(a"] = "( is not closed at character 3", ["a)"] = ") has no ( at character 2", ["*a"] = "nothing to repeat at character 1",
      ["[b-a]"] = "a range is the wrong way round", ["[a"] = "[ is not closed", ["a{2,1}"] = "the minimum count is above the maximum",
      ["a++"] = "possessive repetition is not supported", ["\\q"] = "an unknown escape", ["\\p{Script=Greek}"] = "general category",
      ["\\ud800"] = "half a surrogate pair", ["a{100001}"] = "a count above 100000", ["\xff"] = "not UTF-8",
        ["[^\\s\\S]"] = "no text fulfils",
    } do
      local grammar, message = core.grammar("regex", text)
      assert.is_nil(grammar, text)
      assert.is_truthy(message:find(why, 1, true), text .. ": " .. message)
    end
  end)

  it("end quickly at their limits", function()
    for _, text in ipairs { ("("):rep(60000) .. (")"):rep(60000), ("("):rep(30000), ("(?:"):rep(3000) .. "a" .. (")"):rep(3000),
      ("a?"):rep(40000) } do
      local grammar, message, code = core.grammar("regex", text)
      assert.is_nil(grammar)
      assert.is_truthy(code == "range" or code == "invalid", message)
    end
    -- Exponential for those who try all ways: one pass here, or an error.
    for _, text in ipairs { "(a+)+b", "(a|a)*b", "(a|aa)+$", "(.*a){20}", "(a?){50}a{50}", "((a{0,100}){0,100}){0,100}b",
      "(a|b)*a(a|b){18}c" } do
      local matcher = assert(pattern(text):matcher())
      local started = os.clock()
      local taken, _, code = matcher:push(("a"):rep(2000))
      assert.is_true(taken ~= nil or code == "range")
      assert.is_true(os.clock() - started < 20, text)
    end
  end)

  it("are walked back by pushes", function()
    local matcher = assert(pattern("abc|abd"):matcher())
    assert.is_true(matcher:push "ab")
    assert.is_false(matcher:push "x")
    assert.is_true(matcher:push "c")
    assert.is_true(matcher:accepts())
    matcher:rewind(1)
    assert.is_false(matcher:accepts())
    assert.is_true(matcher:push "d")
    assert.is_true(matcher:accepts())
    assert.equal(2, matcher:pushes())
  end)

  it("force what has no other way", function()
    local matcher = assert(assert(core.grammar("choice", { "abcdef", "abcxyz" })):matcher())
    assert.equal("abc", matcher:forced())
    assert.is_true(matcher:push "abcx")
    assert.equal("yz", matcher:forced())
  end)

  it("survive a lack of memory at every allocation", function()
    local function use()
      local grammar, _, code = core.grammar("regex", "(?!ab)[a-z]{2,5}(é|x)+")
      if not grammar then return code end
      local matcher
      matcher, _, code = grammar:matcher()
      if not matcher then return code end
      local taken
      taken, _, code = matcher:push "acdéx"
      return taken and "done" or code
    end
    for n = 0, 400 do
      core.testing.alloc_fail_after(n)
      local code = use()
      core.testing.alloc_fail_after(-1)
      assert.is_true(code == "done" or code == "memory", tostring(code))
      if code == "done" and n > 300 then return end
    end
  end)
end)
