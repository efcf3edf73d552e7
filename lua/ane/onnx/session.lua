--- The engine of ONNX graphs: a graph that runs op by op, and the states of its sequences.
-- Needs ane.generate.op_session. Results may depend in their last bits on how tokens are divided into calls.
-- Usage: `local program = require("ane.onnx.session").program(raw); local s = program:session()`

local op_session = require "ane.generate.op_session"

local M = {}

local Program = {}
Program.__index = Program

-- ---- States -------------------------------------------------------------------------------------------------------------

-- The states of one sequence, held by a session of the core. get gives the elements of state i as a flat tensor; put sets all of them.
local Hold = {}
Hold.__index = Hold

local function wrap(raw, message, code)
  if not raw then return nil, message, code end
  return setmetatable({ raw = raw }, Hold)
end

function Hold:get(i) return self.raw:get(i) end

function Hold:put(length, tensors) return self.raw:put(length, tensors) end

function Hold:reset() return self.raw:put(0) end
function Hold:copy() return wrap(self.raw:copy()) end
function Hold:close() self.raw:close() end

-- ---- The engine ---------------------------------------------------------------------------------------------------------

function Program:open() return wrap(self.raw:session()) end
function Program.check() return true end

-- Rows of logits of the last feed. A core session keeps no others.
local Rows = {}
Rows.__index = Rows
function Rows:logits(i) return self.raw:logits(i) end
function Rows:argmax(i) return self.raw:argmax(i) end

function Program.feed(_, session, ids, want)
  local raw = session.hold.raw
  local ok, message, code = raw:feed(ids, want)
  if not ok then return nil, message, code end
  return setmetatable({ raw = raw, count = raw:rows() }, Rows)
end

function Program:session() return op_session.open(self) end
function Program:max_chunk() return self.raw:max_chunk() end
function Program:context() return self.raw:context() end
function Program:vocab() return self.raw:vocab() end
function Program:n_ids() return self.raw:vocab() end
function Program.exact() return false end
function Program:info() return self.raw:info() end
function Program:dump() return self.raw:dump() end
function Program:close() self.raw:close() end

--- The program that ane.model runs, from a program of core.graph_program.
function M.program(raw)
  local states = {}
  for i, s in ipairs(raw:states()) do
    states[i] = { name = s.name, grows = s.grows, count = function(length) return s.grows and s.count * length or s.count end }
  end
  return setmetatable({ name = "graph", fingerprint = raw:fingerprint(), states = states, raw = raw }, Program)
end

return M
