---@meta
-- Types of the HTTP server (ane.serve); those of all else are in types/ane.lua. Nothing here runs.

---@class ane.serve_options
---@field host? string address to listen on; default "127.0.0.1"
---@field port? integer 0: one that is free; default 8080
---@field sessions? integer replies that are computed at once; default 4
---@field queue? integer requests that may wait beside those; default 64
---@field step_tokens? integer of the pool
---@field memory? integer|string of the pool
---@field api_key? string what requests must give as bearer token, or as X-API-Key
---@field cert? string PEM text of a certificate, for TLS
---@field key? string PEM text of its private key
---@field cors? string|string[] origin whose pages may ask, or several; "*": all
---@field names? string[] more names of the model
---@field defaults? { temperature?: number, top_p?: number, top_k?: integer, min_p?: number, repeat_penalty?: number } of requests that name none; temperature 1
---@field time_limit? number seconds of a reply, waiting included
---@field max_body? integer bytes; default 8388608
---@field max_header? integer bytes; default 16384
---@field connections? integer at once; default 256
---@field receive_time? number seconds for a request to come in, and for a finished answer to be read; default 60
---@field metrics? boolean true: answer /metrics
---@field grace? number seconds that replies have to end after stop(); default 30
---@field log? fun(line: string) called for each answer
---@field complain? fun(line: string) called for faults of the server

---@class ane.server
---@field port integer
---@field id string name of the model
---@field stopping boolean?
local server = {}

--- One turn: answers what has come, computes one step, passes on what it gave. With nothing to do it waits for a request.
---@param wait? number seconds at most; default: a quarter
---@return boolean more false where the server was stopped and all is answered
function server:turn(wait) end

--- Answers until it is stopped.
---@param opts? { signals?: boolean|"exit" } true: SIGINT and SIGTERM stop it, the first after the replies in progress; "exit": they also do nothing between close() and the end of the process
---@return boolean ended false where replies were cut off
function server:run(opts) end

--- Accepts no more requests. Replies in progress have `grace` seconds to end.
function server:stop() end

--- What it has done: replies (now), connections, seconds, jobs, rejected, cancelled, prompt_tokens, cached_tokens, reply_tokens.
---@return table<string, number>
function server:stats() end

--- Closes all connections. Closing twice is fine.
function server:close() end

return server
