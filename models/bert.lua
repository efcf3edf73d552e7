--- BERT and RoBERTa, and models trained on top of them: MiniLM, BGE, E5, GTE, XLM-RoBERTa, cross-encoders.
-- Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers"; Conneau et al. 2020, "Unsupervised Cross-lingual
-- Representation Learning at Scale".
--
-- Quirks: token, position and token type embeddings are summed and normed. A LayerNorm follows each residual addition. Every token sees
-- all others. gelu is the exact (erf) form. RoBERTa counts positions from pad_token_id + 1; GGUF files omit the table's rows before that.
-- A BERT classifier follows the pooler; a RoBERTa classifier has its own matrix. Hugging Face files name tensors with or without the
-- prefix "bert." or "roberta.". GGUF calls all of these models bert.

local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"
local head = require "ane.recipe.head"

local M = { architectures = { "bert", "roberta", "xlm-roberta", "camembert" }, version = 1 }

local GLOBAL = {
  token_embd = "embeddings.word_embeddings", position_embd = "embeddings.position_embeddings",
  token_types = "embeddings.token_type_embeddings", token_embd_norm = "embeddings.LayerNorm",
}
local LAYER = {
  attn_q = "attention.self.query", attn_k = "attention.self.key", attn_v = "attention.self.value", attn_output = "attention.output.dense",
  attn_output_norm = "attention.output.LayerNorm", ffn_up = "intermediate.dense", ffn_down = "output.dense",
  layer_output_norm = "output.LayerNorm", attn_qkv = "attention.self.qkv",
}

local function is_roberta(cfg) return cfg.format == "hf" and cfg.architecture ~= "bert" end

-- The prefix of the encoder's tensors.
local function prefix_of(cfg)
  for _, prefix in ipairs { "bert.", "roberta.", "" } do
    if cfg.holds(prefix .. GLOBAL.token_embd .. ".weight") then return prefix end
  end
  return ""
end

M.names = {
  hf = function(cfg)
    local prefix = prefix_of(cfg)
    local classifier = is_roberta(cfg) and { cls = "classifier.dense", ["cls.output"] = "classifier.out_proj" }
      or { ["cls.output"] = "classifier", cls = cfg.holds "classifier.weight" and prefix .. "pooler.dense" or "classifier.none" }
    return function(role, layer)
      if layer then return ("%sencoder.layer.%d.%s"):format(prefix, layer, LAYER[role] or role) end
      return classifier[role] or prefix .. (GLOBAL[role] or role)
    end
  end,
}
M.defaults = { hf = { norm_eps = 1e-12, act = "gelu_erf", keys = { position_embedding_type = "absolute" } } }

-- The pooler of a model without a classifier, and the masked-language-model heads.
M.ignore = { "pooler%.dense%.", "position_ids$", "^cls%.predictions%.", "^cls%.seq_relationship%.", "^lm_head%." }

-- The row of the position table that belongs to the first token (0-based).
local function first_position(cfg)
  local pad, most = cfg.pad_id or 1, cfg.vocab_size
  if not is_roberta(cfg) then return 0 end
  if pad < 0 or most and pad >= most then
    error(("key pad_token_id must be a token id, since positions are counted after it, but is %d"):format(pad), 0)
  end
  return pad + 1
end

function M.build(b, cfg)
  local kind = cfg.format == "hf" and cfg.meta "position_embedding_type" or "absolute"
  if kind ~= "absolute" then error(("position_embedding_type is '%s', known is absolute"):format(kind), 0) end
  local hf = cfg.format == "hf"
  if hf and cfg.meta "is_decoder" == true then error("is_decoder is true, which masks causally; only encoders are known", 0) end
  if hf then cfg.attention_bias, cfg.mlp_bias = true, true end
  local norm = { bias = hf or nil }
  local from = first_position(cfg)
  cfg.max_positions = b:rows "position_embd" - from
  local x = b:add(b:embed "token_embd", b:embed("position_embd", { by = "positions", from = from > 0 and from or nil }))
  if hf or b:has "token_types" then x = b:add(x, b:embed("token_types", { by = "types" })) end
  x = b:layer_norm(x, "token_embd_norm", norm) -- [1, d_model, T, 1]
  for i = 0, cfg.n_layer - 1 do
    b:layer(i, function()
      local a = attention.gqa(b, x, { ahead = attention.ALL, fused = b:has "attn_qkv" })
      x = b:layer_norm(b:add(x, a), "attn_output_norm", norm)
      x = b:add(x, ffn.plain(b, x, "gelu_erf"))
      if i == cfg.n_layer - 1 then x = b:gather(x) end
      x = b:layer_norm(x, "layer_output_norm", norm)
    end)
  end
  if hf and b:has "cls" ~= b:has "cls.output" then
    error(("no tensor %s.weight of the classifier"):format(b.names(b:has "cls" and "cls.output" or "cls")), 0)
  end
  return head.encoder(b, x, { bias = norm.bias })
end

return M
