--- Estimates of a model's size on the Neural Engine: weights by scheme, states by context, and the speed that bandwidth alone
-- would allow.
-- Needs ane.core and ane.coreml.plan. Usage: `print(size.of_path("model.gguf"))`
--
-- The estimates are rules of thumb from reports. Decoding reads all weights and the whole state once per token, so the limit is
-- bandwidth / bytes; reports reached 40 to 70 % of it. A call of a package has an overhead of 0.1 to 2.3 ms; the two figures come
-- from different sources. Every figure is approximate.

local core = require "ane.core"
local planner = require "ane.coreml.plan"
local show = require "ane.coreml.plan.show"

local M = {}

--- Share of the limit that reports reached.
M.practice = { 0.4, 0.7 }
--- Overhead in seconds of a call of a package: minimum and maximum of the reports.
M.dispatch = { least = 0.1e-3, most = 2.3e-3,
  source = "0.1-0.23 ms on M5 Pro (astronomical#540); 2.3 ms (john-rocky/CoreML-LLM:docs/MLX_GAP_ANALYSIS.md)" }

--- Contexts that are listed.
M.tiers = { 128, 256, 512, 2048 }

-- Bytes and packages of a scheme, and the shards of its last part.
local function totals(graph, bundle, opts, scheme)
  local own = {}
  for key, value in pairs(opts) do own[key] = value end
  own.weights = scheme
  local parts, message, code = planner.parts(bundle.config, own, graph)
  if not parts then return nil, message, code end
  local row, written, partition = { weights = scheme, bytes = 0, largest = 0, disk_bytes = 0 }, {}, nil
  for _, part in ipairs(parts) do
    partition, message, code = core.mil_plan(graph, planner.core_options(graph, bundle.config, own, part))
    if not partition then return nil, message, code end
    for i, name in ipairs(planner.package_names(partition.shards, part)) do
      if not written[name] then row.disk_bytes = row.disk_bytes + partition.shards[i].bytes end
      written[name] = true
    end
  end
  row.packages = #partition.shards
  for _, p in ipairs(partition.shards) do row.bytes, row.largest = row.bytes + p.bytes, math.max(row.largest, p.bytes) end
  row.dispatch_s = { #partition.shards * M.dispatch.least, #partition.shards * M.dispatch.most }
  return row, partition
end

local function chips(bytes, state, calls)
  local out = {}
  for i, c in ipairs(core.mil_chips()) do
    local limit = c.bandwidth * 1e9 / (bytes + state)
    local function with_calls(share, dispatch) return 1 / (1 / (limit * share) + calls * dispatch) end
    out[i] = {
      name = c.name, bandwidth = c.bandwidth, limit = limit, low = with_calls(M.practice[1], M.dispatch.most),
      high = with_calls(M.practice[2], M.dispatch.least), memory_max = c.memory_max,
    }
  end
  return out
end

local meta = { __name = "ane.size" }

function meta:__tostring()
  local head = "%s: %s, %.1f M parameters in packages, embedding on the host %s (about; nothing was run on a Neural Engine)"
  local out = { head:format(self.path,
    self.architecture, self.parameters / 1e6, show.bytes(self.embed_bytes)) }
  out[#out + 1] = ("%-14s %10s %10s %9s  %s"):format("weights", "bytes", "largest", "packages", "calls cost a token")
  for _, r in ipairs(self.forms) do
    out[#out + 1] = ("%-14s %10s %10s %9d  %.1f .. %.1f ms"):format(r.weights, show.bytes(r.bytes), show.bytes(r.largest), r.packages,
      1e3 * r.dispatch_s[1], 1e3 * r.dispatch_s[2])
  end
  for _, r in ipairs(self.forms) do
    if r.weights == self.weights and r.disk_bytes ~= r.bytes then
      out[#out + 1] = ("on disk, packages for each T and context: %s (--functions many: %s)"):format(show.bytes(r.disk_bytes),
        show.bytes(r.bytes))
    end
  end
  if #self.contexts > 0 then
    local cells = {}
    for i, t in ipairs(self.contexts) do cells[i] = ("%d: %s"):format(t.context, show.bytes(t.bytes)) end
    out[#out + 1] = "states by context: " .. table.concat(cells, ", ")
  end
  out[#out + 1] = ("tokens/s with %s weights, context %d: bandwidth / bytes, and what practice and calls leave of it")
    :format(self.weights, self.context)
  for _, c in ipairs(self.chips) do
    out[#out + 1] = ("  %-9s %4.0f GB/s  limit %7.1f  about %6.1f .. %.1f"):format(c.name, c.bandwidth, c.limit, c.low, c.high)
  end
  out[#out + 1] = "a call costs " .. self.dispatch_source
  return table.concat(out, "\n")
end

--- Sizes of an open bundle. opts: checked options of plan.
function M.of(bundle, opts)
  local graph <close>, message, code = planner.graph(bundle)
  if not graph then return nil, message, code end
  local cfg = bundle.config
  opts.weights = opts.weights or planner.default_weights(cfg)
  local out = {
    path = bundle.source:path(), architecture = cfg.architecture, kind = cfg.kind or "causal", weights = opts.weights, forms = {},
      contexts = {},
    context = planner.context(cfg, opts), predicted = true, dispatch_source = M.dispatch.source,
  }
  local chosen, partition
  for i, scheme in ipairs(core.mil_schemes()) do
    local row, c, why = totals(graph, bundle, opts, scheme)
    if not row then return nil, c, why end
    out.forms[i] = row
    if scheme == opts.weights then chosen, partition = row, c end
    if scheme == "fp16" then out.parameters = row.bytes // 2 end
  end
  local stateful = not planner.takes_whole(cfg)
  for _, tier in ipairs(stateful and M.tiers or {}) do
    if tier <= (cfg.context_length or tier) then
      out.contexts[#out.contexts + 1] = { context = tier, bytes = planner.state_bytes(partition.shards, tier) }
    end
  end
  out.embed_bytes = partition.embedding and partition.embedding.bytes or 0
  out.bytes, out.packages = chosen.bytes, chosen.packages
  out.state_bytes = stateful and planner.state_bytes(partition.shards, out.context) or 0
  out.chips = chips(chosen.bytes, out.state_bytes, chosen.packages)
  return setmetatable(out, meta)
end

--- Sizes of a model file, a folder, or a configuration without weights.
-- @param opts those of plan; also recipe
-- @return sizes: print as tables; fields bytes, parameters (in packages; slices of a head share their norm), forms = list of {weights,
-- bytes, largest, packages, dispatch_s, disk_bytes (of all fixed T and tiers, where each has packages of its own)}, contexts = list of
-- {context, bytes}, embed_bytes, state_bytes, chips = list of {name, bandwidth, limit, low, high (tokens/s)}; or nil, message, code
function M.of_path(path, opts)
  local size, message, code = planner.with_path(path, opts, "size", M.of)
  return size, message, code -- no tail call: error levels count this function
end

return M
