-- Weights as rows of constants: parts, joins and identity.
local segments = require "ane.onnx.segments"

-- All rows of stored constant number `data`.
local function weight(data, rows, cols)
  return { { piece = { kind = "plain", data = data, rows = rows, cols = cols }, from = 0, step = 1, n = rows } }
end

describe("segments", function()
  it("are parts of a weight, joined again to the same", function()
    local w = weight(1, 6, 4)
    local parts = { segments.part(w, 0, 2), segments.part(w, 2, 6) }
    assert.same({ 2, 4 }, { segments.count(parts[1]), segments.count(parts[2]) })
    assert.same(w, segments.join(parts[1], parts[2]))
    assert.equal(2, #segments.join(parts[2], parts[1]))
    assert.is_nil(segments.join(w, nil))
  end)

  it("keep the step of their rows", function()
    local odd = { { piece = { kind = "plain", data = 1, rows = 8, cols = 4 }, from = 1, step = 2, n = 4 } }
    assert.same({ 5, 2, 2 }, { segments.part(odd, 2, 4)[1].from, segments.part(odd, 2, 4)[1].step, segments.part(odd, 2, 4)[1].n })
    assert.same({}, segments.part(odd, 4, 9))
  end)
end)

describe("the identity of segments", function()
  it("differs where any number of them does", function()
    local base = segments.identity(weight(1, 6, 4))
    assert.equal(base, segments.identity(weight(1, 6, 4)))
    for _, change in ipairs {
      function(s) s.from = 1 end, function(s) s.n = 5 end, function(s) s.step = 2 end, function(s) s.piece.transposed = true end,
      function(s) s.piece.scales = 7 end, function(s) s.piece.matrix = 1 end, function(s) s.piece.block = 32 end,
    } do
      local other = weight(1, 6, 4)
      change(other[1])
      assert.not_equal(base, segments.identity(other))
    end
  end)
end)
