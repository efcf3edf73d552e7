local core = require "ane.core"

-- A tensor [2, 3, 2] of 1 .. 12.
local function cube()
  local values = {}
  for i = 1, 12 do values[i] = i end
  return core.tensor({ 2, 3, 2 }, values)
end

describe("tensor arithmetic", function()
  local t = core.tensor({ 2, 2 }, { 1, -2, 3, 4 })

  it("cuts along any dimension", function()
    assert.same({ 7.0, 8.0, 9.0, 10.0, 11.0, 12.0 }, cube():slice(1, 2):totable())
    local middle = cube():slice(2, 2, 3)
    assert.same({ 2, 2, 2 }, middle:shape())
    assert.same({ 3.0, 4.0, 5.0, 6.0, 9.0, 10.0, 11.0, 12.0 }, middle:totable())
    assert.same({ 2.0, 4.0, 6.0, 8.0, 10.0, 12.0 }, cube():slice(3, -1):totable())
    assert.same({ 1.0, 2.0, 3.0, 4.0, 7.0, 8.0, 9.0, 10.0 }, cube():slice(2, 1, -2):totable())
  end)

  it("gives the same elements another shape", function()
    assert.same({ 7.0, 8.0, 9.0 }, cube():reshape({ 4, 3 })[3]:totable())
  end)

  it("combines tensors of one shape, and tensors with numbers", function()
    assert.same({ 2.0, -4.0, 6.0, 8.0 }, (t + t):totable())
    assert.same({ 0.0, 0.0, 0.0, 0.0 }, (t - t):totable())
    assert.same({ 1.0, 4.0, 9.0, 16.0 }, (t * t):totable())
    assert.same({ 1.0, 1.0, 1.0, 1.0 }, (t / t):totable())
    assert.same({ 0.0, 3.0, -2.0, -3.0 }, (1 - t):totable())
    assert.same({ 0.5, -1.0, 1.5, 2.0 }, (t / 2):totable())
    assert.same({ -1.0, 2.0, -3.0, -4.0 }, (-t):totable())
    assert.same({ 1.0, 2.0, 3.0, 4.0 }, t:abs():totable())
    assert.equal(30.0, t:dot(t))
    assert.same({ -2.0, 1.0, 3.0, 4.0 }, t:sort():totable())
  end)

  -- C libraries sort equal numbers in different orders.
  it("sorts -0 before 0", function()
    local signs = {}
    for i, v in ipairs(core.tensor({ 6 }, { 0.0, -0.0, 1.0, 0.0, -0.0, -1.0 }):sort():totable()) do signs[i] = ("%g"):format(v) end
    assert.same({ "-1", "-0", "-0", "0", "0", "1" }, signs)
  end)

  it("compares", function()
    -- d = 0, 0, 0.5, -1; |t| = sqrt 30, |u| = sqrt(1 + 4 + 6.25 + 25), t.u = 1 + 4 + 7.5 + 20
    local u = core.tensor({ 2, 2 }, { 1, -2, 2.5, 5 })
    local d = t:compare(u)
    assert.equal(1.0, d.max_abs)
    assert.near(1 / 6, d.max_scaled, 1e-12)
    assert.near(math.sqrt(1.25 / 4), d.rms, 1e-12)
    assert.near(32.5 / math.sqrt(30 * 36.25), d.cosine, 1e-12)
    assert.same({ 2, 2 }, d.worst)
    assert.equal(1.0, d.argmax_agree)
    assert.equal(0.5, t:compare(core.tensor({ 2, 2 }, { 1, 2, 3, 4 })).argmax_agree)
    assert.same({ 1, 3, 2 }, cube():compare(cube() * core.tensor({ 2, 3, 2 }, { 1, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 1 })).worst)
  end)

  it("does not take a NaN for agreement", function()
    local d = core.tensor({ 2 }, { 0 / 0, 1 }):compare(core.tensor({ 2 }, { 1, 1 }))
    assert.equal(math.huge, d.max_abs)
    assert.equal(math.huge, d.max_scaled)
    assert.is_true(d.cosine ~= d.cosine)
    assert.same({ 1 }, d.worst)
  end)

  it("counts and pools", function()
    assert.same({ 4, 4, 4 }, cube():bins(3, 1, 12))
    assert.same({ 0, 2 }, cube():bins(2, -1, 2.5))
    local small = cube():pool(3, 1)
    assert.same({ 3, 1 }, small:shape())
    assert.same({ 2.5, 6.5, 10.5 }, small:totable())
    assert.same({ 6, 2 }, cube():pool(100, 100):shape())
  end)

  it("refuses misuse by name", function()
    local cases = {
      { "must be the same", function() return t + cube() end },
      { "%[2, 2%] and %[2, 3, 2%]", function() t:compare(cube()) end },
      { "4 is not in 1 .. 3", function() cube():slice(4) end },
      { "outside 1 .. 3", function() cube():slice(2, 4) end },
      { "outside 2 .. 3", function() cube():slice(2, 2, 1) end },
      { "as many elements", function() cube():reshape { 5 } end },
      { "high must be above low", function() t:bins(2, 1, 1) end },
      { "must be finite", function() t:bins(2, -math.huge, 1) end },
      { "must be finite", function() t:bins(2, -1e308, 1e308) end },
      { "no elements", function() core.tensor({ 0 }):pool(1, 1) end },
      { "expected", function() return t + {} end },
    }
    for _, case in ipairs(cases) do assert.error_matches(case[2], case[1]) end
  end)
end)
