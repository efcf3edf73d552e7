--- Per-layer embeddings of Gemma 3n and Gemma 4: a second embedding table. Each layer takes a slice of each row.
-- Usage (in a recipe): `local extra = per_layer.inputs(b, x, 256)`; in layer i `x = b:add(x, per_layer.branch(b, x, extra(i)))`

local M = {}

--- Computes (norm(W x / sqrt(d_model)) + sqrt(width) E[id]) / sqrt(2) for all layers at once.
-- Ids beyond the table E, which may have fewer rows than the vocabulary, read row 0.
-- Weights: per_layer_token_embd [V, n_layer * width], per_layer_model_proj [n_layer * width, d_model], per_layer_proj_norm [width].
-- @param x scaled embedding [1, d_model, T, 1]
-- @param width width of a layer's slice; 0: the model has no per-layer embeddings
-- @return function(i) -> value [1, width, T, 1]; nil where width is 0
function M.inputs(b, x, width)
  if width == 0 then return nil end
  local layers = b.cfg.n_layer
  local context = b:scale(b:linear(x, "per_layer_model_proj", { bias = false }), b.cfg.d_model ^ -0.5)
  context = b:rms_norm(context, "per_layer_proj_norm", { groups = layers })
  local all = b:scale(b:add(context, b:scale(b:embed("per_layer_token_embd", { rest = true }), math.sqrt(width))), 2 ^ -0.5)
  return function(i) return b:slice(all, i * width, (i + 1) * width) end
end

--- Computes norm(W (gelu(G x) * input)). Weights: inp_gate [width, d_model], proj [d_model, width], post_norm [d_model].
-- @param input value [1, width, T, 1]
-- @return value [1, d_model, T, 1]
function M.branch(b, x, input)
  local gate = b:linear(x, "inp_gate", { bias = false })
  return b:rms_norm(b:linear(b:glu(gate, input, b.cfg.act or "gelu_tanh"), "proj", { bias = false }), "post_norm")
end

return M
