--- Frequencies of rotary position embeddings.
-- Usage: `local f, magnitude = rope.frequencies{theta = 1e4, dims = 64}`
-- Sources: Su et al. 2021 (RoFormer); linear: Chen et al. 2023 (Position Interpolation); yarn: Peng et al. 2023; the
-- formulas as in transformers' modeling_rope_utils.

local M = {}

-- YaRN blends f and f / factor over a ramp of dimensions.
local function yarn(f, r, n)
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

--- Angular frequencies of one rope.
-- @param r theta (base), dims (rotary size), and where scaled: scaling "linear" | "yarn" with factor; divisors: a list
-- of dims / 2 numbers that divide the frequencies (llama 3)
-- @return list of dims / 2 frequencies (radians a position); factor on cosine and sine
-- @raise where the scaling is unknown: another would give wrong text in silence
function M.frequencies(r)
  local n, f, magnitude = r.dims // 2, {}, 1.0
  for t = 0, n - 1 do f[t + 1] = r.theta ^ (-2 * t / r.dims) end
  if (r.scaling == "linear" or r.scaling == "yarn") and not r.factor then
    error(("rope scaling %s: the factor is missing"):format(r.scaling), 0)
  end
  if r.scaling == "linear" then
    for t = 1, n do f[t] = f[t] / r.factor end
  elseif r.scaling == "yarn" then
    magnitude = yarn(f, r, n)
  elseif r.scaling then
    error(("rope scaling %s is unknown; known are: linear, yarn"):format(r.scaling), 0)
  end
  if r.divisors then
    if #r.divisors ~= n then error(("rope has %d frequencies, but rope_freqs %d divisors"):format(n, #r.divisors), 0) end
    for t = 1, n do f[t] = f[t] / r.divisors[t] end
  end
  return f, magnitude
end

return M
