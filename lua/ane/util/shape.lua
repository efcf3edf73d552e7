--- Shapes of tensors.
-- Usage: `local n = shape.count(info.shape)`

local M = {}

--- The number of elements of a shape: the product of its dimensions; of none, 1.
function M.count(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end

return M
