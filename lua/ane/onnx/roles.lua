--- Derives from a lifted graph what recipes need: a configuration, and weights by role.
-- Needs ane.onnx.lift, ane.onnx.segments and ane.recipe.names, which names the roles. Nothing here has to be right for every graph,
-- because ane.onnx.match compares the result of the recipe with the graph.
-- Usage: `local model = roles.find(logits)` -> {fields of the configuration, weights = {["layers.0.attn_q"] = {w, b, shape}}}

local lift = require "ane.onnx.lift"
local names = require "ane.recipe.names"
local segments = require "ane.onnx.segments"

local refuse = lift.refuse
local count, join = segments.count, segments.join

local M = {}

local name_of = names.of "onnx" -- function(role, layer)

-- Adds a weight to the model.
-- @param w, b segments of the weight and of its bias, or nil
-- @param shape default: {rows, columns} of w
-- @param expert number of the expert whose weight it is, or nil
local function put(model, layer, role, w, b, shape, expert)
  local name = name_of(role, layer)
  model.weights[expert and name:format(expert) or name] = { w = w, b = b, shape = shape or { count(w), w[1].piece.cols } }
end

-- Adds the weight of a product. Returns the expression of its input. node: for the message if e is no product.
local function put_linear(model, layer, role, e, node)
  if e.op ~= "linear" then refuse(e.node or node, "stands where %s should be a product by a weight", role) end
  put(model, layer, role, e.w, e.b)
  return e.x
end

-- Adds the weight of a norm. Returns the expression of its input.
local function put_norm(model, layer, role, e, node)
  if e.op ~= "rms_norm" then refuse(e.node or node, "stands where a norm should be (%s)", role) end
  put(model, layer, role, e.w, nil, { count(e.w) })
  model.eps = model.eps or e.eps
  return e.x
end

-- Sets a field of the model, which must be the same in all layers.
local function share(model, field, value, node)
  if model[field] == nil then model[field] = value end
  if model[field] ~= value then refuse(node, "has %s %s, but an earlier layer has %s", field, value, model[field]) end
end

local function same_rope(a, b)
  if a == b then return true end
  if not a or not b or #a.inv_freq ~= #b.inv_freq or a.original ~= b.original then return false end
  for i, f in ipairs(a.inv_freq) do
    if math.abs(f - b.inv_freq[i]) > 1e-4 * math.abs(f) + 1e-9 then return false end
  end
  return true
end

-- Follows rope and norm of queries or keys back, in any order. Returns the product before them, the rope and its layout.
local function head_side(model, layer, role, e, node)
  local rope, layout
  for _ = 1, 2 do
    if e.op == "rope" then
      rope, layout, e = e.rope, e.layout, e.x
    elseif e.op == "rms_norm" then
      e = put_norm(model, layer, role, e, node)
    end
  end
  return e, rope, layout
end

local function attention(model, layer, e)
  share(model, "n_head", e.heads, e.node)
  share(model, "n_head_kv", e.kv_heads, e.node)
  share(model, "head_dim", e.head_dim, e.node)
  share(model, "scale", e.scale, e.node)
  local q, rope, layout = head_side(model, layer, "attn_q_norm", e.q, e.node)
  local k = head_side(model, layer, "attn_k_norm", e.k, e.node)
  local v = e.v
  local x = put_linear(model, layer, "attn_q", q, e.node)
  put_linear(model, layer, "attn_k", k, e.node)
  put_linear(model, layer, "attn_v", v, e.node)
  put(model, layer, "attn_qkv", join(q.w, k.w, v.w), join(q.b, k.b, v.b))
  if e.sinks then put(model, layer, "attn_sinks", e.sinks, nil, { count(e.sinks) }) end
  model.windows[layer], model.ropes[layer], model.layout = e.window, rope, layout or model.layout
  return x
end

-- The gated short convolution of LFM2, out(C * conv(B * z)), where B, C and z are parts of one product. Adds its weights, and returns the
-- expression of its input; nil if e is none.
local function convolution(model, layer, e)
  local conv, gate = e.a, e.b
  if conv.op ~= "conv_causal" then conv, gate = gate, conv end
  if conv.op ~= "conv_causal" or conv.x.op ~= "mul" then return nil end
  local first, last = conv.x.a, conv.x.b
  if gate.op ~= "linear" or first.op ~= "linear" or last.op ~= "linear" then return nil end
  -- B comes before z among the rows
  local function start(l) return l.w[1].from end
  if start(first) > start(last) then first, last = last, first end
  put(model, layer, "shortconv.in_proj", join(first.w, gate.w, last.w), join(first.b, gate.b, last.b))
  local taps = conv.taps
  put(model, layer, "shortconv.conv", conv.w, conv.b, { conv.channels, taps })
  model.taps = model.taps or taps
  return gate.x
end

local function experts(model, layer, e)
  local r = e.route
  for i, x in ipairs(e.list) do
    put(model, layer, "ffn_gate_exps", x.gate, nil, nil, i - 1)
    put(model, layer, "ffn_up_exps", x.up, nil, nil, i - 1)
    put(model, layer, "ffn_down_exps", x.down, nil, nil, i - 1)
  end
  put_linear(model, layer, "ffn_gate_inp", r.x, e.node)
  if r.bias then put(model, layer, "exp_probs_b", r.bias, nil, { count(r.bias) }) end
  model.experts = model.experts or { count = #e.list, k = r.k, norm = r.norm, scale = r.scale, first = layer }
  return e.x
end

local function gated(model, layer, e, node)
  local gate, up = e.a, e.b
  if not (gate and gate.op == "act") then gate, up = up, gate end
  if e.op ~= "mul" or not gate or gate.op ~= "act" then refuse(e.node or node, "stands where act(gate) * up should be") end
  model.act = model.act or gate.act
  local x = put_linear(model, layer, "ffn_gate", gate.x, node)
  put_linear(model, layer, "ffn_up", up, node)
  if gate.x.op == "linear" then put(model, layer, "ffn_gate_up", join(gate.x.w, up.w), join(gate.x.b, up.b)) end
  model.d_ff = math.max(model.d_ff or 0, up.channels)
  return x
end

-- Adds the weights of one branch of the residual stream. half: 1 the mixer, 2 the FFN. Returns the branch's normed input.
local function branch(model, layer, e, half)
  local mixer = half == 1
  if e.op == "rms_norm" then e = put_norm(model, layer, mixer and "post_attention_norm" or "post_ffw_norm", e) end
  if e.op == "experts" then return experts(model, layer, e) end
  local inner = e.op == "linear" and e.x or refuse(e.node, "stands where a layer's output product should be")
  if inner.op == "attention" then
    put_linear(model, layer, "attn_output", e)
    model.kinds[layer] = "full_attention"
    return attention(model, layer, inner)
  end
  local x = inner.op == "mul" and convolution(model, layer, inner)
  if x then
    put_linear(model, layer, "shortconv.out_proj", e)
    model.kinds[layer] = "conv"
    return x
  end
  put_linear(model, layer, "ffn_down", e)
  return gated(model, layer, inner, e.node)
end

-- The branches that are added to the embedding, in order: a list of {e}; and the expression of the embedding.
local function residuals(e)
  local list = {}
  while e.op == "add" do
    local a, b = e.a, e.b
    local function stream(x) return x.op == "add" or x.op == "embed" or (x.op == "scale" and x.x.op == "embed") end
    if not stream(a) then a, b = b, a end
    if not stream(a) then
      local branch_of = { linear = true, rms_norm = true, experts = true }
      local odd = branch_of[a.op] and b or a
      refuse(odd.node or e.node, "is in the residual stream, where no recipe has it")
    end
    table.insert(list, 1, { e = b })
    e = a
  end
  return list, e
end

local function read_embedding(model, e)
  if e.op == "scale" then model.embed_scale, e = e.by, e.x end
  if e.op ~= "embed" then refuse(e.node, "stands where the embedding should be") end
  put(model, nil, "token_embd", e.w)
  model.d_model = e.channels
end

--- Finds the weights and the configuration of a model. Raises through refuse if the graph is not that of a decoder.
-- @param logits the lifted value of the logits
-- @return model: weights, n_layer, d_model, d_ff, n_head, n_head_kv, head_dim, scale, eps, vocab, act, tied, embed_scale, final_softcap,
-- layout (of the rope), taps, experts; and, by layer from 0: windows, ropes, kinds
function M.find(logits)
  local model = { weights = {}, windows = {}, ropes = {}, kinds = {} }
  local e = logits.e
  if e.op == "softcap" then model.final_softcap, e = e.cap, e.x end
  if e.op ~= "linear" then refuse(e.node, "makes the logits, which should be a product by the output matrix") end
  put(model, nil, "output", e.w, e.b)
  model.vocab = e.channels
  local x = put_norm(model, nil, "output_norm", e.x, e.node)
  local list, bottom = residuals(x)
  read_embedding(model, bottom)
  model.tied = segments.identity(e.w) == segments.identity(model.weights.token_embd.w)
  if model.tied then model.weights.output = nil end
  if #list == 0 or #list % 2 ~= 0 then refuse(x.node, "ends %d branches, but must end two in each layer", #list) end
  for i, entry in ipairs(list) do
    local layer, half = (i - 1) // 2, (i - 1) % 2 + 1
    local start = branch(model, layer, entry.e, half)
    put_norm(model, layer, half == 1 and "attn_norm" or "ffn_norm", start, entry.e.node)
  end
  model.n_layer = #list // 2
  return model
end

local function rope_field(model, r)
  return {
    dims = r.dims, layout = model.layout or "half", inv_freq = r.inv_freq, long_freq = r.long_freq, magnitude = r.magnitude,
    original_context = r.original, fp16 = r.fp16,
  }
end

-- Groups layers by their attention: sets layer_types, sliding_window, rope, ropes.
local function read_windows(model, cfg)
  local words, any = {}, false
  local ropes = {}
  for i = 0, model.n_layer - 1 do
    local w = model.windows[i] or 0
    if w > 0 then
      if cfg.sliding_window and cfg.sliding_window ~= w then refuse(nil, "layers have windows of %d and of %d", cfg.sliding_window, w) end
      cfg.sliding_window, any = w, true
    end
    words[i + 1] = w > 0 and "sliding_attention" or model.kinds[i] or "full_attention"
    if words[i + 1] == "conv" then any = true end
    local r = model.ropes[i]
    if r then
      if ropes[words[i + 1]] and not same_rope(ropes[words[i + 1]], r) then refuse(nil, "layers rotate by different tables") end
      ropes[words[i + 1]] = ropes[words[i + 1]] or r
    end
  end
  if any then cfg.layer_types = words end
  local full, near = ropes.full_attention, ropes.sliding_attention
  if full and near and not same_rope(full, near) then
    cfg.ropes = { full_attention = rope_field(model, full), sliding_attention = rope_field(model, near) }
    cfg.rope = cfg.ropes.full_attention
  elseif full or near then
    cfg.rope = rope_field(model, full or near)
    if near then cfg.ropes = { full_attention = cfg.rope, sliding_attention = cfg.rope } end
  end
end

--- The configuration in the form of ane.model.config, format "onnx".
-- @param model of find
-- @param facts architecture, folder, context_length, bos_id, eos_ids, from the files beside the graph
function M.config(model, facts)
  local cfg = {
    format = "onnx", architecture = facts.architecture, folder = facts.folder, context_length = facts.context_length, bos_id = facts.bos_id,
    eos_ids = facts.eos_ids, n_layer = model.n_layer, d_model = model.d_model, d_ff = model.d_ff, n_head = model.n_head,
    n_head_kv = model.n_head_kv, head_dim = model.head_dim, norm_eps = model.eps, vocab_size = model.vocab, act = model.act,
      tied = model.tied,
    tensors = {},
  }
  if not cfg.n_head then refuse(nil, "no layer has attention") end
  read_windows(model, cfg)
  local x = model.experts or {}
  local keys = {
    query_pre_attn_scalar = model.scale and model.scale ^ -2, final_logit_softcapping = model.final_softcap, num_experts = x.count,
    num_experts_per_tok = x.k, norm_topk_prob = x.norm, routed_scaling_factor = x.scale, num_dense_layers = x.first,
      conv_L_cache = model.taps,
  }
  function cfg.meta(key) return keys[key] end
  return cfg
end

return M
