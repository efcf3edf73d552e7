--- What a recipe builds with: a graph, a configuration, and weights by role.
-- Needs ane.core. Recipe API version 1: the methods of this class and the modules beside it.
--
-- Every activation is [1, C, T, 1]; values are opaque. A weight is asked for by its role ("attn_q"); inside
-- b:layer(i, ...) that is layer i's. Names in dumps follow the scopes ("layers.3.attn_q"); an error raised inside a
-- scope starts with its path.
--
-- Usage (in a recipe): `local x = b:embed "token_embd"; x = b:linear(x, "attn_q")`

local core = require "ane.core"
local rope = require "ane.recipe.rope"

local Builder = {}
Builder.__index = Builder

local M = { version = 1 }

--- A builder for one model.
-- @param cfg configuration (ane.model.config); also b.cfg
-- @param source where the weights are
-- @param names function(role, layer) -> tensor name without ".weight" or ".bias"; see ane.recipe.names
function M.new(cfg, source, names)
  local g = assert(core.graph(cfg.architecture))
  local b = setmetatable({ cfg = cfg, graph = g, source = source, names = names, path = {}, used = {}, record = {} }, Builder)
  b.soft_experts = cfg.soft_experts
  b.ids = g:input("ids", "int32", { 1, "T" })
  b.positions = g:input("positions", "int32", { 1, "T" })
  b.out_rows = g:input("out_rows", "int32", { 1, "W" })
  return b
end

-- The full name of a node; a number is added where the name is taken.
function Builder:_name(name)
  local full = #self.path > 0 and table.concat(self.path, ".") .. "." .. name or name
  self.taken = self.taken or {}
  local n = (self.taken[full] or 0) + 1
  self.taken[full] = n
  return n == 1 and full or full .. "_" .. n
end

-- record[value] says how each value was made, {op, inputs, attrs, name} or {weight, from, to, index, transposed}, for those who
-- compare what was built with something else.
function Builder:_add(op, name, inputs, attrs)
  local full = self:_name(name)
  local value = self.graph:add(op, full, inputs, attrs)
  self.record[value] = { op = op, inputs = inputs, attrs = attrs or {}, name = full }
  return value
end

--- Runs fn with `name` put before the names of what it builds and before its errors.
function Builder:scope(name, fn)
  local path = self.path
  path[#path + 1] = name
  local ok, message = xpcall(fn, function(e)
    if type(e) == "table" then return e end
    return { message = (tostring(e):gsub("^[^\n]-%.lua:%d+: ", "")), path = table.concat(path, "."), trace = debug.traceback("", 2) }
  end)
  if not ok then error(message, 0) end
  path[#path] = nil
end

--- A scope "layers.i" in which roles are those of layer i (0-based).
function Builder:layer(i, fn)
  self.index = i
  self:scope("layers." .. i, fn)
  self.index = nil
end

-- The tensor of a role in the source: what is known of it (nil: there is none) and its name. A source that knows shapes by
-- role (ane.recipe.shapes) is told the role and the layer.
function Builder:_find(role, suffix, expert)
  local name = self.names(role, self.index)
  name = (expert and name:format(expert) or name) .. suffix
  return self.source:tensor(name, role, suffix, self.index), name
end

-- The same, as a constant of the graph; view as for weight.
function Builder:_const(name, label, view)
  self.used[name] = true
  local value
  if self.source.blank then value = self.source:blank(self.graph, name, label, view)
  else value = self.graph:const(label, self.source, name, view) end
  view = view or {}
  self.record[value] = { weight = name, from = view.from, to = view.to, index = view.index, transposed = view.transposed }
  return value
end

-- The tensor of a role, as a constant of the graph; raises where it is not there.
function Builder:_tensor(role, suffix)
  local info, name = self:_find(role, suffix)
  if not info then error(("no tensor %s in %s"):format(name, self.source:path()), 0) end
  return self:_const(name, name), info
end

--- Has the source the weight of this role?
function Builder:has(role, suffix) return (self:_find(role, suffix or ".weight")) ~= nil end

--- Do the weights of two roles hold the same numbers?
function Builder:same(role, other)
  local a, b = self.names(role, self.index) .. ".weight", self.names(other, self.index) .. ".weight"
  local x, y = self.source:tensor(a), self.source:tensor(b)
  if #x.shape ~= 2 or #y.shape ~= 2 or x.shape[1] ~= y.shape[1] or x.shape[2] ~= y.shape[2] then return false end
  local rows, step = x.shape[1], math.max(1, (1 << 20) // x.shape[2])
  for from = 1, rows, step do
    local to = math.min(from + step - 1, rows)
    if self.source:read(a, from, to) ~= self.source:read(b, from, to) then return false end
  end
  return true
end

--- The file may hold the weight of this role, and the computation does without it.
function Builder:ignore(role) self.used[self.names(role, self.index) .. ".weight"] = true end

--- Rows of a table by token id. [1, d_model, T, 1]
-- @param opts by ("positions" or "types": by position or token type instead), from (the table begins at this row, 0-based)
function Builder:embed(role, opts)
  opts = opts or {}
  if opts.by == "types" and not self.types then self.types = self.graph:input("types", "int32", { 1, "T" }) end
  local list = opts.by and self[opts.by] or self.ids
  local to = opts.from and self:rows(role)
  return self:_add("embed", role, { list, self:weight(role, { from = opts.from, to = to, matrix = opts.by ~= nil }) })
end

--- Projection (1x1 convolution) by the weight of a role. -> [1, N, T, 1]
-- @param opts bias (true: with the role's bias; false: without; nil: with it where the file has one); from, to (of the weight
-- and the bias these rows only, 0-based, to excluded), name (of the value; default the role)
function Builder:linear(x, role, opts)
  opts = opts or {}
  local bias = opts.bias ~= false and self:weight(role, { suffix = ".bias", optional = not opts.bias, from = opts.from, to = opts.to })
  return self:_add("conv1x1", opts.name or role, { x, self:weight(role, { from = opts.from, to = opts.to, matrix = true }), bias })
end

--- Number of rows that the weight of a role has in the file.
function Builder:rows(role)
  local info, name = self:_find(role, ".weight")
  return info and info.shape[1] or error(("no tensor %s in %s"):format(name, self.source:path()), 0)
end

--- x / rms(x) * (weight + offset). opts: groups (norm each group of channels by itself, default 1), offset (default the
-- configuration's norm_offset, else 0), eps (default the configuration's norm_eps), weight (a value, instead of the role's).
function Builder:rms_norm(x, role, opts)
  opts = opts or {}
  return self:_add("rms_norm", role, { x, opts.weight or (self:_tensor(role, ".weight")) },
    { eps = opts.eps or self.cfg.norm_eps, groups = opts.groups or 1, offset = opts.offset or self.cfg.norm_offset or 0 })
end

--- (x - mean) / deviation * weight + bias, where the file has one. opts: eps (default the configuration's norm_eps)
function Builder:layer_norm(x, role, opts)
  local bias = self:weight(role, { suffix = ".bias", optional = true })
  return self:_add("layer_norm", role, { x, (self:_tensor(role, ".weight")), bias }, { eps = opts and opts.eps or self.cfg.norm_eps })
end

--- Cosines and sines of all positions; made once for each distinct rope.
-- @param r see ane.recipe.rope
function Builder:rope_table(r, name)
  if not r or not r.dims then error("rope_parameters names no rope for these layers", 0) end
  local f, magnitude, long = rope.frequencies(r)
  return self:_add("rope_table", name or "rope", { self.positions },
    { inv_freq = f, magnitude = magnitude, long_freq = long, original = long and r.original_context, fp16 = r.fp16 })
end

--- Turns the heads of x. layout: "half" (pairs i, i + r/2) or "interleaved" (2i, 2i + 1); default the configuration's.
function Builder:rope(x, tab, name, opts)
  local layout = opts.layout or self.cfg.rope and self.cfg.rope.layout or "half"
  return self:_add("rope", name, { x, tab }, { heads = opts.heads, layout = layout })
end

--- Causal attention with its key-value state.
-- opts: heads, kv_heads, head_dim, scale, window (0: all), softcap (0: none), ahead (keys seen behind the own one; 0:
-- causal), sinks (vector, one score a head), sink_scale (default 1)
function Builder:attention(q, k, v, opts)
  local shape = { 1, opts.kv_heads, "context", opts.head_dim }
  local ks, vs = self.graph:state(self:_name "k_cache", shape), self.graph:state(self:_name "v_cache", shape)
  return self:_add("attention", "attn", { q, k, v, ks, vs, opts.sinks or false },
    { heads = opts.heads, kv_heads = opts.kv_heads, scale = opts.scale, window = opts.window or 0, ahead = opts.ahead or 0,
      softcap = opts.softcap or 0, sink_scale = opts.sink_scale or 1 })
end

--- act(gate) * up; act: "silu", "gelu_tanh", "gelu_erf", "sigmoid".
function Builder:glu(gate, up, act) return self:_add("glu", "glu", { gate, up }, { act = act }) end
function Builder:act(x, act) return self:_add("act", act, { x }, { act = act }) end
function Builder:add(a, b) return self:_add("add", "add", { a, b }) end
function Builder:mul(a, b) return self:_add("mul", "mul", { a, b }) end
function Builder:scale(x, by) return self:_add("scale", "scale", { x }, { by = by }) end
--- cap * tanh(x / cap)
function Builder:softcap(x, cap) return self:_add("softcap", "softcap", { x }, { cap = cap }) end
--- Channels [from, to), 0-based.
function Builder:slice(x, from, to) return self:_add("slice", "slice", { x }, { from = from, to = to }) end
--- Keeps the tokens whose output rows are asked for. What follows is computed for those only.
function Builder:gather(x) return self:_add("gather", "gather", { x, self.out_rows }) end

--- The old name of gather, kept for one version.
Builder.take = Builder.gather

--- A weight by role, or a view of it.
-- @param opts suffix (default ".weight"), optional; expert = e (stands for the %d of the role's name); index = i
-- (slice i, 0-based, of the outermost dimension, which goes), from, to
-- (rows of what is left, 0-based, to excluded), transposed (what is left is stored [in, out]), matrix (a vector is the only row
-- of one: GGUF drops dimensions of 1)
-- @return value; false where it is optional and not there
function Builder:weight(role, opts)
  opts = opts or {}
  local info, name = self:_find(role, opts.suffix or ".weight", opts.expert)
  if not info then
    if opts.optional then return false end
    error(("no tensor %s in %s"):format(name, self.source:path()), 0)
  end
  local row = opts.matrix and #info.shape == 1
  if not (opts.index or opts.from or opts.transposed or row) then return self:_const(name, name) end
  local label = ("%s[%s,%s:%s%s]"):format(name, opts.index or "", opts.from or "", opts.to or "", opts.transposed and ",t" or "")
  return self:_const(name, label, { index = opts.index, from = opts.from, to = opts.to, transposed = opts.transposed, row = row })
end

--- Channels of a, then of b.
function Builder:concat(a, b) return self:_add("concat", "concat", { a, b }) end
--- (x + bias) * scale, by vectors (see weight); either may be false.
function Builder:affine(x, bias, scale, name)
  return self:_add("affine", name or "affine", { x, bias or false, scale or false })
end
--- Each of `groups` groups of n channels times sqrt(n) / max(|group|, eps), times its weight.
function Builder:l2_norm(x, weight, groups, name)
  return self:_add("l2_norm", name or "l2_norm", { x, weight or false }, { groups = groups })
end
--- Each head `times` times in a row; the mean over runs of `times` heads.
function Builder:repeat_heads(x, heads, times) return self:_add("repeat_heads", "repeat_heads", { x }, { heads = heads, times = times }) end
function Builder:mean_heads(x, heads, times) return self:_add("mean_heads", "mean_heads", { x }, { heads = heads, times = times }) end

--- Causal convolution over tokens. opts: weight, bias, before (x before the first token), groups, taps (K), name
function Builder:conv_causal(x, opts)
  local state = self.graph:state(self:_name "conv_cache", { 1, self:channels(x), opts.taps - 1, 1 })
  local inputs = { x, opts.weight, opts.bias or false, opts.before or false, state }
  return self:_add("conv_causal", opts.name or "conv", inputs, { groups = opts.groups })
end

--- The column of the token before.
function Builder:delay(x)
  return self:_add("delay", "delay", { x, self.graph:state(self:_name "delay_cache", { 1, self:channels(x), 1, 1 }) })
end

--- Number of channels of a value.
function Builder:channels(x) return self.graph:shape(x)[2] end

return M
