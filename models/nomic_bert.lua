--- NomicBERT: nomic-embed-text.
-- Nussbaum et al. 2024, "Nomic Embed: Training a Reproducible Long Context Text Embedder".
--
-- Quirks: as in BERT, a norm follows each residual addition. Unlike BERT, it has rope instead of position embeddings, q, k and v in one
-- matrix, a gated feed-forward block and no biases. The activation (silu) applies to fc12, whose result is multiplied by fc11. Every token
-- has type 0 by default. The config.json of the first files has GPT-2's keys (n_embd, n_head, rotary_emb_base).

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "nomic_bert", "nomic-bert" }, version = 1 }

local GLOBAL = {
  token_embd = "embeddings.word_embeddings", token_types = "embeddings.token_type_embeddings", token_embd_norm = "emb_ln",
}
local LAYER = {
  attn_qkv = "attn.Wqkv", attn_output = "attn.out_proj", attn_output_norm = "norm1", ffn_up = "mlp.fc11", ffn_gate = "mlp.fc12",
  ffn_down = "mlp.fc2", layer_output_norm = "norm2",
}

M.names = {
  hf = function(cfg)
    local prefix = cfg.holds "bert.emb_ln.weight" and "bert." or ""
    return function(role, layer)
      if layer then return ("%sencoder.layers.%d.%s"):format(prefix, layer, LAYER[role] or role) end
      return prefix .. (GLOBAL[role] or role)
    end
  end,
}

-- Names of the modules in transformers' class, which has separate modules for q, k and v.
local MODULES = {
  token_embd = "embeddings.word_embeddings", token_types = "embeddings.token_type_embeddings", token_embd_norm = "embeddings.LayerNorm",
  attn_output = "self_attn.o_proj", attn_output_norm = "post_attention_layernorm", ffn_up = "mlp.up_proj", ffn_gate = "mlp.gate_proj",
  ffn_down = "mlp.down_proj", layer_output_norm = "post_mlp_layernorm",
}

function M.modules(place, cfg)
  local name = MODULES[place.role]
  if place.role == "attn_qkv" and place.from then
    name = ({ "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj" })[place.from // (cfg.n_head * cfg.head_dim) + 1]
  end
  return name and (place.layer and ("layers.%d.%s"):format(place.layer, name) or name)
end

M.defaults = { hf = { norm_eps = 1e-12, rope = { theta = 1000 } } }
M.ignore = { "pooler%.dense%.", "^cls%.predictions%." }

function M.build(b, cfg)
  local rope = b:rope_table(cfg.rope)
  local x = b:embed "token_embd" -- [1, d_model, T, 1]
  local types = cfg.format == "hf" and (cfg.meta("type_vocab_size", "whole") or 2) > 0
  if types or b:has "token_types" then x = b:add(x, b:embed("token_types", { by = "types" })) end
  x = b:layer_norm(x, "token_embd_norm")
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local a = attention.gqa(b, x, { rope = rope, ahead = attention.ALL, fused = true })
      x = b:layer_norm(b:add(x, a), "attn_output_norm")
      x = b:add(x, ffn.gated(b, x, "silu"))
      if i == cfg.n_layer - 1 then x = b:gather(x) end
      x = b:layer_norm(x, "layer_output_norm")
    end)
  end
  return head.encoder(b, x)
end

return M
