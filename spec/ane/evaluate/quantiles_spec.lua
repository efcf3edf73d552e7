-- Medians and percentiles, by hand.
local quantiles = require "ane.evaluate.quantiles"

describe("quantiles", function()
  it("are the middle of a list, or the mean of the two in the middle", function()
    assert.equal(7, quantiles.median { 7 })
    assert.equal(2, quantiles.median { 1, 2, 9 })
    assert.equal(5.5, quantiles.median { 9, 1, 10, 2 })
  end)

  it("are numbers of the list at a rank", function()
    local list = {}
    for i = 1, 100 do list[i] = i end
    assert.same({ 1, 50, 99, 100 }, { quantiles.percentile(list, 0), quantiles.percentile(list, 0.5), quantiles.percentile(list, 0.99),
      quantiles.percentile(list, 1) })
    assert.is_nil(quantiles.percentile({}, 0.5))
  end)
end)
