local core = require "ane.core"

describe("tensors", function()
  local t = core.tensor({ 2, 3 }, { 1, 2, 3, 4, 5, 6 })

  it("are made of lists, bytes or nothing", function()
    assert.same({ 2, 3 }, t:shape())
    assert.same({ 0.0, 0.0 }, core.tensor({ 2 }):totable())
    assert.same({ 1.5, -2.0 }, core.tensor({ 2 }, string.pack("<ff", 1.5, -2)):totable())
    assert.same({ 4 }, core.tensor(4):shape())
    assert.equal(1, #core.tensor({}, { 7 }))
    assert.equal(7.0, core.tensor({}, { 7 }):get())
    assert.equal(0, #core.tensor { 3, 0 })
  end)

  it("give elements by index, from 1 or from the end", function()
    assert.equal(6, #t)
    assert.equal(2.0, t:get(1, 2))
    assert.equal(6.0, t:get(-1, -1))
    assert.same({ 4.0, 5.0, 6.0 }, t:row(2):totable())
    assert.same({ 3 }, t:row(-2):shape())
    assert.same({ 4.0, 5.0, 6.0 }, t[2]:totable())
    assert.equal(6.0, t[2][-1])
  end)

  it("can be written", function()
    local u = core.tensor { 2, 2 }
    u:set(1, 2, 5)
    u:set(-1, 1, 0.1)
    assert.same({ 0.0, 5.0, string.unpack("<f", string.pack("<f", 0.1)), 0.0 }, u:totable())
    assert.same({ 1.0, 1.0, 1.0, 1.0 }, u:fill(1):totable())
  end)

  it("know their extremes and their mean", function()
    assert.same({ 1.0, 6.0, 3.5 }, { t:min(), t:max(), t:mean() })
    assert.same({ 5, 6.0 }, { t:argmax() })
    local odd = core.tensor({ 3 }, { 0 / 0, 2, 1 })
    assert.same({ 1.0, 2.0 }, { odd:min(), odd:max() })
  end)

  it("give their bytes and a short print", function()
    assert.equal(string.pack("<ffffff", 1, 2, 3, 4, 5, 6), t:tostring())
    assert.equal("tensor [2, 3] {1, 2, 3, 4, 5, 6}", tostring(t))
    assert.equal("tensor [3, 3] {1, 2, 3, ..., 7, 8, 10} min 1 max 10 mean 5.11111",
      tostring(core.tensor({ 3, 3 }, { 1, 2, 3, 4, 5, 6, 7, 8, 10 })))
  end)

  it("refuse misuse by name", function()
    local cases = {
      { "outside 1 .. 2", function() t:get(3, 1) end },
      { "outside", function() t:get(0, 1) end },
      { "2 dimensions and needs as many indices, not 1", function() t:get(1) end },
      { "at least 2 dimensions", function() t:row(1):row(1) end },
      { "12 bytes", function() core.tensor({ 3 }, "12345") end },
      { "3 values", function() core.tensor({ 3 }, { 1, 2 }) end },
      { "asks for 1099511627776 values, but the list has 3", function() core.tensor({ 1 << 40 }, { 1, 2, 3 }) end },
      { "asks for 4398046511104 bytes, but the string has 4", function() core.tensor({ 1 << 40 }, "abcd") end },
      { "not a number", function() core.tensor({ 2 }, { 1, {} }) end },
      { "not negative", function() core.tensor { -1 } end },
      { "5 dimensions", function() core.tensor { 1, 1, 1, 1, 1, 1 } end },
      { "not possible", function() core.tensor { 1 << 40, 1 << 40 } end },
      { "list of numbers", function() core.tensor({ 1 }, true) end },
      { "1 .. 2147483647 elements", function() core.tensor({ 0 }):argmax() end },
      { "get: called on a table instead of a tensor; write tensor:get", function() t.get({}, 1) end },
    }
    for _, case in ipairs(cases) do assert.error_matches(case[2], case[1]) end
  end)

  it("are freed by the collector, which sees their size", function()
    collectgarbage()
    local before = collectgarbage "count"
    for _ = 1, 200 do core.tensor { 1 << 18 } end -- 1 MB each
    assert.is_true(collectgarbage "count" - before < 100 * 1024)
  end)
end)
