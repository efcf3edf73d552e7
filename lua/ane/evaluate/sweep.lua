--- Recipes of quantisation, and their cost as a picture: KL divergence against bits per weight.
-- Needs ane.quantise.types and ane.util.paths. Usage: `local list = assert(sweep.parse "q4_0:rtn,int4-block"); io.write(sweep.svg(report))`

local paths = require "ane.util.paths"
local types = require "ane.quantise.types"

local M = {}

local METHODS, TRANSFORMS = { rtn = true, gptq = true }, { auto = true, none = true, rotate = true }

-- One recipe; or nil, what is wrong.
local function recipe(text)
  local weights, method, transform, rest = text:match "^([^:]+):?([^:]*):?([^:]*)(.*)$"
  if not weights or rest ~= "" then return nil, ("%q is not TYPE, TYPE:METHOD or TYPE:METHOD:TRANSFORM"):format(text) end
  local fault = types.fault(weights)
  if fault then return nil, "a type " .. fault end
  if method ~= "" and not METHODS[method] then return nil, ("%q has the method %q: choose rtn, gptq"):format(text, method) end
  if transform ~= "" and not TRANSFORMS[transform] then
    return nil, ("%q has the transform %q: choose auto, none, rotate"):format(text, transform)
  end
  return { name = text, weights = weights, method = method ~= "" and method or nil, transform = transform ~= "" and transform or nil }
end

--- Reads a list of recipes, "TYPE[:METHOD[:TRANSFORM]],...".
-- @return list of {name, weights, method, transform}, the last two nil if the text does not name them; or nil, what is wrong
function M.parse(text)
  local list, seen = {}, {}
  for part in (text .. ","):gmatch "([^,]*)," do
    local one, fault = recipe(part)
    if not one then return nil, fault end
    if seen[part] then return nil, ("%q is given twice"):format(part) end
    seen[part], list[#list + 1] = true, one
  end
  return list
end

-- ---- The picture -----------------------------------------------------------------------------------------------------------

local LEFT, TOP, WIDTH, HEIGHT, MARGIN = 80, 56, 640, 400, 56
local COLOURS = { rtn = "#c0392b", gptq = "#2e8b57" }

local function escaped(text) return (text:gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" })) end

local function text(x, y, s, more) return ('<text x="%.1f" y="%.1f"%s>%s</text>'):format(x, y, more or "", escaped(s)) end

local function line(x1, y1, x2, y2, stroke)
  return ('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>'):format(x1, y1, x2, y2, stroke)
end

-- The smallest divergence on the logarithmic axis.
local LEAST = 1e-6

-- Whole powers of ten around all values.
local function decades(rows)
  local low, high = math.huge, -math.huge
  for _, row in ipairs(rows) do
    local p = math.log(math.max(row.kl.mean, LEAST), 10)
    low, high = math.min(low, math.floor(p)), math.max(high, math.ceil(p))
  end
  return low, math.max(high, low + 1)
end

local function bits_range(rows)
  local low, high = math.huge, -math.huge
  for _, row in ipairs(rows) do low, high = math.min(low, row.bits), math.max(high, row.bits) end
  return math.floor(low), math.max(math.ceil(high), math.floor(low) + 1)
end

-- Grid lines with their labels. x, y: functions from bits and from the decimal logarithm of a divergence to coordinates.
local function axes(out, x, y, bits, powers)
  for b = bits[1], bits[2], math.max(1, (bits[2] - bits[1]) // 12) do
    out[#out + 1] = line(x(b), TOP, x(b), TOP + HEIGHT, "#e4e4e4")
    out[#out + 1] = text(x(b), TOP + HEIGHT + 18, ("%d"):format(b), ' text-anchor="middle"')
  end
  for p = powers[1], powers[2] do
    out[#out + 1] = line(LEFT, y(p), LEFT + WIDTH, y(p), "#e4e4e4")
    out[#out + 1] = text(LEFT - 8, y(p) + 4, ("%g"):format(10.0 ^ p), ' text-anchor="end"')
  end
  out[#out + 1] = text(LEFT + WIDTH / 2, TOP + HEIGHT + 40, "bits per weight", ' text-anchor="middle"')
  local height = TOP + HEIGHT / 2
  out[#out + 1] = text(20, height, "KL divergence, nats", (' text-anchor="middle" transform="rotate(-90 20 %.1f)"'):format(height))
end

-- A point with its name and the 95 % interval, if there is one.
local function point(out, row, x, y)
  local function place(kl) return y(math.log(math.max(kl, LEAST), 10)) end
  local at, colour = x(row.bits), COLOURS[row.method]
  if row.kl.ci then
    local low, high = math.max(row.kl.ci[1], 10.0 ^ y.low), math.max(row.kl.ci[2], LEAST)
    out[#out + 1] = line(at, place(low), at, math.max(place(high), TOP), colour)
  end
  out[#out + 1] = ('<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>'):format(at, place(row.kl.mean), colour)
  out[#out + 1] = text(at + 8, place(row.kl.mean) + 4, row.recipe)
end

--- The picture of a sweep.
-- @param report path (of the model), scored (tokens), rows = list of {recipe (its name), method, bits (per weight), kl = {mean, ci}}
-- @return the text of an SVG file
function M.svg(report)
  local low, high = decades(report.rows)
  local least, most = bits_range(report.rows)
  local function x(bits) return LEFT + WIDTH * (bits - least) / (most - least) end
  local y = setmetatable({ low = low }, { __call = function(_, power) return TOP + HEIGHT * (high - power) / (high - low) end })
  local width, height = LEFT + WIDTH + 180, TOP + HEIGHT + MARGIN
  local out = {
    ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="Helvetica, Arial, sans-serif" '
      .. 'font-size="12">'):format(width, height, width, height),
    ('<rect width="%d" height="%d" fill="#ffffff"/>'):format(width, height),
    text(LEFT, 24, paths.name_of(report.path) or report.path, ' font-size="15" font-weight="bold"'),
    text(LEFT, 42, ("%d tokens; lines: 95 %%; green: gptq, red: rtn"):format(report.scored), ' fill="#555"'),
  }
  axes(out, x, y, { least, most }, { low, high })
  for _, row in ipairs(report.rows) do point(out, row, x, y) end
  out[#out + 1] = "</svg>\n"
  return table.concat(out, "\n")
end

return M
