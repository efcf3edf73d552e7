--- Graphs of the fixtures as Core ML packages that run here: what they give for token ids, call after call.
-- Knows no model: what a package wants is found by the roles of its inputs.
--
--   local p <close> = lowered.open("spec/fixtures/hf/lfm2-odd", { layout = "c1t" })   -- options of core.mil_exporter, precision
--   local rows = p:feed({ 1, 2, 3 })           -- logits of the three positions, as strings of floats
--   p:reset()

local config = require "ane.model.config"
local core = require "ane.core"
local recipe = require "ane.recipe"

local M = {}

--- The unfused graph of a model, dead nodes removed; configuration, source.
function M.graph(path)
  local source = assert(core.open(path))
  local cfg = assert(config.read(source))
  local graph = assert(recipe.build(assert(recipe.find(cfg.architecture)), cfg, source))
  assert(graph:pass "dead_code")
  return graph, cfg, source
end

local Lowered = {}
Lowered.__index = Lowered

local count = 0

-- The path of a file that does not exist.
local function fresh()
  local path = os.tmpname()
  os.remove(path)
  count = count + 1
  return ("%s-%d.mlpackage"):format(path, count)
end

--- Writes all shards of a graph and makes them ready to run. The graph is closed.
-- @param graph unfused
-- @param o options of core.mil_exporter (context 32, whole true, fp32 true, weights "plain", where not given); precision of the
-- run; host_embed: function(ids) -> tensor [T, C], where the embedding is not in the package
function M.wrap(graph, o)
  local opts = { context = 32, whole = true, fp32 = true, weights = "plain", embed = not o.host_embed, max_t = 8 }
  for key, value in pairs(o) do opts[key] = value end
  local exporter = assert(core.mil_exporter(graph, opts))
  local self = setmetatable({ shards = {}, tables = exporter:tables(), opts = opts, host_embed = o.host_embed }, Lowered)
  for i = 1, exporter:count() do
    local folder = fresh()
    local shard = assert(exporter:write(i, folder, o.wrote))
    shard.folder = folder
    shard.package = assert(core.package(folder))
    shard.programs = {}
    for _, f in ipairs(shard.functions or { shard }) do
      shard.programs[f] = assert(shard.package:program { ["function"] = f.name, precision = o.precision or "fp32", threads = 1 })
    end
    shard.program = shard.programs[shard]
    self.shards[i] = shard
  end
  exporter:close()
  graph:close()
  self:reset()
  return self
end

--- The same of a model.
function M.open(path, o) return M.wrap(M.graph(path), o) end

--- Rows of `width` numbers of a lowered graph, fed variant.steps[1], steps[2], ... tokens at a time.
-- @param variant options of wrap, and `steps`
function M.rows(graph, width, ids, variant, context)
  local opts = { context = context }
  for key, value in pairs(variant) do opts[key] = value end
  opts.steps = nil
  local p <close> = M.wrap(graph, opts)
  local rows = p:feed_in(ids, variant.steps)
  for t, row in ipairs(rows) do
    rows[t] = { string.unpack("<" .. ("f"):rep(width), row) }
    rows[t][width + 1] = nil -- where the reading ended
  end
  return rows
end

--- Begins a new sequence.
function Lowered:reset()
  self.position = 0
  for _, p in ipairs(self.shards) do p.state = #p.states > 0 and assert(p.package:state()) or nil end
end

local function ints(shape, list)
  return { dtype = "int32", shape = shape, data = string.pack("<" .. ("i4"):rep(#list), table.unpack(list)) }
end

-- [1, rows, T, 1] (or [1, rows, 1, T]) of f(row, column), both from 0.
local function columns(self, rows, t, f)
  local data = {}
  for r = 0, rows - 1 do
    for c = 0, t - 1 do data[#data + 1] = f(r, c) end
  end
  return core.tensor(self.opts.layout == "c1t" and { 1, rows, 1, t } or { 1, rows, t, 1 }, data)
end

local MAKE = {}

function MAKE.ids(_, _, ids) return ints({ 1, #ids }, ids) end
function MAKE.position(self) return ints({ 1 }, { self.position }) end
function MAKE.edge(_, port, _, values) return assert(values[port.edge], port.edge) end

function MAKE.hidden(self, port, ids, values)
  if values[port.edge] then return values[port.edge] end
  local rows = self.host_embed(ids)
  return columns(self, rows:shape()[2], #ids, function(r, c) return rows:get(c + 1, r + 1) end)
end

local function turned(fn)
  return function(self, port, ids)
    local rope = self.tables.ropes[port.index + 1]
    return columns(self, #rope.inv_freq, #ids, function(r, c)
      return fn((self.position + c) * rope.inv_freq[r + 1]) * rope.magnitude
    end)
  end
end
MAKE.rope_cos, MAKE.rope_sin = turned(math.cos), turned(math.sin)

function MAKE.mask(self, port, ids)
  local m, t, keys, data = self.tables.masks[port.index + 1], #ids, port.shape[4], {}
  if keys == "T" then keys = t end
  for c = 0, t - 1 do
    local p = self.position + c
    for j = 0, keys - 1 do
      local seen = j <= p + m.ahead and (m.window == 0 or j > p - m.window)
      data[#data + 1] = seen and 0 or -1e4
    end
  end
  return core.tensor({ 1, 1, t, keys }, data)
end

-- What of a shard takes n columns: the shard, or its function that sees the fewest positions.
local function taker(self, p, n)
  local best
  for _, f in ipairs(p.functions or {}) do
    local fits = (f.fixed_t == n or f.max_t and f.max_t >= n) and (f.context or math.huge) >= self.position + n
    if fits and (not best or (f.context or 0) < best.context) then best = f end
  end
  return best or not p.functions and p or error(("no function takes %d columns at %d"):format(n, self.position))
end

--- Outputs of all shards by role for ids that follow those fed before; edges by their name.
function Lowered:run(ids)
  local values, last = {}, {}
  for _, p in ipairs(self.shards) do
    local f, inputs = taker(self, p, #ids), {}
    for _, port in ipairs(f.inputs) do inputs[port.name] = MAKE[port.role](self, port, ids, values) end
    local out = assert((f == p and p.program or p.programs[f]):run(inputs, p.state))
    for _, port in ipairs(f.outputs) do
      if port.edge then values[port.edge] = out[port.name] else last[#last + 1] = { role = port.role, value = out[port.name] } end
    end
  end
  self.position = self.position + #ids
  return last, values
end

--- Logits of each position, as strings of floats.
function Lowered:feed(ids)
  local rows = {}
  for t = 1, #ids do rows[t] = {} end
  for _, out in ipairs(self:run(ids)) do
    local data, t = out.value:tostring(), #ids
    for at = 0, #data // 4 - 1 do
      local row = rows[at % t + 1]
      row[#row + 1] = data:sub(4 * at + 1, 4 * at + 4)
    end
  end
  for t = 1, #ids do rows[t] = table.concat(rows[t]) end
  return rows
end

--- The same for ids in calls of steps[1], steps[2], ... tokens.
function Lowered:feed_in(ids, steps)
  local rows, at = {}, 0
  for _, n in ipairs(steps) do
    table.move(self:feed(table.move(ids, at + 1, at + n, 1, {})), 1, n, #rows + 1, rows)
    at = at + n
  end
  return rows
end

function Lowered:close()
  for _, p in ipairs(self.shards) do
    for _, program in pairs(p.programs) do program:close() end
    p.package:close()
    assert(os.execute(("rm -r '%s'"):format(p.folder)))
  end
  self.shards = {}
end
Lowered.__close = Lowered.close

return M
