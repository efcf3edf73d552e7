--- ModernBERT.
-- Warner et al. 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder".
--
-- Quirks: a LayerNorm, mostly without bias, precedes each block. The first layer has none before its attention, since its input is already
-- normed. Every third layer sees all tokens; the others see those at a distance of up to local_attention / 2. Each of the two kinds has its
-- own rope base. q, k and v are one matrix. So are gate and up: act(first half) * second half. Sequence classifiers in Hugging Face files
-- put a dense layer, an activation function and a norm before the scores. They read the first token, or the mean of all tokens.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "modernbert", "modern-bert" }, version = 1, whole_rope = true }

local GLOBAL = { token_embd = "embeddings.tok_embeddings", token_embd_norm = "embeddings.norm", output_norm = "final_norm" }
local LAYER = {
  attn_norm = "attn_norm", attn_qkv = "attn.Wqkv", attn_output = "attn.Wo", ffn_norm = "mlp_norm", ffn_up = "mlp.Wi", ffn_down = "mlp.Wo",
}
local CLASSIFIER = { cls = "head.dense", ["cls.norm"] = "head.norm", ["cls.output"] = "classifier" }

M.names = {
  hf = function(cfg)
    local prefix = cfg.holds "model.final_norm.weight" and "model." or ""
    local plain = not cfg.holds "classifier.weight" -- head.* then belongs to the masked language model
    return function(role, layer)
      if plain and CLASSIFIER[role] then return "classifier.none" end
      if layer then return ("%slayers.%d.%s"):format(prefix, layer, LAYER[role] or role) end
      return CLASSIFIER[role] or prefix .. (GLOBAL[role] or role)
    end
  end,
}
M.defaults = { hf = {
  norm_eps = 1e-5, act = "gelu_erf", attention_bias = false, mlp_bias = false,
  keys = { global_attn_every_n_layers = 3, local_attention = 128, global_rope_theta = 160000.0, local_rope_theta = 10000.0 },
} }
M.ignore = { "^decoder%.", "^head%.", "^classifier%.bias$" } -- the masked-language-model head; a bias that follows the pooling

-- The ropes: of the layers that see all tokens, and of the local layers.
local function ropes(cfg)
  if cfg.ropes then return cfg.ropes.full_attention, cfg.ropes.sliding_attention end
  if cfg.format == "gguf" then
    return cfg.rope, { theta = cfg.rope.local_theta or 10000.0, dims = cfg.rope.dims }
  end
  local function with(key) -- a scaling concerns both
    local r = {}
    for field, value in pairs(cfg.rope) do r[field] = value end
    r.theta = cfg.meta(key, "positive")
    return r
  end
  return with "global_rope_theta", with "local_rope_theta"
end

-- Whether layer i sees only nearby tokens. Where GGUF says so by a period, the first layer of each period sees all tokens.
local function is_local(cfg, i)
  local period = cfg.format == "gguf" and cfg.meta "attention.sliding_window_pattern"
  if math.type(period) == "integer" then return period == 0 or i % period ~= 0 end
  if cfg.layer_types then return cfg.layer_types[i + 1] == "sliding_attention" end
  return i % (cfg.meta("global_attn_every_n_layers", "count") or 3) ~= 0
end

-- The number of tokens on each side that a local layer sees.
local function side(cfg)
  local whole = cfg.format == "hf" and cfg.meta("local_attention", "count") or cfg.sliding_window or 128
  return whole // 2
end

M.settings = { ropes = ropes, is_local = is_local, side = side }

function M.build(b, cfg)
  local full, near = ropes(cfg)
  full, near = b:rope_table(full, "rope_full"), b:rope_table(near, "rope_local")
  local x = b:layer_norm(b:embed "token_embd", "token_embd_norm") -- [1, d_model, T, 1]
  local act = cfg.act
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local near_only = is_local(cfg, i)
      x = b:add(x, attention.gqa(b, (i > 0 or b:has "attn_norm") and b:layer_norm(x, "attn_norm") or x, {
        fused = true, rope = near_only and near or full, window = near_only and side(cfg) + 1 or nil,
        ahead = near_only and side(cfg) or attention.ALL,
      }))
      x = b:add(x, ffn.gated(b, b:layer_norm(x, "ffn_norm"), act or "gelu_erf", { fused = true }))
    end)
  end
  local pooling = cfg.format == "hf" and b:has "cls.output" and cfg.meta "classifier_pooling" or "cls"
  if pooling ~= "cls" and pooling ~= "mean" then
    error(("classifier_pooling is '%s', known are cls and mean"):format(tostring(pooling)), 0)
  end
  if cfg.format == "hf" and b:has "cls.output" then
    for _, role in ipairs { "cls", "cls.norm" } do
      if not b:has(role) then error(("no tensor %s.weight of the classifier"):format(b.names(role)), 0) end
    end
  end
  x = b:layer_norm(b:gather(x), "output_norm")
  return head.encoder(b, x, { act = cfg.classifier_act or "gelu_erf", norm = "cls.norm", mean = pooling == "mean" })
end

return M
