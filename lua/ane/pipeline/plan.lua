--- Predicts a model over several ranks before anything is started: the cut, bytes and times.
-- Needs ane.core, ane.coreml.plan, ane.pipeline.cut and orders, ane.util.units. Usage: `print(plan.of_path("model.gguf", { ranks = 4 }))`
--
-- On a rank, a step of B sequences takes max(time of reading the weights, time of the products) + time of reading the cached states.
-- Reading the weights takes bytes / read; a mixture reads the experts that B tokens choose at random. The products take
-- 2 B values / compute. A link takes latency + bytes / bandwidth. One sequence passes all ranks and links one after another. Many
-- sequences form as many groups as there are ranks, and are as fast as the slowest rank or link. Many prompts are so too; for them only
-- the body counts, and attention sees half of the context on average, or at most its window. The first piece of one prompt passes all
-- ranks before all of them have work. docs/scale.md compares predictions with measurements.

local core = require "ane.core"
local cut = require "ane.pipeline.cut"
local orders = require "ane.pipeline.orders"
local planner = require "ane.coreml.plan"
local units = require "ane.util.units"

local M = {}

--- The fractions of the machine's limits (core.limits) that the kernels reach: reading memory, and 8-bit products.
M.REACHED = { read = 0.7, compute = 0.35 }

--- Rate of attention, as a fraction of the rate of matrix products. Computed from Qwen2.5-Coder-0.5B on 2 cores of Zen 5: prompts of 512
-- and of 2,048 tokens take 1,510 and 1,220 tokens/s, and matrix products reach 518 GOPS on each core.
M.ATTENTION = 0.4

--- Links between ranks of one host: bandwidth in bytes a second, latency in seconds.
M.LOCAL = { bandwidth = 2e9, latency = 10e-6 }

--- Bytes of a weight in memory by scheme, for configurations without weights.
M.BYTES = { fp16 = 2, int8 = 1, ["int8-channel"] = 1, ["int8-block"] = 1.0625, ["int4-block"] = 0.5625, ["uint4-block"] = 0.625,
            lut4 = 0.5 }

local KV_BYTES = { fp16 = 2, fp32 = 4, int16 = 2, int8 = 1 }

-- Most ranks of a plan.
local MOST_RANKS = 4096

--- Options of of_path.
--   ranks: number; default: the slots of all hosts
--   hosts: path of mpirun's host file. Each line has a name, slots=N (or NAME:N, as MPICH has it), and optionally read=GB/s and
--     compute=GOPS of one rank (as `ane bench` shows them) and memory=GB of the host. Default: hosts like this one, one rank on each
--   network: Gbit/s between hosts, default 10; latency: microseconds, default 50
--   cut, fp16, tail: as for load's ranks
--   context: tokens of each sequence, default 2048; kv; sequences: default 8 for each rank
--   weights: scheme of a configuration without weights, default fp16
--   recipe
M.rules = {
  ranks = { type = "integer", min = 1, max = MOST_RANKS },
  hosts = { type = "string" },
  network = { type = "number", above = 0, default = 10 },
  latency = { type = "number", min = 0, default = 50 },
  cut = { type = "table" }, fp16 = { type = "boolean" }, tail = { type = "number", min = 0, max = 16 },
  context = { type = "integer", min = 1, default = 2048 },
  kv = { type = "string", choices = { "fp16", "fp32", "int16", "int8" }, default = "int16" },
  sequences = { type = "integer", min = 1 },
  weights = { type = "string", choices = { "fp16", "int8", "int8-channel", "int8-block", "int4-block", "uint4-block", "lut4" },
              default = "fp16" },
  recipe = { type = { "string", "table" } },
}

-- ---- Hosts -------------------------------------------------------------------------------------------------------------------

-- The fields of a host's line, and the factor from their unit to 1, bytes/s, operations/s and bytes.
local FIELDS = { slots = 1, read = 1e9, compute = 1e9, memory = 1e9 }

-- Keys of launchers' host files that do not change the plan: of Open MPI and of MPICH.
local IGNORED = { max_slots = true, ["max-slots"] = true, user = true, binding = true, map = true, ifname = true }

local KEYS = "compute, memory, read, slots; max_slots, user, binding, map and ifname are ignored"

-- One field of a host's line. @return true; or nil, what is wrong with it
local function read_field(host, word)
  local key, value = word:match "^([%w_-]+)=(.+)$"
  if not key then return nil, ("'%s' is not KEY=VALUE"):format(word) end
  if IGNORED[key] then return true end
  if not FIELDS[key] then return nil, ("unknown key %s; the keys are %s"):format(key, KEYS) end
  local n = tonumber(value)
  if not n or n <= 0 then return nil, word .. " is not a number above 0" end
  if key == "slots" and n % 1 ~= 0 then return nil, word .. " is not a whole number" end
  host[key] = n * FIELDS[key]
  return true
end

-- One line of a hosts file: "NAME slots=N ..." (Open MPI) or "NAME:N ..." (MPICH).
-- @return a host; nil if the line is blank or a comment; nil, message if it is malformed
local function host_of(line, path, number)
  local name, rest = line:gsub("#.*", ""):match "^%s*(%S+)%s*(.*)$"
  if not name then return nil end
  local plain, slots = name:match "^([^:]+):(%d+)$"
  local host = { name = plain or name, slots = 1 }
  if slots then rest = ("slots=%s %s"):format(slots, rest) end
  for word in rest:gmatch "%S+" do
    local ok, what = read_field(host, word)
    if not ok then return nil, ("%s: line %d: %s"):format(path, number, what) end
  end
  host.slots = math.floor(host.slots)
  return host
end

-- The ranks of a hosts file, in the order of its slots: name, read, compute, room.
local function ranks_of_file(opts)
  local text, message, code = core.read_file(opts.hosts)
  if not text then return nil, message, code end
  local list, number, slots = {}, 0, 0.0
  for line in (text .. "\n"):gmatch "(.-)\r?\n" do
    number = number + 1
    local host
    host, message = host_of(line, opts.hosts, number)
    if message then return nil, message, "format" end
    slots = slots + (host and host.slots or 0)
    for _ = 1, math.min(host and host.slots or 0, MOST_RANKS - #list) do
      list[#list + 1] = { host = host.name, read = host.read, compute = host.compute, room = host.memory and host.memory / host.slots }
    end
  end
  if #list == 0 then return nil, opts.hosts .. ": names no host", "format" end
  if opts.ranks and #list < opts.ranks then
    return nil, ("%s has %d slots, but must have %d"):format(opts.hosts, #list, opts.ranks), "invalid"
  end
  if not opts.ranks and slots > MOST_RANKS then
    return nil, ("%s has %.0f slots, but a plan has at most %d ranks: choose how many"):format(opts.hosts, slots, MOST_RANKS), "invalid"
  end
  return table.move(list, 1, opts.ranks or #list, 1, {})
end

-- Fills in the rates that the hosts file does not give with those of this machine.
-- @return the ranks; or nil, message, code
local function complete(ranks)
  local here, message, code
  for _, r in ipairs(ranks) do
    if not r.read or not r.compute then
      if not here then here, message, code = core.limits(core.cpu_cores(), core.isa_best()) end
      if not here then return nil, message, code end
      r.read = r.read or here.read * M.REACHED.read
      r.compute = r.compute or here.dot * M.REACHED.compute
    end
    r.speed = r.read
  end
  return ranks
end

local function ranks_of(opts)
  if opts.hosts then
    local list, message, code = ranks_of_file(opts)
    if not list then return nil, message, code end
    return complete(list)
  end
  local list, room = {}, core.memory().available
  for i = 1, opts.ranks or 1 do list[i] = { host = "host" .. i, room = room > 0 and room or nil } end
  return complete(list)
end

-- ---- Times -------------------------------------------------------------------------------------------------------------------

-- Seconds that a link takes for n tokens.
local function link_time(opts, from, to, bytes, n)
  local l = from.host == to.host and M.LOCAL or { bandwidth = opts.network * 1e9 / 8, latency = opts.latency * 1e-6 }
  return l.latency + n * bytes / l.bandwidth
end

-- Bytes of weights that n tokens read in a stage.
local function bytes_read(s, n)
  local sum = 0
  for _, c in ipairs(s.steps) do
    if c.weights > 0 then sum = sum + c.weights * (1 - (1 - c.read / c.weights) ^ n) end
  end
  return sum
end

-- Seconds that a stage takes for a step of n sequences.
local function decode_time(s, rank, n)
  return math.max(bytes_read(s, n) / rank.read, 2 * n * s.values / rank.compute) + n * s.state / rank.read
end

-- Multiplications of attention per token of a prompt, on average.
local function attention_of(steps, context)
  local sum = 0
  for _, c in ipairs(steps) do
    -- The token at position t sees the smaller of t + 1 and the window.
    local w = c.window > 0 and math.min(c.window, context) or context
    sum = sum + c.attention * w * (1 - (w - 1) / (2 * context))
  end
  return sum
end

-- Tokens per second of one prompt of `context` tokens, and of many prompts one after another.
local function predict_prompts(stages, ranks, opts)
  local size = math.min(orders.PIECE, opts.context)
  local first, slowest = 0, 0
  for i, s in ipairs(stages) do
    local to = ranks[i + 1]
    s.prompt_s = 2 * (s.body + s.attention / M.ATTENTION) / ranks[i].compute
    local link = to and link_time(opts, ranks[i], to, s.sends, size) or 0
    first, slowest = first + size * s.prompt_s + link, math.max(slowest, size * s.prompt_s, link)
  end
  return opts.context / (first + (opts.context / size - 1) * slowest), size / slowest
end

-- Sets the times of each stage and of the whole model. group: the sequences of one group.
local function predict(plan, stages, ranks, opts)
  local group = math.max(1, math.ceil(plan.sequences / #stages))
  local one, slowest, head = 0, 0, 0
  for i, s in ipairs(stages) do
    local rank = ranks[i]
    s.decode_s, s.group_s = decode_time(s, rank, 1), decode_time(s, rank, group)
    s.link_s = ranks[i + 1] and link_time(opts, rank, ranks[i + 1], s.sends, 1) or 0
    local group_link = ranks[i + 1] and link_time(opts, rank, ranks[i + 1], s.sends, group) or 0
    s.head_s = s.head_bytes / rank.read
    one, head = one + s.decode_s - s.head_s + s.link_s, math.max(head, s.head_s) -- all ranks compute their parts of the head at once
    slowest = math.max(slowest, s.group_s, group_link)
  end
  if #stages > 1 then one = one + link_time(opts, ranks[#stages], ranks[1], 8, 1) end -- the best id goes to rank 0
  plan.decode, plan.decode_many = 1 / (one + head), group * math.min(#stages, plan.sequences) / (slowest * #stages)
  plan.prompt, plan.prompts = predict_prompts(stages, ranks, opts)
end

-- ---- The plan ----------------------------------------------------------------------------------------------------------------

local Plan = {}
Plan.__index = Plan

local function layers_text(s) return s.first and ("%d .. %d"):format(s.first, s.last) or "-" end

function Plan:__tostring()
  local out = { ("%s: %d ranks, weights %s, cached state %s for %d sequences of %d tokens"):format(self.model, #self.ranks,
    units.bytes(self.weights), units.bytes(self.state), self.sequences, self.context) }
  out[2] = ("predicted: one sequence %.1f tokens/s, %d sequences %.1f tokens/s in all"):format(self.decode, self.sequences,
    self.decode_many)
  out[3] = ("predicted: a prompt of %d tokens %.0f tokens/s, many prompts %.0f tokens/s in all"):format(self.context, self.prompt,
    self.prompts)
  out[4] = ("%-5s %-12s %-10s %10s %10s %11s %10s %10s %11s %10s"):format("rank", "host", "layers", "weights", "state", "reads/token",
    "decode ms", "prompt us", "sends/token", "link us")
  for i, s in ipairs(self.ranks) do
    out[#out + 1] = ("%-5d %-12s %-10s %10s %10s %11s %10.2f %10.1f %11s %10.1f"):format(i - 1, s.host, layers_text(s),
      units.bytes(s.weights), units.bytes(s.state), units.bytes(s.read), s.decode_s * 1e3, s.prompt_s * 1e6, units.bytes(s.sends),
      s.link_s * 1e6)
  end
  return table.concat(out, "\n")
end

-- Costs of a configuration without weights, in the bytes of a scheme; tables of embeddings stay fp16.
local function scale_costs(costs, head, bytes)
  if head then head.weights = head.weights * bytes // 2 end
  for _, c in ipairs(costs) do
    c.weights, c.read = c.weights * bytes // 2, c.read * bytes // 2
  end
end

-- The costs of a model's steps, and its head (nil: none that can be divided); or nil, message, code.
local function costs_of(path, opts)
  local bundle, message, code = planner.open(path, { recipe = opts.recipe })
  if not bundle then return nil, message, code end
  local graph
  graph, message, code = require("ane.recipe").build(bundle.recipe, bundle.config, bundle.source)
  local costs, head, ok
  if graph then
    ok, message, code = graph:passes "cpu"
    if ok then costs, message, code = graph:costs() end
    head = costs and not bundle.config.kind and graph:head() or nil
    graph:close()
  end
  if bundle.source.close then bundle.source:close() end
  if not costs then return nil, message, code end
  if bundle.blank then scale_costs(costs, head, M.BYTES[opts.weights]) end
  return costs, head
end

-- Weights and reads of a stage's steps, and of its part of the head.
local function steps_of(costs, s, head, is_last)
  local list = table.move(costs, s.from + 1, s.to, 1, {})
  local tail = costs[#costs]
  if not head then
    list[#list + 1] = is_last and tail or nil
    return list
  end
  if is_last then list[#list + 1] = { weights = tail.weights - head.weights, read = tail.read - head.weights } end
  local part = head.weights * s.head_rows // head.rows
  list[#list + 1] = { weights = part, read = part }
  return list
end

--- Plans a model file, a folder, or a configuration without weights.
-- @param opts checked: see rules
-- @return a plan, which prints as a table: model, weights and state (bytes), sequences, context, decode, decode_many, prompt (one
-- of `context` tokens) and prompts (many; tokens a second), ranks: a list of rank, host, first and last (layers), weights, table, state
-- (bytes for all sequences), read and sends (bytes per token), decode_s (head_s of it for its part of the head), group_s, prompt_s,
-- link_s (seconds); or nil, message, code
function M.of_path(path, opts)
  local costs, head, code = costs_of(path, opts)
  if not costs then return nil, head, code end
  local ranks, cuts, message
  ranks, message, code = ranks_of(opts)
  if not ranks then return nil, message, code end
  if head then head.parts = cut.divide(head, ranks) end
  if head and not head.parts then head = nil end
  cuts, message, code = cut.choose(costs, ranks, opts, head)
  if not cuts then return nil, message, code end
  local plan = setmetatable({
    model = path:match "[^/]+/*$", sequences = opts.sequences or 8 * #ranks, context = opts.context, weights = 0, state = 0,
  }, Plan)
  plan.ranks = cut.describe(costs, cuts, head)
  for i, s in ipairs(plan.ranks) do
    s.rank, s.host = i - 1, ranks[i].host
    s.state = s.kv * KV_BYTES[opts.kv] * opts.context
    s.sends = s.sends * (opts.fp16 and 2 or 4)
    s.steps = steps_of(costs, s, head, i == #plan.ranks)
    s.body, s.head_bytes = 0, head and head.weights * s.head_rows // head.rows or 0
    for j = s.from + 1, s.to do s.body = s.body + costs[j].values end
    s.attention = attention_of(table.move(costs, s.from + 1, s.to, 1, {}), opts.context)
  end
  predict(plan, plan.ranks, ranks, opts)
  for _, s in ipairs(plan.ranks) do
    s.state = s.state * plan.sequences
    plan.weights, plan.state = plan.weights + s.weights, plan.state + s.state
    for _, name in ipairs { "steps", "from", "to", "kv", "body", "attention", "values", "head_bytes" } do s[name] = nil end
  end
  return plan
end

return M
