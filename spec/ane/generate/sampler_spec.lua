local core = require "ane.core"
local sampler = require "ane.generate.sampler"

describe("sampler", function()
  local logits = core.tensor({ 4 }, { 1, 4, 3, 2 })

  it("is plain where the best logit will do", function()
    assert.is_true(sampler.new({}).plain)
    assert.is_false(sampler.new({ temperature = 1 }).plain)
    assert.is_false(sampler.new({ repeat_penalty = 1.1 }).plain)
    assert.is_false(sampler.new({ logit_bias = { [1] = 1 } }).plain)
  end)

  it("lets the penalty fall on the window only", function()
    local ids = { 1, 0, 0 }
    assert.equal(2, (sampler.new({ repeat_penalty = 10, repeat_window = 3 }):next(logits, 3, ids)))
    assert.equal(1, (sampler.new({ repeat_penalty = 10, repeat_window = 2 }):next(logits, 3, ids)))
    assert.equal(2, (sampler.new({ repeat_penalty = 10, repeat_window = 0 }):next(logits, 3, ids)))
    assert.equal(2, (sampler.new({ repeat_penalty = 10 }):next(logits, 3, ids)))
  end)

  it("takes a new seed each time, and leaves math.random alone", function()
    math.randomseed(42)
    local want = math.random(1000000)
    math.randomseed(42)
    local a, b = sampler.new { temperature = 1 }, sampler.new { temperature = 1 }
    assert.equal(want, math.random(1000000))
    assert.not_equal(a.seed, b.seed)
    assert.is_true(a.seed >= 0 and a.seed < 1 << 53)
    assert.equal(7, sampler.new({ temperature = 1, seed = 7 }).seed)
  end)
end)
