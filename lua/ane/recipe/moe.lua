--- Mixture-of-experts blocks.
-- Shazeer et al. 2017, "Outrageously Large Neural Networks". Usage (in a recipe):
-- `y = moe.experts(b, x, moe.route(b, logits, {k = 4, score = "sigmoid"}), experts, {act = "silu"})`
--
-- Routing is a value of its own, so that the executor reads only the chosen experts' weights, and the engine side may run
-- all of them with masked weights (b.soft_experts = true makes such a graph).

local M = {}

--- Which experts each token goes to.
-- @param logits [1, E, T, 1]
-- @param opts k; score: "softmax" (over all), "sigmoid" or "softmax_topk" (over the chosen); bias (vector, added for the
-- choice only, or false); norm (weights divided by their sum + norm_eps); scale (of the weights)
function M.route(b, logits, opts)
  return b:_add("route", "route", { logits, opts.bias or false },
    { k = opts.k, score = opts.score, norm = opts.norm and 1 or 0, norm_eps = opts.norm_eps or 0, scale = opts.scale or 1 })
end

--- The weighted sum of the chosen experts.
-- @param list one {gate =, up =, down =, gate_bias =, up_bias =, down_bias =} of weights an expert; biases may be absent
-- @param opts act ("silu", "gelu_tanh", ..., or "swiglu_oai" with limit and alpha)
function M.experts(b, x, route, list, opts)
  local inputs = { x, route }
  for _, e in ipairs(list) do
    local weights = { e.gate, e.gate_bias or false, e.up, e.up_bias or false, e.down, e.down_bias or false }
    table.move(weights, 1, #weights, #inputs + 1, inputs)
  end
  return b:_add("experts", "experts", inputs,
    { count = #list, act = opts.act or "silu", limit = opts.limit, alpha = opts.alpha, soft = b.soft_experts and 1 or 0 })
end

--- Experts from stacked tensors [E, I, C] and [E, C, I], or from one tensor an expert where the file has those.
-- @param roles gate, up, down: roles of the stacked tensors; each: function(kind, e) -> role of one expert's tensor
function M.stacked(b, count, roles)
  local list = {}
  for e = 0, count - 1 do
    local one = {}
    for _, kind in ipairs { "gate", "up", "down" } do
      one[kind] = b:has(roles[kind]) and b:weight(roles[kind], { index = e }) or b:weight(("%s.%d"):format(roles[kind], e))
    end
    list[e + 1] = one
  end
  return list
end

return M
