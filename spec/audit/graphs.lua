--- Random graphs of block ops: the same bits on every level, with any number of threads and cut into any calls, and the values of
-- their packages.
local core = require "ane.core"
local floats = require "support.floats"
local lowered = require "support.lowered"
local ops = require "support.ops"

local M = { cases = 12 }

local ACTS = { "silu", "gelu_tanh", "gelu_erf", "sigmoid" }

-- A graph that is being written: lines, values (name, channels), constants.
local Writer = {}
Writer.__index = Writer

function Writer:add(channels, text, ...)
  self.n = self.n + 1
  local name = "v" .. self.n
  self.lines[#self.lines + 1] = name .. " = " .. text:format(...)
  self.values[#self.values + 1] = { name = name, channels = channels }
  return name
end

function Writer:const(...)
  self.n = self.n + 1
  local name = "c" .. self.n
  self.consts[name] = { ... }
  return name
end

function Writer:state(...)
  self.n = self.n + 1
  self.lines[#self.lines + 1] = ("state s%d: fp32[%s]"):format(self.n, table.concat({ ... }, ", "))
  return "s" .. self.n
end

-- Each adds an op that takes value x; d draws.
local MAKE = {
  function(w, d, x)
    local n = d.between(1, 40)
    local bias = d.chance(0.5) and ", " .. w:const(n) or ""
    w:add(n, "conv1x1(%s, %s%s)", x.name, w:const(n, x.channels), bias)
  end,
  function(w, d, x)
    local op, groups = d.one_of { "rms_norm", "layer_norm" }, x.channels % 3 == 0 and d.one_of { 1, 3 } or 1
    w:add(x.channels, "%s(%s, %s) {eps=0.01 groups=%d}", op, x.name, w:const(x.channels // groups), groups)
  end,
  function(w, d, x) w:add(x.channels, "act(%s) {act=%s}", x.name, d.one_of(ACTS)) end,
  function(w, d, x) w:add(x.channels, "scale(%s) {by=%g}", x.name, d.between(-8, 8) / 4) end,
  function(w, d, x) w:add(x.channels, "softcap(%s) {cap=%g}", x.name, d.between(1, 8) / 2) end,
  function(w, _, x) w:add(x.channels, "affine(%s, %s, %s)", x.name, w:const(x.channels), w:const(x.channels)) end,
  function(w, d, x)
    for _, y in ipairs(w.values) do
      if y ~= x and y.channels == x.channels then
        local op = d.one_of { "add", "mul", "glu" }
        return w:add(x.channels, "%s(%s, %s)%s", op, x.name, y.name, op == "glu" and " {act=" .. d.one_of(ACTS) .. "}" or "")
      end
    end
    w:add(x.channels, "add(%s, %s)", x.name, x.name)
  end,
  function(w, d, x)
    local to = d.between(1, x.channels)
    local from = d.below(to)
    w:add(to - from, "slice(%s) {from=%d to=%d}", x.name, from, to)
  end,
  function(w, d, x)
    local y = d.one_of(w.values)
    if x.channels + y.channels <= 64 then w:add(x.channels + y.channels, "concat(%s, %s)", x.name, y.name) end
  end,
  function(w, d, x)
    local times = d.between(1, 3)
    if x.channels * times <= 64 then w:add(x.channels * times, "repeat_heads(%s) {heads=1 times=%d}", x.name, times) end
  end,
  function(w, _, x) w:add(x.channels, "delay(%s, %s)", x.name, w:state(1, x.channels, 1, 1)) end,
  function(w, d, x)
    local taps = d.between(2, 4)
    local weights, state = w:const(x.channels, 1, taps), w:state(1, x.channels, taps - 1, 1)
    w:add(x.channels, "conv_causal(%s, %s, -, -, %s) {groups=%d}", x.name, weights, state, x.channels)
  end,
  function(w, d, x)
    local kv, group, width = d.between(1, 2), d.between(1, 3), 2 * d.between(1, 4)
    local nq, nk = width * kv * group, width * kv
    local q = w:add(nq, "conv1x1(%s, %s)", x.name, w:const(nq, x.channels))
    local k = w:add(nk, "conv1x1(%s, %s)", x.name, w:const(nk, x.channels))
    local v = w:add(nk, "conv1x1(%s, %s)", x.name, w:const(nk, x.channels))
    local name = "r" .. w.n
    w.lines[#w.lines + 1] = ("%s = rope_table(positions) {inv_freq=[1%s]}"):format(name, width >= 4 and " 0.1" or "")
    q = w:add(nq, "rope(%s, %s) {heads=%d}", q, name, kv * group)
    local keys, values = w:state(1, kv, "context", width), w:state(1, kv, "context", width)
    w:add(nq, "attention(%s, %s, %s, %s, %s) {heads=%d kv_heads=%d scale=0.5 window=%d}", q, k, v, keys, values, kv * group, kv,
      d.one_of { 0, 3, 5 })
  end,
}

--- The text of a graph from x to y. Its last op is a norm, which takes all values into one range.
local function write(d)
  local w = setmetatable({ n = 0, lines = {}, values = { { name = "x", channels = d.between(2, 24) } }, consts = {} }, Writer)
  local channels = w.values[1].channels
  for _ = 1, d.between(1, 9) do
    local at = d.chance(0.6) and #w.values or d.between(1, #w.values)
    d.one_of(MAKE)(w, d, w.values[at])
  end
  local last = w.values[#w.values]
  w.lines[#w.lines + 1] = ("y = rms_norm(%s) {eps=0.1}"):format(last.name)
  return { channels = channels, out = last.channels, consts = w.consts, text = table.concat(w.lines, "\n") }
end

local function same_bits(d, o, ids)
  local want, bits = ops.run(o, ids, { kv = "fp32", isa = "ref" })
  for _, isa in ipairs(core.isa_list()) do
    local way = { kv = "fp32", isa = isa, threads = d.between(1, 4), step = d.between(1, #ids), chunk = d.between(1, 16),
      pipeline = d.one_of { "cpu", "cpu-plain" }, manner = d.one_of { "together", "mixed", "free" } }
    way.step = math.min(way.step, way.chunk)
    local _, got = ops.run(o, ids, way)
    local why = floats.difference(got, bits)
    if why then
      error(("%s, %d threads, steps of %d, chunk %d, %s: %s"):format(isa, way.threads, way.step, way.chunk, way.pipeline, why), 0)
    end
  end
  return want
end

local function packages(d, o, ids, want)
  local variant = {
    steps = d.cuts(#ids, 8), layout = d.one_of { "ct1", "c1t" }, norm = d.one_of { "doubled", "fp32" },
    rope = d.one_of { "inputs", "constants" },
  }
  local why = ops.apart(lowered.rows(ops.graph(o), o.out, ids, variant, 32), want, 1e-3)
  if why then error(("package, layout %s, norm %s: %s"):format(variant.layout, variant.norm, why), 0) end
end

function M.case(d)
  local o, ids = ops.new(write(d)), d.ids(d.between(2, 16), ops.VOCAB)
  local ok, message = pcall(function() packages(d, o, ids, same_bits(d, o, ids)) end)
  if not ok then error(("%s\n%s"):format(message, o.text), 0) end
end

return M
