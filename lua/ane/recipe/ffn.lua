--- Feed-forward blocks.
-- Usage (in a recipe): `x = b:add(x, ffn.gated(b, b:rms_norm(x, "ffn_norm"), "silu"))`

local M = {}

--- down(act(gate(x)) * up(x)) (Shazeer 2020, "GLU Variants Improve Transformer"). Weights: ffn_gate, ffn_up, ffn_down.
function M.gated(b, x, act) return b:linear(b:glu(b:linear(x, "ffn_gate"), b:linear(x, "ffn_up"), act), "ffn_down") end

return M
