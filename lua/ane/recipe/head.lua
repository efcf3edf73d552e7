--- From the residual stream to logits, for the wanted positions only.
-- Usage (in a recipe): `return head.lm(b, x)`

local M = {}

--- Final norm, then the output matrix; the embedding where the configuration says so or the file has no output matrix.
-- @param opts norm (role, default "output_norm"), offset (of the norm's weight), softcap (of the logits)
-- @return logits [1, n_vocab, W, 1]
function M.lm(b, x, opts)
  opts = opts or {}
  x = b:rms_norm(b:take(x), opts.norm or "output_norm", { offset = opts.offset })
  if b.cfg.tied then b:ignore "output" end -- files may hold it all the same
  x = b:linear(x, b:has "output" and not b.cfg.tied and "output" or "token_embd")
  return opts.softcap and b:softcap(x, opts.softcap) or x
end

return M
