--- AltUp: several residual streams. Only one, the active stream, goes through the layer; the others are updated from its result.
-- Baykal et al. 2023, "Alternating Updates for Efficient Transformers"; Gemma team 2025, "Gemma 3n".
-- Usage (in a recipe): `local p = altup.predict(b, streams)`, apply the layer to p[1], then `streams = altup.correct(b, p, y)`

local M = {}

-- Multiplies all channels of x by one number per token, factor [1, 1, T, 1].
local function times(b, x, factor) return b:mul(x, b:repeat_heads(factor, 1, b:channels(x))) end

-- Scales x to the magnitude of `like`: x / rms(x) * rms(like). rms(like) is computed as mean(like * like / rms(like)).
local function as_large(b, x, like)
  local c = b:channels(x)
  local size = b:mean_heads(b:mul(like, b:rms_norm(like, "magnitude", { weight = false, offset = 0, eps = 1e-30 })), c, c)
  return times(b, b:rms_norm(x, "unit", { weight = false, offset = 0, eps = 1e-30 }), size)
end

--- Makes the initial streams. Weights: altup_proj.1 ... altup_proj.(n - 1) [d_model, d_model].
-- @param x scaled embedding [1, d_model, T, 1]
-- @param n number of streams
-- @return list of n values
function M.streams(b, x, n)
  local list = { x }
  for i = 1, n - 1 do list[i + 1] = as_large(b, b:linear(x, "altup_proj." .. i), x) end
  return list
end

--- Merges the streams into one: their mean, each scaled to the magnitude of the first. Weights: altup_unembd_proj.1 ...
function M.joined(b, list)
  local sum = list[1]
  for i = 2, #list do sum = b:add(sum, as_large(b, b:linear(list[i], "altup_unembd_proj." .. i - 1), list[1])) end
  return b:scale(sum, 1 / #list)
end

-- tanh(router(norm(x) / d_model)) [1, n, T, 1]
local function modalities(b, x)
  local normed = b:rms_norm(x, "altup_router_norm")
  return b:softcap(b:linear(b:scale(normed, 1 / b.cfg.d_model), "altup_router"), 1) -- tanh
end

--- Predicts each stream: x_i + sum over j of c[i n + j] x_j. The coefficients c differ per token.
-- Weights: altup_router_norm, altup_router, altup_predict_coef [n n, n].
-- @param active number of the active stream (default 1)
function M.predict(b, list, active)
  local n, out = #list, {}
  local c = b:linear(modalities(b, list[active or 1]), "altup_predict_coef")
  for i = 1, n do
    local sum = list[i]
    for j = 1, n do
      local at = (i - 1) * n + j - 1
      sum = b:add(sum, times(b, list[j], b:slice(c, at, at + 1)))
    end
    out[i] = sum
  end
  return out
end

--- Corrects the predicted streams after the layer: p_i + (1 + c_i) (y - p_a), a being the active stream. Weight: altup_correct_coef [n, n].
-- @param p predictions
-- @param y the layer's output for p[active]
-- @param active number of the active stream (default 1)
function M.correct(b, p, y, active)
  local gain = b:add(y, b:scale(p[active or 1], -1))
  local c, out = b:linear(modalities(b, y), "altup_correct_coef"), {}
  for i = 1, #p do out[i] = b:add(b:add(p[i], gain), times(b, gain, b:slice(c, i - 1, i))) end
  return out
end

return M
