--- Falcon-H1: attention and Mamba-2 side by side in each layer.
-- Zuo et al. 2025, "Falcon-H1: A Family of Hybrid-Head Language Models".
--
-- Quirks: config.json has many multipliers. The GGUF converter folds them into the weights, and its ffn_norm has no ".weight" suffix.
-- mamba_proj_bias is the bias of the scan's input projection, projectors_bias that of its output. If mamba_rms_norm is false, the scan
-- output is gated without a norm.

local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"
local lists = require "ane.recipe.lists"
local mamba2 = require "ane.recipe.mamba2"

local M = { architectures = { "falcon_h1", "falcon-h1" }, version = 1, whole_rope = true }

local NAMES = mamba2.names "mamba"
for role, name in pairs {
  ffn_norm = "pre_ff_layernorm", ffn_gate = "feed_forward.gate_proj", ffn_up = "feed_forward.up_proj",
  ffn_down = "feed_forward.down_proj", output_norm = "model.final_layernorm",
} do NAMES[role] = name end
M.names = { gguf = { output_norm = "output_norm" }, hf = NAMES }
M.config = { num_key_value_heads = 8, mamba_d_ssm = 1024 }
M.defaults = { hf = { norm_eps = 1e-5, tied = false, attention_bias = false, mlp_bias = false } }

function M.gguf_differs(place) return not place.role:find "norm" and "has its weights times the multipliers of config.json" or nil end

-- The multipliers of config.json. All are 1 for a GGUF file, whose weights contain them.
local function factors(cfg)
  local function get(key) return cfg.meta(key, "number") or 1 end
  local mlp = lists.numbers(cfg, "mlp_multipliers", 2) or { 1, 1 }
  return {
    embedding = get "embedding_multiplier", logits = get "lm_head_multiplier", attention_in = get "attention_in_multiplier",
    attention_out = get "attention_out_multiplier", key = get "key_multiplier", ssm_in = get "ssm_in_multiplier",
    ssm_out = get "ssm_out_multiplier", gate = mlp[1], down = mlp[2],
  }
end

-- The settings of the Mamba-2 blocks. GGUF files hold the gated norm's weight only if the model has that norm.
local function state_space(cfg)
  if cfg.format == "gguf" then
    local s = mamba2.of_gguf(cfg)
    s.plain = not cfg.holds "blk.0.ssm_norm.weight"
    return s
  end
  local s = mamba2.of_config(cfg)
  s.width = (cfg.meta("mamba_d_ssm", "count") or (cfg.meta("mamba_expand", "count") or 2) * cfg.d_model) // s.heads
  s.plain, s.norm_first = not cfg.meta("mamba_rms_norm", "flag"), cfg.meta("mamba_norm_before_gate", "flag") ~= false
  s.out_bias = cfg.meta("projectors_bias", "flag") or false
  s.factors = lists.numbers(cfg, "ssm_multipliers", 5)
  return s
end

M.settings = { state_space = state_space, factors = factors }

function M.shapes(cfg) return mamba2.shapes(cfg, state_space(cfg)) end

local function self_attention(b, cfg, x, rope, f)
  local heads, kv_heads, bias = cfg.n_head, cfg.n_head_kv, { bias = cfg.attention_bias }
  local q, k = b:linear(x, "attn_q", bias), b:scale(b:linear(x, "attn_k", bias), f.key)
  q, k = b:rope(q, rope, "q_rope", { heads = heads }), b:rope(k, rope, "k_rope", { heads = kv_heads })
  local o = b:attention(q, k, b:linear(x, "attn_v", bias), {
    heads = heads, kv_heads = kv_heads, head_dim = cfg.head_dim, scale = cfg.head_dim ^ -0.5,
  })
  return b:linear(o, "attn_output", bias)
end

local function feed_forward(b, cfg, x, f)
  if f.gate == 1 and f.down == 1 then return ffn.gated(b, x, "silu") end
  local bias = { bias = cfg.mlp_bias }
  local y = b:glu(b:scale(b:linear(x, "ffn_gate", bias), f.gate), b:linear(x, "ffn_up", bias), cfg.act or "silu")
  return b:scale(b:linear(y, "ffn_down", bias), f.down)
end

function M.build(b, cfg)
  local f, s = factors(cfg), state_space(cfg)
  local x = b:scale(b:embed "token_embd", f.embedding) -- [1, d_model, T, 1]
  local rope = b:rope_table(cfg.rope)
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local h = b:rms_norm(x, "attn_norm")
      local y = b:scale(mamba2.block(b, b:scale(h, f.ssm_in), s), f.ssm_out)
      local a = b:scale(self_attention(b, cfg, b:scale(h, f.attention_in), rope, f), f.attention_out)
      x = b:add(x, b:add(y, a))
      local norm = not b:has "ffn_norm" and b:weight("ffn_norm", { suffix = "" }) or nil
      x = b:add(x, feed_forward(b, cfg, b:rms_norm(x, "ffn_norm", { weight = norm }), f))
    end)
  end
  return head.lm(b, x, { scale = f.logits }) -- [1, n_vocab, W, 1]
end

return M
