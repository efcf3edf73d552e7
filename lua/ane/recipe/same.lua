--- Whether two matrices of a source hold the same numbers: a head that is stored apart from the embedding may still be tied to it.
-- Needs ane.util.failure. Usage: `local same = require "ane.recipe.same"; same(source, "lm_head.weight", "model.embed_tokens.weight")`

local failure = require "ane.util.failure"

-- Elements that are compared at a time.
local PIECE = 1 << 20

-- Does the source have the numbers of the tensor? Those of a changed tensor may not be computed yet (ane.quantise.overlay).
local function is_set(source, name) return source.is_set == nil or source:is_set(name) end

--- @param source an open source
-- @param a name of a tensor
-- @param b name of another
-- @return boolean; false if one is absent, if shapes or numbers differ, and if the numbers of one are not computed yet, because a tensor
-- that is changed apart from another has other numbers. Raises as ane.util.failure does
return function(source, a, b)
  local x, y = source:tensor(a), source:tensor(b)
  if not x or not y or #x.shape ~= 2 or #y.shape ~= 2 or x.shape[1] ~= y.shape[1] or x.shape[2] ~= y.shape[2] then return false end
  if not is_set(source, a) or not is_set(source, b) then return false end
  local rows, step = x.shape[1], math.max(1, PIECE // x.shape[2])
  for from = 1, rows, step do
    local to = math.min(from + step - 1, rows)
    if failure.try(source:read(a, from, to)) ~= failure.try(source:read(b, from, to)) then return false end
  end
  return true
end
