--- A plan as a picture: Graphviz DOT, or SVG of our own.
-- Needs ane.coreml.plan.show and ane.util.paths. Usage: `io.write(draw.svg(plan))`
--
-- SVG: one row of boxes for each package, in the order of calls. A row is as long as the package's weights. A bar inside shows
-- its convolutions by predicted device. The dashed line is the size limit, the dotted one the planned size.

local paths = require "ane.util.paths"
local show = require "ane.coreml.plan.show"

local M = {}

local COLOURS = { engine = "#2e8b57", risk = "#e0a030", cpu = "#c0392b" }
local PALE = { engine = "#d5efe0", risk = "#fbeccb", cpu = "#f6d5d1" }

-- The name of the model's file or folder.
local function name_of(plan) return paths.name_of(plan.path) or plan.path end

-- ---- Graphviz ------------------------------------------------------------------------------------------------------------

local function quoted(text) return '"' .. text:gsub('[\\"]', "\\%0") .. '"' end

-- Edges by value: from the last package that made it to each that takes it.
local function edges(plan, fn)
  local maker = {}
  for i, p in ipairs(plan.packages) do
    for _, v in ipairs(p.ins) do fn(maker[v.name] or 0, i, v) end
    for _, v in ipairs(p.outs) do maker[v.name] = i end
  end
end

--- The plan for `dot -Tsvg`: packages with their bytes, values that cross.
function M.dot(plan)
  local out = {
    "digraph plan {", "  rankdir=TB; node [shape=box, style=filled, fontname=Helvetica]; edge [fontname=Helvetica, fontsize=10];",
    ("  label=%s; labelloc=t;"):format(quoted(("%s, %s, predicted for %s"):format(name_of(plan), plan.weights, plan.chip))),
    ("  n0 [label=%s, fillcolor=\"#dddddd\"];"):format(quoted("host: embedding\n" .. show.bytes(plan.embed_bytes)):gsub("\n", "\\n")),
  }
  for i, p in ipairs(plan.packages) do
    local label = quoted(("%s\n%s\n%s"):format(p.name, show.content(p), show.bytes(p.bytes))):gsub("\n", "\\n")
    out[#out + 1] = ("  n%d [label=%s, fillcolor=%q, color=%q];"):format(i, label, PALE[p.verdict], COLOURS[p.verdict])
  end
  edges(plan, function(from, to, v)
    out[#out + 1] = ("  n%d -> n%d [label=%s];"):format(from, to, quoted(("%s [%s]"):format(v.name, tostring(v.shape[2]))))
  end)
  out[#out + 1] = "}\n"
  return table.concat(out, "\n")
end

-- ---- SVG -----------------------------------------------------------------------------------------------------------------

local function escaped(text) return (text:gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" })) end

local LEFT, WIDTH, ROW, TOP = 250, 640, 30, 96

local function text(x, y, s, more) return ('<text x="%.1f" y="%.1f"%s>%s</text>'):format(x, y, more or "", escaped(s)) end

local function box(x, y, w, h, fill, stroke)
  return ('<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" stroke="%s"/>'):format(x, y, w, h, fill, stroke or "none")
end

-- Draws one package: its name, its length by bytes, lines between its layers, a bar of convolutions.
local function package(out, p, y, scale)
  local w = math.max(p.bytes * scale, 3)
  out[#out + 1] = text(LEFT - 8, y + 17, p.name:gsub("%.mlpackage$", ""), ' text-anchor="end"')
  out[#out + 1] = box(LEFT, y, w, ROW - 8, PALE[p.verdict], COLOURS[p.verdict])
  local parts = p.kind == "layers" and p.last - p.first + 1 or 1
  for i = 1, parts - 1 do
    local x = LEFT + w * i / parts
    out[#out + 1] = ('<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="0.7"/>'):format(x, y, x, y + ROW - 14,
      COLOURS[p.verdict])
  end
  local total = p.convs.engine + p.convs.risk + p.convs.cpu
  local x = LEFT
  for _, device in ipairs { "engine", "risk", "cpu" } do
    local part = total > 0 and w * p.convs[device] / total or 0
    if part > 0 then out[#out + 1] = box(x, y + ROW - 14, part, 6, COLOURS[device]) end
    x = x + part
  end
  local states = #p.states > 0 and (", %d state%s"):format(#p.states, #p.states > 1 and "s" or "") or ""
  local halo = ' paint-order="stroke" stroke="#ffffff" stroke-width="4"' -- the text covers the lines of the limits
  out[#out + 1] = text(LEFT + w + 8, y + 15, ("%s, %s%s"):format(show.content(p), show.bytes(p.bytes), states), halo)
end

local function limit(out, x, height, dash, label, anchor)
  out[#out + 1] = ('<line x1="%.1f" y1="%d" x2="%.1f" y2="%.1f" stroke="#555" stroke-dasharray="%s"/>'):format(x, TOP - 8, x,
    height - 6, dash)
  out[#out + 1] = text(x, TOP - 12, label, (' text-anchor="%s" fill="#555"'):format(anchor))
end

local function legend(out)
  local x = 16
  for _, item in ipairs { { "engine", "predicted on the engine" }, { "risk", "risk: sources disagree" }, { "cpu",
    "predicted on the CPU" } } do
    out[#out + 1] = box(x, 52, 12, 12, COLOURS[item[1]])
    out[#out + 1] = text(x + 18, 62, item[2])
    x = x + 180
  end
  out[#out + 1] = text(x, 62, "box: the package, bar: its convolutions", ' fill="#555"')
end

--- The plan as an SVG picture.
function M.svg(plan)
  local size_limit, target = plan.law, plan.target
  local most = math.max(plan.largest, plan.largest > target / 4 and size_limit or 0, 1)
  local scale, height = WIDTH / most, TOP + #plan.packages * ROW + 16
  local out = {
    ('<svg xmlns="http://www.w3.org/2000/svg" width="1160" height="%d" viewBox="0 0 1160 %d" '
      .. 'font-family="Helvetica, Arial, sans-serif" font-size="12">')
      :format(height, height),
    box(0, 0, 1160, height, "#ffffff"),
    text(16, 24, ("%s: %s, %s weights, context %d, %s"):format(name_of(plan), plan.architecture, plan.weights, plan.context,
      plan.chip), ' font-size="15" font-weight="bold"'),
    text(16, 42, ("%d packages, %s of weights, states %s, embedding on the host %s; predicted, not measured"):format(#plan.packages,
      show.bytes(plan.bytes), show.bytes(plan.state_bytes), show.bytes(plan.embed_bytes)), ' fill="#555"'),
  }
  legend(out)
  if target <= most then limit(out, LEFT + target * scale, height, "2 3", "planned " .. show.bytes(target), "end") end
  if size_limit <= most then limit(out, LEFT + size_limit * scale, height, "6 3", "limit " .. show.bytes(size_limit), "start") end
  for i, p in ipairs(plan.packages) do package(out, p, TOP + (i - 1) * ROW, scale) end
  out[#out + 1] = "</svg>\n"
  return table.concat(out, "\n")
end

return M
