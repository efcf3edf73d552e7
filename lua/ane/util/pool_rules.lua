--- Rules of the options of a pool that the server and the command take too.
-- Usage: `M.rules = { sessions = pool_rules.sessions(32) }`

local M = {}

--- Replies that are computed at once.
-- @param default nil: none
function M.sessions(default) return { type = "integer", min = 1, max = 1024, default = default } end

--- The most tokens of a step.
-- @param default nil: none
function M.step_tokens(default) return { type = "integer", min = 16, max = 512, default = default } end

return M
