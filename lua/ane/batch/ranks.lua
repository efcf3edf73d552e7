--- Data-parallel batches under MPI: rank 0 reads rows, assigns them to ranks with room, and writes the lines.
-- Needs ane.core and the optional module ane.mpi, which is given as `mpi`.
-- Usage, rank 0: `local team = ranks.new(mpi, size, host, timeout); team:begin(room, settings, on_line); team:assign(row); team:poll(0)`;
-- the others: `ranks.work(mpi, worker, begin, opts)`
--
-- A rank counts as dead when its process is gone (on the host of rank 0), or when it has rows and has sent nothing for `timeout` seconds.
-- Its rows are assigned again. Each message begins with a letter. To rank 0: H (hello: host, process), R (ready: settings), L (a line),
-- B (heartbeat), Q (stopped). From rank 0: H, B, D (a row), S (stop), E (end; 1: all ranks are alive).

local core = require "ane.core"

local M = {}

-- Seconds between checks of the other ranks, and between heartbeats.
local POLL, HEARTBEAT = 0.25, 2

local HELLO, ROW, LINE, END = "<s4i8", "<i8i8s4s4s4", "<i8I4i8s4", "<I1"

-- ---- Rank 0 ------------------------------------------------------------------------------------------------------------------

local Team = {}
Team.__index = Team

--- Makes the team of the other ranks.
-- @param mpi the module ane.mpi
-- @param size number of ranks, this one included
-- @param host of this rank
-- @param timeout seconds after which a silent rank with rows counts as dead
function M.new(mpi, size, host, timeout)
  local self = setmetatable({
    mpi = mpi, host = host, room = 0, timeout = timeout, ranks = {}, active = 0, requeued = {}, looked = 0, beat = 0, lost = 0,
  }, Team)
  for rank = 1, size - 1 do
    self.ranks[rank] = { rank = rank, rows = {}, count = 0, heard = core.clock() }
    mpi.send(rank, "H" .. HELLO:pack(host, mpi.process()))
  end
  return self
end

--- Sets how rows are assigned and answered, before the first assign().
-- @param room rows that a rank may have in progress
-- @param settings a text that must be the same on all ranks
-- @param on_line function(row, line, flags, tokens)
function Team:begin(room, settings, on_line) self.room, self.settings, self.on_line = room, settings, on_line end

-- Marks a rank as dead and queues its rows again, the smallest last.
local function mark_dead(self, one)
  one.dead = true
  self.lost = self.lost + 1
  self.active = self.active - one.count
  for _, row in pairs(one.rows) do self.requeued[#self.requeued + 1] = row end
  table.sort(self.requeued, function(a, b) return a.number > b.number end)
  one.rows, one.count = {}, 0
end

-- The rank with the most room; nil: none has any.
local function least_busy(self)
  local best
  for _, one in ipairs(self.ranks) do
    if one.ready and not one.dead and one.count < self.room and (not best or one.count < best.count) then best = one end
  end
  return best
end

--- Has a rank room for a row?
function Team:has_room() return least_busy(self) ~= nil end

--- Assigns a row to the rank with the most room. There must be room.
function Team:assign(row)
  local one = least_busy(self)
  one.rows[row.number], one.count, self.active = row, one.count + 1, self.active + 1
  local message = "D" .. ROW:pack(row.number, row.key, row.id or "", row.fault or "", row.text)
  if not self.mpi.send(one.rank, message) then mark_dead(self, one) end
end

local HANDLE = {
  H = function(_, one, text) one.host, one.process = HELLO:unpack(text) end,
  B = function() end,
  Q = function(_, one) one.stopped = true end,
  R = function(self, one, text)
    one.ready = text == self.settings
    if one.ready then return end
    local what = "rank %d (%s): has another model or other options than rank 0"
    self.failed = self.failed or { what:format(one.rank, one.host), "invalid" }
  end,
  L = function(self, one, text)
    local number, flags, tokens, line = LINE:unpack(text)
    local row = one.rows[number]
    if not row or self.closed then return end -- the rank counted as dead, and another one has answered the row
    one.rows[number], one.count, self.active = nil, one.count - 1, self.active - 1
    self.on_line(row, line, flags, tokens)
  end,
}

-- Finds dead ranks and sends heartbeats, once per POLL.
local function check_ranks(self)
  local now = core.clock()
  if now - self.looked < POLL then return end
  self.looked = now
  for _, one in ipairs(self.ranks) do
    local gone = one.process and one.host == self.host and not self.mpi.alive(one.process)
    if not one.dead and (gone or one.count > 0 and now - one.heard > self.timeout) then mark_dead(self, one) end
    if not one.dead and now - self.beat > HEARTBEAT then self.mpi.send(one.rank, "B") end
  end
  if now - self.beat > HEARTBEAT then self.beat = now end
end

--- Handles the messages that have arrived.
-- @param wait seconds to wait for the first one
-- @return true; or nil, message, code if a rank has failed
function Team:poll(wait)
  check_ranks(self)
  while true do
    local rank, text, code = self.mpi.poll(wait)
    if not rank and text then return nil, text, code end
    if not rank then break end
    local one = self.ranks[rank]
    one.heard, wait = core.clock(), 0
    if not one.dead then HANDLE[text:sub(1, 1)](self, one, text:sub(2)) end
  end
  if self.failed then return nil, self.failed[1], self.failed[2] end
  return true
end

-- Sends a message to all living ranks.
local function broadcast(self, text)
  for _, one in ipairs(self.ranks) do
    if not one.dead then self.mpi.send(one.rank, text) end
  end
end

-- Is there a living rank that has not confirmed the stop?
local function any_running(self)
  for _, one in ipairs(self.ranks) do
    if not one.dead and not one.stopped then return true end
  end
  return false
end

--- Stops all ranks. Then all finalise MPI together, unless a rank has died: MPI_Finalize would wait for it.
function Team:close()
  if self.closed then return end
  self.closed = true
  broadcast(self, "S")
  local deadline = core.clock() + self.timeout
  while any_running(self) and core.clock() < deadline do self:poll(POLL) end
  local whole = self.lost == 0 and not any_running(self)
  broadcast(self, "E" .. END:pack(whole and 1 or 0))
  if whole then return self.mpi.finish() end
  self.mpi.poll(POLL) -- gives MPI time to send
end

-- ---- The other ranks -----------------------------------------------------------------------------------------------------------

--- Announces this rank, before it loads the model.
function M.hello(mpi, host) mpi.send(0, "H" .. HELLO:pack(host, mpi.process())) end

-- Handles a message of rank 0, whose state is `root`. Returns true at the end.
local function handle(mpi, text, begin, root)
  local kind = text:sub(1, 1)
  if kind == "H" then
    root.host, root.process = HELLO:unpack(text, 2)
  elseif kind == "S" then
    root.stopped = true
    mpi.send(0, "Q")
  elseif kind == "D" and not root.stopped then
    local number, key, id, fault, body = ROW:unpack(text, 2)
    begin { number = number, key = key, id = id ~= "" and id or nil, fault = fault ~= "" and fault or nil, text = body }
  elseif kind == "E" then
    if END:unpack(text, 2) == 1 then mpi.finish() end
    return true
  end
end

--- Sends a line to rank 0.
function M.send_line(mpi, row, line, flags, tokens) mpi.send(0, "L" .. LINE:pack(row.number, flags, tokens, line)) end

-- Has rank 0 died? root: {host, process, heard}
local function root_is_dead(mpi, root, opts)
  if root.host == opts.host and not mpi.alive(root.process) then return true end
  return core.clock() - root.heard > opts.timeout
end

--- Answers rows until rank 0 ends the run.
-- @param worker of ane.batch.worker
-- @param begin function(row)
-- @param opts host (of this rank), timeout, settings (the text that rank 0 compares with its own)
-- @return true; or nil, message, code if rank 0 has died
function M.work(mpi, worker, begin, opts)
  mpi.send(0, "R" .. opts.settings)
  local sent, root = core.clock(), { heard = core.clock() }
  while true do
    local rank, text = mpi.poll(worker.active > 0 and not root.stopped and 0 or POLL)
    if not rank and text then return nil, text, "io" end
    while rank do
      root.heard = core.clock()
      if handle(mpi, text, begin, root) then return true end
      rank, text = mpi.poll(0)
    end
    if not root.stopped and not worker:step() then worker:flush() end
    if core.clock() - sent > HEARTBEAT and not root.stopped then
      sent = core.clock()
      mpi.send(0, "B")
    end
    if root_is_dead(mpi, root, opts) then
      if root.stopped then return true end
      return nil, "rank 0 has ended", "io"
    end
  end
end

return M
