--- From the residual stream to logits, for the wanted positions only.
-- Usage (in a recipe): `return head.lm(b, x)`

local M = {}

--- Final norm, then the output matrix, or the embedding where the configuration says so. Where it does not say, the file does,
-- by having an output matrix or none; one that has another than the embedding is not tied, whatever the configuration says.
-- @param opts norm (role, default "output_norm"), offset (of the norm's weight), softcap (of the logits)
-- @return logits [1, n_vocab, W, 1]
function M.lm(b, x, opts)
  opts = opts or {}
  x = b:rms_norm(b:gather(x), opts.norm or "output_norm", { offset = opts.offset })
  local own = b:has "output" or b.cfg.tied == false
  if own and b.cfg.tied and b:same("output", "token_embd") then
    own = false
    b:ignore "output"
  end
  x = b:linear(x, own and "output" or "token_embd")
  return opts.softcap and b:softcap(x, opts.softcap) or x
end

return M
