-- Shapes: counts, text, equality.
local testing = require("ane.core").testing

describe("a shape", function()
  it("counts its elements", function()
    local cases = {
      { {}, 1 }, { { 7 }, 7 }, { { 2, 3, 4, 5, 6 }, 720 }, { { 5, 0 }, 0 }, { { 1 << 31, 1 << 26 }, 1 << 57 }, { { 0, 1 << 57 }, 0 },
      { { 1 << 32, 1 << 32 } }, { { math.maxinteger, 3 } }, { { 4, -1 } }, { { 0, -1 } }, { { 1 << 31, 1 << 27 } }, { { 0, 1 << 58 } },
      { { 1 << 32, 0, 1 << 32 } },
    }
    for _, case in ipairs(cases) do assert.equal(case[2], (testing.shape(case[1], {}))) end
  end)

  it("is written with ? for what is not known", function()
    local function text(dims) return (select(2, testing.shape(dims, {}))) end
    assert.same({ "[]", "[3]", "[1, 576, ?, 1]" }, { text {}, text { 3 }, text { 1, 576, -1, 1 } })
    local most = {}
    for i = 1, 5 do most[i] = math.maxinteger end
    assert.equal("[" .. table.concat(most, ", ") .. "]", text(most)) -- fits into its buffer
  end)

  it("equals one of the same rank and dimensions", function()
    local function equal(a, b) return (select(3, testing.shape(a, b))) end
    assert.is_true(equal({}, {}) and equal({ 2, 3 }, { 2, 3 }) and equal({ 1, -1 }, { 1, -1 }))
    assert.is_false(equal({ 2, 3 }, { 3, 2 }) or equal({ 2, 3 }, { 2, 3, 1 }) or equal({}, { 1 }) or equal({ -1 }, { -2 }))
  end)
end)
