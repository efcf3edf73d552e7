-- Little-endian reading, storing and growing buffers, against string.pack.
local testing = require("ane.core").testing

describe("a reader", function()
  it("reads little-endian numbers and bytes in order", function()
    local bytes = ("<BI4i8c3"):pack(200, 0xFEDCBA98, -2, "abc")
    assert.same({ { 200, 0xFEDCBA98, -2, "abc" }, 0, false }, { testing.read_bytes(bytes, { 1, 4, 8, -3 }) })
    assert.same({ { "", 0x61 }, 1, false }, { testing.read_bytes("ab", { 0, 1 }) })
  end)

  it("gives zeros from the first read beyond the end on, and nothing is left", function()
    assert.same({ { 1, 0, 0, false }, 0, true }, { testing.read_bytes("\1\2\3", { 1, 4, 1, -1 }) })
    assert.same({ { false }, 0, true }, { testing.read_bytes("abc", { math.mininteger + 1 }) })
    assert.same({ { 0 }, 0, true }, { testing.read_bytes("", { 8 }) })
  end)

  it("stores what it loads", function()
    for _, v in ipairs { 0, 1, 0x1234, 0x7FFFFFFF, 0xFFFFFFFF, 0x0123456789ABCDEF, -1, math.mininteger } do
      local small, large, u32, u64, u16 = testing.store_load(v)
      assert.same({ ("<I4"):pack(v & 0xFFFFFFFF), ("<i8"):pack(v) }, { small, large })
      assert.same({ v & 0xFFFFFFFF, v, v & 0xFFFF }, { u32, u64, u16 })
    end
  end)
end)

describe("a buffer", function()
  it("grows to hold what is appended", function()
    local parts = { "", "a", ("b"):rep(63), "c", ("d"):rep(100000), "" }
    assert.same({ #parts, table.concat(parts) }, { testing.append(parts) })
    assert.same({ 0, "" }, { testing.append {} })
  end)

  it("is as before where memory ends", function()
    local parts = { ("a"):rep(60), ("b"):rep(100), ("c"):rep(1000) } -- each needs more room
    for n = 0, 2 do
      testing.alloc_fail_after(n)
      local done, bytes = testing.append(parts)
      testing.alloc_count()
      assert.same({ n, table.concat(parts, "", 1, n) }, { done, bytes })
    end
  end)
end)
