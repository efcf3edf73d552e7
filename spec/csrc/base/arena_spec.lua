-- The bump allocator: aligned, zeroed, disjoint memory that is freed at once.
local testing = require("ane.core").testing

describe("an arena", function()
  it("gives aligned, zeroed memory of which no two parts overlap", function()
    local sizes = {}
    for i = 1, 500 do sizes[i] = (i * 37) % 301 end
    sizes[100], sizes[300] = 16 * 1024, 100000 -- a whole block, and more than one
    local at, zero, intact = testing.arena(sizes)
    assert.is_true(zero and intact)
    local seen = {}
    for i, address in ipairs(at) do
      assert.equal(0, address % 16)
      assert.is_nil(seen[address])
      seen[address] = i
    end
    assert.equal(#sizes, #at)
  end)

  it("refuses sizes that overflow and goes on", function()
    local at, zero, intact = testing.arena { 8, math.maxinteger, -1, 8 }
    assert.same({ true, true }, { zero, intact })
    assert.same({ "integer", false, false, "integer" }, { math.type(at[1]), at[2], at[3], math.type(at[4]) })
    assert.is_false((testing.arena_copies(math.maxinteger, 4, "")))
    assert.is_false((testing.arena_copies(1 << 33, 1 << 33, ""))) -- the product is 0 in 64 bits
  end)

  it("copies texts with a NUL behind", function()
    assert.same({ true, "a\0b\0" }, { testing.arena_copies(3, 7, "a\0b") })
    assert.same({ true, "\0" }, { testing.arena_copies(0, 0, "") })
  end)

  it("refuses where memory ends, and keeps what it gave", function()
    testing.alloc_fail_after(1)
    local at, _, intact = testing.arena { 10000, 10000, 10000 } -- the second needs a block of its own
    testing.alloc_count()
    assert.is_true(intact)
    assert.same({ "integer", false, "integer" }, { math.type(at[1]), at[2], math.type(at[3]) })
  end)
end)
