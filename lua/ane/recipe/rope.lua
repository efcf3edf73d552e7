--- Frequencies of rotary position embeddings.
-- Usage: `local f, magnitude = rope.frequencies{theta = 1e4, dims = 64}`
-- Sources: Su et al. 2021 (RoFormer); linear: Chen et al. 2023 (Position Interpolation); yarn: Peng et al. 2023; longrope:
-- Ding et al. 2024; dynamic (NTK-aware base): bloc97 2023. The formulas follow modeling_rope_utils of transformers; dynamic with
-- alpha follows its modeling_hunyuan_v1_dense.

local keys = require "ane.util.keys"

local M = {}

-- Each scaling changes f in place: function(f, r, n) -> factor on cosine and sine (nil: 1), list of the frequencies that apply beyond
-- r.original_context (nil: the same as f).
local SCALINGS = {}

local function need_factor(r)
  if not r.factor then error(("rope scaling %s: the factor is missing"):format(r.scaling), 0) end
end

function SCALINGS.linear(f, r, n)
  need_factor(r)
  for t = 1, n do f[t] = f[t] / r.factor end
end

-- Long wavelengths are divided by the factor, short ones are kept, and those between are blended.
function SCALINGS.llama3(f, r, n)
  local low, high = r.original_context / r.low_freq_factor, r.original_context / r.high_freq_factor
  for t = 1, n do
    local wave = 2 * math.pi / f[t]
    if wave > low then
      f[t] = f[t] / r.factor
    elseif wave >= high then
      local s = (r.original_context / wave - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor)
      f[t] = (1 - s) * f[t] / r.factor + s * f[t]
    end
  end
end

-- One set of divisors applies up to the original context, another beyond it. Both have the same factor on cosine and sine.
function SCALINGS.longrope(f, r, n)
  if not r.short_factors or not r.long_factors then error("rope scaling longrope: the short or the long factors are missing", 0) end
  if #r.short_factors ~= n or #r.long_factors ~= n then
    error(("rope scaling longrope: has %d short and %d long factors, but must have %d"):format(#r.short_factors, #r.long_factors, n), 0)
  end
  local original = r.original_context or error("rope scaling longrope: the original context length is missing", 0)
  local long = {}
  for t = 1, n do f[t], long[t] = f[t] / r.short_factors[t], f[t] / r.long_factors[t] end
  local factor = r.factor or 1
  return r.attn_factor or (factor > 1 and math.sqrt(1 + math.log(factor) / math.log(original)) or 1), long
end

-- Only the pairs in the first r.partial of a head rotate.
function SCALINGS.proportional(f, r, n)
  local rotated = math.floor((r.partial or 1) * r.dims // 2)
  for t = 1, n do f[t] = t <= rotated and f[t] / (r.factor or 1) or 0.0 end
end

-- With alpha, the base is larger at all lengths. Without alpha, it grows only beyond r.limit; the loader keeps sessions below that length.
function SCALINGS.dynamic(f, r, n)
  if not r.alpha then return end
  local base = r.theta * r.alpha ^ (r.dims / (r.dims - 2))
  for t = 1, n do f[t] = base ^ (-2 * (t - 1) / r.dims) end
end

--- YaRN's factor on cosine and sine, computed from the two mscale values of DeepSeek (transformers, modeling_rope_utils).
-- @param factor scaling factor of the context; mscale, all (mscale_all_dim): numbers
function M.yarn_magnitude(factor, mscale, all)
  local function m(scale) return factor > 1 and 0.1 * scale * math.log(factor) + 1 or 1.0 end
  return m(mscale) / m(all)
end

-- YaRN blends f and f / factor over a ramp of dimensions.
function SCALINGS.yarn(f, r, n)
  need_factor(r)
  local original = r.original_context or error("rope scaling yarn: the original context length is missing", 0)
  local function dim_of(rotations) return r.dims * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(r.theta)) end
  local low, high = dim_of(r.beta_fast or 32), dim_of(r.beta_slow or 1)
  if r.truncate ~= false then low, high = math.floor(low), math.ceil(high) end
  low, high = math.max(low, 0), math.min(high, r.dims - 1)
  if low == high then high = high + 0.001 end
  for t = 0, n - 1 do
    local ramp = math.min(math.max((t - low) / (high - low), 0), 1)
    f[t + 1] = f[t + 1] / r.factor * ramp + f[t + 1] * (1 - ramp)
  end
  return r.attn_factor or (r.factor > 1 and 0.1 * math.log(r.factor) + 1 or 1)
end

-- Maximum number of rotary dimensions: twice the number of frequencies that a rope table takes (csrc/graph).
local MOST_DIMS = 1 << 13

-- The smallest number that becomes infinite in float32: the midpoint between the largest float32 and 2^128, which is rounded up.
local FP32_INFINITE = 0x1.ffffffp127

local function check_finite(f, what)
  for t, v in ipairs(f) do
    if not (v >= 0 and v < FP32_INFINITE) then error(("rope: %s %d must be a finite fp32 number, but is %s"):format(what, t - 1, v), 0) end
  end
end

--- The angular frequencies of one rope.
-- @param r either inv_freq (the frequencies, with magnitude and long_freq, from files that store tables), or theta (base), dims (number
-- of rotary dimensions) and, for a scaled rope, scaling and its fields (ane.model.config); divisors: list of dims / 2 numbers that divide
-- the frequencies (Llama 3 in GGUF)
-- @return list of dims / 2 frequencies (radians per position); factor on cosine and sine; for longrope the list for lengths beyond
-- r.original_context
-- @raise if the scaling is unknown
function M.frequencies(r)
  if r.inv_freq then return r.inv_freq, r.magnitude or 1.0, r.long_freq end
  if r.dims > MOST_DIMS then error(("rope has %s dimensions, but must have at most %d"):format(r.dims, MOST_DIMS), 0) end
  local n, f = r.dims // 2, {}
  for t = 0, n - 1 do f[t + 1] = r.theta ^ (-2 * t / r.dims) end
  local magnitude, long
  if r.scaling then
    local scale = SCALINGS[r.scaling]
    if not scale then error(("rope scaling %s is unknown; known are: %s"):format(r.scaling, table.concat(keys(SCALINGS), ", ")), 0) end
    magnitude, long = scale(f, r, n)
  end
  if r.divisors then
    if #r.divisors ~= n then error(("rope has %d frequencies, but rope_freqs has %d divisors"):format(n, #r.divisors), 0) end
    for t = 1, n do f[t] = f[t] / r.divisors[t] end
  end
  check_finite(f, "frequency")
  check_finite(long or {}, "long frequency")
  check_finite({ magnitude }, "factor")
  return f, magnitude or 1.0, long
end

return M
