--- A rank's rows of a divided head. The last stage sends the hidden states of the output rows to all ranks. Each rank computes the
-- logits of its ids, and rank 0 joins them. So each rank reads and holds only its part of the head.
-- Needs ane.core.
-- Usage: `local part = assert(head.open(graph, options, { from = 0, to = 4096, steps = 99 })); local rows = part:rows(bytes, keeps)`

local core = require "ane.core"

local M = {}

local Head = {}
Head.__index = Head

-- Maximum output rows of a run (OUT_ROWS_BLOCK of csrc/exec).
local BLOCK = 64

-- A run takes ids. A program of the head alone does not read them.
local IDS = {}
for i = 1, BLOCK do IDS[i] = 0 end

--- Plans a part of the head.
-- @param graph after its passes. Its head is reduced to the part, so no other program can be planned from it afterwards
-- @param options of core.program
-- @param part from, to (rows of the head, from 0), steps (body steps of the graph), fp16 (type of the values)
-- @return an object; or nil, message, code
function M.open(graph, options, part)
  local self = setmetatable({ from = part.from }, Head)
  local ok, message, code = graph:slice_head(part.from, part.to)
  if not ok then return nil, message, code end
  local o = {}
  for key, value in pairs(options) do o[key] = value end
  o.context, o.chunk, o.progress = BLOCK, BLOCK, nil
  o.stage = {
    from = part.steps, to = part.steps, tail = "head", fp16 = part.fp16,
    receive = function() return self.values end,
    send = function() return true end,
  }
  self.program, message, code = core.program(graph, o)
  if not self.program then return nil, message, code end
  self.session, message, code = self.program:session { context = BLOCK, kv = "fp16" }
  if self.session then return self end
  self.program:close()
  return nil, message, code
end

--- Computes rows.
-- @param bytes the hidden states of the output rows, one row after another
-- @param keeps list of booleans by row; true: its logits are returned too, not only its best id
-- @return list of {id, value (the best of this part), logits (bytes of this part, or nil)}; or nil, message, code
function Head:rows(bytes, keeps)
  local list, s, size = {}, self.session, #bytes // #keeps
  for first = 1, #keeps, BLOCK do
    local last, logits = math.min(first + BLOCK - 1, #keeps), false
    for i = first, last do logits = logits or keeps[i] end
    self.values = bytes:sub((first - 1) * size + 1, last * size)
    s:rewind(0)
    local ok, message, code = self.program:run { { s, table.move(IDS, 1, last - first + 1, 1, {}), want = logits and "all" or "argmax" } }
    if not ok then return nil, message, code end
    for i = first, last do
      local id, value = s:argmax(i - first + 1)
      list[i] = { id = id + self.from, value = value, logits = keeps[i] and s:logits(i - first + 1):tostring() or nil }
    end
  end
  return list
end

function Head:close()
  self.session:close()
  self.program:close()
end

--- Joins the rows of the parts.
-- @param parts list of lists as Head:rows() gives them, in ascending order of the ids
-- @return such a list of the whole head. Of equal logits the lowest id is the best, as in one process
function M.join(parts)
  local list = {}
  for i, first in ipairs(parts[1]) do
    local row, logits = { id = first.id, value = first.value }, {}
    for p, part in ipairs(parts) do
      local one = part[i]
      local beats_nan = row.value ~= row.value and one.value == one.value
      if one.value > row.value or beats_nan then row.id, row.value = one.id, one.value end
      logits[p] = one.logits
    end
    if first.logits then row.logits = table.concat(logits) end
    list[i] = row
  end
  return list
end

return M
