-- Test vectors of the paper's reference implementation: key 00 .. 0f, messages 00, 00 01, ...
local siphash = require "ane.util.siphash"

local KEY = {}
for i = 0, 15 do KEY[i + 1] = string.char(i) end
KEY = table.concat(KEY)

describe("SipHash-2-4", function()
  it("gives the published values", function()
    local message = {}
    for i = 0, 14 do message[i + 1] = string.char(i) end
    message = table.concat(message)
    assert.equal(0xa129ca6149be45e5, siphash.hash(KEY, message)) -- appendix A of the paper
    assert.equal(0x726fdb47dd0e0e31, siphash.hash(KEY, ""))
    assert.equal(0x74f839c593dc67fd, siphash.hash(KEY, "\0"))
    assert.equal(0x93f5f5799a932462, siphash.hash(KEY, message:sub(1, 8)))
  end)

  it("makes a key of any password", function()
    assert.equal(KEY, siphash.key(KEY))
    assert.equal(16, #siphash.key "")
    assert.not_equal(siphash.key "a", siphash.key "b")
  end)
end)
