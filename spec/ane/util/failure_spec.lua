local failure = require "ane.util.failure"

describe("failure", function()
  it("passes results on", function()
    assert.same({ 1, nil, 3 }, { failure.catch(function(...) return ... end, 1, nil, 3) })
    assert.equal(false, failure.try(false))
    assert.same({ 1, 2 }, { failure.try(1, 2) })
  end)

  it("turns what was raised into nil, message, code", function()
    local function read(name) return failure.try(nil, name .. ": no such file", "io") end
    assert.same({ nil, "x: no such file", "io" }, { failure.catch(read, "x") })
    local function refuse() failure.raise("shape", "%s: %d rows, 100 %%", "x", 5) end
    assert.same({ nil, "x: 5 rows, 100 %", "shape" }, { failure.catch(refuse) })
    assert.same({ nil, "plain", "io" }, { failure.catch(function() failure.raise("io", "plain") end) })
  end)

  it("raises other errors again, as they are", function()
    local odd = {}
    for _, what in ipairs { "place:1: a bug", odd } do
      local ok, raised = pcall(failure.catch, error, what)
      assert.is_false(ok)
      assert.equal(what, raised)
    end
  end)
end)
