--- Replicas of a batch under MPI: rank 0 reads rows, deals them to the ranks as these have room, and writes the lines.
-- Needs ane.core and the optional module ane.mpi, which is given as `mpi`.
-- Usage, rank 0: `local ranks = team.new(mpi, size, opts); ranks:deal(row)`; the others: `team.work(mpi, desk, read)`
--
-- A rank that dies while the launcher lets the others live has its rows dealt again: its process is gone (on the host of rank 0), or it
-- has sent nothing for `timeout` seconds. Messages begin with a letter. To rank 0: H (hello: host, process), R (ready: the model's
-- settings), L (a line), B (alive), Q (stopped). From it: H, B, D (a row), S (stop), E (end; 1: all ranks are alive).

local core = require "ane.core"

local M = {}

-- Seconds between looks at the processes of this host, and between signs of life.
local LOOK, BEAT = 0.25, 2

local HELLO, ROW, LINE, END = "<s4i8", "<i8i8s4s4s4", "<i8I4i8s4", "<I1"

-- ---- Rank 0 ------------------------------------------------------------------------------------------------------------------

local Team = {}
Team.__index = Team

--- The ranks beside this one.
-- @param mpi the module
-- @param size number of ranks, this one included
-- @param host of this rank
-- @param timeout seconds after which a silent rank that has rows counts as dead
function M.new(mpi, size, host, timeout)
  local self = setmetatable({
    mpi = mpi, host = host, room = 0, timeout = timeout, ranks = {}, active = 0, again = {}, looked = 0, beat = 0, lost = 0,
  }, Team)
  for rank = 1, size - 1 do
    self.ranks[rank] = { rank = rank, rows = {}, count = 0, heard = core.clock() }
    mpi.send(rank, "H" .. HELLO:pack(host, mpi.process()))
  end
  return self
end

--- Says how ranks work. They get rows with deal().
-- @param room rows that a rank may have in hand
-- @param settings a text that all ranks must have
-- @param on_line function(row, line, flags, tokens)
function Team:begin(room, settings, on_line) self.room, self.settings, self.on_line = room, settings, on_line end

-- The rows of a rank that died are dealt again.
local function lose(self, one)
  one.dead = true
  self.lost = self.lost + 1
  self.active = self.active - one.count
  for _, row in pairs(one.rows) do self.again[#self.again + 1] = row end
  table.sort(self.again, function(a, b) return a.number > b.number end)
  one.rows, one.count = {}, 0
end

-- The rank with the most room; nil: none has any.
local function free(self)
  local best
  for _, one in ipairs(self.ranks) do
    if one.ready and not one.dead and one.count < self.room and (not best or one.count < best.count) then best = one end
  end
  return best
end

--- Can a rank take a row?
function Team:has_room() return free(self) ~= nil end

--- Gives a row to the rank with the most room.
function Team:deal(row)
  local one = free(self)
  one.rows[row.number], one.count, self.active = row, one.count + 1, self.active + 1
  if not self.mpi.send(one.rank, "D" .. ROW:pack(row.number, row.key, row.id or "", row.fault or "", row.text)) then lose(self, one) end
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
    if not row or self.closed then return end -- it was taken for dead, and another rank has answered
    one.rows[number], one.count, self.active = nil, one.count - 1, self.active - 1
    self.on_line(row, line, flags, tokens)
  end,
}

-- Looks for ranks that died.
local function look(self)
  local now = core.clock()
  if now - self.looked < LOOK then return end
  self.looked = now
  for _, one in ipairs(self.ranks) do
    local gone = one.process and one.host == self.host and not self.mpi.alive(one.process)
    if not one.dead and (gone or one.count > 0 and now - one.heard > self.timeout) then lose(self, one) end
    if not one.dead and now - self.beat > BEAT then self.mpi.send(one.rank, "B") end
  end
  if now - self.beat > BEAT then self.beat = now end
end

--- Takes the messages that have come.
-- @param wait seconds for the first one
-- @return true; or nil, message, code where a rank has failed
function Team:poll(wait)
  look(self)
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

local function tell(self, text)
  for _, one in ipairs(self.ranks) do
    if not one.dead then self.mpi.send(one.rank, text) end
  end
end

-- Do ranks live that have not said that they stop?
local function are_busy(self)
  for _, one in ipairs(self.ranks) do
    if not one.dead and not one.stopped then return true end
  end
  return false
end

--- Ends all ranks: they stop, then all end MPI together. Where one has died, MPI is left without that, which would wait for it.
function Team:close()
  if self.closed then return end
  self.closed = true
  tell(self, "S")
  local deadline = core.clock() + self.timeout
  while are_busy(self) and core.clock() < deadline do self:poll(LOOK) end
  local whole = self.lost == 0 and not are_busy(self)
  tell(self, "E" .. END:pack(whole and 1 or 0))
  if whole then return self.mpi.finish() end
  self.mpi.poll(LOOK) -- lets the messages go
end

-- ---- The other ranks -----------------------------------------------------------------------------------------------------------

--- Says that this rank is here. Before the model is loaded.
function M.hello(mpi, host) mpi.send(0, "H" .. HELLO:pack(host, mpi.process())) end

-- Handles a message of rank 0. Returns true at the end.
local function take(mpi, text, begin, first)
  local kind = text:sub(1, 1)
  if kind == "H" then
    first.host, first.process = HELLO:unpack(text, 2)
  elseif kind == "S" then
    first.stopped = true
    mpi.send(0, "Q")
  elseif kind == "D" and not first.stopped then
    local number, key, id, fault, body = ROW:unpack(text, 2)
    begin { number = number, key = key, id = id ~= "" and id or nil, fault = fault ~= "" and fault or nil, text = body }
  elseif kind == "E" then
    if END:unpack(text, 2) == 1 then mpi.finish() end
    return true
  end
end

--- Sends a line to rank 0.
function M.send_line(mpi, row, line, flags, tokens) mpi.send(0, "L" .. LINE:pack(row.number, flags, tokens, line)) end

-- Has rank 0 ended without a word? first: {host, process, heard}
local function is_gone(mpi, first, opts)
  if first.host == opts.host and not mpi.alive(first.process) then return true end
  return core.clock() - first.heard > opts.timeout
end

--- Works until rank 0 says that all is done.
-- @param desk of ane.batch.desk
-- @param begin function(row)
-- @param opts host (of this rank), timeout, settings (a text of the model and the options, for rank 0 to compare)
-- @return true; or nil, message, code where rank 0 has died
function M.work(mpi, desk, begin, opts)
  mpi.send(0, "R" .. opts.settings)
  local sent, first = core.clock(), { heard = core.clock() }
  while true do
    local rank, text = mpi.poll(desk.active > 0 and not first.stopped and 0 or LOOK)
    if not rank and text then return nil, text, "io" end
    while rank do
      first.heard = core.clock()
      if take(mpi, text, begin, first) then return true end
      rank, text = mpi.poll(0)
    end
    if not first.stopped and not desk:step() then desk:flush() end
    if core.clock() - sent > BEAT and not first.stopped then
      sent = core.clock()
      mpi.send(0, "B")
    end
    if is_gone(mpi, first, opts) then
      if first.stopped then return true end
      return nil, "rank 0 has ended", "io"
    end
  end
end

return M
