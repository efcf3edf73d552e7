--- Feed-forward blocks.
-- Needs ane.core and ane.recipe.options. Usage (in a recipe): `x = b:add(x, ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu"))`

local core = require "ane.core"
local options = require "ane.recipe.options"

local M = {}

-- gate and up, [1, d_ff, T, 1] each
local function linear(b, x, fused)
  local bias = b.cfg.mlp_bias
  if not fused then return b:linear(x, "ffn_gate", { bias = bias }), b:linear(x, "ffn_up", { bias = bias }) end
  local n = b:rows "ffn_up" // 2
  local gate = b:linear(x, "ffn_up", { bias = bias, from = 0, to = n, name = "ffn_gate" })
  return gate, b:linear(x, "ffn_up", { bias = bias, from = n, to = 2 * n })
end

--- down(act(gate(x)) * up(x)) (Shazeer 2020, "GLU Variants Improve Transformer"). Weights: ffn_gate, ffn_up, ffn_down.
-- cfg.mlp_bias says whether they have biases.
-- @param x normed input [1, d_model, T, 1]
-- @param act activation function, used if the configuration names none: "silu", "gelu_tanh", "gelu_erf", "sigmoid" or "relu"
-- @param opts fused (true: the first half of the rows of ffn_up is gate, the second half is up)
-- @return value [1, d_model, T, 1]
-- @raise if act is unknown, even if the configuration names an activation function
function M.gated(b, x, act, opts)
  opts = options.check("ffn.gated", opts)
  if act ~= nil then
    local ok, message = core.check_activation(act)
    if not ok then error("ffn.gated: " .. message, 0) end
  end
  local gate, up = linear(b, x, opts.fused)
  return b:linear(b:glu(gate, up, b.cfg.act or act), "ffn_down", { bias = b.cfg.mlp_bias })
end

--- down(act(up(x))). Weights: ffn_up, ffn_down. cfg.mlp_bias says whether they have biases.
-- @param x normed input [1, d_model, T, 1]
-- @param act activation function, used if the configuration names none
-- @return value [1, d_model, T, 1]
function M.plain(b, x, act)
  local bias = b.cfg.mlp_bias
  return b:linear(b:act(b:linear(x, "ffn_up", { bias = bias }), b.cfg.act or act), "ffn_down", { bias = bias })
end

return M
