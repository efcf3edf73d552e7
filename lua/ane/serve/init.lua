--- An HTTP server for one model: OpenAI's API, a chat page, and a few endpoints of llama-server.
-- Needs ane.core, ane.serve.call, errors, job, routes, metrics, sampling, served, task, ane.util.failure,
-- list, pool_rules, schema and units.
-- libmicrohttpd reads and writes the sockets in a thread of its own (csrc/http). Everything else happens in turns: take requests, compute
-- one step of the pool, send its pieces.
-- Usage: `local server = assert(ane.serve(model, { port = 8080 })); print(server.port); server:run()`

local core = require "ane.core"
local calls = require "ane.serve.call"
local list_of = require "ane.util.list"
local errors = require "ane.serve.errors"
local failures = require "ane.util.failure"
local jobs = require "ane.serve.job"
local metrics = require "ane.serve.metrics"
local pool_rules = require "ane.util.pool_rules"
local routes = require "ane.serve.routes"
local sampling = require "ane.serve.sampling"
local schema = require "ane.util.schema"
local served = require "ane.serve.served"
local tasks = require "ane.serve.task"
local units = require "ane.util.units"

local M = {}

-- An Origin header has a scheme, a host and perhaps a port, and no path; "null" stands for pages without one, such as files.
local function origin_fault(text)
  if type(text) ~= "string" then return "must be a list of origins" end
  if text == "*" or text == "null" or text:find "^%l[%w+.-]*://[^/%s]+$" then return nil end
  return ("must be * or an origin such as https://example.org, but is %q"):format(text)
end

local function cors_fault(given)
  local fault = type(given) == "table" and list_of.fault(given)
  if fault then return fault end
  for _, text in ipairs(type(given) == "table" and given or { given }) do
    fault = origin_fault(text)
    if fault then return fault end
  end
end

local MOST_KEY = 4096 -- bytes

--- Returns what is wrong with an API key, or nil. With a key that cannot be sent in a header, no request would be allowed.
function M.key_fault(key)
  if key == "" then return "is empty" end
  if key:find "[%c]" then return "has more than one line, or another control character" end
  if #key > MOST_KEY then return ("has more than %d bytes"):format(MOST_KEY) end
end

local function check_names(list)
  for _, name in ipairs(list) do
    if type(name) ~= "string" or name == "" then return "must be a list of names" end
  end
end

-- The entries of a list, without those that occur before.
local function each_once(list)
  local out, seen = {}, {}
  for _, entry in ipairs(list) do
    if not seen[entry] then out[#out + 1], seen[entry] = entry, true end
  end
  return out
end

--- Options.
--   host, port: the address to listen on; port 0 chooses a free one
--   sessions: maximum replies computed at once; queue: maximum requests that wait; further ones get status 503
--   step_tokens, memory: of the pool (ane.pool)
--   api_key: what requests must give as bearer token, or as X-API-Key
--   cert, key: PEM texts of a certificate and its private key, for TLS
--   cors: the origin whose pages may send requests, or a list of them, or "*"
--   names: list of names of the model in addition to that of its file
--   defaults: temperature, top_p, top_k, min_p, repeat_penalty of requests that have none (the API's own: 1, 1, and none)
--   time_limit: maximum seconds of a reply, including the time in the queue; it then ends as if max_tokens were reached
--   max_body, max_header: maximum bytes of a request; connections: maximum at once; receive_time: maximum seconds to receive a request
--     and to send a finished answer
--   metrics: true answers /metrics
--   grace: seconds that replies have to end after stop()
--   log: function(line), called for each answer; complain: function(line), for faults of the server
M.rules = {
  host = { type = "string", default = "127.0.0.1" },
  port = { type = "integer", min = 0, max = 65535, default = 8080 },
  sessions = pool_rules.sessions(4),
  queue = { type = "integer", min = 0, max = 1 << 20, default = 64 },
  step_tokens = pool_rules.step_tokens(),
  memory = units.bytes_rule,
  api_key = { type = "string", check = M.key_fault },
  cert = { type = "string" },
  key = { type = "string" },
  cors = { type = { "string", "table" }, check = cors_fault },
  names = { type = "list", check = check_names },
  defaults = { type = "table" },
  time_limit = { type = "number", min = 0.001 },
  max_body = { type = "integer", min = 1024, max = 1 << 30, default = 8 << 20 },
  max_header = { type = "integer", min = 1024, max = 1 << 20, default = 16 << 10 },
  connections = { type = "integer", min = 1, max = 65535, default = 256 },
  receive_time = { type = "number", min = 0.1, max = 86400, default = 60 },
  metrics = { type = "boolean", default = false },
  grace = { type = "number", min = 0, default = 30 },
  log = { type = "callable" },
  complain = { type = "callable" },
}

--- Rules of the option defaults.
M.defaults = schema.merge(sampling.sampled, { temperature = { type = "number", min = 0, max = 2, default = 1 } })

local Server = {}
Server.__index = Server
Server.__name = "ane.server"

-- Bodies of the largest size that may be held at once.
local BODIES = 16

-- Seconds between polls of the sockets while nothing is computed.
local IDLE = 0.25

local function listen(opts)
  return core.http {
    host = opts.host, port = opts.port, cert = opts.cert, key = opts.key, secret = opts.api_key, connections = opts.connections,
    header_bytes = opts.max_header, body_bytes = opts.max_body, bodies_bytes = BODIES * opts.max_body, receive_s = opts.receive_time,
  }
end

--- Makes a server, which listens at once. It answers in turn() or run().
-- @param model a loaded one; the server does not close it
-- @param opts see rules
-- @param level of errors for misuse, as error()'s
-- @param version of the library
-- @return a server with port, id (the model's name), stopping; or nil, message, code
function M.new(model, opts, level, version)
  opts = schema.check(M.rules, opts, "serve", (level or 1) + 1)
  local defaults = schema.check(M.defaults, opts.defaults, "serve: defaults", (level or 1) + 1)
  if (opts.cert == nil) ~= (opts.key == nil) then error("serve: options cert and key need each other", (level or 1) + 1) end
  local kind = served.kind(model)
  local pool, http, message, code
  if kind == "text" then
    pool, message, code = model:pool { sessions = opts.sessions, step_tokens = opts.step_tokens, memory = opts.memory }
    if not pool then return nil, message, code end
  end
  http, message, code = listen(opts)
  if not http then
    if pool then pool:close() end
    return nil, message, code
  end
  local self = setmetatable({
    model = model, opts = opts, defaults = defaults, kind = kind, pool = pool, id = served.name(model), started = os.time(),
    port = http:port(), version = version or "", metrics = metrics.new(), _http = http, _jobs = {}, _tasks = {}, _place = 0, _replies = 0,
    _ids = 0, _since = core.clock(),
    _seed = os.time() ~ math.floor(core.clock() * 1e9),
  }, Server)
  self.ids = each_once { self.id, table.unpack(opts.names or {}) }
  return self
end

-- ---- What handlers use ---------------------------------------------------------------------------------------------------

--- A new id for an answer.
function Server:new_id(prefix)
  self._ids = self._ids + 1
  local _, a, b, c = core.random(self._seed, self._ids)
  return ("%s%08x%08x%08x"):format(prefix, a, b, c)
end

--- The time that answers name as theirs, in seconds since 1970.
function Server.now() return os.time() end

--- Throws if a request names another model.
function Server:check_model(name)
  if name == nil then return end
  for _, id in ipairs(self.ids) do
    if id == name then return end
  end
  errors.raise(404, ("the model %q does not exist; the server has %s"):format(name, table.concat(self.ids, ", ")),
    { param = "model", code = "model_not_found" })
end

-- Seconds after which a request may be accepted (Retry-After): the recent duration of replies.
local function retry_after(self)
  local each = self.metrics:mean_seconds()
  return math.max(1, math.min(60, math.ceil(each * (self._replies / self.opts.sessions))))
end

-- Answers with status 503: no more calls may wait.
local function reject(self)
  self.metrics:add "rejected"
  errors.raise(503, "the queue is full", { code = "queue_full", headers = { ["Retry-After"] = tostring(retry_after(self)) } })
end

--- Answers a call in later turns, a part of the work in each.
-- @param work see ane.serve.task
-- @raise a failure: 503 if the queue is full
function Server:work(call, work)
  if #self._tasks >= self.opts.sessions + self.opts.queue then reject(self) end
  self._tasks[#self._tasks + 1] = tasks.new(call, work, function(text) self:complain(text) end)
end

--- Adds replies to the pool for a call. They are answered in later turns.
-- @param asked list of {prompt, opts}
-- @param form see ane.serve.job
-- @return the job
-- @raise a failure: 503 if the queue is full
function Server:generate(call, asked, form, stream)
  local opts = self.opts
  if self._replies + #asked > opts.sessions + opts.queue then
    if #asked > opts.sessions + opts.queue then
      errors.raise(400, ("%d replies are requested, but at most %d are possible"):format(#asked, opts.sessions + opts.queue),
        { param = (form.n or #asked) > 1 and "n" or "prompt" })
    end
    reject(self)
  end
  local job = jobs.new(self, call, asked, form, stream)
  self._replies = self._replies + #asked
  self._jobs[#self._jobs + 1] = job
  return job
end

--- Reports a fault of the server itself.
function Server:complain(text)
  if self.opts.complain then self.opts.complain(text) end
end

-- ---- Requests ------------------------------------------------------------------------------------------------------------

-- The method of a request, for the log. A client may send any bytes as one, also such that control a terminal.
local function shown_method(method) return #method <= 20 and method:match "^[%a-]+$" or "(unknown method)" end

-- Records an answer.
local function note(self, call)
  local seconds = core.clock() - call.started
  self.metrics:answered(call.known or "other", call.status or 0, seconds)
  if self.opts.log then
    local method, path = shown_method(call.method), call.known or "(unknown path)"
    self.opts.log(("%s %s %d %.3f s"):format(method, path, call.status or 0, seconds))
  end
end

-- CORS headers for pages of other origins. Throws if the origin is not allowed.
local function check_origin(self, call)
  local origin = call.exchange:header "Origin"
  if not origin then return end
  local host = call.exchange:header "Host"
  local own = origin:match "^https?://(.+)$"
  if own and host and own:lower() == host:lower() then return end
  local cors = self.opts.cors
  for _, allowed in ipairs(type(cors) == "table" and cors or { cors }) do
    if allowed == "*" or allowed:lower() == origin:lower() then
      call.headers["Access-Control-Allow-Origin"] = allowed == "*" and allowed or origin
      if allowed ~= "*" then call.headers["Vary"] = "Origin" end
      return
    end
  end
  errors.raise(403, "pages of other origins may not send requests to this server", { code = "origin_not_allowed" })
end

-- With the headers that OpenAI's client for JavaScript sends.
local function preflight(call)
  call:text(204, "text/plain", "", {
    ["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS", ["Access-Control-Max-Age"] = "86400",
    ["Access-Control-Allow-Headers"] = "Authorization, Content-Type, X-API-Key, X-Requested-With, " ..
      "OpenAI-Organization, OpenAI-Project, X-Stainless-Arch, X-Stainless-Helper-Method, X-Stainless-Lang, X-Stainless-OS, " ..
      "X-Stainless-Package-Version, X-Stainless-Retry-Count, X-Stainless-Runtime, X-Stainless-Runtime-Version, X-Stainless-Timeout",
  })
end

-- Throws if the headers are too long, or leave open where the request ends. What follows on the connection is then not read.
local function check_head(call)
  local close = { Connection = "close" }
  if call.malformed then errors.raise(400, "the headers are malformed or ambiguous", { code = "malformed_request", headers = close }) end
  if call.long_head then errors.raise(431, "the headers are too large", { code = "headers_too_large", headers = close }) end
end

-- Is this a name of the local machine, or an IP address? Those of IPv6 are in brackets in a header, and without in an option.
local function is_local(host)
  local name = (host or ""):gsub(":%d+$", ""):lower()
  return name == "" or name == "localhost" or name:match "^%d+%.%d+%.%d+%.%d+$" ~= nil or name:match "^%[" ~= nil or
    host:match ":.*:" ~= nil
end

-- Protects against DNS rebinding. A server without a key that listens on a local address only accepts no other host names.
local function check_host(self, call)
  local opts = self.opts
  if opts.api_key or not is_local(opts.host) or opts.host == "0.0.0.0" or opts.host == "::" then return end
  if not is_local(call.exchange:header "Host") then
    errors.raise(403, "without an API key this server answers only requests to localhost and numeric addresses",
      { code = "host_not_allowed" })
  end
end

-- The body of a POST as a table.
local function read_body(call)
  if call.too_large then errors.raise(413, "the body is too large", { code = "body_too_large" }) end
  if call.crowded then errors.raise(503, "too many bodies at once", { headers = { ["Retry-After"] = "2" } }) end
  local type = (call.exchange:header "Content-Type" or ""):lower()
  if not type:match "^application/json%s*$" and not type:match "^application/json%s*;" then
    errors.raise(415, "the Content-Type must be application/json", { code = "unsupported_media_type" })
  end
  local coding = call.exchange:header "Content-Encoding"
  if coding and coding:lower() ~= "identity" then
    errors.raise(415, ("the Content-Encoding must be absent or identity, but is %q"):format(coding), { code = "unsupported_media_type" })
  end
  local body, message = core.json_decode(call.body, { exact = true })
  if body == nil then errors.raise(400, "the body is not JSON: " .. message, { code = "invalid_json" }) end
  return body
end

local function find_route(call)
  local route, id, allowed, known = routes.find(call.method, call.path)
  call.known = route and route[2] or known
  if route then return route, id end
  if #allowed == 0 then errors.raise(404, "the path does not exist", { code = "not_found" }) end
  errors.raise(405, ("the method must be %s"):format(table.concat(allowed, " or ")),
    { code = "method_not_allowed", headers = { Allow = table.concat(allowed, ", ") } })
end

local WHAT = { text = "writes no text", labels = "labels no tokens", vectors = "makes no embeddings", scores = "scores no texts" }

-- Answers a request, or makes a job of it. Throws failures.
local function answer(self, call)
  check_head(call)
  check_host(self, call)
  check_origin(self, call)
  if call.method == "OPTIONS" then
    call.known = select(4, routes.find(call.method, call.path))
    return preflight(call)
  end
  local route, id = find_route(call)
  call.route = route
  if not route.open and not call.authorised then
    errors.raise(401, "the API key is missing or wrong", { code = "invalid_api_key", headers = { ["WWW-Authenticate"] = "Bearer" } })
  end
  if self.stopping and call.method == "POST" then
    errors.raise(503, "the server is stopping", { headers = { ["Retry-After"] = "10" } })
  end
  local body = route[1] == "POST" and read_body(call) or nil
  call.body = nil
  if route.needs and not served.does(self.model, route.needs) then
    errors.raise(400, ("the model %s %s"):format(self.id, WHAT[route.needs]), { code = "unsupported" })
  end
  routes.handler(route)(self, call, body, id)
end

local function handle(self, exchange)
  local call = calls.new(exchange, function(call) note(self, call) end)
  local ok, failure = pcall(answer, self, call)
  if ok then return end
  if failures.is_interrupt(failure) then
    call:drop()
    error(failure, 0)
  end
  if not errors.is(failure) then
    self:complain("an error while answering " .. (call.route and call.route[2] or "?") .. ": " .. tostring(failure))
    failure = errors.new(500, "internal server error")
  end
  call:fail(failure)
end

-- ---- Turns ---------------------------------------------------------------------------------------------------------------

local function take_requests(self)
  for exchange in function() return self._http:take() end do handle(self, exchange) end
end

-- Removes a job that is done.
local function done(self, i) self.metrics:job(table.remove(self._jobs, i)) end

-- Counts the replies that wait or are computed. A job whose client reads slowly may have none left.
local function count(self)
  self._replies = 0
  for _, job in ipairs(self._jobs) do self._replies = self._replies + job:replies() end
end

-- Computes one step of the pool. An error in it is a fault of ours, after which no reply can be trusted. An interrupt (Ctrl-C) is
-- raised again.
local function step(self)
  local ok, raised = pcall(self.pool.step, self.pool)
  if ok then return end
  if failures.is_interrupt(raised) then error(raised, 0) end
  self:complain("a fault while computing: " .. tostring(raised))
  for i = #self._jobs, 1, -1 do
    self._jobs[i]:fail(errors.new(500, "internal server error"))
    done(self, i)
  end
end

-- Ends the replies whose client has disconnected.
local function sweep(self)
  for i = #self._jobs, 1, -1 do
    if self._jobs[i].call:gone() then
      self._jobs[i]:cancel()
      self.metrics:add "cancelled"
      done(self, i)
    end
  end
  for i = #self._tasks, 1, -1 do
    if self._tasks[i].call:gone() then
      table.remove(self._tasks, i):cancel()
      self.metrics:add "cancelled"
    end
  end
  count(self)
end

-- Computes a part of one of the first tasks, in rotation. As many as there are sessions hold memory of the model at once.
local function work(self)
  local n = math.min(#self._tasks, self.opts.sessions)
  if n == 0 then return end
  self._place = self._place % n + 1
  if self._tasks[self._place]:advance() then
    table.remove(self._tasks, self._place)
    self._place = self._place - 1
  end
end

-- Passes on what a job has. An error in it is a fault of ours, which ends this job only. An interrupt is raised again.
local function advance(self, job)
  local ok, ended = pcall(job.advance, job)
  if ok then return ended end
  if failures.is_interrupt(ended) then error(ended, 0) end
  self:complain("a fault while answering: " .. tostring(ended))
  job:fail(errors.new(500, "internal server error"))
  return true
end

local function pass_on(self)
  local i = 1
  while i <= #self._jobs do
    if advance(self, self._jobs[i]) then done(self, i) else i = i + 1 end
  end
  count(self)
end

-- Has the pool nothing to compute? A model that was closed has closed it.
local function is_idle(self) return self.model.closed or self.pool:idle() end

-- Is there something to compute?
local function busy(self) return #self._tasks > 0 or #self._jobs > 0 and not is_idle(self) end

local function turn(self, wait)
  local http = self._http
  if not busy(self) and not (self.stopping and http:busy() == 0) then
    http:wait(math.min(wait or IDLE, IDLE))
  end
  http:look()
  take_requests(self)
  sweep(self)
  work(self)
  if #self._jobs > 0 then
    if not is_idle(self) then step(self) end
    pass_on(self)
  elseif self.stopping and #self._tasks == 0 then
    return http:busy() > 0 and core.clock() < self.deadline
  end
  return not (self.deadline and core.clock() > self.deadline)
end

-- Raises at the level of the method's caller.
local function opened(self) return self._http or error("server is closed", 3) end

local WAIT = { type = "number", min = 0 }

--- One turn: answers new requests, computes one step, sends its pieces. If there is nothing to do, it waits for a request.
-- @param wait seconds at most; default: until there is one
-- @return true; false once the server is stopped and everything is answered, or a callback has closed it
function Server:turn(wait)
  opened(self)
  if wait ~= nil then schema.argument(WAIT, wait, "turn: wait", 2) end
  if self._turning then error("turn: the server is already computing (a callback called it)", 2) end
  self._turning = true
  local ok, more = pcall(turn, self, wait)
  self._turning = nil
  if self._closing then self:close() end
  if not ok then error(more, 0) end
  return more and self._http ~= nil
end

--- Accepts no more requests. Replies in progress have `grace` seconds to end.
function Server:stop()
  opened(self)
  if self.stopping then return end
  self.stopping, self.deadline = true, core.clock() + self.opts.grace
  self._http:quiesce()
end

-- Seconds for answers to be sent before the connections are closed.
local LAST_WORDS = 0.5

-- Answers the calls that are left: the server is stopping.
local function cut_off(self)
  local failure = errors.new(503, "the server is stopping", { headers = { ["Retry-After"] = "10" } })
  for _, job in ipairs(self._jobs) do job:fail(failure) end
  for _, task in ipairs(self._tasks) do task:cancel(failure) end
  self._jobs, self._tasks = {}, {}
  local last = core.clock() + LAST_WORDS
  while self._http:busy() > 0 and core.clock() < last do self._http:wait(0.02) end
end

local RUN = {
  signals = { type = { "boolean", "string" }, check = function(v)
    if type(v) == "string" and v ~= "exit" then return "must be true, false or \"exit\", is " .. schema.shown(v) end
  end },
}

--- Runs turns until the server is stopped, by stop() or, with signals, by SIGINT or SIGTERM. The first signal lets replies end,
-- the second one does not.
-- @param opts signals: true catches them until close(); "exit" until the process ends, which ignores further ones then
-- @return true if all replies have ended; false if some were cut off
function Server:run(opts)
  local http = opened(self)
  local signals = schema.check(RUN, opts, "run", 2).signals
  if signals then http:catch_signals(true, signals == "exit") end
  while self:turn() do
    local seen = signals and http:signals() or 0
    if seen > 0 then self:stop() end
    if seen > 1 then break end
  end
  if not self._http then return false end -- a callback has closed it
  local all = #self._jobs == 0 and #self._tasks == 0
  if not all then cut_off(self) end
  return all
end

--- Counters: replies and tasks (running and waiting now), connections, seconds, and the counts of ane.serve.metrics.
function Server:stats()
  opened(self)
  local out = {
    replies = self._replies, tasks = #self._tasks, connections = self._http:connections(), seconds = core.clock() - self._since,
  }
  for key, value in pairs(self.metrics.counts) do out[key] = value end
  return out
end

--- Closes all connections. Closing twice is fine. In a callback it takes effect at the end of the turn.
function Server:close()
  if not self._http then return end
  if self._turning then
    self._closing = true
    return
  end
  for i = #self._jobs, 1, -1 do
    self._jobs[i]:cancel()
    done(self, i)
  end
  for _, task in ipairs(self._tasks) do task:cancel() end
  self._tasks = {}
  self._http:close()
  self._http = nil
  if self.pool then self.pool:close() end
end

Server.__close = Server.close
Server.__gc = Server.close

function Server:__tostring()
  if not self._http then return "server (closed)" end
  return ("server (%s, port %d, %d replies)"):format(self.id, self.port, self._replies)
end

return M
