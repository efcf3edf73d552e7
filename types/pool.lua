---@meta ane
-- Types of pools: many replies at once. See types/ane.lua.

---@class ane.request_options: ane.generate_options
---@field priority? integer requests with a higher priority go first; default 0
---@field time_limit? number seconds from the call of add, after which the reply ends with stop = "time"

---@class ane.many_options: ane.request_options
---@field sessions? integer 1 .. 1024: of the pool, as the next five
---@field step_tokens? integer 16 .. 512
---@field memory? integer|string
---@field prefix_memory? integer|string
---@field context? integer
---@field kv? ane.kv
---@field on_reply? fun(i: integer, result: ane.result) called when a reply ends

--- Computes many sequences with one model. A step computes the next token, or a draft, of every running reply and parts of waiting prompts.
---@class ane.pool
local pool = {}

--- Adds a request. It starts with the next step. A callback of a request may close the request, the pool and the model.
---@param prompt ane.prompt
---@param opts? ane.request_options
---@return ane.request? request
---@return string? message
---@return ane.code? code
function pool:add(prompt, opts) end

--- Computes one batch of at most step_tokens tokens. It is an error to call it inside a callback of one of its requests.
---@return integer? tokens number of computed tokens; 0 if only callbacks continued; nil if the pool is idle
function pool:step() end

--- Steps until the pool is idle.
function pool:run() end

--- Returns whether there is nothing to compute. Raises, like all other methods but close, if the pool is closed.
---@return boolean
function pool:idle() end

--- Writes the cached prefixes to a folder, from which another process can load them.
---@param folder string created if it does not exist
---@return true? ok
---@return string? message
---@return ane.code? code
function pool:save(folder) end

--- Reads prefixes that save wrote with the same model and options. A damaged file, or one of another model, is refused as a whole.
---@param folder string
---@return true? ok
---@return string? message
---@return ane.code? code
function pool:load(folder) end

--- Returns counts of what was computed (steps, prompt_tokens, reply_tokens, cached_tokens, replayed_tokens, dropped, preempted,
--- largest_step, seconds) and of the current state (running, waiting, cached, kv_bytes, prefix_bytes). Pages that several replies share
--- count once.
---@return table<string, number>
function pool:stats() end

--- Ends all requests and frees their sessions.
function pool:close() end

---@class ane.request
---@field result ane.result complete when done
---@field done boolean
---@overload fun(): string|integer|nil
local request = {}

--- Steps the pool until there is a piece, and returns it; nil at the end.
---@return string|integer|nil piece
---@return string? message
---@return ane.code? code
function request:next() end

--- Returns a piece that is ready, or nil. It computes nothing.
---@return string|integer|nil piece
function request:poll() end

--- Steps the pool until the reply is complete.
---@return ane.result? result
---@return string? message
---@return ane.code? code
function request:finish() end

--- Ends the reply before its next computation, with stop = "stopped".
function request:stop() end

--- Ends the reply at once. An incomplete reply has stop = "closed".
function request:close() end

return pool
