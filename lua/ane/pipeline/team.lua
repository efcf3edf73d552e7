--- The ranks of an MPI program, as a pipeline uses them. Messages of one sender and kind arrive in order. A wait ends when a rank is lost.
-- Needs ane.core and the optional module ane.mpi, which is given as `mpi`.
-- Usage: `local team = assert(team.new(mpi, opts)); team:send(1, "A", bytes); local reply = assert(team:take(1, "V"))`
--
-- A message is a letter, its kind, and a text. This module handles three kinds itself: H (hello); E, by which a rank
-- tells rank 0 that it has failed, so that all waits of rank 0 fail; and X, by which rank 0 says that the work is over, so that waits of
-- other ranks end, except those for an order (C). A rank is lost when its process is gone (on the same host), or when it is silent for
-- `timeout` seconds while this rank waits for it.
--
-- A rank may set `between`, a function that does work for which other ranks wait. take() calls it before it waits. It returns whether
-- there was work; or nil, message, code.

local core = require "ane.core"

local M = {}

--- Default of the option timeout.
M.TIMEOUT = 300

-- LOOK: seconds between checks that the processes of this host live. UNDER_WAY: bytes of unsent messages above which a sender waits.
local LOOK, UNDER_WAY = 0.25, 16 << 20

-- The text of H: host, process id, version, 1 if this rank has the shared memory.
local HELLO = "<s4i8s4B"

--- Bytes of the memory that ranks of one host share, for each rank; 0: none. ane.core divides it.
M.SHARED = 8 << 20

local Team = {}
Team.__index = Team

-- "rank 2 (host)"
local function name_of(self, rank)
  local one = self.others[rank]
  return one and one.host and ("rank %d (%s)"):format(rank, one.host) or "rank " .. rank
end

--- The name of a rank in messages: number and host.
function Team:name(rank) return rank == self.rank and ("rank %d (%s)"):format(rank, self.host) or name_of(self, rank) end

-- Handles a message of kind E, X or H, and puts others into the sender's inbox, from which pop() takes them.
local function deliver(self, rank, kind, text)
  local one = self.others[rank]
  if kind == "E" then
    self.failed = self.failed or ("%s: %s"):format(name_of(self, rank), text)
  elseif kind == "X" then
    self.ended = true
  elseif kind == "H" then
    one.host, one.process, one.version, one.shares = HELLO:unpack(text)
  else
    local list = one.inbox[kind]
    if not list then
      list = { first = 1, last = 0 }
      one.inbox[kind] = list
    end
    list.last = list.last + 1
    list[list.last] = text
  end
end

-- The next message of a rank and kind; nil: none has come.
local function pop(self, rank, kind)
  local list = self.others[rank].inbox[kind]
  if not list or list.first > list.last then return nil end
  local text = list[list.first]
  list[list.first] = nil
  list.first = list.first + 1
  return text
end

-- A rank on this host whose process is gone; nil: all live.
local function find_dead(self)
  for rank, one in pairs(self.others) do
    if one.process and one.host == self.host and not self.mpi.alive(one.process) then return rank end
  end
end

-- Receives messages for at most `wait` seconds, for a caller that waits for a message of `kind`.
-- @return true; or nil, message, code: the caller must not wait any longer
local function poll(self, wait, kind)
  if self.failed then return nil, self.failed, "io" end
  if self.ended and kind ~= "C" then return nil, "rank 0 has ended the work", "stopped" end
  local rank, letter, text = self.mpi.poll(wait, 1)
  if not rank and letter then return nil, letter, text end
  while rank do
    deliver(self, rank, letter, text)
    rank, letter, text = self.mpi.poll(0, 1)
  end
  local now = core.clock()
  if now - self.looked < LOOK or self.ended then return true end
  self.looked = now
  local dead = find_dead(self)
  if dead then self.failed = name_of(self, dead) .. ": the process has ended" end
  return true
end

-- Allocates the memory that all ranks share: `shared` (light userdata; nil: there is none) and `shared_bytes`.
local function share(self)
  if self.size < 2 or self.near < self.size or M.SHARED == 0 then return end
  self.shared_bytes = M.SHARED * self.size
  self.shared = self.mpi.share(self.shared_bytes) or nil
end

--- Joins the ranks, which tell each other their hosts and versions.
-- @param mpi the module
-- @param opts timeout (seconds), version (a text that all ranks must have)
-- @return the team; or nil, message, code
function M.new(mpi, opts)
  local rank, size, near, host = mpi.init()
  if not rank then return nil, size, near end
  local self = setmetatable({
    mpi = mpi, rank = rank, size = size, near = near, host = host, timeout = opts.timeout or M.TIMEOUT, others = {}, looked = 0,
  }, Team)
  for other = 0, size - 1 do
    if other ~= rank then self.others[other] = { inbox = {} } end
  end
  share(self)
  self:tell("H", HELLO:pack(host, mpi.process(), opts.version, self.shared and 1 or 0))
  local deadline = core.clock() + self.timeout
  for other, one in pairs(self.others) do
    while not one.host do
      local ok, message, code = poll(self, LOOK)
      if not ok then return nil, message, code end
      if core.clock() > deadline then return nil, ("rank %d has not started within %g s"):format(other, self.timeout), "io" end
    end
    if one.version ~= opts.version then
      return nil, ("%s is of version %s, %s of %s"):format(name_of(self, other), one.version, self:name(rank), opts.version), "invalid"
    end
    if one.shares == 0 then self.shared = nil end
  end
  return self
end

--- Sends a message. Waits first if too many bytes are unsent.
-- @return true; or nil, message, code
function Team:send(rank, kind, text)
  local since = core.clock()
  while self.mpi.pending() > UNDER_WAY do
    local ok, message, code = poll(self, 0.001, kind)
    if not ok then return nil, message, code end
    if core.clock() - since > self.timeout then
      return nil, ("%s has not received a message for %g s"):format(name_of(self, rank), self.timeout), "io"
    end
  end
  return self.mpi.send(rank, kind, text)
end

--- Sends a message to all other ranks.
function Team:tell(kind, text)
  for rank = 0, self.size - 1 do
    local ok, message, code
    if rank ~= self.rank then ok, message, code = self.mpi.send(rank, kind, text) end
    if not ok and message then return nil, message, code end
  end
  return true
end

-- Calls `between`, before a wait for a message of `kind`.
-- @return true: there was work; false: there was none; or nil, message, code
local function work_between(self, kind)
  if not self.between then return false end
  local ok, message, code = poll(self, 0, kind)
  if not ok then return nil, message, code end
  return self.between()
end

--- Takes the next message of a rank and a kind that has arrived; nil: there is none.
function Team:has(rank, kind) return pop(self, rank, kind) end

--- Waits for the next message of a rank and a kind.
-- @param forever true: as long as the rank lives; default: `timeout` seconds
-- @return its text; or nil, message, code
function Team:take(rank, kind, forever)
  local since = core.clock()
  while true do
    local busy, message, code = work_between(self, kind)
    if busy == nil then return nil, message, code end
    local text = pop(self, rank, kind)
    if text then return text end
    if self.ended and kind == "C" then return nil, "rank 0 has ended the work", "stopped" end
    local ok = true
    if not busy then ok, message, code = poll(self, LOOK, kind) end
    if not ok then return nil, message, code end
    if not forever and core.clock() - since > self.timeout then
      return nil, ("%s has not sent a message for %g s"):format(name_of(self, rank), self.timeout), "io"
    end
  end
end

--- Checks whether a rank may be awaited any longer, in a wait that does not take messages.
-- @param seconds that it has been awaited
-- @return true; or nil, message, code
function Team:look(rank, seconds)
  if seconds > self.timeout then
    return nil, ("%s has not sent a message for %g s"):format(name_of(self, rank), self.timeout), "io"
  end
  return poll(self, 0)
end

--- Tells rank 0 that this rank has failed.
function Team:complain(message) self.mpi.send(0, "E" .. message) end

--- Leaves MPI, which waits for all ranks. Rank 0 tells the others to leave. If a rank was lost, the process ends without leaving MPI, and
-- the launcher ends the other ranks.
function Team:leave()
  if self.left then return end
  self.left = true
  if self.rank == 0 then self:tell("X", "") end
  if find_dead(self) then
    self.mpi.poll(LOOK) -- so that the last messages are sent
    return
  end
  self.mpi.finish()
end

return M
