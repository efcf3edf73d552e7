--- Sources whose changed tensors get their bytes when they are needed, so that not all of them are in memory at once.
-- Needs ane.core and ane.util.failure. Usage:
--   local o = overlay.new(source, edits); o:put("blk.0.attn_q.weight", bytes); o:forget { "blk.0.attn_q.weight" }
--
-- Field `source` is an ordinary source with the shapes and types of all tensors. Until put() or compute() has given a changed
-- tensor its numbers, source:is_set(name) is false and source:read(name) fails.
--
-- computed() makes a source whose changed matrices are computed for each use: fill(source, names) before they are read, drop(source,
-- names) after it. Both take any source and any names, and do nothing if no matrix of them is computed.

local core = require "ane.core"
local failure = require "ane.util.failure"

local try = failure.try

local M = {}

-- The overlays of computed(), by their sources.
local COMPUTED = setmetatable({}, { __mode = "k" })

local Overlay = {}
Overlay.__index = Overlay

--- Gives a tensor its bytes, in the type of its edit.
-- @param head rows of a head that were written in pairs (writer:send); nil: rows are in the order of the tensor
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

--- Computes the changed tensors of these names from the base.
function Overlay:compute(names)
  local list = {}
  for _, name in ipairs(names) do list[#list + 1] = self.edits[name] end
  try(core.merge_into(self.source, self.base, list))
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

--- A source whose changed matrices are computed for each use. Changed vectors are computed at once.
-- @param edits as core.merged takes them, with changes
-- @return a source; raises as ane.util.failure does
function M.computed(base, edits)
  local self, vectors, later = M.new(base, edits), {}, {}
  for _, edit in ipairs(edits) do
    if #base:tensor(edit.from or edit.name).shape < 2 then vectors[#vectors + 1] = edit.name else later[edit.name] = edit end
  end
  self:compute(vectors)
  self.edits = later
  COMPUTED[self.source] = self
  return self.source
end

--- Computes those of the tensors that computed() has left for later.
function M.fill(source, names)
  if COMPUTED[source] then COMPUTED[source]:compute(names) end
end

--- The source from which computed() computes; of other sources themselves.
function M.base(source) return COMPUTED[source] and COMPUTED[source].base or source end

--- Gives the memory of those tensors back.
function M.drop(source, names)
  if COMPUTED[source] then COMPUTED[source]:forget(names) end
end

return M
