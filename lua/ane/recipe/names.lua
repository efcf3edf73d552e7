--- Tensor names by role, for each file format.
-- Roles are GGUF's words (the GGUF specification's standardised tensor names). Usage: `local name = names.gguf("attn_q", 3)`

local M = {}

--- GGUF: "attn_q" of layer 3 is blk.3.attn_q; outside a layer the role is the name.
function M.gguf(role, layer) return layer and ("blk.%d.%s"):format(layer, role) or role end

return M
