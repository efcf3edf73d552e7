--- A call that waits for replies of the pool. After each step it takes their new pieces and passes them to the endpoint's form.
-- Needs ane.serve.errors and ane.util.failure.
-- Usage: `server:generate(call, { { prompt = messages, opts = opts } }, form)`
--
-- A form is an object of the endpoint. For whole answers it has whole(job) -> value for JSON. For streams it has open(job), piece(job, i,
-- text), closed(job, i) and close(job), which write events, and optionally after(job, i), called for each reply after each step.

local errors = require "ane.serve.errors"
local failures = require "ane.util.failure"

local M = {}

local Job = {}
Job.__index = Job

-- Ends the requests that were added before one failed.
local function close_all(requests)
  for _, r in ipairs(requests) do r:close() end
end

-- The field that a message of the pool is about.
local function param_of(message)
  message = tostring(message)
  return message:match "^(tool_choice) " or message:match "^(tools): " or message:match "^the (grammar) " or
    message:find("does not support tools", 1, true) and "tools" or nil
end

-- Throws a failure about a prompt beyond the context. `held` says what it has. Clients search for the words of OpenAI's message.
local function too_long(context, held)
  local words = "this model's maximum context length is %d tokens, %s"
  errors.raise(400, words:format(context, held), { code = "context_length_exceeded" })
end

-- Adds a request; throws if the pool refuses it. A chat of more messages than the context has tokens is not read, because the template
-- of a very long chat would take seconds, and templates write at least a token for each message.
local function add(server, asked)
  local context, prompt = server.model.context, asked.prompt
  if type(prompt) == "table" and type(prompt[1]) == "table" and #prompt > context then
    too_long(context, ("the chat has %d messages"):format(#prompt))
  end
  local ok, r, message, code = pcall(server.pool.add, server.pool, asked.prompt, asked.opts)
  if not ok and failures.is_interrupt(r) then error(r, 0) end
  if not ok and failures.code(r) == "memory" then error(errors.of("not enough memory", "memory"), 0) end
  if not ok then errors.raise(400, (tostring(r):gsub("^%S+%.lua:%d+: ", ""):gsub("^add: ", "")), { code = "invalid_value" }) end
  if not r then error(errors.of(message, code, param_of(message)), 0) end
  if #r.ids >= context then
    r:close()
    too_long(context, ("the prompt has %d"):format(#r.ids))
  end
  return r
end

--- Adds requests to the pool.
-- @param asked list of {prompt, opts}
-- @param form see above
-- @param stream whether pieces are sent as they come
-- @raise a failure of ane.serve.errors
function M.new(server, call, asked, form, stream)
  local self = setmetatable({ server = server, call = call, form = form, stream = stream, requests = {}, open = #asked, ended = {} }, Job)
  for i, one in ipairs(asked) do
    local ok, r = pcall(add, server, one)
    if not ok then
      close_all(self.requests)
      error(r, 0)
    end
    self.requests[i] = r
  end
  if stream then
    call:begin()
    form:open(self)
    call:flush()
  end
  return self
end

--- Results of the replies, in order.
function Job:results()
  local list = {}
  for i, r in ipairs(self.requests) do list[i] = r.result end
  return list
end

--- Ends all replies and answers with a failure.
function Job:fail(failure)
  close_all(self.requests)
  self.call:fail(failure)
end

local function fail(self, r)
  if r.raised then self.server:complain("a reply failed: " .. tostring(r.message)) end
  if r.raised and failures.code(r.message) == "memory" then return self:fail(errors.of("not enough memory", "memory")) end
  self:fail(r.raised and errors.new(500, "the reply failed") or errors.of(r.message, r.code, param_of(r.message)))
end

-- The pieces since the last call, joined.
local function pieces_of(r)
  local first = r:poll()
  if not first then return "" end
  local list = { first }
  for piece in function() return r:poll() end do list[#list + 1] = piece end
  return table.concat(list)
end

-- Handles the end of reply i. false: the job has ended.
local function close_one(self, i, r)
  if r.message then
    fail(self, r)
    return false
  end
  if r.result.stop == "stopped" or r.result.stop == "closed" then
    self:fail(errors.new(503, "the server is stopping", { headers = { ["Retry-After"] = "10" } }))
    return false
  end
  self.open = self.open - 1
  self.ended[i] = true
  if self.stream then self.form:closed(self, i) end
  return true
end

--- The number of its replies that wait or are computed.
function Job:replies()
  local n = 0
  for _, r in ipairs(self.requests) do
    if not r.done then n = n + 1 end
  end
  return n
end

--- Takes new pieces. Called after each step. While the client reads too slowly, pieces wait in the requests.
-- @return true when the job is done
function Job:advance()
  if self.stream and self.call:full() then return false end
  for i, r in ipairs(self.requests) do
    if not self.ended[i] then
      local text = self.stream and pieces_of(r)
      if text and text ~= "" then self.form:piece(self, i, text) end
      if self.stream and self.form.after then self.form:after(self, i) end
      if r.done and not close_one(self, i, r) then return true end
    end
  end
  if self.open > 0 then
    if self.stream then self.call:flush() end
    return false
  end
  if self.stream then self.form:close(self) else self.call:json(200, self.form:whole(self)) end
  return true
end

--- The client has disconnected: ends the replies before their next step.
function Job:cancel()
  close_all(self.requests)
  self.call:drop()
end

return M
