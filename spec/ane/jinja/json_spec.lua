local jinja = require "ane.jinja"
local json = require "ane.jinja.json"

describe("json.decode", function()
  for source, want in pairs {
    [' {"b": 1, "a": [1, 2.5, -0.0, 1e2], "b": {"c": null}} '] = '{"b": {"c": null}, "a": [1, 2.5, -0.0, 100.0]}',
    ['"\\u00e9\\ud83d\\ude00\\n\\/\\"\\u0000"'] = '"é😀\\n/\\"\\u0000"',
    ["[[], {}, true, false]"] = "[[], {}, true, false]",
    ["9223372036854775807"] = "9223372036854775807",
    ["-9223372036854775808"] = "-9223372036854775808",
    ["9223372036854775808"] = "9223372036854775808",
    ["-123456789012345678901234567890"] = "-123456789012345678901234567890",
    ["0.1"] = "0.1", ["1E400"] = "Infinity", ["5e-324"] = "5e-324", ["123456789.0"] = "123456789.0",
  } do
    it("reads " .. source, function() assert.are.equal(want, json.encode(assert(jinja.decode(source)))) end)
  end

  for source, want in pairs {
    [""] = "line 1 column 1 %(byte 1%): a value expected",
    ["[1,]"] = "column 4 .*a value expected",
    ["[1 2]"] = "',' or ']' expected",
    ['{"a" 1}'] = "':' expected",
    ["{a: 1}"] = "a key in double quotes expected",
    ['{"a": 1,}'] = "a key in double quotes expected",
    ['{"a": 1 "b"}'] = "',' or '}' expected",
    ["01"] = "invalid number", ["-"] = "invalid number", ["1."] = "something after", ["+1"] = "a value expected",
    ["nul"] = "a value expected|invalid", ["NaN"] = "a value expected", ["truex"] = "something after the value",
    ['"a'] = "string without an end", ['"\\x"'] = "invalid escape", ['"\\u12"'] = "invalid escape",
    ['"\\ud800"'] = "half of a surrogate pair", ['"\\ude00"'] = "half of a surrogate pair", ['"a\nb"'] = "line 1 column 3.*control",
    ["[1]\n x"] = "line 2 column 2 %(byte 6%): something after the value",
    ['"\xff"'] = "byte 2%): invalid UTF%-8",
  } do
    it("refuses " .. ("%q"):format(source), function()
      local v, message = jinja.decode(source)
      assert.is_nil(v)
      assert.matches("^json: line", message)
      local found = false
      for alternative in want:gmatch "[^|]+" do found = found or message:find(alternative) ~= nil end
      assert.is_true(found, message)
    end)
  end

  it("names a fault at the end of a long line, in time proportional to its length", function()
    local line = ("a"):rep(2000000)
    local _, message = jinja.decode('[\n "' .. line .. '"x]')
    assert.equal("json: line 2 column 2000004 (byte 2000006): ',' or ']' expected", message)
  end)

  it("gives the text of a member, with its numbers as they are written", function()
    local source = ' { "a" : [1] , "t\\u006f" :\t{"x": [1.50, 12345678901234567890, "}"]}, "b":null,"a":-1e400 } '
    assert.equal('{"x": [1.50, 12345678901234567890, "}"]}', jinja.member(source, "to"))
    assert.same({ "-1e400", "null" }, { jinja.member(source, "a"), jinja.member(source, "b") })
    for _, other in ipairs { source, "{}", "[1]", "1", '"a"' } do assert.is_nil(jinja.member(other, "x")) end
  end)

  it("has a limit of depth", function()
    assert.is_truthy(jinja.decode(("["):rep(128) .. ("]"):rep(128)))
    assert.matches("nested more than 128 levels", (select(2, jinja.decode(("["):rep(129)))))
    assert.matches("nested more than 128 levels", (select(2, jinja.decode(('{"a":'):rep(1000000)))))
  end)

  it("survives being cut at any byte", function()
    local source = '{"k\\u00e9": [1, -2.5e3, "x\\n\\ud83d\\ude00é", true, null, {"a": {}}]}'
    assert.is_truthy(jinja.decode(source))
    for i = 0, #source - 1 do assert.is_nil((jinja.decode(source:sub(1, i)))) end
  end)
end)
