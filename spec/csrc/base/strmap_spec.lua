-- The map from strings to numbers, against a Lua table.
local testing = require("ane.core").testing

describe("a string map", function()
  it("agrees with a table over many keys, given again or not", function()
    local keys, first, want, queries, found = {}, {}, {}, {}, {}
    for i = 1, 20000 do
      local key = ("%x"):format(i * 2654435761 % 9973) .. (i % 3 == 0 and "\0" or "")
      keys[i], want[i] = key, first[key] or false
      first[key] = first[key] or i
    end
    for i = 1, 12000 do
      queries[i] = ("%x"):format(i) .. (i % 2 == 0 and "\0" or "")
      found[i] = first[queries[i]] or false
    end
    for _, reserve in ipairs { 0, 1, 50000 } do
      local old, values = testing.strmap(keys, queries, reserve)
      assert.same(want, old)
      assert.same(found, values)
    end
  end)

  it("tells keys apart by all their bytes", function()
    local _, values = testing.strmap({ "", "\0", "a", "a\0", "aa", "A" }, { "a\0", "", "\0", "\0\0", "A", "aa", "b" })
    assert.same({ 4, 1, 2, false, 6, 5, false }, values)
  end)

  it("keeps what it has where memory ends", function()
    local keys, queries = {}, {}
    for i = 1, 100 do keys[i], queries[i] = "k" .. i, "k" .. i end
    local before = testing.alloc_count()
    testing.strmap(keys, {})
    local tables = testing.alloc_count() - before
    assert.is_true(tables > 2)
    for n = 1, tables - 1 do
      testing.alloc_fail_after(n)
      local old, values = testing.strmap(keys, queries)
      testing.alloc_count()
      assert.is_true(#old < 100)
      for i = 1, 100 do assert.equal(i <= #old and i or false, values[i]) end
    end
  end)
end)
