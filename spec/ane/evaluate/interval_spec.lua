local interval = require "ane.evaluate.interval"

local function windows(means, counts)
  local list = {}
  for i, mean in ipairs(means) do list[i] = { sum = mean * counts[i], count = counts[i] } end
  return list
end

local function sum(w) return w.sum end

describe("interval.of", function()
  it("is the interval of a mean where windows are equally long", function()
    -- mean 3, standard deviation sqrt(2.5), 5 windows; 0.975 quantile of t with 4 degrees of freedom: 2.776445
    local low, high = interval.of(windows({ 1, 2, 3, 4, 5 }, { 10, 10, 10, 10, 10 }), sum)
    local half = 2.776445 * math.sqrt(2.5 / 5)
    assert.near(3 - half, low, 2e-3 * half)
    assert.near(3 + half, high, 2e-3 * half)
  end)

  it("weights windows by their length", function()
    local low, high = interval.of(windows({ 1, 1, 1, 9 }, { 100, 100, 100, 1 }), sum)
    assert.near((300 + 9) / 301, (low + high) / 2, 1e-12)
    assert.is_true(high - low < 1)
  end)

  it("has the quantiles of Student's t for few windows", function()
    for n, quantile in pairs { [2] = 12.7062, [3] = 4.30265, [4] = 3.18245, [11] = 2.22814, [31] = 2.04227 } do
      local means, counts = {}, {}
      for i = 1, n do means[i], counts[i] = i % 2, 1 end
      local low, high = interval.of(windows(means, counts), sum)
      local mean, square = (low + high) / 2, 0
      for i = 1, n do square = square + (means[i] - mean) ^ 2 end
      assert.near(quantile, (high - low) / 2 / math.sqrt(square / (n - 1) / n), 0.006 * quantile)
    end
  end)

  it("has none for fewer than two windows", function()
    assert.is_nil(interval.of({}, sum))
    assert.is_nil(interval.of({ { sum = 1, count = 2 } }, sum))
  end)
end)
