--- A plan as text.
-- Needs ane.util.units. Usage: `print(show.text(plan))`

local M = {}

M.bytes = require("ane.util.units").bytes

--- The contents of a package: "layers 0-2", "rows 0-65535", "layer 3, experts 0-7".
function M.content(p)
  if p.parts then return ("layer %d, part %d of %d"):format(p.first, p.part + 1, p.parts) end
  if p.kind == "layers" then return p.first == p.last and ("layer %d"):format(p.first) or ("layers %d-%d"):format(p.first, p.last) end
  if p.kind == "experts" then return ("layer %d, experts %d-%d"):format(p.first, p.from, p.to - 1) end
  return p.to and ("rows %d-%d"):format(p.from, p.to - 1) or "head"
end

local MOST = 60 -- packages that are listed; of a longer list the first and the last ones

local function row(p)
  return ("%-34s %-24s %10s  %5d %5d %5d  %3d  %s"):format(p.name, M.content(p), M.bytes(p.bytes), p.convs.engine, p.convs.risk,
    p.convs.cpu, #p.states, p.verdict)
end

local function packages(plan, out)
  out[#out + 1] = ("%-34s %-24s %10s  %5s %5s %5s  %3s  %s"):format("package", "holds", "weights", "ANE", "risk", "CPU", "st.", "package")
  local n = #plan.packages
  for i, p in ipairs(plan.packages) do
    if n <= MOST or i <= MOST // 2 or i > n - MOST // 2 then out[#out + 1] = row(p)
    elseif i == MOST // 2 + 1 then out[#out + 1] = ("... %d more (--json has all)"):format(n - MOST) end
  end
end

local function wrap(text, width, indent)
  local lines, line = {}, ""
  for word in text:gmatch "%S+" do
    if #line > 0 and #line + #word + 1 > width then
      lines[#lines + 1] = line
      line = word
    else
      line = #line > 0 and line .. " " .. word or word
    end
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n" .. indent)
end

--- The ways to call packages, if there are several: fixed T, contexts, functions.
function M.calls(plan)
  local list = plan.packages[1] and plan.packages[1].functions
  if list then
    local names = {}
    for i, f in ipairs(list) do names[i] = f.name end
    return ("functions of %s, on one copy of its weights: %s"):format(plan.coreai and plan.coreai.sharded and "an asset" or "a package",
      table.concat(names, ", "))
  end
  if plan.copies < 2 and #plan.profiles == 0 then return nil end
  local what = {}
  if #plan.profiles > 0 then what[1] = "fixed T: " .. table.concat(plan.profiles, ", ") end
  if plan.tiers then what[#what + 1] = ("contexts: %s, %d"):format(table.concat(plan.tiers, ", "), plan.context) end
  return table.concat(what, "; ") .. ", each with packages of its own"
end

-- The assets of a set.
local function assets(plan, out)
  out[#out + 1] = ("%s as %d Core AI assets: %s of weights, the largest %s; states %s; on the host an embedding of %s; context %d "
    .. "(nothing was compiled for or run on a Neural Engine)"):format(plan.path, #plan.packages, M.bytes(plan.bytes),
    M.bytes(plan.largest), M.bytes(plan.state_bytes), M.bytes(plan.embed_bytes), plan.context)
  for _, p in ipairs(plan.packages) do
    out[#out + 1] = ("%-34s %-24s %10s  %d states"):format(p.name, M.content(p), M.bytes(p.bytes), #p.states)
  end
  out[#out + 1] = M.calls(plan)
end

-- The rules of the plan as one Core AI asset, or as a set of them.
local function asset(plan, out)
  local f = plan.coreai.facts
  if plan.coreai.sharded then
    assets(plan, out)
  else
    out[#out + 1] = ("%s as one Core AI asset: %s of weights and embedding, context %d "
      .. "(nothing was compiled for or run on a Neural Engine)"):format(plan.path, M.bytes(f.bytes), f.context)
  end
  for _, rule in ipairs(plan.coreai.rules) do
    local text = ("%s [%s]"):format(rule.text, rule.source)
    out[#out + 1] = ("  %-6s %-14s %s"):format(rule.verdict, rule.id, wrap(text, 110, (" "):rep(24)))
  end
end

--- The plan as a table of packages, totals, residency rules and reports; with target coreai, the rules of an asset instead, with
-- coreai-sharded, those of a set, with both, also those of an asset.
function M.text(plan)
  if plan.coreai and (plan.coreai.only or plan.coreai.sharded) then
    local lines = {}
    asset(plan, lines)
    return table.concat(lines, "\n")
  end
  local out = { ("%s: %s, %s, %s weights, context %d, for %s (predicted: nothing was run on a Neural Engine)"):format(plan.path,
    plan.architecture, plan.kind, plan.weights, plan.context, plan.chip) }
  packages(plan, out)
  local r = plan.residency
  local total = r.engine + r.risk + r.cpu
  out[#out + 1] = ("%d packages, %s of weights, the largest %s; states %s; on the host an embedding of %s"):format(#plan.packages,
    M.bytes(plan.bytes), M.bytes(plan.largest), M.bytes(plan.state_bytes), M.bytes(plan.embed_bytes))
  out[#out + 1] = ("convolutions predicted: %d of %d on the engine, %d at risk, %d on the CPU"):format(r.engine, total, r.risk, r.cpu)
  local calls = M.calls(plan)
  if calls then out[#out + 1] = calls end
  out[#out + 1] = "residency rules that hold (times):"
  for _, rule in ipairs(plan.laws) do
    local text = ("(%d) %s [%s]"):format(rule.times, rule.text, rule.source)
    out[#out + 1] = ("  %-6s %-13s %s"):format(rule.verdict, rule.id, wrap(text, 110, (" "):rep(23)))
  end
  if plan.reported then
    out[#out + 1] = "reported: " .. wrap(plan.reported.reported, 120, (" "):rep(10))
    out[#out + 1] = "why:      " .. wrap(plan.reported.why, 120, (" "):rep(10))
  end
  if plan.coreai then asset(plan, out) end
  return table.concat(out, "\n")
end

return M
