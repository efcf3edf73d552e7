--- Identifies masks, lengths, positions and rotary tables of a graph. They are evaluated for a few lengths; how the graph
-- computes them does not matter.
-- Needs ane.onnx.graph and ane.onnx.rounded. Each function raises through refuse where a recipe would compute something else.

local graph = require "ane.onnx.graph"
local rounded = require "ane.onnx.rounded"

local refuse = graph.refuse

local M = {}

-- The lengths {past, tokens} that are evaluated.
local TRIED = { { 0, 5 }, { 7, 3 }, { 40, 1 }, { 0, 1 } }

-- The result of a function, which is called once per key.
local function once(lift, key, fn)
  lift.probed = lift.probed or {}
  if lift.probed[key] == nil then lift.probed[key] = fn() end
  return lift.probed[key]
end

local function describe(lift, v) return lift.graph.doc.values[v] and lift.graph.doc.values[v].name or "?" end

local function check_free(lift, node, v)
  if lift.graph.data[v] then refuse(node, "depends on tokens where it should on lengths only: %s", describe(lift, v)) end
end

-- ---- Lengths and positions -----------------------------------------------------------------------------------------------

--- seqlens_k and total_sequence_length of GroupQueryAttention: the last position, and the total number of tokens.
function M.lengths(lift, node, seqlens, total)
  if (seqlens or 0) <= 0 or (total or 0) <= 0 then refuse(node, "lacks its lengths") end
  once(lift, "lengths " .. seqlens .. " " .. total, function()
    check_free(lift, node, seqlens)
    check_free(lift, node, total)
    for _, try in ipairs(TRIED) do
      local past, n = try[1], try[2]
      local a, b = lift.graph:numbers(seqlens, past, n), lift.graph:numbers(total, past, n)
      if not a or #a ~= 1 or a[1] ~= past + n - 1 or not b or #b ~= 1 or b[1] ~= past + n then
        refuse(node, "takes other lengths than those of the tokens")
      end
    end
    return true
  end)
end

-- How much positions exceed those of the tokens: the same number for all tokens.
-- @param v value of positions [1, S], or [1] (the position of the first token)
local function shift_of(lift, node, v, past, n)
  local list = lift.graph:numbers(v, past, n)
  if not list or (#list ~= n and #list ~= 1) then refuse(node, "takes positions of an unknown shape") end
  local shift = list[1] - past
  for i, p in ipairs(list) do
    if p ~= past + i - 1 + shift then refuse(node, "takes other positions than those of the tokens") end
  end
  return math.tointeger(shift) or refuse(node, "takes positions that are not integers")
end

-- Checks the positions that are looked up in a table. Those of short texts are the tokens' own. In texts longer than `shift` tokens, all
-- may be larger by `shift`: the table then has `shift` rows for short texts, and after them the rows for long ones (LongRoPE).
-- @param most the longest text, in tokens
-- @return the shift; 0: none
local function check_positions(lift, node, v, most)
  if v <= 0 then return 0 end
  return once(lift, "positions " .. v, function()
    check_free(lift, node, v)
    local shift = shift_of(lift, node, v, most - 1, 1)
    local tries = table.move(TRIED, 1, #TRIED, 1, {})
    if shift > 0 then
      for _, total in ipairs { shift, shift + 1 } do
        local n = math.min(total, 3)
        tries[#tries + 1], tries[#tries + 2] = { 0, total }, { total - n, n }
      end
    end
    for _, try in ipairs(tries) do
      local want = shift > 0 and try[1] + try[2] > shift and shift or 0
      if shift_of(lift, node, v, try[1], try[2]) ~= want then refuse(node, "takes other positions than those of the tokens") end
    end
    return shift
  end)
end

-- ---- Masks -----------------------------------------------------------------------------------------------------------

local HIDDEN = -1e4 -- a mask value of at most this hides a key

-- Rows [tokens][total] of true (visible) and false, the same for all heads.
local function read_mask(lift, node, v, past, n)
  local t, total = lift.graph:evaluate(v, past, n), past + n
  local list = graph.numbers(t)
  local rank = #t.shape
  local columns, tokens = t.shape[rank], t.shape[rank - 1]
  if not list or columns ~= total or (tokens ~= n and tokens ~= 1) or #list % (columns * tokens) ~= 0 then
    refuse(node, "has a mask of an unknown shape")
  end
  if tokens == 1 and n > 1 then refuse(node, "has one mask for all tokens") end
  local rows = {}
  for i = 0, n - 1 do
    rows[i + 1] = {}
    for k = 0, total - 1 do
      local x = list[i * columns + k + 1]
      local seen
      if t.dtype == "bool" then seen = x ~= 0
      elseif x == 0 then seen = true
      elseif x <= HIDDEN then seen = false
      else refuse(node, "adds something else than a mask to its scores") end
      rows[i + 1][k + 1] = seen
    end
  end
  local size = columns * tokens
  for i = size + 1, #list do
    if (list[i] == 0) ~= (list[(i - 1) % size + 1] == 0) then refuse(node, "has masks that differ from head to head") end
  end
  return rows
end

-- As read_mask; nil if the graph cannot take these lengths. Exporters make masks that fit only the start of a sequence or a
-- single token; such a graph is never run in another way.
local function try_mask(lift, node, v, past, n)
  local ok, rows = pcall(read_mask, lift, node, v, past, n)
  if ok then return rows end
  if past > 0 and n > 1 and rows.tried then return nil end
  error(rows, 0)
end

local function check_rows(node, rows, past, window, causal)
  for i, row in ipairs(rows) do
    local p = past + i - 1
    for k, seen in ipairs(row) do
      local j = k - 1
      local want = j <= p and (window == 0 or j > p - window)
      if causal and j > p then seen = false end
      if seen ~= want then refuse(node, "has a mask that is neither causal nor a window of it") end
    end
  end
end

--- The window of an attention.
-- @param v value of a mask that is added to the scores, or of booleans; 0: none
-- @param causal true: the op itself hides later tokens
-- @return number of keys that a token sees, its own included; 0: all earlier ones
function M.mask(lift, node, v, causal)
  if v <= 0 then
    if not causal then refuse(node, "has no mask: every token sees all others") end
    return 0
  end
  return once(lift, ("mask %d %s"):format(v, causal), function()
    check_free(lift, node, v)
    local far = math.min(lift.context or 4096, 1 << 17)
    local last = read_mask(lift, node, v, far - 1, 1)[1]
    local window = 0
    while window < far and last[far - window] do window = window + 1 end
    if window == far then window = 0 end
    local tries = table.move(TRIED, 1, #TRIED, 1, {})
    if window > 0 and window < 500 then
      tries[#tries + 1] = { 0, window + 3 }
      tries[#tries + 1] = { window + 2, 3 }
    end
    for _, try in ipairs(tries) do
      local rows = try_mask(lift, node, v, try[1], try[2])
      if rows then check_rows(node, rows, try[1], window, causal) end
    end
    check_rows(node, { last }, far - 1, window, causal)
    return window
  end)
end

-- ---- Rope ------------------------------------------------------------------------------------------------------------

-- Largest deviation of a table from its frequencies: fp16 has 11 bits.
local CLOSE = 3e-3

-- Most numbers of a table that are compared; of larger tables every n-th row is.
local MOST_NUMBERS = 200000

-- The rope table that values cos and sin are after `past` cached tokens: {half, width, rows, cos(row, i), sin(row, i)}.
-- @param dup true: both halves of a row are equal, and i counts the first one
local function table_of(lift, node, cos, sin, past, tokens, dup)
  local c, s = lift.graph:evaluate(cos, past, tokens), lift.graph:evaluate(sin, past, tokens)
  local width = c.shape[#c.shape]
  local rows = 1
  for i = 1, #c.shape - 1 do rows = rows * c.shape[i] end
  if not width or width < 1 or rows < 1 or #s.shape ~= #c.shape or
    s.shape[#s.shape] ~= width then refuse(node, "has tables of unknown shapes") end
  local half = dup and width // 2 or width
  local function at(t)
    if t.dtype == "fp32" then return function(row, i) return (("<f"):unpack(t.data, 4 * (row * width + i) + 1)) end end
    return function(row, i)
      local list = graph.numbers(t, row * width + i, 1)
      return list and list[1] or refuse(node, "has tables of an unknown type")
    end
  end
  local made = { half = half, width = width, rows = rows, cos = at(c), sin = at(s) }
  if dup then
    if width % 2 ~= 0 then refuse(node, "has a table of %d columns", width) end
    for _, row in ipairs { 0, rows // 2, rows - 1 } do
      for i = 0, half - 1 do
        local same = math.abs(made.cos(row, i) - made.cos(row, i + half)) < CLOSE and
          math.abs(made.sin(row, i) - made.sin(row, i + half)) < CLOSE
        if not same then refuse(node, "has tables whose halves differ") end
      end
    end
  end
  return made
end

-- The frequencies of a table, from its phases at rows 1, 2, 4, ... Each step gives the number of full rotations of the next row.
-- given: the factor on cosine and sine, if it is known.
local function frequencies(node, t, given)
  local list, sum, n = {}, 0, 0
  for i = 0, t.half - 1 do
    local f, row = 0, 1
    while row < t.rows do
      local phase = math.atan(t.sin(row, i), t.cos(row, i))
      local rotations = math.floor((f * row - phase) / (2 * math.pi) + 0.5)
      f = row == 1 and phase or (phase + 2 * math.pi * rotations) / row
      row = row * 2
    end
    list[i + 1] = f
    for _, r in ipairs { 0, t.rows // 2, t.rows - 1 } do
      sum, n = sum + math.sqrt(t.cos(r, i) ^ 2 + t.sin(r, i) ^ 2), n + 1
    end
  end
  local magnitude = rounded.is_half(t) and rounded.fit(t, list, given) or sum / n
  if math.abs(magnitude - 1) < 1e-3 then magnitude = 1.0 end
  for row = 0, t.rows - 1, math.max(1, t.rows * t.half // MOST_NUMBERS) do
    for i = 0, t.half - 1 do
      local phase = row * list[i + 1]
      local c, s = t.cos(row, i) - magnitude * math.cos(phase), t.sin(row, i) - magnitude * math.sin(phase)
      if not (math.abs(c) <= CLOSE * magnitude and math.abs(s) <= CLOSE * magnitude) then refuse(node,
        "has tables that no constant frequencies give") end
    end
  end
  return list, magnitude
end

-- Are the first rows of two tables equal?
local function alike(a, b)
  local rows = math.min(a.rows, b.rows, 32)
  for row = 0, rows - 1 do
    for i = 0, a.half - 1 do
      if math.abs(a.cos(row, i) - b.cos(row, i)) > CLOSE or math.abs(a.sin(row, i) - b.sin(row, i)) > CLOSE then return false end
    end
  end
  return true
end

-- The rope of a table, which may depend on the length of the text; it then has two sets of frequencies.
-- @param tables function(tokens of the text) -> the table
-- @param most the longest text, in tokens
local function make_rope(node, tables, most)
  local short, long = tables(1), tables(most)
  local f, magnitude = frequencies(node, short)
  local made = { dims = 2 * #f, inv_freq = f, magnitude = magnitude, rows = math.max(short.rows, long.rows), fp16 = rounded.is_half(short) }
  if alike(short, long) then
    if long.rows > short.rows then made.inv_freq, made.magnitude = frequencies(node, long) end
    return made
  end
  local low, high = 1, most -- the longest length with the first table lies between
  while high - low > 1 do
    local middle = (low + high) // 2
    if alike(short, tables(middle)) then low = middle else high = middle end
  end
  local other
  made.long_freq, other = frequencies(node, long)
  if math.abs(other - magnitude) > 1e-3 then refuse(node, "has tables whose sizes differ with the length") end
  if made.fp16 and long.rows > short.rows then made.inv_freq, made.magnitude = frequencies(node, short, other) end
  made.original = low
  return made
end

-- Rows [from, to) of a table.
local function rows_of(t, from, to)
  return {
    half = t.half, width = t.width, rows = to - from,
    cos = function(row, i) return t.cos(from + row, i) end,
    sin = function(row, i) return t.sin(from + row, i) end,
  }
end

--- The rope of tables [positions, half] (or [1, S, half], for the tokens of the call).
-- @param cos, sin, positions values; positions 0: those of the tokens
-- @return {dims, inv_freq, magnitude (factor on cosine and sine), rows, fp16 (whether the table is rounded to it)}; and, if texts longer
-- than `original` tokens have frequencies of their own, long_freq and original. Frequencies are radians per position.
function M.rope(lift, node, cos, sin, positions)
  if (cos or 0) <= 0 or (sin or 0) <= 0 then refuse(node, "rotates without tables") end
  local most = math.max(lift.context or 4096, 2)
  local shift = check_positions(lift, node, positions, most)
  return once(lift, ("rope %d %d %d"):format(cos, sin, positions > 0 and shift or -1), function()
    check_free(lift, node, cos)
    check_free(lift, node, sin)
    local static = lift.graph.static[cos] and lift.graph.static[sin]
    if shift == 0 then
      return make_rope(node, function(total) return table_of(lift, node, cos, sin, total - 1, 1, false) end, static and 1 or most)
    end
    local t = static and table_of(lift, node, cos, sin, 0, 1, false)
    if not t or t.rows <= shift then refuse(node, "has no rows for positions from %d on", shift) end
    local short, long = rows_of(t, 0, shift), rows_of(t, shift, t.rows)
    return make_rope(node, function(total) return total > shift and long or short end, most)
  end)
end

--- The rope of cos and sin that the graph computes for the positions of the call.
-- @param dims rotated channels: the values are [.., S, dims] with equal halves; nil: they are [.., S, half]
-- @return as of M.rope
function M.spelled_rope(lift, node, cos, sin, dims)
  local dup = dims ~= nil
  return once(lift, ("spelled %d %d"):format(cos, sin), function()
    check_free(lift, node, cos)
    check_free(lift, node, sin)
    local most = math.max(math.min(lift.context or 4096, 8192), 64)
    local made = make_rope(node, function(total) return table_of(lift, node, cos, sin, 0, math.max(total, 32), dup) end, most)
    if dims and made.dims ~= dims then refuse(node, "rotates %d channels by tables for %d", dims, made.dims) end
    local later = table_of(lift, node, cos, sin, most - 3, 2, dup)
    for row = 0, 1 do
      for i = 0, later.half - 1 do
        local phase = (most - 3 + row) * (made.long_freq or made.inv_freq)[i + 1]
        if math.abs(later.cos(row, i) - made.magnitude * math.cos(phase)) > 2 * CLOSE then refuse(node,
          "rotates by something else than positions") end
      end
    end
    return made
  end)
end

return M
