--- Tensors as text for people: histograms and heat strips. Loading this module gives every tensor these methods.
-- Needs ane.core, ane.util.methods and ane.util.schema.
-- Usage: `require "ane.util.tensor_view"; print(t:histogram()); print(t:heat{width = 80})`

local core = require "ane.core"
local methods = require "ane.util.methods"
local schema = require "ane.util.schema"

local M = {}

local BLOCKS = { " ", "\u{2581}", "\u{2582}", "\u{2583}", "\u{2584}", "\u{2585}", "\u{2586}", "\u{2587}", "\u{2588}" }
local ASCII = { " ", ".", ":", "-", "=", "+", "*", "#", "@" }

-- Does the locale use UTF-8?
local function is_utf8()
  local locale = os.getenv "LC_ALL" or os.getenv "LC_CTYPE" or os.getenv "LANG" or ""
  return locale:lower():find "utf%-?8" ~= nil
end

local HISTOGRAM = {
  bins = { type = "integer", min = 1, max = 4096, default = 10 },
  width = { type = "integer", min = 1, max = 1000, default = 40 },
  ascii = { type = "boolean" },
}

local HEAT = {
  width = { type = "integer", min = 1, max = 1000, default = 64 },
  height = { type = "integer", min = 1, max = 1000, default = 16 },
  ascii = { type = "boolean" },
}

-- Least and greatest finite element of a tensor with elements; nil if there is none.
local function range(t)
  local low, high = t:min(), t:max()
  if low > -math.huge and high < math.huge then return low, high end
  low, high = math.huge, -math.huge
  for _, v in ipairs(t:totable()) do
    if v > -math.huge and v < math.huge then low, high = math.min(low, v), math.max(high, v) end
  end
  if low <= high then return low, high end
end

--- Histogram of the finite elements, in bins of equal width between the smallest and the largest.
-- @param t a tensor
-- @param opts bins (10), width of the longest bar (40), ascii (default: unless the locale is UTF-8)
-- @return text, one line a bin: its lower end, a bar, the count
function M.histogram(t, opts)
  opts = schema.check(HISTOGRAM, opts, "histogram", 2)
  if #t == 0 then return "no elements" end
  local low, high = range(t)
  if not low then return "no finite elements" end
  local bar = (opts.ascii or opts.ascii == nil and not is_utf8()) and "#" or "\u{2588}"
  if low == high then
    local count = 0
    for _, v in ipairs(t:totable()) do count = count + (v == low and 1 or 0) end
    return ("%12.5g  %s %d"):format(low, bar:rep(opts.width), count)
  end
  local counts, most = t:bins(opts.bins, low, high), 1
  for _, n in ipairs(counts) do most = math.max(most, n) end
  local lines = {}
  for i, n in ipairs(counts) do
    local length = n == 0 and 0 or math.max(1, n * opts.width // most)
    lines[i] = ("%12.5g  %s%s %d"):format(low + (i - 1) * (high - low) / opts.bins, bar:rep(length), (" "):rep(opts.width - length), n)
  end
  return table.concat(lines, "\n")
end

--- A map of the tensor as a matrix: rows down, channels across, each character the mean of the elements below it.
-- @param t a tensor; all dimensions but the last are rows
-- @param opts width (64), height (16), ascii (default: unless the locale is UTF-8)
-- @return text; the last line says what the lightest and the darkest character mean
function M.heat(t, opts)
  opts = schema.check(HEAT, opts, "heat", 2)
  if #t == 0 then return "no elements" end
  local small = t:pool(opts.height, opts.width)
  local low, high = range(small)
  if not low then return "no finite elements" end
  local ramp = (opts.ascii or opts.ascii == nil and not is_utf8()) and ASCII or BLOCKS
  local lines = {}
  for r = 1, small:shape()[1] do
    local cells = {}
    for c, v in ipairs(small[r]:totable()) do
      local finite = v == v and math.abs(v) < math.huge
      local level = high > low and finite and math.floor((v - low) / (high - low) * #ramp) or 0
      cells[c] = finite and ramp[math.min(level, #ramp - 1) + 1] or "?"
    end
    lines[r] = "|" .. table.concat(cells) .. "|"
  end
  lines[#lines + 1] = ("'%s' is %.5g, '%s' is %.5g"):format(ramp[1], low, ramp[#ramp], high)
  return table.concat(lines, "\n")
end

local metatable = getmetatable(core.tensor { 0 })
local views = { histogram = M.histogram, heat = M.heat }
methods.guard(views, metatable, "tensor")
for name, method in pairs(views) do metatable.__names[name] = method end

return M
