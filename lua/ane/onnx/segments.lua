--- Weights of recipes as rows of an ONNX graph's constants. Needs nothing.
-- A weight is a list of segments {piece, from, step, n}: the n rows from, from + step, ... (0-based) of a piece. A piece is a constant
-- matrix and how the graph stores it: {kind, data, rows, cols, ...}, where data, scales, zeros and g_idx are numbers of values.
-- Usage: `local up = segments.part(gate_up, rows // 2, rows)`

local M = {}

--- The number of rows.
function M.count(segments)
  local n = 0
  for _, s in ipairs(segments) do n = n + s.n end
  return n
end

--- The rows [from, to) of a list of segments.
function M.part(segments, from, to)
  local out, at = {}, 0
  for _, s in ipairs(segments) do
    local first, last = math.max(from, at), math.min(to, at + s.n)
    if first < last then out[#out + 1] = { piece = s.piece, from = s.from + (first - at) * s.step, step = s.step, n = last - first } end
    at = at + s.n
  end
  return out
end

--- Concatenates lists of segments and merges contiguous ones.
-- @return a list of segments; nil if one of the lists is nil
function M.join(...)
  local out = {}
  for i = 1, select("#", ...) do
    local part = select(i, ...)
    if not part then return nil end
    for _, s in ipairs(part) do
      local last = out[#out]
      if last and last.piece == s.piece and last.step == s.step and last.from + last.n * last.step == s.from then
        out[#out] = { piece = s.piece, from = last.from, step = s.step, n = last.n + s.n }
      else
        out[#out + 1] = s
      end
    end
  end
  return out
end

--- A text that is equal for two lists of segments if they have the same rows of the same constants, read in the same way.
function M.identity(segments)
  local list = {}
  for i, s in ipairs(segments) do
    local p = s.piece
    list[i] = table.concat({
      p.kind, p.data, p.scales or 0, p.zeros or 0, p.g_idx or 0, p.block or 0, p.bits or 0, p.axis or 0, p.rows, p.cols, p.matrix or 0,
      tostring(p.transposed or false), s.from, s.step, s.n,
    }, ",")
  end
  return table.concat(list, ";")
end

return M
