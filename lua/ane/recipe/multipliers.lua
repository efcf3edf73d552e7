--- The four multipliers that the models of IBM Granite have in all their architectures.
-- IBM Granite team 2024, "Granite 3.0 Language Models". Usage (in a recipe): `local f = multipliers.of(cfg)`

local M = {}

--- Reads the multipliers. GGUF has different keys for them.
-- @param cfg configuration
-- @return table of factors: embedding (on the embedding), residual (on the output of each branch), scores (on attention scores, instead of
-- head_dim^-0.5), logits (on the logits; the reciprocal of the stored number)
function M.of(cfg)
  local gguf = cfg.format == "gguf"
  local function get(hf_key, gguf_key, default) return cfg.meta(gguf and gguf_key or hf_key, "positive") or default end
  return {
    embedding = get("embedding_multiplier", "embedding_scale", 1), residual = get("residual_multiplier", "residual_scale", 1),
    scores = get("attention_multiplier", "attention.scale", gguf and cfg.head_dim ^ -0.5 or 1),
    logits = 1 / get("logits_scaling", "logit_scale", 1),
  }
end

return M
