--- Sources whose changed tensors are computed when they are needed, so that not all of them are in memory at once.
-- Needs ane.core and ane.util.failure. Usage:
--   local o = overlay.new(source, edits); o:fill { "blk.0.attn_q.weight" }; o:forget { "blk.0.attn_q.weight" }
--
-- Field `source` is an ordinary source with the shapes and types of all tensors. Until fill() or put() has given a changed tensor its
-- numbers, it must not be read.

local core = require "ane.core"
local failure = require "ane.util.failure"

local try = failure.try

local M = {}

local Overlay = {}
Overlay.__index = Overlay

--- Computes those of the tensors that are changed and not in memory. Raises as ane.util.failure does.
-- @param names list of names; nil: all
function Overlay:fill(names)
  if not names then
    names = {}
    for i, edit in ipairs(self.list) do names[i] = edit.name end
  end
  local list = {}
  for _, name in ipairs(names) do
    local edit = self.edits[name]
    if edit and not (edit.alias or edit.dtype or self.filled[name]) then
      list[#list + 1], self.filled[name] = edit, true
    end
  end
  if list[1] then try(core.merge_into(self.source, self.base, list)) end
end

--- Gives a tensor its bytes, in the type of its edit.
-- @param head rows of a head that were written in pairs (writer:send); nil: rows are in their places
function Overlay:put(name, bytes, head)
  local edit = self.edits[name]
  try(core.merge_into(self.source, self.base, { { name = name, from = edit.from, dtype = edit.dtype, bytes = bytes, head = head } }))
end

--- Gives the memory of changed tensors back. fill() computes them again.
function Overlay:forget(names)
  local list = {}
  for _, name in ipairs(names) do
    if self.edits[name] then
      list[#list + 1], self.filled[name] = name, nil
    end
  end
  core.merge_forget(self.source, list)
end

--- Does it change the tensor of this name?
function Overlay:changes(name) return self.edits[name] ~= nil end

--- An overlay of a source.
-- @param base an open source; the overlay keeps it open
-- @param edits as core.merged takes them; an edit with dtype and no bytes gets them from put()
-- @return overlay; raises as ane.util.failure does
function M.new(base, edits)
  local self = setmetatable({ base = base, list = edits, edits = {}, filled = {} }, Overlay)
  for _, edit in ipairs(edits) do self.edits[edit.name] = edit end
  self.source = try(core.merged(base, edits, true))
  return self
end

return M
