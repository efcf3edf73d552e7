--- Sources whose changed tensors get their bytes when they are needed, so that not all of them are in memory at once.
-- Needs ane.core and ane.util.failure. Usage:
--   local o = overlay.new(source, edits); o:put("blk.0.attn_q.weight", bytes); o:forget { "blk.0.attn_q.weight" }
--
-- Field `source` is an ordinary source with the shapes and types of all tensors. Until put() has given a changed tensor its
-- numbers, it must not be read.

local core = require "ane.core"
local failure = require "ane.util.failure"

local try = failure.try

local M = {}

local Overlay = {}
Overlay.__index = Overlay

--- Gives a tensor its bytes, in the type of its edit.
-- @param head rows of a head that were written in pairs (writer:send); nil: rows are in their places
function Overlay:put(name, bytes, head)
  local edit = self.edits[name]
  try(core.merge_into(self.source, self.base, { { name = name, from = edit.from, dtype = edit.dtype, bytes = bytes, head = head } }))
end

--- Gives the memory of changed tensors back.
function Overlay:forget(names)
  local list = {}
  for _, name in ipairs(names) do
    if self.edits[name] then list[#list + 1] = name end
  end
  core.merge_forget(self.source, list)
end

--- Does it change the tensor of this name?
function Overlay:changes(name) return self.edits[name] ~= nil end

--- An overlay of a source.
-- @param base an open source; the overlay keeps it open
-- @param edits as core.merged takes them, with dtype and without bytes: put() gives them
-- @return overlay; raises as ane.util.failure does
function M.new(base, edits)
  local self = setmetatable({ base = base, edits = {} }, Overlay)
  for _, edit in ipairs(edits) do self.edits[edit.name] = edit end
  self.source = try(core.merged(base, edits, true))
  return self
end

return M
