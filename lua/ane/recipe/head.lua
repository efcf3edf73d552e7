--- From the residual stream to logits, for the wanted positions only.
-- Usage (in a recipe): `return head.lm(b, x)`

local M = {}

--- Final norm, then the output matrix; the embedding where the file has no output matrix (tied).
-- @param opts norm (role, default "output_norm"), offset (of the norm's weight), softcap (of the logits)
-- @return logits [1, n_vocab, W, 1]
function M.lm(b, x, opts)
  opts = opts or {}
  x = b:rms_norm(b:take(x), opts.norm or "output_norm", { offset = opts.offset })
  x = b:linear(x, b:has "output" and "output" or "token_embd")
  return opts.softcap and b:softcap(x, opts.softcap) or x
end

return M
