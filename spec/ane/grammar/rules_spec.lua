-- Context-free grammars: by patterns that join, by GBNF, by Lark's form.
local core = require "ane.core"
local grammar = require "ane.grammar"

local function check(g, good, bad)
  for _, text in ipairs(good) do assert.is_true(g:matches(text), text) end
  for _, text in ipairs(bad) do assert.is_false(g:matches(text), text) end
end

local GOOD, BAD = { "1", "1+2*(3-4)", "((7))", "12*(3)/4" }, { "", "1+", "(1", "1)", "a", "()" }

describe("patterns that join", function()
  local P, S, R, V = grammar.P, grammar.S, grammar.R, grammar.V

  it("are grammars with rules that call each other", function()
    check(assert(grammar.rules {
      "sum", sum = V "product" * (S "+-" * V "product") ^ 0, product = V "value" * (S "*/" * V "value") ^ 0,
      value = R "09" ^ 1 + P "(" * V "sum" * ")",
    }), GOOD, BAD)
  end)

  it("are refused at the line that makes them wrongly", function()
    local function fault(f, ...) return (select(2, pcall(f, ...)):gsub("^%S+%.lua:%d+: ", "HERE: ")) end
    local wanted = "must be a string, a number of characters, a pattern or a table of rules, but is "
    assert.equal("HERE: operand of *: " .. wanted .. "nil", fault(function() return P "a" * nil end))
    assert.equal("HERE: operand of +: " .. wanted .. "1.5", fault(function() return 1.5 + P "a" end))
    assert.equal("HERE: a pattern's exponent must be an integer, but is 1.5", fault(function() return P "a" ^ 1.5 end))
    assert.equal("HERE: patterns have no operator -: they combine with * + ^", fault(function() return P "a" - "b" end))
    assert.equal('R: range 2 must be a string of two characters, such as "az", is "a-z"', fault(R, "09", "a-z"))
    assert.equal('R: range 1 is reversed: "za"', fault(R, "za"))
    assert.equal("S: must be a string of UTF-8, but is nil", fault(S))
    assert.same({ nil, "a table of rules must have the name of its first rule as entry 1", "invalid" }, { grammar.rules { a = "x" } })
    assert.same({ nil, "rule a: " .. wanted .. "5.5", "invalid" }, { grammar.rules { "a", a = 5.5 } })
    assert.equal("choice: entry 2 of the list must be a string, but is 1", fault(grammar.choice, { "a", 1 }))
  end)

  it("take no counts whose minimum is above the maximum", function()
    local gbnf, lark = grammar.gbnf, grammar.lark
    for _, made in ipairs { { gbnf 'root ::= "a"{5,2}' }, { lark 'start: "a"~5..2' }, { lark 'start: "a"{5,2}' } } do
      assert.is_nil(made[1])
      assert.matches("the minimum count is above the maximum", made[2])
    end
  end)

  it("repeat, choose and follow each other", function()
    check(assert(grammar.rules(P "a" ^ 2 * (P "b" + "c") ^ -2 * P(1))), { "aax", "aaab\u{e9}", "aabc\n", "aab" }, { "aa", "ab", "aabcbb" })
    check(assert(grammar.rules(P "" + "x")), { "", "x" }, { "xx" })
    check(assert(grammar.rules { "s", s = V "s" * "a" + "" }), { "", "aaa" }, { "b" })
    check(assert(grammar.rules { "s", s = P "a" * V "s" * "b" + "" }), { "", "aabb" }, { "aab", "ba" })
    check(assert(grammar.rules { "s", s = V "e" * V "e" * "x", e = P "y" ^ 0 }), { "x", "yx", "yyyx" }, { "y", "xy" })
  end)

  it("fail with the reason if memory is short, whichever allocation fails", function()
    local testing, failed = core.testing, 0
    for n = 0, 2000 do
      testing.alloc_fail_after(n)
      local g, message, code = grammar.gbnf 'root ::= "a" (x | root)\nx ::= [b-z]{2}'
      testing.alloc_fail_after()
      if not g then
        failed = failed + 1
        assert.equal("memory", code, message)
      elseif n > failed then
        break
      end
    end
    assert.is_true(failed > 10)
  end)

  it("read long and ambiguous texts in little time", function()
    local g = assert(grammar.rules { "s", s = V "s" * V "s" + "a" })
    local started = os.clock()
    assert.is_true(g:matches(("a"):rep(60)))
    assert.is_true(assert(grammar.rules { "e", e = P "(" * V "e" * ")" + "" }):matches(("("):rep(2000) .. (")"):rep(2000)))
    assert.is_true(os.clock() - started < 30)
  end)

  it("are refused where no text fulfils them, or a name is missing", function()
    for _, case in ipairs {
      { { "s", s = V "t" }, "rule t is not defined" }, { { "s", s = P "a" * V "s" }, "no text fulfils the grammar" },
      { P "a" ^ 20000, "repetitions of more than 10000 parts" },
      { P "a" ^ math.mininteger, "repetitions of more than 10000 parts" },
    } do
      local g, message, code = grammar.rules(case[1])
      assert.same({ nil, case[2], "invalid" }, { g, message, code })
    end
  end)

  it("say which tokens may come", function()
    local matcher = assert(assert(grammar.rules { "s", s = P "[" * (R "09" + V "s") ^ 0 * "]" }):matcher())
    local tree = assert(core.token_tree { "[", "]", "1", "[1", "]]", "a", "12]" })
    assert.same({ 0, 3 }, matcher:allowed(tree))
    matcher:push "["
    assert.same({ 0, 1, 2, 3, 6 }, matcher:allowed(tree))
    matcher:push "["
    assert.same({ 0, 1, 2, 3, 4, 6 }, matcher:allowed(tree))
    matcher:push "]]"
    assert.same({}, matcher:allowed(tree))
    assert.is_true(matcher:finished())
  end)
end)

describe("GBNF", function()
  it("is read", function()
    check(assert(grammar.gbnf [[
      # sums
      root ::= product ([-+] product)*
      product ::= value ([*/] value)*
      value ::= [0-9]+ | "(" root ")"
    ]]), GOOD, BAD)
    check(assert(grammar.gbnf 'root ::= "\\x41\\n" [^a-c\\]]{2,3} .? "\\""'),
      { 'A\nxy"', 'A\nxyz\u{e9}"' }, { 'A\nxa"', 'A\nx"', 'A\nx]"' })
    check(assert(grammar.gbnf 'root ::= a-b\na-b ::= "x" |\n "y" ("z" |\n "w")'), { "x", "yz", "yw" }, { "y" })
  end)

  it("is refused with its place", function()
    for text, why in pairs {
      ['root ::= "a'] = 'line 1, column 12: a " is not closed', ["a ::= b"] = "there is no rule root",
      ["root = a"] = "column 6: expected ::=",
      ['root ::= "a"\nroot ::= "b"'] = "the rule root is defined twice",
      ["root ::= b"] = "rule b is not defined",
      ["root ::= (" .. ("("):rep(60000)] = "groups are nested more than 200 deep",
      ["root ::= [\\uD800]"] = "the escape names no character", ['root ::= "\\UFFFFFFFF"'] = "the escape names no character",
      ["root ::= [a-\\U00110000]"] = "the escape names no character",
      ["root ::= [\xED\xA0\x80]"] = "line 1, column 14: the text is not UTF-8", ["root ::= [a-\xF8\x88\x80]"] = "the text is not UTF-8",
    } do
      local g, message, code = grammar.gbnf(text)
      assert.is_nil(g)
      assert.is_string(code)
      assert.is_truthy(message:find(why, 1, true), message)
    end
  end)
end)

describe("Lark's form", function()
  it("is read", function()
    local g = assert(grammar.lark [[
      // sums
      ?start: product (("+" | "-") product)* -> sum
      product.2: value
        | product ("*" | "/") value
      value: INT | "(" start ")"
      %import common.INT
      %ignore " "
    ]])
    check(g, { "1", "1 + 2*( 3-4) ", " 12" }, { "1 2", "1+", "( 1", "1\n2" })
    check(assert(grammar.lark 'start: "a"i /b+/i ["c".."e"] ("x" | NAME)~2\nNAME: /[A-Z]/ DIGIT*\nDIGIT: "0".."9"'),
      { "Abxx", "aBBdxQ12", "abZ1Z" }, { "abx", "abfxx", "aqxx" })
    check(assert(grammar.lark "start: ESCAPED_STRING (\",\" SIGNED_NUMBER)*\n%import common (ESCAPED_STRING, SIGNED_NUMBER)"),
      { '"a\\"b",-1.5e3,2' }, { '"a"b"', '"a",' })
    check(assert(grammar.lark '# counts\nstart: "a"{2} b{1,2} ("c" | "d"){0,} "e"{,1} # a comment\nb: "b"'),
      { "aab", "aabbcdcde" }, { "ab", "aabbb", "aabee", "aa" })
  end)

  -- Earley's algorithm takes cubic time on this grammar: each bracket may belong to the terminal or to the rule.
  it("ends with an error on long texts of ambiguous grammars", function()
    local g = assert(grammar.lark 'start: item ("," item)*\nitem: WORD | "(" start ")"\nWORD: /[a-z()]+/')
    assert.is_true(g:matches(("("):rep(50) .. "a" .. (")"):rep(50)))
    local matches, message, code = g:matches(("("):rep(2000) .. "a")
    assert.is_nil(matches)
    assert.are.equal("the grammar needs more states than its limits allow", message)
    assert.are.equal("range", code)
  end)

  it("is refused with its place where a part is not supported", function()
    for text, why in pairs {
      ["start: /(a)\\1/"] = "back references are not supported", ["start: a{b}"] = "templates are not supported",
      ['start: "a'] = 'a " is not closed', ["a: b"] = "there is no rule start", ["start: b"] = "rule b is not defined",
      ['start: "\\uD800"'] = "line 1, column 15: the escape names no character",
      ["%declare A\nstart: A"] = "%declare is not supported", ["%import common.NOTHING\nstart: A"] = "common.NOTHING is not known",
      ["start: /a/x"] = "flags other than", ['start: "b".."a"'] = "line 1, column 16: a range is reversed",
      ['start: "a"{}'] = "line 1, column 13: expected {n}, {n,}, {,m} or {n,m}",
      ['start: a\na: %json {"type": "null"}'] = "line 2, column 4: %json is not supported here",
      ["start: <|end|>"] = "special tokens are not supported", ["start: A\nA: ~/a/"] = "complements are not supported",
      ["start: A\nA: /a/ & /b/"] = "intersections are not supported", ["start: a\na[stop=\"x\"]: /a/"] = "attributes of rules",
    } do
      local g, message = grammar.lark(text)
      assert.is_nil(g, text)
      assert.is_truthy(message:find(why, 1, true), message)
    end
  end)
end)
