local core = require "ane.core"

-- Philox4x32-10 after the paper (Salmon et al. 2011), on lists of 32-bit words.
local function philox(counter, key)
  local c0, c1, c2, c3 = table.unpack(counter)
  local k0, k1 = key[1], key[2]
  for _ = 1, 10 do
    local p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
    c0, c1, c2, c3 = (p1 >> 32) ~ c1 ~ k0, p1 & 0xffffffff, (p0 >> 32) ~ c3 ~ k1, p0 & 0xffffffff
    k0, k1 = (k0 + 0x9E3779B9) & 0xffffffff, (k1 + 0xBB67AE85) & 0xffffffff
  end
  return { c0, c1, c2, c3 }
end

describe("random numbers", function()
  it("the reference here passes the known answers of Random123 (kat_vectors)", function()
    assert.same({ 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 }, philox({ 0, 0, 0, 0 }, { 0, 0 }))
    local ones = 0xffffffff
    assert.same({ 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd }, philox({ ones, ones, ones, ones }, { ones, ones }))
    assert.same({ 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 },
      philox({ 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }, { 0xa4093822, 0x299f31d0 }))
  end)

  it("agrees with the reference for any seed and position", function()
    for _, seed in ipairs { 0, 1, -1, 0x123456789abcdef, math.mininteger } do
      for _, position in ipairs { 0, 1, 4095, 1 << 33 } do
        local want = philox({ position & 0xffffffff, position >> 32, 0, 0 }, { seed & 0xffffffff, seed >> 32 & 0xffffffff })
        assert.same(want, { select(2, core.random(seed, position)) })
      end
    end
  end)

  it("lies in [0, 1) and fills it evenly", function()
    local bins, n = {}, 20000
    for i = 1, n do
      local x = core.random(7, i)
      assert.is_true(x >= 0 and x < 1)
      local bin = math.floor(x * 10)
      bins[bin] = (bins[bin] or 0) + 1
    end
    local chi = 0
    for bin = 0, 9 do chi = chi + (bins[bin] - n / 10) ^ 2 / (n / 10) end
    assert.is_true(chi < 27.9) -- 9 degrees of freedom, p = 0.001
  end)
end)
