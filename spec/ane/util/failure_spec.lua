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

  it("turns any error into a message where a file is read", function()
    assert.same({ 1, nil, 3 }, { failure.border("f", function(...) return ... end, 1, nil, 3) })
    assert.same({ nil, "x", "io" }, { failure.border("f", function() failure.raise("io", "x") end) })
    local value, message, code = failure.border("f.json", function() return #nil end)
    assert.same({ nil, "format" }, { value, code })
    assert.matches("^f%.json: has unexpected contents %(.*attempt to get length of a nil value.*%)$", message)
    assert.same({ nil, "f: out of memory", "memory" }, { failure.border("f", error, "not enough memory", 0) })
  end)

  it("knows interrupts, and raises them where the code of an error is asked for", function()
    assert.is_true(failure.is_interrupt "interrupted!")
    assert.is_true(failure.is_interrupt "x/y.lua:12: interrupted!")
    for _, other in ipairs { 'option stop must be a list, but is "interrupted!"', "interrupted! by a user", "not interrupted!" } do
      assert.is_false(failure.is_interrupt(other))
      assert.equal("invalid", failure.code(other, "invalid"))
    end
    assert.same({ false, "x.lua:1: interrupted!" }, { pcall(failure.code, "x.lua:1: interrupted!", "invalid") })
  end)

  it("lets interrupts pass where a file is read", function()
    assert.error_matches(function() failure.border("f", error, "interrupted!", 0) end, "^interrupted!$")
  end)
end)
