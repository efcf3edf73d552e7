---@meta ane
-- Types of pools: many replies at once. See types/ane.lua.

---@class ane.request_options: ane.generate_options
---@field priority? integer higher goes first; default 0
---@field time_limit? number seconds from the call on; the reply then ends with stop = "time"

--- Many sequences on one model. A step computes the next token, or a draft, of every running reply and parts of waiting prompts.
---@class ane.pool
local pool = {}

--- Adds a request, which begins with the next step.
---@param prompt ane.prompt
---@param opts? ane.request_options
---@return ane.request? request
---@return string? message
---@return ane.code? code
function pool:add(prompt, opts) end

--- Computes one batch of at most step_tokens tokens. Raises inside a callback of one of its requests.
---@return integer? tokens computed, 0 where callbacks only went on; nil where the pool is idle
function pool:step() end

--- Steps until the pool is idle.
function pool:run() end

--- Is there nothing to compute?
---@return boolean
function pool:idle() end

--- Writes the prefixes that are known to a folder, so that another process begins behind them.
---@param folder string made where it is not there
---@return true? ok
---@return string? message
---@return ane.code? code
function pool:save(folder) end

--- Reads what save wrote with the same model and options. A file of another model, or a damaged one, is refused; nothing of it is used.
---@param folder string
---@return true? ok
---@return string? message
---@return ane.code? code
function pool:load(folder) end

--- What was computed (steps, prompt_tokens, reply_tokens, cached_tokens, replayed_tokens, preempted, largest_step, seconds) and what is
--- there (running, waiting, cached, kv_bytes, prefix_bytes). States that several replies share count once.
---@return table<string, number>
function pool:stats() end

--- Ends all requests and frees their sessions.
function pool:close() end

---@class ane.request
---@field result ane.result complete when done
---@field done boolean
---@overload fun(): string|integer|nil
local request = {}

--- The next piece, stepping the pool until there is one; nil at the end.
---@return string|integer|nil piece
---@return string? message
---@return ane.code? code
function request:next() end

--- A piece that is there already, or nil. Steps nothing.
---@return string|integer|nil piece
function request:poll() end

--- Steps the pool until the reply is complete.
---@return ane.result? result
---@return string? message
---@return ane.code? code
function request:finish() end

--- Ends the reply before its next computation, with stop = "stopped".
function request:stop() end

--- Ends the reply now. A reply that was not complete has stop = "closed".
function request:close() end

return pool
