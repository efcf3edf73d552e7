local methods = require "ane.util.methods"

local function class()
  local C = {}
  C.__index = C
  function C:get(a, b)
    if a == "wrong" then error("get: wrong", 2) end
    return self.value, a, b
  end
  C.constant = 7
  methods.guard(C, C, "thing")
  return C
end

describe("methods", function()
  it("pass arguments and results on", function()
    local thing = setmetatable({ value = 1 }, class())
    assert.same({ 1, 2, 3 }, { thing:get(2, 3) })
    assert.equal(7, thing.constant)
  end)

  it("say that they were called with a dot", function()
    local thing = setmetatable({ value = 1 }, class())
    for _, case in ipairs { { "hi", "a string" }, { {}, "a table" }, { nil, "nothing" } } do
      local line = debug.getinfo(1, "l").currentline + 1
      local _, message = pcall(function() local r = thing.get(case[1]) return r end)
      assert.equal(("spec/ane/util/methods_spec.lua:%d: get: called on %s instead of a thing; write thing:get(...), with a colon")
        :format(line, case[2]), (message:gsub("^%./", "")))
    end
  end)

  it("keep the level of errors", function()
    local thing = setmetatable({ value = 1 }, class())
    local line = debug.getinfo(1, "l").currentline + 1
    local _, message = pcall(function() local r = thing:get "wrong" return r end)
    assert.matches("methods_spec.lua:" .. line .. ": get: wrong", message)
  end)
end)
