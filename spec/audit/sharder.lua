--- The sharder: each node of a random model is in one shard, slices cover the whole, shards take only what others give; and the plan
-- from config.json alone is the one from the weights.
local partition = require "support.partition"
local lowered = require "support.lowered"
local planner = require "ane.coreml.plan"
local random_model = require "audit.random_model"
local writer = require "support.safetensors_writer"
local core = require "ane.core"

local M = { cases = 30 }

local function once_each(d, model)
  local g = lowered.graph(model.path)
  local target = d.one_of { 1, 3000, 10000, 40000, 1 << 40 }
  local opts = {
    weights = "fp16", target = target, size_limit = target * d.between(1, 3), rows = d.between(1, 120), expert_parts = d.below(5),
  }
  local plan, slices = partition.check(model.name, g, opts)
  g:close()
  for _, p in ipairs(plan.shards) do
    if p.kind == "head" and p.split then assert(slices[p.split] == plan.rows, "rows of the head are left out") end
    if p.kind == "head" then assert(p.to - p.from <= opts.rows, "a slice of the head has too many rows") end
  end
end

local function described(report)
  local lines = {}
  for i, p in ipairs(report.packages) do
    lines[i] = ("%s %d bytes, layers %s to %s, rows %s to %s"):format(p.name, p.bytes, p.first, p.last, p.from, p.to)
  end
  return table.concat(lines, "\n")
end

local function without_weights(d, model)
  local opts = { weights = d.one_of { "int8", "fp16", "int4-block", "uint4-block" }, size_limit = d.one_of { 5000, 20000, 1000000 } }
  local whole = assert(planner.of_path(model.path, opts))
  local folder = writer.folder { ["config.json"] = assert(core.read_file(model.path .. "/config.json")) }
  local alone, message = planner.of_path(folder .. "/config.json", opts)
  writer.remove(folder)
  assert(alone, message)
  local a, b = described(whole), described(alone)
  assert(a == b, ("planned from the weights:\n%s\nfrom config.json:\n%s"):format(a, b))
end

function M.case(d)
  local model <close> = random_model.make(d, random_model.decoders)
  for _, part in ipairs { once_each, without_weights } do
    local ok, message = pcall(part, d, model)
    if not ok and tostring(message):find("rows, more than the %d+ of the first embedding") then return end -- refused by name
    if not ok then error(("%s: %s"):format(model.name, message), 0) end
  end
end

return M
