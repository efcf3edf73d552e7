-- The JSON reader (RFC 8259) itself; what Lua makes of it is in spec/csrc/binding/lua_json_spec.lua.
local testing = require("ane.core").testing

local function events(text) return (assert(testing.json_walk(text))) end

describe("the JSON reader", function()
  it("walks values in order", function()
    local text = ' {"a" : [1, -2.5e3, "x\\n", true, null, {}], "b\\u00e9" :{"c":[ ]} ,"" : false}\n'
    assert.same({
      "{", "name a", "[", 1, -2500.0, "x\n", "word true", "word null", "{", "}", "]", "name bé", "{", "name c", "[", "]", "}", "name ",
      "word false", "}",
    }, events(text))
    assert.same({ 7 }, events "\u{FEFF}7") -- a byte order mark
  end)

  it("keeps integers of 64 bits and makes the others floats", function()
    local cases = {
      ["0"] = 0, ["-1"] = -1, ["9223372036854775807"] = math.maxinteger, ["-9223372036854775808"] = math.mininteger,
      ["9223372036854775808"] = 2.0 ^ 63, ["-9223372036854775809"] = -2.0 ^ 63, ["1.0"] = 1.0, ["1e2"] = 100.0, ["-0"] = -0.0,
      ["1E-2"] = 0.01, ["0.1"] = 0.1, ["5e-324"] = 5e-324,
    }
    for text, value in pairs(cases) do
      local got = events(text)[1]
      assert.same({ math.type(value), ("%a"):format(value) }, { math.type(got), ("%a"):format(got) }, text)
    end
  end)

  it("reads escapes, surrogate pairs too", function()
    assert.same({ '"\\/\b\f\n\r\t\0é€😀' }, events [["\"\\\/\b\f\n\r\t\u0000\u00E9\u20ac\ud83d\uDE00"]])
    assert.same({ "\u{7FF}\u{800}\u{FFFF}\u{10000}\u{10FFFF}" }, events [["\u07ff\u0800\uffff\ud800\udc00\udbff\udfff"]])
  end)

  it("names what is wrong, with line and column in characters", function()
    local cases = {
      { "", "the text ends where a value should be", 1, 1 }, { "[1,\n é]", "expected a value", 2, 2 }, { '["é", x]', "expected a value", 1,
        7 },
      { '"abc', "the text ends inside a string", 1, 5 }, { '"a\nb"', "control character in a string", 1, 3 },
      { '"\\x"', "unknown escape", 1, 2 },
      { '"\\ud800"', "malformed \\u escape", 1, 2 }, { '"\\udc00\\ud800"', "malformed \\u escape", 1, 2 },
      { '"\\u12"', "malformed \\u escape", 1, 2 },
      { '"\xC0\x80"', "invalid UTF-8", 1, 2 }, { '"\xED\xA0\x80"', "invalid UTF-8", 1, 2 }, { '"a\xE2\x82"', "invalid UTF-8", 1, 3 },
      { "-", "expected a digit after the minus sign", 1, 1 }, { "[1.]", "expected a digit after the point", 1, 2 },
      { "1e+", "expected a digit in the exponent", 1, 1 }, { "1e999", "the number is too large", 1, 1 }, { "nul", "expected a value", 1,
        1 },
      { "1 2", nil, 1, 3 }, { "[1 2]", nil, 1, 4 }, { "[1,]", "expected a value", 1, 4 }, { '{"a" 1}', nil, 1, 6 }, { "{1:2}", nil, 1, 2 },
      { '{"a":1,}', nil, 1, 8 }, { "01", nil, 1, 2 }, { "[", nil, 1, 2 },
    }
    for _, case in ipairs(cases) do
      local list, why, line, column, memory = testing.json_walk(case[1])
      assert.is_nil(list, case[1])
      if case[2] then assert.equal(case[2], why, case[1]) end
      assert.is_string(why)
      assert.same({ case[3], case[4], false }, { line, column, memory }, case[1] .. ": " .. why)
    end
  end)

  it("bounds the depth", function()
    assert.is_table(testing.json_walk(("["):rep(500) .. ("]"):rep(500)))
    local list, why = testing.json_walk(("["):rep(600) .. ("]"):rep(600))
    assert.same({ nil, "nested too deeply" }, { list, why })
  end)

  it("says where memory ends", function()
    testing.alloc_fail_after(0)
    local list, why, _, _, memory = testing.json_walk '"\\n"'
    testing.alloc_count()
    assert.same({ nil, "not enough memory", true }, { list, why, memory })
  end)
end)
