--- Vectors of goldens: lists of numbers beside tensors.
-- Usage: `assert.is_true(vectors.cosine(model:embed(ids), want) > 0.99999)`

local M = {}

--- Cosine of a tensor or list and a list.
function M.cosine(a, b)
  a = type(a) == "userdata" and a:totable() or a
  assert(#a == #b, #a .. " and " .. #b .. " numbers")
  local dot, aa, bb = 0.0, 0.0, 0.0
  for i = 1, #a do dot, aa, bb = dot + a[i] * b[i], aa + a[i] * a[i], bb + b[i] * b[i] end
  return dot / math.sqrt(aa * bb)
end

--- Floats of a tensor of a golden.
function M.floats(tensor)
  local list = {}
  for at = 1, #tensor.data, 4 do list[#list + 1] = string.unpack("<f", tensor.data, at) end
  return list
end

return M
