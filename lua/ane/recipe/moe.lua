--- Mixture-of-experts blocks.
-- Shazeer et al. 2017, "Outrageously Large Neural Networks". Needs ane.recipe.options. Usage (in a recipe):
-- `y = moe.experts(b, x, moe.route(b, logits, {k = 4, score = "sigmoid"}), moe.list(b, 32, roles), {act = "silu"})`
--
-- Routing is a separate value, so the executor reads only the weights of the chosen experts. With b.soft_experts = true all experts run
-- with masked weights, as a static graph requires.

local options = require "ane.recipe.options"

local M = {}

--- Which layers have experts, by decoder_sparse_step and mlp_only_layers of config.json (Qwen): every n-th, but for those listed.
-- @return function(layer, 0-based) -> true for a layer with experts
function M.sparse(cfg)
  local dense, step = {}, cfg.meta("decoder_sparse_step", "count") or 1
  for _, i in ipairs(cfg.meta("mlp_only_layers", "list") or {}) do dense[i] = true end
  return function(i) return not dense[i] and (i + 1) % step == 0 end
end

-- expert_gating_func of GGUF -> score of M.route
local GATINGS = { "softmax", "sigmoid", "softmax_topk" }

--- The settings of experts whose choice a bias may correct, by the keys of DeepSeek-V3, which other models have too.
-- @param usual values where the file lacks the keys: k, scale, groups, kept, dense, score
-- @return table: count, k, scale, score, norm, groups, kept (groups that are kept), best (experts that rank a group), dense (leading layers
-- without experts), shared (number of shared experts)
function M.grouped(cfg, usual)
  local gguf = cfg.format == "gguf"
  local function get(hf, other, kind) return cfg.meta(gguf and other or hf, kind) end
  local score, norm = usual.score or "softmax", get("norm_topk_prob", "expert_weights_norm", "flag") or false
  local gating = gguf and cfg.meta("expert_gating_func", "whole") or 0
  if gating ~= 0 then score = GATINGS[gating] or error(("key expert_gating_func is %d, known are 1, 2 and 3"):format(gating), 0) end
  return {
    count = cfg.meta("num_local_experts", "whole") or cfg.meta("num_experts", "whole")
      or get("n_routed_experts", "expert_count", "whole") or 0,
    k = get("num_experts_per_tok", "expert_used_count", "whole") or usual.k, score = score, norm = norm,
    scale = get("routed_scaling_factor", "expert_weights_scale", "number") or usual.scale,
    groups = get("n_group", "expert_group_count", "count") or usual.groups or 1,
    kept = get("topk_group", "expert_group_used_count", "count") or usual.kept or 1, best = score == "sigmoid" and 2 or 1,
    dense = get("first_k_dense_replace", "leading_dense_block_count", "whole") or usual.dense or 0,
    shared = get("n_shared_experts", "expert_shared_count", "whole") or 1,
  }
end

--- Names, in Hugging Face files, of the weights that `plus_shared` reads.
M.names = {
  ffn_gate_inp = "mlp.gate", exp_probs_b = "mlp.gate.e_score_correction_bias", ffn_gate_exps = "mlp.experts.%d.gate_proj",
  ffn_up_exps = "mlp.experts.%d.up_proj", ffn_down_exps = "mlp.experts.%d.down_proj", ffn_gate_shexp = "mlp.shared_experts.gate_proj",
  ffn_up_shexp = "mlp.shared_experts.up_proj", ffn_down_shexp = "mlp.shared_experts.down_proj",
}

-- The weights of the chosen experts, as M.list takes them.
local ROLES = { gate = "ffn_gate_exps", up = "ffn_up_exps", down = "ffn_down_exps" }

--- Shapes of the weights that `weighted` reads, used for plans without weights.
-- @param count of the experts
-- @param inner width of an expert
function M.expert_shapes(cfg, count, inner)
  local d = cfg.d_model
  return { ffn_gate_inp = { count, d }, ffn_gate_exps = { inner, d }, ffn_up_exps = { inner, d }, ffn_down_exps = { d, inner } }
end

--- Shapes of the weights that `plus_shared` reads, used for plans without weights.
-- @param e count, shared (number of shared experts); bias (true: there is one)
function M.shapes(cfg, e)
  local inner, d = cfg.meta("moe_intermediate_size", "count") or cfg.d_ff, cfg.d_model
  local t, shared = M.expert_shapes(cfg, e.count, inner), inner * e.shared
  if e.bias then t.exp_probs_b = { e.count } end
  if e.shared > 0 then t.ffn_gate_shexp, t.ffn_up_shexp, t.ffn_down_shexp = { shared, d }, { shared, d }, { d, shared } end
  return t
end

--- Chooses the experts of each token.
-- @param logits router logits [1, E, T, 1]
-- @param opts k; score: "softmax" (over all experts), "sigmoid" or "softmax_topk" (over the chosen experts); bias (vector added to the
-- scores for the choice only, or false); norm (true: weights are divided by their sum + norm_eps); scale (factor on the weights);
-- factors (vector of such factors by expert, or nil); groups (number of expert groups; experts come only from the groups_kept best
-- groups, ranked by the sum of their group_best best scores)
-- @return value [1, 2 k, T, 1]: k expert numbers, then their weights
function M.route(b, logits, opts)
  opts = options.check("moe.route", opts)
  if not opts.k then error("the configuration lacks the number of experts per token", 0) end
  return b:_add("route", "route", { logits, opts.bias or false, opts.factors },
    { k = opts.k, score = opts.score, norm = opts.norm and 1 or 0, norm_eps = opts.norm_eps or 0, scale = opts.scale or 1,
      groups = opts.groups or 1, groups_kept = opts.groups_kept or 1, group_best = opts.group_best or 1 })
end

--- The weighted sum of the outputs of the chosen experts.
-- @param x value [1, C, T, 1]
-- @param route the value that M.route returns
-- @param list the weights, see M.list
-- @param opts act ("silu", "gelu_tanh", ..., or "swiglu_oai" with limit and alpha)
-- @return value [1, C, T, 1]
function M.experts(b, x, route, list, opts)
  opts = options.check("moe.experts", opts)
  local inputs = { x, route }
  for _, e in ipairs(list) do
    local all = { e.gate, e.gate_bias or false, e.up, e.up_bias or false, e.down, e.down_bias or false }
    table.move(all, 1, 6, #inputs + 1, inputs)
  end
  return b:_add("experts", "experts", inputs,
    { count = #list, act = opts.act or "silu", limit = opts.limit, alpha = opts.alpha, soft = b.soft_experts and 1 or 0 })
end

-- down(act(gate(x)) * up(x)) of the expert that all tokens have
local function shared_expert(b, x, act)
  return b:linear(b:glu(b:linear(x, "ffn_gate_shexp"), b:linear(x, "ffn_up_shexp"), act), "ffn_down_shexp")
end

--- The weighted sum of the chosen experts, whose weights are a softmax over all experts. Weights: ffn_gate_inp, ffn_gate_exps,
-- ffn_up_exps, ffn_down_exps. The activation function is the configuration's, by default silu.
-- @param x value [1, C, T, 1]
-- @param opts count (of the experts), k and norm of M.route
-- @return value [1, C, T, 1]
function M.weighted(b, x, opts)
  opts = options.check("moe.weighted", opts)
  local route = M.route(b, b:linear(x, "ffn_gate_inp"), { k = opts.k, score = "softmax", norm = opts.norm })
  local list = M.list(b, opts.count, ROLES)
  return M.experts(b, x, route, list, { act = b.cfg.act or "silu" })
end

--- The chosen experts plus a shared expert, which is weighted by a gate of its own, sigmoid(w x) (Qwen's models).
-- Weights: ffn_gate_inp, those of `roles`, ffn_gate_inp_shexp [1, C], ffn_gate_shexp, ffn_up_shexp, ffn_down_shexp.
-- @param x value [1, C, T, 1]
-- @param roles of the experts' weights, see M.list
-- @param opts count (of the experts), k and norm of M.route, act, inner of M.list
-- @return value [1, C, T, 1]
function M.beside_shared(b, x, roles, opts)
  opts = options.check("moe.beside_shared", opts)
  local act = opts.act or "silu"
  local route = M.route(b, b:linear(x, "ffn_gate_inp"), { k = opts.k, score = "softmax", norm = opts.norm })
  local list = M.list(b, opts.count, roles, { inner = opts.inner })
  local shared = shared_expert(b, x, act)
  local gate = b:act(b:linear(x, "ffn_gate_inp_shexp"), "sigmoid") -- [1, 1, T, 1]
  shared = b:mul(shared, b:repeat_heads(gate, 1, b:channels(shared)))
  return b:add(M.experts(b, x, route, list, { act = act }), shared)
end

--- The chosen experts plus a shared expert without a gate (DeepSeek, GLM-4.5, ERNIE 4.5). A bias may correct the choice.
-- Weights: ffn_gate_inp, exp_probs_b [E], ffn_gate_exps, ffn_up_exps, ffn_down_exps, ffn_gate_shexp, ffn_up_shexp, ffn_down_shexp.
-- @param x value [1, C, T, 1]
-- @param opts count (of the experts), k, score, norm, norm_eps, scale, groups, groups_kept, group_best of M.route; bias and shared (true:
-- required; false: none; nil: as the file has it)
-- @return value [1, C, T, 1]
function M.plus_shared(b, x, opts)
  opts = options.check("moe.plus_shared", opts)
  local act, suffix = b.cfg.act or "silu", b.cfg.format == "gguf" and ".bias" or ""
  local bias = opts.bias ~= false and b:weight("exp_probs_b", { suffix = suffix, optional = not opts.bias, flat = true })
  local route = M.route(b, b:linear(x, "ffn_gate_inp"), {
    k = opts.k, score = opts.score, bias = bias, norm = opts.norm, norm_eps = opts.norm_eps, scale = opts.scale, groups = opts.groups,
    groups_kept = opts.groups_kept, group_best = opts.group_best,
  })
  local list = M.list(b, opts.count, ROLES)
  local y, shared = M.experts(b, x, route, list, { act = act }), opts.shared
  if shared == nil then shared = b:has "ffn_gate_shexp" end
  return shared and b:add(y, shared_expert(b, x, act)) or y
end

-- The weight of expert e, or the rows of it that `view` selects: slice e of a stacked tensor, or a separate tensor if the role's name
-- contains %d. A stacked tensor holds `count` experts.
local function one(b, role, e, count, view)
  if b.names(role, b.index):find("%d", 1, true) then
    view.expert = e
  else
    view.index = e
    if not view.suffix and not b:has(role) then view.suffix = "" end -- stacked parameters of transformers have no .weight
    view.count = count
  end
  return b:weight(role, view)
end

-- Splits a tensor that holds the rows of both gate and up: gate first and then up, or alternating.
local function halves(b, role, e, count, opts)
  local inner, t = opts.inner, opts.transposed
  if opts.interleaved then
    return one(b, role, e, count, { from = 0, step = 2, transposed = t }), one(b, role, e, count, { from = 1, step = 2, transposed = t })
  end
  local gate = one(b, role, e, count, { from = 0, to = inner, transposed = t })
  return gate, one(b, role, e, count, { from = inner, to = 2 * inner, transposed = t })
end

--- The weights of all experts: list of {gate, up, down, gate_bias, up_bias, down_bias}.
-- @param count number of experts
-- @param roles gate, up and down; or gate_up (rows of gate, then of up) and down. Biases: gate_up_bias and down_bias; or gate_bias,
-- up_bias and down_bias, whose names end in .bias
-- @param opts inner (number of gate rows; with gate_up), transposed (stored [in, out]), interleaved (true: the rows of gate_up are
-- gate 0, up 0, gate 1, ...)
function M.list(b, count, roles, opts)
  opts = options.check("moe.list", opts)
  local inner, t, list = opts.inner, opts.transposed, {}
  if not count then error("the configuration lacks the number of experts", 0) end
  if roles.gate_up and not inner then error("the configuration lacks the width of the experts", 0) end
  for e = 0, count - 1 do
    local x = { down = one(b, roles.down, e, count, { transposed = t }) }
    if roles.gate_up then
      x.gate, x.up = halves(b, roles.gate_up, e, count, opts)
    else
      x.gate, x.up = one(b, roles.gate, e, count, { transposed = t }), one(b, roles.up, e, count, { transposed = t })
    end
    if roles.gate_up_bias then
      x.gate_bias, x.up_bias = halves(b, roles.gate_up_bias, e, count, { inner = inner, interleaved = opts.interleaved })
    end
    if roles.gate_bias then
      x.gate_bias = one(b, roles.gate_bias, e, count, { suffix = ".bias" })
      x.up_bias = one(b, roles.up_bias, e, count, { suffix = ".bias" })
    end
    if roles.down_bias then x.down_bias = one(b, roles.down_bias, e, count, { suffix = roles.gate_bias and ".bias" or nil }) end
    list[e + 1] = x
  end
  return list
end

return M
