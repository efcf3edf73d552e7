--- LM head: from the residual stream to the logits of the output rows.
-- Usage (in a recipe): `return head.lm(b, x)`

local M = {}

--- Of an encoder: its hidden states, or the scores of its classifier. Sets cfg.kind: "embedding", or "reranker" where there is a
-- classifier: cls (dense, then tanh) and cls.output, or one of them alone as the last matrix.
-- @param x hidden states of the output rows, normed [1, d_model, W, 1]
-- @param opts act (between dense and scores; nil: tanh), norm (role of the LayerNorm behind it; nil: none)
-- @return [1, d_model, W, 1]; or [1, labels, W, 1], of which the first token's are the scores of a sequence
function M.encoder(b, x, opts)
  local dense, out = b:has "cls", b:has "cls.output"
  b.cfg.both_sides = true
  b.cfg.kind = (dense or out) and "reranker" or "embedding"
  if dense then x = b:linear(x, "cls") end
  if dense and out then
    x = opts and opts.act and b:act(x, opts.act) or b:softcap(x, 1) -- tanh
    if opts and opts.norm then x = b:layer_norm(x, opts.norm) end
  end
  return out and b:linear(x, "cls.output") or x
end

-- Of a decoder: the normed hidden states where the file makes an embedding of them (cfg.task); nil where it gives logits. A
-- reranker of llama.cpp keeps of its head the rows of its answers.
local function pooled(b, x)
  local task = b.cfg.task
  if not task then return nil end
  b:ignore "output"
  b.cfg.kind = task
  if task == "embedding" then return x end
  return b:has "cls.output" and b:linear(x, "cls.output") or error("no tensor cls.output.weight: the scores of a reranker", 0)
end

--- Final norm, then the output matrix; the embedding where the configuration ties them. Where the configuration does not say, a
-- file without an output matrix is tied. A file whose output matrix differs from the embedding is not tied, whatever it says.
-- @param opts norm (role, default "output_norm"), offset (of the norm's weight), layer_norm (true: a LayerNorm), scale (factor of the
-- logits), softcap (of the logits)
-- @return logits [1, n_vocab, W, 1]; [1, d_model, W, 1] of a file that gives embeddings
function M.lm(b, x, opts)
  opts = opts or {}
  local role = opts.norm or "output_norm"
  x = b:gather(x)
  x = opts.layer_norm and b:layer_norm(x, role) or b:rms_norm(x, role, { offset = opts.offset })
  local states = pooled(b, x)
  if states then return states end
  local own = b:has "output" or b.cfg.tied == false
  if own and b.cfg.tied and b:same("output", "token_embd") then
    own = false
    b:ignore "output"
  end
  x = b:linear(x, own and "output" or "token_embd")
  if opts.scale then x = b:scale(x, opts.scale) end
  return opts.softcap and b:softcap(x, opts.softcap) or x
end

return M
