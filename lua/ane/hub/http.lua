--- Requests to a hub: redirects, tries, the token. The token goes to the hub's own origin and nowhere else.
-- Needs ane.core (fetch).
-- Usage: `local c = http.client {endpoint = "https://huggingface.co", token = t}; local answer = c:get("/api/models/x/y")`

local core = require "ane.core"

local M = {}

local MAX_REDIRECTS = 10
local STEP = 0.1 -- seconds of one step: between two of them signals are seen and progress is shown

local Client = {}
Client.__index = Client

-- Scheme, host and port of an address; nil if it is not an HTTP address.
local function origin_of(url)
  local scheme, authority = url:match "^(%a[%w+.-]*)://([^/?#]+)"
  scheme = scheme and scheme:lower()
  if scheme ~= "http" and scheme ~= "https" or authority:find "[@%s%c]" then return nil end
  local host, port = authority:match "^(.-):(%d+)$"
  return scheme .. "://" .. (host or authority):lower() .. ":" .. (port or scheme == "https" and "443" or "80"), scheme
end
M.origin_of = origin_of

--- A client of one hub.
-- @param opts endpoint (an address without a path, or with one), token (or nil), tries (of a request whose connection breaks; 5),
-- wait = function(seconds) between tries, waiting = function(why, seconds) before each wait, connect_s, stall_s
-- @return a client; or nil, message, code
function M.client(opts)
  local endpoint = opts.endpoint:gsub("/+$", "")
  local origin, scheme = origin_of(endpoint)
  if not origin then return nil, ("HF_ENDPOINT must begin with https:// or http://, but is %q"):format(opts.endpoint), "invalid" end
  if opts.token and opts.token:find "[^\33-\126]" then return nil, "the token of the hub has characters that no token has", "invalid" end
  return setmetatable({
    endpoint = endpoint, origin = origin, scheme = scheme, token = opts.token, tries = opts.tries or 5, wait = opts.wait,
    waiting = opts.waiting,
    connect_s = opts.connect_s, stall_s = opts.stall_s,
  }, Client)
end

-- The last value of a header in lines of headers; nil if it is absent.
local function header(lines, name)
  local found
  for line in lines:gmatch "[^\r\n]+" do
    local key, value = line:match "^([^:]+):[ \t]*(.*)$"
    if key and key:lower() == name then found = value:match "^.*%S" or "" end
  end
  return found
end

-- The address that a redirect leads to, from the one that was asked.
local function target_of(location, url)
  if location:match "^%a[%w+.-]*://" then return location end
  if location:sub(1, 2) == "//" then return url:match "^(%a+:)" .. location end
  if location:sub(1, 1) == "/" then return url:match "^(%a+://[^/?#]+)" .. location end
  return url:match "^(%a+://[^?#]*/)" .. location
end

-- One exchange. @return {status, headers (text), body, received}; or nil, message, code; received
local function exchange(self, url, opts)
  local headers = {}
  if self.token and origin_of(url) == self.origin then headers[1] = "Authorization: Bearer " .. self.token end
  local transfer <close>, message, code = core.fetch(url, {
    headers = headers, path = opts.path, offset = opts.offset, most = opts.most, connect_s = self.connect_s, stall_s = self.stall_s,
  })
  if not transfer then return nil, message, code end
  while true do
    local done
    done, message, code = transfer:step(STEP)
    if opts.on_bytes and transfer:status() // 100 == 2 then opts.on_bytes(transfer:received()) end
    if done == nil then return nil, message, code, transfer:received() end
    if done then break end
    -- More than the file's size: the rest is not written. The answer counts as whole, and judge() refuses it.
    if opts.size and transfer:status() // 100 == 2 and transfer:received() > opts.size then break end
  end
  if opts.path and transfer:status() // 100 == 2 then
    local ok
    ok, message, code = transfer:sync()
    if not ok then return nil, message, code end
  end
  return { status = transfer:status(), headers = transfer:headers(), body = transfer:body(), received = transfer:received() }
end

local REDIRECTS = { [301] = true, [302] = true, [303] = true, [307] = true, [308] = true }

-- Follows redirects by hand: each may lead to another host, which the token must not see, but not from HTTPS to HTTP.
local function follow(self, url, opts)
  local first
  for _ = 0, MAX_REDIRECTS do
    local answer, message, code, received = exchange(self, url, opts)
    if not answer then return nil, message, code, received end
    first = first or answer
    answer.first = first.headers
    local location = REDIRECTS[answer.status] and header(answer.headers, "location")
    if not location then return answer end
    local target = target_of(location, url)
    local origin, scheme = origin_of(target)
    if not origin then return nil, "the hub redirects to an address that is not HTTP", "format" end
    if scheme == "http" and url:match "^https:" then return nil, "the hub redirects from HTTPS to HTTP", "format" end
    url = target
  end
  return nil, ("the hub redirects more than %d times"):format(MAX_REDIRECTS), "format"
end

-- Status codes of temporary failures, after which the request is tried again.
local BUSY = { [408] = true, [429] = true, [500] = true, [502] = true, [503] = true, [504] = true }

-- The error that an unsuccessful answer stands for.
local function refused(self, answer, what)
  local status = answer.status
  if status == 401 and header(answer.headers, "x-error-code") == "GatedRepo" then
    return nil, what .. ": needs a token (HF_TOKEN) of an account that has accepted its licence on the hub's page", "notfound"
  elseif status == 401 then
    return nil, what .. (self.token and ": the hub does not accept the token (HF_TOKEN)"
      or ": does not exist, or needs a token (HF_TOKEN)"), "notfound"
  elseif status == 403 then
    return nil, what .. ": the hub refuses access to this account: its licence may have to be accepted on the hub's page", "io"
  elseif status == 404 then
    return nil, what .. ": is not there", "notfound"
  end
  return nil, ("%s: the hub answers with status %d"):format(what, status), "io"
end

local LONGEST_WAIT = 300 -- seconds that a hub may ask to wait

local function pause(self, try, answer, why)
  local after = answer and tonumber(header(answer.headers, "retry-after") or "")
  local seconds = after or math.min(2 ^ try, 30)
  if self.waiting then self.waiting(why, seconds) end
  if self.wait then self.wait(seconds) end
end

-- Whether an answer with a part of a file begins with the byte that was asked for.
local function begins_at(answer, offset)
  local from = header(answer.headers, "content-range")
  return from == nil or tonumber(from:match "^bytes (%d+)%-") == offset
end

-- What an answer means: "done"; "again" and why; or nil, message, code. offset: bytes of the file that were there before.
local function judge(self, answer, opts, what, offset)
  local status, size = answer.status, opts.size
  if status == 416 and opts.path then -- there is no rest
    if size == offset then
      answer.received = offset
      return "done"
    end
    os.remove(opts.path)
    return "again", "the bytes that were there are not of this file"
  end
  local after = BUSY[status] and tonumber(header(answer.headers, "retry-after") or "")
  if after and after > LONGEST_WAIT then
    return nil, ("%s: the hub answers with status %d and asks to wait %d seconds"):format(what, status, after // 1), "io"
  end
  if BUSY[status] then return "again", ("the hub answers with status %d"):format(status) end
  if status // 100 ~= 2 then return refused(self, answer, what) end
  if status == 206 and opts.path and not begins_at(answer, offset) then
    os.remove(opts.path)
    return "again", "the hub sends other bytes than were requested"
  end
  if size and answer.received > size then
    os.remove(opts.path)
    return nil, ("%s: has more than the %d bytes that the hub reports"):format(what, size), "format"
  end
  if size and answer.received < size then return "again", ("ended after %d of %d bytes"):format(answer.received, size) end
  return "done"
end

-- One try. @return as judge, with the answer after "done"; after "again" and the reason, the answer if there was one
local function attempt(self, path, opts, what)
  local offset = opts.path and core.file_size(opts.path) or 0
  local answer, message, code = follow(self, self.endpoint .. path, {
    path = opts.path, size = opts.size, offset = offset, most = opts.most, on_bytes = opts.on_bytes,
  })
  if not answer then
    if code == "io" then return "again", message end
    return nil, what .. ": " .. message, code
  end
  local verdict
  verdict, message, code = judge(self, answer, opts, what, offset)
  if verdict == "done" then return verdict, answer end
  if verdict == "again" then return verdict, message, answer end
  return nil, message, code
end

--- Requests an address of the hub. A request whose connection breaks is resumed. Only successive tries that bring no new bytes are counted.
-- @param path the part of the address after the endpoint
-- @param opts what (name in messages), most (bytes of the answer in memory); or path (of a file that may have a part already), size (the
-- file's), on_bytes = function(bytes of the file)
-- @return {status, body, received, header = function(name), first_header = function(name) (of the hub's own answer)}; or nil, message, code
function Client:get(path, opts)
  local what, try, best = opts.what or path, 0, 0
  while true do
    local verdict, answer, last = attempt(self, path, opts, what)
    if verdict == nil then return nil, answer, last end
    if verdict == "done" then
      answer.header = function(name) return header(answer.headers, name) end
      answer.first_header = function(name) return header(answer.first, name) end
      return answer
    end
    local now = opts.path and core.file_size(opts.path) or 0
    try = now > best and try > 0 and 1 or try + 1
    best = math.max(best, now)
    if try >= self.tries then
      return nil, ("%s: %s (%d %s)"):format(what, answer, self.tries, self.tries == 1 and "try" or "tries"), "io"
    end
    pause(self, try, last, ("%s: %s"):format(what, answer))
  end
end

return M
