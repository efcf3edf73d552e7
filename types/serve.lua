---@meta
-- Types of the HTTP server (ane.serve). The other types are in types/ane.lua. Nothing here runs.

---@class ane.serve_options
---@field host? string address to listen on; default "127.0.0.1"
---@field port? integer 0 .. 65535; 0: a free port; default 8080
---@field sessions? integer 1 .. 1024: maximum replies that are computed at once; default 4
---@field queue? integer 0 .. 1048576: maximum requests that wait; default 64
---@field step_tokens? integer of the pool: 16 .. 512
---@field memory? integer|string of the pool
---@field api_key? string key that requests must send as bearer token or as X-API-Key
---@field cert? string PEM text of a certificate, for TLS
---@field key? string PEM text of its private key
---@field cors? string|string[] origins whose pages may send requests; "*": all
---@field names? string[] further names of the model
---@field defaults? { temperature?: number, top_p?: number, top_k?: integer, min_p?: number, repeat_penalty?: number } sampling options of requests that name none; temperature is 0 .. 2, 1 by default; top_p, min_p: 0 .. 1
---@field time_limit? number 0.001 or more: maximum seconds of a reply, waiting included
---@field max_body? integer 1024 .. 1073741824: maximum bytes of a request's body; default 8388608
---@field max_header? integer 1024 .. 1048576: maximum bytes of a request's header; default 16384
---@field connections? integer 1 .. 65535: maximum connections at once; default 256
---@field receive_time? number 0.1 .. 86400: seconds in which a client must send a request and read a finished answer; default 60
---@field metrics? boolean true: answer /metrics
---@field grace? number seconds that replies may still run after stop(); default 30
---@field log? fun(line: string) called for each answer
---@field complain? fun(line: string) called for errors of the server

---@class ane.server
---@field port integer
---@field id string name of the model
---@field stopping boolean?
local server = {}

--- Runs one turn: answers requests that have arrived, computes one step and sends its pieces. If there is nothing to do, it waits for a request.
---@param wait? number maximum seconds to wait; default 0.25
---@return boolean more false if the server was stopped and all requests are answered
function server:turn(wait) end

--- Answers requests until the server is stopped.
---@param opts? { signals?: boolean|"exit" } true: SIGINT and SIGTERM stop it, the first after the replies in progress; "exit": they also do nothing between close() and the end of the process
---@return boolean ended false if replies were cut off
function server:run(opts) end

--- Accepts no more requests. Replies in progress have `grace` seconds to end.
function server:stop() end

--- Returns counts: replies (running), connections, seconds, jobs, rejected, cancelled, prompt_tokens, cached_tokens, reply_tokens.
---@return table<string, number>
function server:stats() end

--- Closes all connections. In a callback it takes effect at the end of the turn. Closing twice is allowed.
function server:close() end

return server
