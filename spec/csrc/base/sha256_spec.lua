-- SHA-256 against the examples of FIPS 180-4 (NIST), however the bytes are divided.
local testing = require("ane.core").testing

local LONG = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"

describe("sha256", function()
  it("gives the published digests", function()
    local cases = {
      { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
      { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
      { LONG, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
      { ("a"):rep(1000000), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0" },
    }
    for _, case in ipairs(cases) do assert.equal(case[2], testing.sha256 { case[1] }) end
  end)

  it("does not depend on how the bytes are divided", function()
    local text = (LONG .. "xyz"):rep(5)
    local whole = testing.sha256 { text }
    for size = 1, 130 do
      local parts = {}
      for at = 1, #text, size do parts[#parts + 1] = text:sub(at, at + size - 1) end
      assert.equal(whole, testing.sha256(parts))
    end
    assert.equal(whole, testing.sha256 { "", text, "" })
  end)
end)
