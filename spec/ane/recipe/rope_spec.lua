local rope = require "ane.recipe.rope"

-- Frequencies and magnitudes as transformers 5.23 computes them (ROPE_INIT_FUNCTIONS, float32).
local cases = {
  { "linear", { theta = 10000, dims = 12, scaling = "linear", factor = 8 },
    { 0.125, 0.0269304309, 0.00580198551, 0.00124999997, 0.000269304292, 5.80198684e-05 }, 1 },
  { "proportional", { theta = 10000, dims = 12, scaling = "proportional", partial = 0.5, factor = 4 },
    { 0.25, 0.0538608655, 0.011603972, 0, 0, 0 }, 1 },
  { "yarn", { theta = 10000, dims = 16, scaling = "yarn", factor = 4, original_context = 64 },
    { 1, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05 }, 1.13862944 },
  { "yarn without rounding, with other bounds",
    { theta = 10000, dims = 16, scaling = "yarn", factor = 4, original_context = 64, truncate = false, beta_fast = 16, beta_slow = 2 },
    { 1, 0.14849025, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05 }, 1.13862944 },
  { "yarn with its own magnitude", { theta = 500, dims = 8, scaling = "yarn", factor = 2.5, original_context = 128, attn_factor = 1.25 },
    { 1, 0.148031965, 0.0178885441, 0.00378296617 }, 1.25 },
  -- llama 3 comes as divisors: plain frequencies over scaled ones.
  { "llama 3 divisors",
    { theta = 5000, dims = 12,
      divisors = { 1, 0.241827118 / 0.0744594857, 0.0584803548 / 0.014620088, 4, 0.00341995189 / 0.000854987826,
        0.000827037108 / 0.000206759316 } },
    { 1, 0.0744594857, 0.014620088, 0.00353553402, 0.000854987826, 0.000206759316 }, 1 },
  { "llama 3", { theta = 10000, dims = 16, scaling = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4,
    original_context = 64 },
    { 1, 0.244384587, 0.0130422562, 0.00395284733, 0.00124999997, 0.000395284733, 0.000125000006, 3.95284733e-05 }, 1 },
  { "llama 3 with other bounds",
    { theta = 5000, dims = 12, scaling = "llama3", factor = 32, low_freq_factor = 2, high_freq_factor = 6, original_context = 256 },
    { 1, 0.241827101, 0.00724782515, 0.000441941753, 0.000106873478, 2.58449145e-05 }, 1 },
  { "longrope",
    { theta = 10000, dims = 8, scaling = "longrope", factor = 4, original_context = 16, short_factors = { 1, 1.1, 1.2, 1.3 },
      long_factors = { 2, 3, 4.5, 5 } },
    { 1, 0.0909090936, 0.00833333284, 0.00076923077 }, 1.224744871, { 0.5, 0.0333333351, 0.00222222228, 0.000199999995 } },
  { "longrope with its own magnitude",
    { theta = 10000, dims = 8, scaling = "longrope", factor = 4, original_context = 16, short_factors = { 1, 1.1, 1.2, 1.3 },
      long_factors = { 2, 3, 4.5, 5 }, attn_factor = 1.25 },
    { 1, 0.0909090936, 0.00833333284, 0.00076923077 }, 1.25, { 0.5, 0.0333333351, 0.00222222228, 0.000199999995 } },
  { "dynamic within its limit", { theta = 10000, dims = 8, scaling = "dynamic", factor = 2, limit = 64 }, { 1, 0.1, 0.01, 0.001 }, 1 },
  { "dynamic with alpha", { theta = 10000, dims = 16, scaling = "dynamic", alpha = 1000 },
    { 1, 0.117876865, 0.0138949547, 0.00163789373, 0.000193069776, 2.27584587e-05, 2.68269582e-06, 3.16227755e-07 }, 1 },
  { "no scaling", { theta = 5000, dims = 12 }, { 1, 0.241827118, 0.0584803548, 0.0141421356, 0.00341995189, 0.000827037108 }, 1 },
}

describe("rope frequencies", function()
  for _, case in ipairs(cases) do
    it(case[1], function()
      local f, magnitude, long = rope.frequencies(case[2])
      assert.equal(#case[3], #f)
      for i, want in ipairs(case[3]) do
        assert.is_true(math.abs(f[i] - want) <= 1e-6 * want, ("%d: %.9g, wanted %.9g"):format(i, f[i], want))
      end
      assert.is_true(math.abs(magnitude - case[4]) < 1e-7)
      assert.equal(case[5] and #case[5], long and #long)
      for i, want in ipairs(case[5] or {}) do assert.is_true(math.abs(long[i] - want) <= 1e-6 * want) end
    end)
  end

  it("refuse what they cannot compute", function()
    local function refused(message, r) assert.error(function() rope.frequencies(r) end, message) end
    refused("rope scaling longest is unknown; known are: dynamic, linear, llama3, longrope, proportional, yarn",
      { theta = 1e4, dims = 4, scaling = "longest", factor = 2 })
    refused("rope scaling linear: the factor is missing", { theta = 1e4, dims = 4, scaling = "linear" })
    refused("rope scaling yarn: the factor is missing", { theta = 1e4, dims = 4, scaling = "yarn", original_context = 64 })
    refused("rope scaling longrope: the short or the long factors are missing", { theta = 1e4, dims = 4, scaling = "longrope" })
    refused("rope scaling longrope: has 2 short and 1 long factors, but must have 2",
      { theta = 1e4, dims = 4, scaling = "longrope", short_factors = { 1, 1 }, long_factors = { 1 } })
    refused("rope scaling longrope: the original context length is missing",
      { theta = 1e4, dims = 4, scaling = "longrope", short_factors = { 1, 1 }, long_factors = { 1, 1 } })
    refused("rope scaling yarn: the original context length is missing", { theta = 1e4, dims = 4, scaling = "yarn", factor = 2 })
    refused("rope: frequency 1 must be a finite fp32 number, but is 1e+150", { theta = 1e-300, dims = 4 })
    refused("rope: factor 0 must be a finite fp32 number, but is inf", {
      theta = 1e4, dims = 4, scaling = "longrope", short_factors = { 1, 1 }, long_factors = { 1, 1 }, original_context = 1, factor = 8,
    })
    refused("rope has 2 frequencies, but rope_freqs has 3 divisors", { theta = 1e4, dims = 4, divisors = { 1, 2, 3 } })
  end)
end)
