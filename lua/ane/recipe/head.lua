--- LM head: from the residual stream to the logits of the output rows.
-- Needs ane.recipe.options. Usage (in a recipe): `return head.lm(b, x)`

local options = require "ane.recipe.options"

local M = {}

--- The head of an encoder. Gives the hidden states, or the scores of the classifier if the file has one. Sets cfg.kind to "embedding" or
-- "reranker", and cfg.n_scores to the number of scores. A classifier is cls (dense, then tanh) followed by cls.output, or either of them
-- alone as the last matrix.
-- @param x normed hidden states of the output rows [1, d_model, W, 1]
-- @param opts act (between dense and scores; nil: tanh), norm (role of the LayerNorm after act; nil: none), mean (true: the classifier
-- reads the mean of the states), bias (true: the matrices have biases; nil: where the file has one). With mean the graph gives the states,
-- and cfg.classifier = {act, dense, norm, output}: an activation, and the stems of the tensors' names; dense and norm are nil if the
-- file has none.
-- @return [1, d_model, W, 1]; or [1, labels, W, 1], where the values of the first token are the scores of the sequence
function M.encoder(b, x, opts)
  opts = options.check("head.encoder", opts)
  local dense, out = b:has "cls", b:has "cls.output"
  b.cfg.both_sides = true
  b.cfg.kind = (dense or out) and "reranker" or "embedding"
  b.cfg.n_scores = (dense or out) and b:rows(out and "cls.output" or "cls") or nil
  if out and opts.mean then
    local norm = opts.norm and b:has(opts.norm)
    b.cfg.classifier = {
      act = opts.act, dense = dense and b.names "cls" or nil, norm = norm and b.names(opts.norm) or nil, output = b.names "cls.output",
    }
    for _, role in ipairs { "cls", opts.norm, "cls.output" } do b:ignore(role) end
    return x
  end
  local bias = { bias = opts.bias }
  if dense then x = b:linear(x, "cls", bias) end
  if dense and out then
    x = opts.act and b:act(x, opts.act) or b:softcap(x, 1) -- tanh
    if opts.norm then x = b:layer_norm(x, opts.norm) end
  end
  return out and b:linear(x, "cls.output", bias) or x
end

-- For a decoder file that gives embeddings or scores (cfg.task): the normed hidden states or the scores. nil if the file gives logits.
-- Of a reranker's head, llama.cpp's converter keeps only the rows of the answers yes and no. A sequence classifier of transformers has a
-- matrix `score`; the scores of its last token are those of the sequence.
local function pooled(b, x)
  local task = b.cfg.task
  if b.cfg.format == "hf" and b:has "score" then
    b:ignore "output"
    b.cfg.kind, b.cfg.n_scores, b.cfg.score_at_end = "reranker", b:rows "score", true
    return b:linear(x, "score")
  end
  if not task then return nil end
  b:ignore "output"
  b.cfg.kind = task
  if task == "embedding" then return x end
  return b:has "cls.output" and b:linear(x, "cls.output") or error("no tensor cls.output.weight: the scores of a reranker", 0)
end

-- Raises if the output matrix has other rows than the embedding: the model would choose ids that it cannot read, or never choose some ids.
local function check_rows(b)
  local rows, ids = b:rows "output", b:rows "token_embd"
  if rows ~= ids then
    local what = "%s.weight has %d rows and %s.weight has %d, but both must have one row for each token"
    error(what:format(b.names "output", rows, b.names "token_embd", ids), 0)
  end
end

--- Applies the final norm, then the output matrix, or the embedding if they are tied. If the configuration does not say, a file without
-- an output matrix is tied. A file whose output matrix differs from the embedding is not tied, even if its configuration says so.
-- @param opts norm (role, default "output_norm"), offset (added to the norm's weight), layer_norm (true: LayerNorm), scale (factor on
-- the logits), softcap (of the logits)
-- @return logits [1, n_vocab, W, 1]; [1, d_model, W, 1] for a file that gives embeddings
function M.lm(b, x, opts)
  opts = options.check("head.lm", opts)
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
  if own then check_rows(b) end
  x = b:linear(x, own and "output" or "token_embd", { bias_of = "output" }) -- a tied head may have a bias of its own
  if opts.scale then x = b:scale(x, opts.scale) end
  return opts.softcap and b:softcap(x, opts.softcap) or x
end

return M
