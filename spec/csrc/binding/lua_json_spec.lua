local core = require "ane.core"

local decode, encode, null = core.json_decode, core.json_encode, core.null

describe("core.json_decode", function()
  it("gives Lua values", function()
    assert.same({ a = { 1, 2.5, "x", true, false, null } }, decode ' { "a" : [ 1 , 2.5, "x", true, false, null ] } ')
    assert.equal(null, decode "null")
    assert.equal("", decode '""')
    assert.equal(0, decode "0")
    assert.same({}, decode "[]")
    assert.same({}, decode "{}")
    assert.same({ 1 }, decode "\xEF\xBB\xBF[1]")
  end)

  it("keeps integers and floats apart", function()
    local cases = {
      ["9223372036854775807"] = math.maxinteger, ["-9223372036854775808"] = math.mininteger, ["-7"] = -7,
      ["1e2"] = 100.0, ["1.0"] = 1.0, ["-0"] = -0.0, ["0.1"] = 0.1, ["1E-3"] = 0.001, ["5e-324"] = 5e-324,
      ["9223372036854775808"] = 2.0 ^ 63, ["1000000000000000019884624838656"] = 1000000000000000019884624838656.0,
    }
    for text, want in pairs(cases) do
      local got = decode(text)
      assert.equal(want, got)
      assert.equal(math.type(want), math.type(got), text)
    end
    assert.equal(-math.huge, 1 / decode "-0")
  end)

  it("reads escapes and surrogate pairs", function()
    assert.equal('"\\/\b\f\n\r\t', decode [["\"\\\/\b\f\n\r\t"]])
    assert.equal("A\0é€😀", decode [["A\u0000\u00e9\u20AC\uD83D\uDE00"]])
    assert.equal("mixed é 世界\n.", decode '"mixed é 世界\\n."')
  end)

  it("marks arrays and empty objects, so that they are written as they were", function()
    for _, text in ipairs { "[]", "{}", '{"a":[]}', '{"a":{}}', "[[],{}]", "[null]", "null", '[1,1.5,"x"]' } do
      assert.equal(text, encode((decode(text))))
    end
  end)

  --- text, message
  local malformed = {
    { "", "line 1, column 1: the text ends where a value should be" },
    { "  ", "line 1, column 3: the text ends where" },
    { "nul", "line 1, column 1: expected a value" },
    { "[1,\n  x]", "line 2, column 3: expected a value" },
    { "[1 2]", "line 1, column 4: expected ',' or ']'" },
    { "[1", "line 1, column 3: the text ends inside an array" },
    { "[1,]", "line 1, column 4: expected a value" },
    { '{"a"', "line 1, column 5: expected ':'" },
    { '{"a":1', "column 7: the text ends inside an object" },
    { '{"a":1,}', "column 8: expected a name in quotes" },
    { "{a:1}", "column 2: expected a name in quotes" },
    { '{\0"a":1}', "column 2: expected a name in quotes" },
    { '{"a":1,\0"b":2}', "column 8: expected a name in quotes" },
    { '{"é":1,"é":2}', "column 8: the name appears twice" },
    { '{"a":1,"\\u0061":null}', "column 8: the name appears twice" },
    { '{"a":null,"a":1}', "column 11: the name appears twice" },
    { '"abc', "column 5: the text ends inside a string" },
    { '"ab\ncd"', "line 1, column 4: control character in a string" },
    { '"\\x"', "column 2: unknown escape" },
    { '"\\', "column 2: unknown escape" },
    { '"\\u12g4"', "column 2: malformed \\u escape" },
    { '"\\u12', "column 2: malformed \\u escape" },
    { '"\\ud800"', "malformed \\u escape" },
    { '"\\ud800\\u0041"', "malformed \\u escape" },
    { '"\\udc00"', "malformed \\u escape" },
    { '"a\xff"', "column 3: invalid UTF-8" },
    { '"\xed\xa0\x80"', "invalid UTF-8" },
    { '"\xc0\x80"', "invalid UTF-8" },
    { "01", "column 2: expected the end of the text" },
    { "1 1", "column 3: expected the end of the text" },
    { "-", "expected a digit after the minus sign" },
    { "1.", "expected a digit after the point" },
    { "1e", "expected a digit in the exponent" },
    { ".5", "expected a value" },
    { "+1", "expected a value" },
    { "0x10", "column 2: expected the end" },
    { "NaN", "expected a value" },
    { "Infinity", "expected a value" },
    { "1e999", "column 1: the number is too large" },
    { "[1]\0", "column 4: expected the end" },
    { "'a'", "expected a value" },
    { "/* c */ 1", "expected a value" },
    { ("["):rep(100000), "column 514: nested too deeply" },
    { ('{"a":'):rep(100000), "nested too deeply" },
  }
  for _, case in ipairs(malformed) do
    it("refuses " .. case[1]:sub(1, 20):gsub("[%c\x80-\xff]", "."), function()
      local value, message, code = decode(case[1])
      assert.is_nil(value)
      assert.is_truthy(message:find(case[2], 1, true), message)
      assert.matches("^line %d+, column %d+: ", message)
      assert.equal("format", code)
    end)
  end

  it("refuses a good text cut at any byte", function()
    local text = '{"a":[1,-2.5e3,"x\\u00e9\\n\xC3\xA9",true,false,null,{}],"b":{"c":[]}}'
    assert(decode(text))
    for n = 0, #text - 1 do assert.is_nil(decode(text:sub(1, n)), n) end
  end)
end)

describe("core.json_encode", function()
  it("writes values", function()
    assert.equal("[1,2.5,\"x\",true,false,null]", encode { 1, 2.5, "x", true, false, null })
    assert.equal('{"a":1}', encode { a = 1 })
    assert.equal('{"5":"x"}', encode { [5] = "x" })
    assert.equal("null", encode(nil))
    assert.equal("[]", encode {})
    assert.equal("{}", encode(core.json_object {}))
    assert.equal("{}", encode(core.json_object()))
    assert.equal("[]", encode(core.json_array()))
    assert.equal('{"1":1}', encode(core.json_object { 1 }))
  end)

  it("writes numbers so that they come back the same", function()
    assert.equal("[9223372036854775807,-9223372036854775808]", encode { math.maxinteger, math.mininteger })
    local single = string.unpack("<f", string.pack("<f", 0.1))
    assert.equal("0.100000001", encode(single)) -- all digits of a float32, no more
    assert.equal("0.10000000000000001", encode(0.1))
    assert.equal("1099511627776", encode(2.0 ^ 40))
    assert.equal("[null,null,null]", encode { 1 / 0, -1 / 0, 0 / 0 })
    math.randomseed(5)
    for _ = 1, 2000 do
      local x = string.unpack("<d", string.pack("<I8", math.random(0)))
      if x == x and x - x == 0 then assert.equal(x, decode(encode(x)) + 0.0) end
      local y = string.unpack("<f", string.pack("<I4", math.random(0) & 0xffffffff))
      if y == y and y - y == 0 then
        assert.equal(y, (string.unpack("<f", string.pack("<f", decode(encode(y))))))
        assert.is_true(#encode(y) <= 17)
      end
    end
  end)

  it("writes every double so that it comes back, with few digits, where that is asked for", function()
    local function exact(v) return encode(v, { exact = true }) end
    assert.equal("[0.1,0.30000000000000004,1e+30,1.8446744073709552e+19,-0]", exact { 0.1, 0.1 + 0.2, 1e30, 2.0 ^ 64, -0.0 })
    assert.equal("0.10000000149011612", exact((string.unpack("<f", string.pack("<f", 0.1)))))
    math.randomseed(6)
    for _ = 1, 2000 do
      local x = string.unpack("<d", string.pack("<I8", math.random(0)))
      if x == x and x - x == 0 then assert.equal(x, decode(exact(x)) + 0.0) end
    end
  end)

  it("writes numbers that were kept as text", function()
    local function back(text) return encode(assert(core.json_decode(text, { exact = true })), { exact = true }) end
    local texts = { "18446744073709551617", "1e400", "-1E-400", "0.12345678901234567890", "1234567890123456789012345.5", "0.1", "5" }
    for _, text in ipairs(texts) do
      assert.equal('{"a":[' .. text .. "]}", back('{"a":[' .. text .. "]}"))
    end
    assert.equal("[1e+23,100,0.5]", back "[100000000000000000000000,1e2,5E-1]") -- equal numbers
    local kept = core.json_decode("1e400", { exact = true })
    assert.equal("number", getmetatable(kept).__jsontype)
    assert.equal("1e400", kept[1])
    assert.same({ nil, "line 1, column 2: the number is too large", "format" }, { decode "[1e400]" })
    assert.has_error(function() core.json_decode("1", { exakt = true }) end)
    assert.is_nil(core.json_decode("[1e]", { exact = true }))
  end)

  it("writes valid UTF-8 whatever the string", function()
    assert.equal([["a\"\\\b\f\n\r\t\u0000\u001f/é😀"]], encode 'a"\\\b\f\n\r\t\0\31/é😀')
    assert.equal('"a\u{FFFD}b\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}"', encode "a\xffb\xed\xa0\x80\xe4")
    math.randomseed(9)
    for _ = 1, 500 do
      local bytes = {}
      for i = 1, math.random(0, 12) do bytes[i] = string.char(math.random(0, 255)) end
      local text = encode(table.concat(bytes))
      assert.is_truthy(utf8.len(text))
      assert.is_string(decode(text))
    end
  end)

  it("indents and sorts on request", function()
    local value = { b = { 1, 2 }, a = core.json_object {}, c = {}, [7] = "n" }
    assert.equal('{"7":"n","a":{},"b":[1,2],"c":[]}', encode(value, { sort = true }))
    assert.equal([[
{
  "7": "n",
  "a": {},
  "b": [
    1,
    2
  ],
  "c": []
}]], encode(value, { sort = true, indent = true }))
    assert.equal("[\n    1\n]", encode({ 1 }, { indent = 4 }))
    assert.equal('{"a":1,"a\\u0000":2,"ab":3}', encode({ ["a\0"] = 2, a = 1, ab = 3 }, { sort = true }))
  end)

  it("raises on what has no JSON form", function()
    local cycle = {}
    cycle.a = cycle
    assert.error_matches(function() encode(print) end, "a function has no JSON form")
    assert.error_matches(function() encode { [true] = 1 } end, "a key of type boolean has no JSON form")
    assert.error_matches(function() encode({ [true] = 1 }, { sort = true }) end, "a key of type boolean")
    assert.error_matches(function() encode(io.stdout) end, "a userdata has no JSON form")
    assert.error_matches(function() encode(cycle) end, "nested deeper than 512")
    assert.error_matches(function() encode({}, { colour = 1 }) end, "unknown option 'colour'")
    assert.error_matches(function() encode({}, { indent = 99 }) end, "indent must be")
    assert.error_matches(function() encode() end, "value expected")
  end)

  it("raises where memory ends", function()
    for n = 0, 3 do
      core.testing.alloc_fail_after(n)
      local ok, message = pcall(encode, ("x"):rep(1000))
      core.testing.alloc_fail_after(-1)
      if ok then return end
      assert.matches("not enough memory", message)
    end
    error "never succeeds"
  end)

  it("writes 50,000 numbers and 10,000 pairs fast", function()
    local numbers, pairs_ = {}, {}
    for i = 1, 50000 do numbers[i] = i / 7 end
    for i = 1, 10000 do pairs_[i] = { i, i / 3 } end
    local before = os.clock()
    local text = encode(numbers)
    encode(pairs_)
    assert.same(numbers[50000], decode(text)[50000])
    assert.is_true(os.clock() - before < 5) -- CPU seconds; 0.02 without a checker
  end)
end)

describe("json_decode with exact = \"texts\"", function()
  it("keeps the text of every number, which json_encode writes", function()
    local text = '[1.50,-0,1E+2,7,0.1,{"a":-0.0e0}]'
    local value = require("ane.core").json_decode(text, { exact = "texts" })
    assert.equal("1.50", value[1][1])
    assert.equal(text, require("ane.core").json_encode(value))
  end)
end)
