--- Gated short convolution (Liquid AI's LFM2).
-- Needs ane.recipe.options. Usage (in a recipe): `x = b:add(x, shortconv.gated(b, b:rms_norm(x, "attn_norm"), {taps = 3}))`

local options = require "ane.recipe.options"

local M = {}

--- Computes out(C * conv(B * z)) with B | C | z = in(x). The convolution is depthwise and causal.
-- Weights: shortconv.in_proj, shortconv.conv [C, K] or [C, 1, K], shortconv.out_proj, each with its bias if the file has one.
-- @param opts taps (K)
function M.gated(b, x, opts)
  opts = options.check("shortconv.gated", opts)
  local c = b:channels(x)
  local u = b:linear(x, "shortconv.in_proj")
  local gate_in, gate_out, z = b:slice(u, 0, c), b:slice(u, c, 2 * c), b:slice(u, 2 * c, 3 * c)
  local y = b:conv_causal(b:mul(gate_in, z), {
    weight = b:weight "shortconv.conv", bias = b:weight("shortconv.conv", { suffix = ".bias", optional = true }), groups = c,
    taps = opts.taps,
  })
  return b:linear(b:mul(gate_out, y), "shortconv.out_proj")
end

return M
