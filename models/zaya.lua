--- ZAYA1: compressed convolutional attention and a mixture of experts whose router carries a state from layer to layer.
-- Zyphra 2025, "ZAYA1"; "Compressed Convolutional Attention" (Figliolia et al. 2025).
--
-- Quirks: both branches are added to the residual stream by S(x, h) = (x + bias) scale + (h + residual bias) residual scale. q and k
-- together pass through a depthwise and then a grouped causal convolution. Only the first is padded with zeros, so before the first token
-- the second sees the bias of the first. Then a mean of q and k is added, and each head is scaled to length sqrt(head_dim); k is also
-- multiplied by a temperature. Half of the value channels are those of the previous token. The router adds its state from the layer
-- below. A token has one expert or none (the last slot of the router).
--
-- There are two file layouts: that of transformers (each layer has attention and experts), and the original (the two alternate as layers,
-- and the scales of a join are stored at the input of the next layer).

local head = require "ane.recipe.head"
local lists = require "ane.recipe.lists"
local moe = require "ane.recipe.moe"

local M = { architectures = { "zaya" }, version = 1, defaults = { hf = { norm_eps = 1e-5 } } }

M.config = { num_key_value_heads = 2, head_dim = 128 }

local SCALES = { "hidden_states_bias", "hidden_states_scale", "residual_bias", "residual_scale" }

-- Names by role. The roles of the original layout begin with "o.".
local NAMES = {
  ["start.hidden_states_bias"] = "model.input_hidden_states_bias",
  ["start.hidden_states_scale"] = "model.input_hidden_states_scale",
  norm_a = "input_layernorm", norm_m = "post_attention_layernorm", o = "self_attn.o_proj", temp = "self_attn.qk_norm.temp",
  q = "self_attn.qkv_proj.q_proj", k = "self_attn.qkv_proj.k_proj", v_now = "self_attn.qkv_proj.v_proj_current",
  v_before = "self_attn.qkv_proj.v_proj_delayed", conv0 = "self_attn.qkv_proj.conv_qk_depthwise",
  conv1 = "self_attn.qkv_proj.conv_qk_grouped",
  down = "mlp.gate.down_proj", carry = "mlp.gate.router_states_scale", norm_r = "mlp.gate.router_mlp.norm", fc1 = "mlp.gate.router_mlp.fc1",
  fc2 = "mlp.gate.router_mlp.fc2", out = "mlp.gate.router_mlp.out_proj", balance = "mlp.gate.balancing_biases",
  gate_up = "mlp.experts.gate_up_proj", experts_down = "mlp.experts.down_proj",
  ["o.norm_a"] = "input_norm", ["o.norm_m"] = "input_norm", ["o.o"] = "self_attn.o_proj", ["o.temp"] = "self_attn.qkv.temp",
  ["o.q"] = "self_attn.qkv.linear_q", ["o.k"] = "self_attn.qkv.linear_k", ["o.v_now"] = "self_attn.qkv.val_proj1",
  ["o.v_before"] = "self_attn.qkv.val_proj2", ["o.conv0"] = "self_attn.qkv.conv_qk.0", ["o.conv1"] = "self_attn.qkv.conv_qk.1",
  ["o.down"] = "zaya_block.router.down_proj", ["o.carry"] = "zaya_block.router.router_states_scale",
  ["o.norm_r"] = "zaya_block.router.rmsnorm_eda",
  ["o.fc1"] = "zaya_block.router.router_mlp.0", ["o.fc2"] = "zaya_block.router.router_mlp.2", ["o.out"] = "zaya_block.router.router_mlp.4",
  ["o.balance"] = "zaya_block.router.balancing_biases", ["o.gate_up"] = "zaya_block.experts.local_experts.%d.linear_fc1",
  ["o.experts_down"] = "zaya_block.experts.local_experts.%d.linear_fc2",
}
for _, s in ipairs(SCALES) do
  NAMES["a." .. s], NAMES["m." .. s] = "post_attention_residual_scale." .. s, "post_mlp_residual_scale." .. s
  NAMES["res." .. s], NAMES["last." .. s] = "res_scale." .. s, "model.res_scale." .. s
end
M.names = { hf = NAMES }

-- The two file layouts. Their fields: prefix (of the roles), blocks and heads (numbers), inner (width of an expert), rope and rope_sliding
-- (the ropes of full and of sliding attention). Their functions say where the parts of block i are stored: in_a(i) and in_m(i) give the
-- layer of its attention and of its experts. join(i, "a" | "m") gives the role prefix and the layer of the scales after that branch, and
-- start() those of the scales before block 0. sliding(i) gives the attention window of block i in tokens; nil: full attention.
local function transformers_layout(cfg)
  local half = cfg.head_dim // 2
  local ropes = cfg.ropes or { hybrid = cfg.rope, hybrid_sliding = cfg.rope }
  if not cfg.meta "rope_parameters" then -- the default of transformers
    ropes = { hybrid = { theta = 5e6, dims = half }, hybrid_sliding = { theta = 1e4, dims = half } }
  end
  local L = { prefix = "", blocks = cfg.n_layer, heads = cfg.n_head }
  function L.in_a(i) return i end
  L.in_m = L.in_a
  function L.join(i, branch) return branch .. ".", i end
  function L.start() return "start.", nil end
  function L.sliding(i) return cfg.layer_types and cfg.layer_types[i + 1] == "hybrid_sliding" and cfg.sliding_window or nil end
  L.rope, L.rope_sliding = ropes.hybrid, ropes.hybrid_sliding
  L.inner = cfg.meta("moe_intermediate_size", "count")
  return L
end

local function original_layout(cfg)
  local L = { prefix = "o.", blocks = cfg.n_layer // 2, heads = cfg.meta("cca_num_q_heads", "count") or cfg.n_head // 2 }
  local windows = lists.per_layer(cfg, "swa_layers") or {}
  function L.in_a(i) return 2 * i end
  function L.in_m(i) return 2 * i + 1 end
  -- The scales at the input of a layer join the output of the layer before it: those after the attention of block i are in layer
  -- 2i + 1, those after its experts in layer 2i + 2, and those after the last experts belong to the model.
  function L.join(i, branch)
    if branch == "a" then return "res.", 2 * i + 1 end
    if i + 1 < L.blocks then return "res.", 2 * i + 2 end
    return "last.", nil
  end
  function L.start() return "res.", 0 end
  -- swa_layers gives the number of keys before a query's own.
  function L.sliding(i)
    local before = windows[2 * i + 1] or 0
    return before > 0 and before + 1 or nil
  end
  L.rope = cfg.rope
  L.rope_sliding = { theta = cfg.meta("swa_rotary_base", "number") or cfg.rope.theta, dims = cfg.rope.dims }
  L.inner = (cfg.meta("ffn_hidden_size", "count") or error("key ffn_hidden_size is missing", 0)) // 2
  return L
end

-- One of the vectors SCALES [d_model]. layer is nil for vectors that belong to no layer.
local function scale_vector(b, prefix, layer, which)
  local index = b.index
  b.index = layer
  local v = b:weight(prefix .. which, { suffix = "" })
  b.index = index
  return v
end

-- S(x, h) for the output x of a branch and the residual stream h. prefix and layer locate its four vectors.
local function join(b, x, h, prefix, layer)
  local function v(which) return scale_vector(b, prefix, layer, which) end
  return b:add(b:affine(h, v "residual_bias", v "residual_scale"), b:affine(x, v "hidden_states_bias", v "hidden_states_scale"))
end

-- The value channels of the previous token. Before the first token x is 0, so the projection is its bias.
local function v_before(b, x, role)
  local v, bias = b:delay(b:linear(x, role, { bias = false })), b:weight(role, { suffix = ".bias", optional = true })
  return bias and b:affine(v, bias, false, "v_bias") or v
end

-- Compressed convolutional attention of a normed x [1, d_model, T, 1].
local function cca(b, cfg, L, x, rope, window)
  local p, heads, kv_heads, d = L.prefix, L.heads, cfg.n_head_kv, cfg.head_dim
  local times = heads // kv_heads
  local q0, k0 = b:linear(x, p .. "q"), b:linear(x, p .. "k")
  local qk = b:concat(q0, k0)
  local bias0 = b:weight(p .. "conv0", { suffix = ".bias" })
  local y = b:conv_causal(qk, {
    weight = b:weight(p .. "conv0"), bias = bias0, groups = b:channels(qk), taps = cfg.meta("cca_time0", "count") or 2, name = "conv0",
  })
  local z = b:conv_causal(y, {
    weight = b:weight(p .. "conv1"), bias = b:weight(p .. "conv1", { suffix = ".bias" }), before = bias0, groups = heads + kv_heads,
    taps = cfg.meta("cca_time1", "count") or 2, name = "conv1",
  })
  local q_mean = b:scale(b:add(q0, b:repeat_heads(k0, kv_heads, times)), 0.5)
  local q = b:add(b:slice(z, 0, heads * d), q_mean)
  local k = b:add(b:slice(z, heads * d, (heads + kv_heads) * d), b:mean_heads(q_mean, heads, times))
  q = b:rope(b:l2_norm(q, false, heads, "q_norm"), rope, "q_rope", { heads = heads })
  k = b:rope(b:l2_norm(k, b:weight(p .. "temp", { suffix = "" }), kv_heads, "k_norm"), rope, "k_rope", { heads = kv_heads })
  local v = b:concat(b:linear(x, p .. "v_now"), v_before(b, x, p .. "v_before"))
  local o = b:attention(q, k, v, { heads = heads, kv_heads = kv_heads, head_dim = d, scale = d ^ -0.5, window = window })
  return b:linear(o, p .. "o")
end

-- The router, applied to a normed x. `below` is the state of the layer below (nil in the first). Returns the route and its own state.
local function router(b, L, x, below)
  local p = L.prefix
  local r = b:linear(x, p .. "down")
  if below then r = b:add(r, b:affine(below, false, b:weight(p .. "carry", { suffix = "" }), "carry")) end
  local t = b:rms_norm(r, p .. "norm_r")
  t = b:act(b:linear(t, p .. "fc1"), "gelu_erf")
  t = b:act(b:linear(t, p .. "fc2"), "gelu_erf")
  local k = b.cfg.meta("num_experts_per_tok", "count") or b.cfg.meta("moe_router_topk", "count") or 1
  if k ~= 1 then error(("%d experts per token, ZAYA1 has 1"):format(k), 0) end
  return moe.route(b, b:linear(t, p .. "out"), { k = 1, score = "softmax", bias = b:weight(p .. "balance", { suffix = "" }) }), r
end

function M.shapes(cfg)
  local L = cfg.meta("cca_num_q_heads", "count") and original_layout(cfg) or transformers_layout(cfg)
  local d, hd, kv, experts, inner = cfg.d_model, cfg.head_dim, cfg.n_head_kv, cfg.meta("num_experts", "count"), L.inner
  local r = cfg.meta("router_hidden_size", "count") or cfg.meta("zaya_mlp_expansion", "count")
  local both = (L.heads + kv) * hd
  local own = {
    norm_a = { d }, norm_m = { d }, q = { L.heads * hd, d }, k = { kv * hd, d }, v_now = { kv * hd // 2, d },
      v_before = { kv * hd // 2, d },
    conv0 = { both, 1, cfg.meta("cca_time0", "count") or 2 }, ["conv0.bias"] = { both },
    conv1 = { both, hd, cfg.meta("cca_time1", "count") or 2 }, ["conv1.bias"] = { both }, temp = { kv }, o = { d, L.heads * hd },
    down = { r, d }, ["down.bias"] = { r }, carry = { r }, norm_r = { r }, fc1 = { r, r }, ["fc1.bias"] = { r }, fc2 = { r, r },
    ["fc2.bias"] = { r }, out = { experts + 1, r }, balance = { experts + 1 },
    gate_up = { experts, 2 * inner, d }, experts_down = { experts, d, inner },
  }
  local t = {}
  if L.prefix ~= "" then own.gate_up, own.experts_down = { 2 * inner, d }, { d, inner } end -- one tensor per expert
  for role, shape in pairs(own) do t[L.prefix .. role] = shape end
  for _, prefix in ipairs { "start.", "a.", "m.", "res.", "last." } do
    for _, s in ipairs(SCALES) do t[prefix .. s] = { d } end
  end
  return t
end

function M.build(b, cfg)
  local L = cfg.meta("cca_num_q_heads", "count") and original_layout(cfg) or transformers_layout(cfg)
  local prefix, layer = L.start()
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local bias, scale = scale_vector(b, prefix, layer, "hidden_states_bias"), scale_vector(b, prefix, layer, "hidden_states_scale")
  x = b:affine(x, bias, scale, "start")
  local full, near = b:rope_table(L.rope, "rope_full"), nil
  local state
  for i = 0, L.blocks - 1 do
    local window = L.sliding(i)
    if window and not near then near = b:rope_table(L.rope_sliding, "rope_sliding") end
    b:scope("layers." .. i, function()
      b.index = L.in_a(i)
      local a = cca(b, cfg, L, b:rms_norm(x, L.prefix .. "norm_a"), window and near or full, window)
      x = join(b, a, x, L.join(i, "a"))
      b.index = L.in_m(i)
      local h = b:rms_norm(x, L.prefix .. "norm_m")
      local route, own = router(b, L, h, state)
      state = own
      local roles = { gate_up = L.prefix .. "gate_up", down = L.prefix .. "experts_down" }
      local list = moe.list(b, cfg.meta("num_experts", "count"), roles, { inner = L.inner })
      x = join(b, moe.experts(b, h, route, list, { act = cfg.act or "silu" }), x, L.join(i, "m"))
      b.index = nil
    end)
  end
  return head.lm(b, x) -- [1, n_vocab, W, 1]
end

return M
