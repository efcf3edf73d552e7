-- From lifted expressions to weights by role and a configuration; and graphs that no recipe covers, by rebuild.
local onnx = require "support.onnx_writer"
local rebuild = require "ane.onnx.rebuild"
local roles = require "ane.onnx.roles"

local NODE = { name = "n", op = "Op" }

local stored = 0
local function segments(rows, cols)
  stored = stored + 1
  return { { piece = { kind = "plain", data = stored, rows = rows, cols = cols }, from = 0, step = 1, n = rows } }
end

local function linear(x, n, b) return { op = "linear", node = NODE, x = x, channels = n, w = segments(n, x.channels), b = b } end
local function norm(x)
  return { op = "rms_norm", node = NODE, x = x, channels = x.channels, w = segments(x.channels, 1), eps = 1e-5, groups = 1 }
end
local function add(a, b) return { op = "add", node = NODE, a = a, b = b, channels = a.channels } end
local function act(x) return { op = "act", node = NODE, act = "silu", x = x, channels = x.channels } end
local function mul(a, b) return { op = "mul", node = NODE, a = a, b = b, channels = a.channels } end

local ROPE = { dims = 4, inv_freq = { 1, 0.1 }, magnitude = 1 }
local function rope(x, r)
  return { op = "rope", node = NODE, x = x, rope = r or ROPE, layout = "half", heads = 2, channels = x.channels }
end

-- o: norm_qk, window, rope, sinks, post
local function attention(x, o)
  o = o or {}
  local h = norm(x)
  local q, k, v = linear(h, 8), linear(h, 4), linear(h, 4)
  if o.norm_qk then q, k = norm(q), norm(k) end
  local e = {
    op = "attention", node = NODE, q = rope(q, o.rope), k = rope(k, o.rope), v = v, heads = 2, kv_heads = 1, head_dim = 4,
    scale = o.scale or 0.5, window = o.window or 0, sinks = o.sinks, channels = 8,
  }
  return add(x, o.post and norm(linear(e, 8)) or linear(e, 8))
end

local function ffn(x, post)
  local h = norm(x)
  local down = linear(mul(act(linear(h, 12)), linear(h, 12)), 8)
  return add(x, post and norm(down) or down)
end

local function convolution(x)
  local h = norm(x)
  local whole = segments(24, 8)
  local function part(i)
    return { op = "linear", node = NODE, x = h, channels = 8, w = { { piece = whole[1].piece, from = 8 * i, step = 1, n = 8 } } }
  end
  local conv = { op = "conv_causal", node = NODE, x = mul(part(2), part(0)), channels = 8, taps = 3, w = segments(8, 3) }
  return add(x, linear(mul(part(1), conv), 8))
end

local function experts(x)
  local h, list = norm(x), {}
  for i = 1, 3 do list[i] = { gate = segments(6, 8), up = segments(6, 8), down = segments(8, 6) } end
  local route = { op = "route", node = NODE, x = linear(h, 3), k = 2, norm = true, scale = 1.5, bias = segments(3, 1) }
  return add(x, { op = "experts", node = NODE, x = h, route = route, list = list, channels = 8 })
end

local function embedding() return { op = "embed", node = NODE, channels = 8, w = segments(10, 8) } end
local function head(x) return { e = linear(norm(x), 10) } end

local FACTS = { architecture = "llama", folder = "./", context_length = 64, eos_ids = {} }

local function refused(pattern, fn, ...)
  local ok, raised = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_true(type(raised) == "table" and raised.uncovered == true, tostring(raised))
  assert.matches(pattern, raised.message)
end

local function names(model)
  local list = {}
  for name in pairs(model.weights) do list[#list + 1] = name end
  table.sort(list)
  return list
end

describe("roles of weights", function()
  it("are found in a layer of attention and of a gated feed-forward block", function()
    local model = roles.find(head(ffn(attention(embedding(), { norm_qk = true, post = true }), true)))
    assert.same({
      "layers.0.attn_k", "layers.0.attn_k_norm", "layers.0.attn_norm", "layers.0.attn_output", "layers.0.attn_q", "layers.0.attn_q_norm",
      "layers.0.attn_qkv", "layers.0.attn_v", "layers.0.ffn_down", "layers.0.ffn_gate", "layers.0.ffn_gate_up", "layers.0.ffn_norm",
      "layers.0.ffn_up", "layers.0.post_attention_norm", "layers.0.post_ffw_norm", "output", "output_norm", "token_embd",
    }, names(model))
    assert.same({ 1, 8, 12, 2, 1, 4, 10, "silu", false }, {
      model.n_layer, model.d_model, model.d_ff, model.n_head, model.n_head_kv, model.head_dim, model.vocab, model.act, model.tied,
    })
    local cfg = roles.config(model, FACTS)
    assert.same({ "half", 4, 0.25 ^ -1 }, { cfg.rope.layout, cfg.rope.dims, cfg.meta "query_pre_attn_scalar" })
  end)

  it("are found in convolutions and experts", function()
    local x = ffn(convolution(embedding()))
    x = experts(attention(x, { sinks = segments(2, 1) }))
    local model = roles.find(head(x))
    assert.same({ "conv", "full_attention" }, { model.kinds[0], model.kinds[1] })
    for _, name in ipairs {
      "layers.0.shortconv.in_proj", "layers.0.shortconv.conv", "layers.0.shortconv.out_proj", "layers.1.attn_sinks",
      "layers.1.ffn_gate_inp", "layers.1.exp_probs_b",
    } do
      assert.is_truthy(model.weights[name], name)
    end
    assert.equal(24, model.weights["layers.0.shortconv.in_proj"].shape[1])
    assert.same({ count = 3, k = 2, norm = true, scale = 1.5, first = 1 }, model.experts)
    local cfg = roles.config(model, FACTS)
    assert.same({ { "conv", "full_attention" }, 3, 2, 1.5, 1, 3 }, {
      cfg.layer_types, cfg.meta "num_experts", cfg.meta "num_experts_per_tok", cfg.meta "routed_scaling_factor",
      cfg.meta "num_dense_layers", cfg.meta "conv_L_cache",
    })
  end)

  it("tell tied weights, a soft cap and a factor of the embedding", function()
    local e = embedding()
    local scaled = { op = "scale", node = NODE, x = e, by = 2.5, channels = 8 }
    local logits = head(ffn(attention(scaled)))
    logits.e.w = e.w
    local model = roles.find { e = { op = "softcap", node = NODE, x = logits.e, cap = 30, channels = 10 } }
    assert.same({ true, 2.5, 30 }, { model.tied, model.embed_scale, model.final_softcap })
    assert.is_nil(model.weights.output)
  end)

  it("tell layers with windows and ropes of their own", function()
    local near = { dims = 4, inv_freq = { 1, 0.5 }, magnitude = 1 }
    local model = roles.find(head(ffn(attention(ffn(attention(embedding(), { window = 6, rope = near }))))))
    local cfg = roles.config(model, FACTS)
    assert.same({ { "sliding_attention", "full_attention" }, 6 }, { cfg.layer_types, cfg.sliding_window })
    assert.same({ { 1, 0.5 }, { 1, 0.1 } }, { cfg.ropes.sliding_attention.inv_freq, cfg.ropes.full_attention.inv_freq })
  end)

  it("are refused where layers differ in what they share", function()
    local function two(a, b) return head(ffn(attention(ffn(attention(embedding(), a)), b))) end
    refused("has scale 0.25, but an earlier layer has 0.5", roles.find, two({}, { scale = 0.25 }))
    refused("layers have windows of 5 and of 6", function() roles.config(roles.find(two({ window = 5 }, { window = 6 })), FACTS) end)
    refused("layers rotate by different tables", function()
      roles.config(roles.find(two({}, { rope = { dims = 4, inv_freq = { 1, 0.2 }, magnitude = 1 } })), FACTS)
    end)
    refused("no layer has attention", function() roles.config(roles.find(head(ffn(convolution(embedding())))), FACTS) end)
  end)

  it("are refused where the graph has another shape", function()
    local x = embedding()
    refused("makes the logits", roles.find, { e = x })
    refused("stands where a norm should be %(output_norm%)", roles.find, { e = linear(x, 10) })
    refused("ends 1 branches, but must end two in each layer", roles.find, head(attention(x)))
    refused("ends 0 branches", roles.find, head(x))
    refused("stands where the embedding should be", roles.find, head({ op = "scale", node = NODE, x = act(x), by = 2, channels = 8 }))
    refused("is in the residual stream", roles.find, head(add(act(x), act(x))))
    refused("stands where act%(gate%) %* up should be", roles.find, head(add(attention(x), linear(act(norm(x)), 8))))
    refused("where a layer's output product should be", roles.find, head(add(attention(x), act(norm(x)))))
    local odd = attention(x)
    odd.b.x.q.x = act(odd.b.x.q.x)
    refused("stands where attn_q should be a product by a weight", roles.find, head(ffn(odd)))
  end)
end)

describe("rebuild", function()
  local NAMES = { ids = "input_ids", logits = "logits", states = {} }
  local TABLE, W = onnx.floats({ 4, 2 }, { 1, 2, 3, 4, 5, 6, 7, 8 }), onnx.floats({ 2, 4 }, { 1, 2, 3, 4, 5, 6, 7, 8 })
  local G = onnx.floats({ 2 }, { 1, 1 })

  -- The reason why no recipe covers the graph of these nodes.
  local function reason(nodes, given)
    local source, file <close> = onnx.open {
      inputs = { { "input_ids", "int64", { 1, "s" } } }, outputs = { { "logits", "float" } },
      constants = { { "table", TABLE }, { "w", W }, { "g", G } }, nodes = nodes,
    }
    assert(source, file)
    local found, why = rebuild.find(source, NAMES, FACTS, given)
    assert.is_nil(found)
    return why
  end

  local EMBED = { "Gather", { "table", "input_ids" }, { "x" } }

  it("names the node that no recipe has", function()
    assert.matches("node logits %(Sin%) is not covered by any recipe", reason { EMBED, { "Sin", { "x" }, { "logits" } } })
    assert.matches("should be a product by the output matrix", reason { EMBED, { "Identity", { "x" }, { "logits" } } })
    assert.matches("ends 0 branches", reason {
      EMBED, { "RMSNormalization", { "x", "g" }, { "n" } }, { "MatMul", { "n", "w" }, { "logits" } },
    })
  end)

  it("says what the graph engine refuses", function()
    assert.matches("node logits %(NoSuchOp%)", reason { EMBED, { "NoSuchOp", { "x" }, { "logits" } } })
    assert.matches("attribute frobs is not known", reason { EMBED, { "Relu", { "x" }, { "logits" }, attrs = { frobs = 1 } } })
  end)
end)
