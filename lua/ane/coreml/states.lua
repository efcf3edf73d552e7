--- The states of one sequence in a package set: keys, values and rings, in a table for each package.
-- Needs ane.core and ane.util.units. Usage: `local hold = assert(states.open(program)); hold:reset()`
--
-- A state that grows has its full size from the first token on. Elements beyond the length of the sequence are never seen.

local core = require "ane.core"
local units = require "ane.util.units"

local M = {}

local Hold = {}
Hold.__index = Hold

-- Elements of a state after `length` tokens.
local function count_of(s, length)
  local n = 1
  for k, d in ipairs(s.shape) do n = n * (k == 3 and not s.is_ring and length or d) end
  return n
end

--- All states of a set.
-- @return list of {name, grows (with the sequence), count(length) (elements), package (its number), state (of the meta file)}
function M.list(meta)
  local list = {}
  for i, p in ipairs(meta.packages) do
    for _, s in ipairs(p.states) do
      list[#list + 1] = {
        name = ("%d %s"):format(i, s.name), grows = not s.is_ring, count = function(length) return count_of(s, length) end,
        package = i, state = s,
      }
    end
  end
  return list
end

-- Restores a whole state from its used part; the rest is zeros.
local function filled(s, bytes, length)
  local rows, width = 1, s.shape[4] * 4
  for k = 1, 2 do rows = rows * s.shape[k] end
  local parts, rest = {}, ("\0"):rep((s.shape[3] - length) * width)
  for r = 0, rows - 1 do
    parts[#parts + 1] = bytes:sub(r * length * width + 1, (r + 1) * length * width)
    parts[#parts + 1] = rest
  end
  return core.tensor(s.shape, table.concat(parts))
end

function Hold:get(i, length)
  local entry = self.program.states[i]
  local tensor = self.states[entry.package]:get(entry.state.name)
  return entry.grows and tensor:slice(3, 1, length) or tensor
end

function Hold:put(length, tensors)
  for i, tensor in pairs(tensors) do
    local entry = self.program.states[i]
    local s = entry.state
    local whole = entry.grows and filled(s, tensor:tostring(), length) or tensor:reshape(s.shape)
    local ok, message, code = self.states[entry.package]:set(s.name, whole)
    if not ok then return nil, message, code end
  end
  return true
end

function Hold:reset()
  for _, state in pairs(self.states) do
    local ok, message, code = state:reset()
    if not ok then return nil, message, code end
  end
  return true
end

function Hold:close()
  for _, state in pairs(self.states) do state:close() end
  self.states = {}
end

-- Is there memory for the states of one more session? They have their full size from the first token on, and a call needs up to a
-- third more. On a system that overcommits memory, running out would end the process.
local function states_fit(program)
  local bytes = 0
  for _, entry in ipairs(program.states) do bytes = bytes + 4 * entry.count(program.meta.max_seq_len) end
  local free = core.memory().available
  if free == 0 or bytes + bytes // 3 < free then return true end
  return nil, ("the states of %d positions take %s, but only %s of memory are free: export with a smaller context"):format(
    program.meta.max_seq_len, units.bytes(bytes), units.bytes(free)), "memory"
end

-- Makes a hold from the states that make(i, package) returns for each package that has some.
local function new_hold(program, make)
  local fits, message, code = states_fit(program)
  if not fits then return nil, message, code end
  local self = setmetatable({ program = program, states = {} }, Hold)
  for i, p in ipairs(program.meta.packages) do
    if #p.states > 0 then
      self.states[i], message, code = make(i, p)
      if not self.states[i] then
        self:close()
        return nil, message, code
      end
    end
  end
  return self
end

function Hold:copy()
  return new_hold(self.program, function(i) return self.states[i]:copy() end)
end

--- Empty states for one sequence.
-- @param program of ane.coreml.session
-- @return a hold: get(i, length), put(length, tensors), reset(), copy(), close(); or nil, message, code
function M.open(program)
  return new_hold(program, function(_, p) return p.package:state(p.functions[1].name) end)
end

return M
