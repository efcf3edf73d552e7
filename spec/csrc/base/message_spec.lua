-- Fields of protocol buffer messages (protobuf.dev, "Encoding").
local testing = require("ane.core").testing
local varint = require "support.varint"

local function tag(number, type) return varint(number << 3 | type) end

describe("a message", function()
  it("is read field by field", function()
    local bytes = tag(1, 0) .. varint(150) .. tag(2, 2) .. varint(7) .. "testing" .. tag(536870911, 5) .. ("<f"):pack(1.5)
      .. tag(4, 1) .. ("<d"):pack(-2) .. tag(5, 0) .. varint(-1) .. tag(6, 2) .. varint(0)
    assert.same({
      {
        { 1, 0, 150 }, { 2, 2, "testing" }, { 536870911, 5, 0x3FC00000 }, { 4, 1, (("<i8"):unpack(("<d"):pack(-2))) }, { 5, 0, -1 },
        { 6, 2, "" },
      },
      false,
    }, { testing.message(bytes) })
    assert.equal("\x08\x96\x01", tag(1, 0) .. varint(150)) -- the page's example
    assert.same({ {}, false }, { testing.message "" })
  end)

  it("takes numbers that are written longer than they need", function()
    assert.same({ { { 1, 0, 1 } }, false }, { testing.message("\x08\x81\x80\x00") })
  end)

  it("is broken where it ends early or has what no message has", function()
    local cases = {
      "\x08", "\x08\x80", "\x12\x05abcd", "\x0D\0\0\0", "\x09\0\0\0\0\0\0\0", -- cut
      "\x00\x01", -- field 0
      "\x0B", "\x0C", "\x0E", "\x0F", -- groups and types that are none
      "\x08" .. ("\xFF"):rep(9) .. "\x02", -- beyond 64 bits
      "\x08" .. ("\x80"):rep(10) .. "\x00", -- eleven bytes
      varint(1 << 35) .. "\0", -- a field number beyond 29 bits
      "\x12" .. varint(-1) .. "abc", -- a length beyond all memory
    }
    for _, bytes in ipairs(cases) do
      local fields, bad = testing.message("\x08\x05" .. bytes)
      assert.same({ { { 1, 0, 5 } }, true }, { fields, bad }, ("%q"):format(bytes))
    end
  end)
end)
