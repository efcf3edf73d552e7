--- The builder that recipes use: a graph, a configuration, and weights by role.
-- Needs ane.core, ane.recipe.options, ane.recipe.rope, ane.recipe.same, ane.util.failure and weight_type. Recipe API version 1 is the
-- methods of this class without a leading "_" and the modules of this folder. types/recipe.lua lists the methods for the reference; a
-- spec checks that both lists agree.
--
-- A value is one tensor of the graph. Recipes treat it as opaque. Activations are fp32 [1, C, T, 1]: channels C, tokens T; after
-- `gather`, T is the number of output rows W. A recipe asks for a weight by its role ("attn_q", see ane.recipe.names); inside
-- b:layer(i, ...) it gets the weight of layer i. Scopes prefix node names ("layers.3.attn_q") and the messages of errors raised in them.
--
-- Fields: cfg (the configuration, see ane.model.config), ids and positions (values, int32 [1, T]), out_rows (value, int32 [1, W]: the
-- tokens whose logits are requested), index (the current layer inside b:layer, or nil), soft_experts (see ane.recipe.moe).
--
-- Usage (in a recipe): `local x = b:embed "token_embd"; x = b:linear(x, "attn_q")`

local core = require "ane.core"
local failure = require "ane.util.failure"
local options = require "ane.recipe.options"
local rope = require "ane.recipe.rope"
local same = require "ane.recipe.same"
local weight_type = require "ane.util.weight_type"

local Builder = {}
Builder.__index = Builder

local M = { version = 1 }

-- The view of a whole embedding table. A source that holds the embedding apart from a tied head gives the embedding for this view.
local TABLE = { table = true }

--- Makes a builder for one model.
-- @param cfg configuration (ane.model.config)
-- @param source an open source that holds the weights
-- @param names function(role, layer) -> tensor name without ".weight" or ".bias"; see ane.recipe.names
-- @param defined what debug.getinfo says of the recipe's function `build`, whose lines messages of errors name; nil: they name none
-- @param caller the function that calls `build`
-- @return the builder
function M.new(cfg, source, names, defined, caller)
  local g = assert(core.graph(cfg.architecture))
  local b = setmetatable({ cfg = cfg, graph = g, source = source, names = names, defined = defined, caller = caller, path = {}, used = {},
    record = {}, caches = {}, optional = {}, asked = { tensors = {}, numbers = {}, same = {} } }, Builder)
  b.soft_experts = cfg.soft_experts
  b.ids = g:input("ids", "int32", { 1, "T" })
  b.positions = g:input("positions", "int32", { 1, "T" })
  b.out_rows = g:input("out_rows", "int32", { 1, "W" })
  return b
end

-- The full name of a node. A number is appended if the name is taken.
function Builder:_name(name)
  local full = #self.path > 0 and table.concat(self.path, ".") .. "." .. name or name
  self.taken = self.taken or {}
  local n = (self.taken[full] or 0) + 1
  self.taken[full] = n
  return n == 1 and full or full .. "_" .. n
end

-- Adds a node. record[value] describes how each value is made: {op, inputs, attrs, name}, or for a weight {weight, from, to, index,
-- step, transposed, role, layer, label}, where label is the name of the graph's constant. ane.onnx.match compares it with an imported
-- graph; ane.adapter.places finds weights in it.
function Builder:_add(op, name, inputs, attrs)
  local full = self:_name(name)
  local value = self.graph:add(op, full, inputs, attrs)
  self.record[value] = { op = op, inputs = inputs, attrs = attrs or {}, name = full }
  return value
end

-- The line of the recipe that is running: "FILE:LINE"; in a tail call, which leaves no trace of its line, "FILE:FIRST-LAST" of `build`.
-- nil if messages name no lines.
function Builder:_line()
  local defined = self.defined
  if not defined then return nil end
  local level = 3
  local info = debug.getinfo(level, "Slf")
  while info and info.source ~= defined.source and info.func ~= self.caller do
    level = level + 1
    info = debug.getinfo(level, "Slf")
  end
  if info and info.source == defined.source then return ("%s:%d"):format(info.short_src, info.currentline) end
  return ("%s:%d-%d"):format(defined.short_src, defined.linedefined, defined.lastlinedefined)
end

-- What an error of the recipe becomes, in the handler of xpcall: {message, path (scope), line (as _line gives it), trace}. Tables and
-- interrupts pass unchanged.
function Builder:_explained(e)
  if type(e) == "table" or failure.is_interrupt(e) then return e end
  local message, line = tostring(e), self:_line()
  if line or #self.path > 0 then message = message:gsub("^[^\n]-%.lua:%d+: ", "") end
  if line and message:sub(1, #line + 2) == line .. ": " then message = message:sub(#line + 3) end
  return { message = message, path = #self.path > 0 and table.concat(self.path, ".") or nil, line = line, trace = debug.traceback("", 2) }
end

--- Runs a function in a scope: `name` prefixes the names of its nodes and the messages of its errors.
-- @param name part of the path, such as "attn"
-- @param fn function() that builds a part of the graph
function Builder:scope(name, fn)
  local path = self.path
  path[#path + 1] = name
  local ok, message = xpcall(fn, function(e) return self:_explained(e) end)
  if not ok then error(message, 0) end
  path[#path] = nil
end

--- Runs a function in the scope "layers.i". Roles in it refer to the weights of layer i.
-- @param i layer, 0-based
-- @param fn function() that builds the layer
function Builder:layer(i, fn)
  self.index = i
  self:scope("layers." .. i, fn)
  self.index = nil
end

-- The names of LayerNorm's parameters in files that were converted from TensorFlow.
local OLD_SUFFIXES = { [".weight"] = ".gamma", [".bias"] = ".beta" }

-- Looks up the tensor of a role in the source. Returns its description (nil if there is none) and its name. The role and the layer are
-- passed on for sources that derive shapes from the role (ane.recipe.shapes). `asked` keeps the answers of the source, so that another
-- source can give the same answers (ane.coreml.export.recipe).
function Builder:_find(role, suffix, expert)
  local name = self.names(role, self.index)
  local stem = expert and name:format(expert) or name
  name = stem .. suffix
  local info = self.source:tensor(name, role, suffix, self.index)
  local old = not info and self.cfg.format == "hf" and OLD_SUFFIXES[suffix]
  if old and self.source:tensor(stem .. old, role, suffix, self.index) then
    name = stem .. old
    info = self.source:tensor(name, role, suffix, self.index)
  end
  if info then self.asked.tensors[name] = info.shape end
  return info, name
end

-- Adds the tensor of this name as a constant of the graph. `view` selects a part of it (see `weight`). Sources without files make
-- constants, and answer `number` and `same`, by methods of their own.
function Builder:_const(name, label, view, role)
  self.used[name] = true
  local value
  if self.source.constant then
    value = self.source:constant(self.graph, name, label, view)
  else
    local ok, result = pcall(self.graph.const, self.graph, label, self.source, name, view ~= TABLE and view or nil)
    if not ok then error(failure.is_interrupt(result) and result or ("tensor %s: %s"):format(name, result), 0) end
    value = result
  end
  view = view or {}
  self.record[value] = { weight = name, from = view.from, to = view.to, index = view.index, step = view.step, transposed = view.transposed,
    role = role, layer = self.index, label = label }
  return value
end

-- The tensor of a role as a constant of the graph. Raises if the source has no such tensor.
function Builder:_tensor(role, suffix)
  local info, name = self:_find(role, suffix)
  if not info then error(("no tensor %s in %s"):format(name, self.source:path()), 0) end
  weight_type.check(self.source, name, info.dtype)
  return self:_const(name, name, nil, role), info
end

--- Whether the source holds the tensor of this role.
-- @param role of the weight
-- @param suffix of the name; default ".weight"
-- @return boolean
function Builder:has(role, suffix) return (self:_find(role, suffix or ".weight")) ~= nil end

--- Reads a weight that has one element.
-- @param role of the weight [1]
-- @param suffix of the name; default ".weight"
-- @return a number; nil if the file has no such weight, or if the source holds no values (plans)
function Builder:number(role, suffix)
  local info, name = self:_find(role, suffix or ".weight")
  if not info then return nil end
  weight_type.check(self.source, name, info.dtype)
  self.used[name] = true
  if self.source.number then return self.source:number(name) end
  local raw, message = self.source:read(name)
  if not raw or #raw ~= 4 then error(("tensor %s: %s"):format(name, message or "must be one number"), 0) end
  local value = string.unpack("<f", raw)
  self.asked.numbers[name] = value
  return value
end

--- The number of rows in each slice of a stacked weight: dimension 1 of [slices, rows, columns].
-- @param role of the weight
-- @return integer
function Builder:slices(role)
  local info, name = self:_find(role, ".weight")
  return info and info.shape[2] or error(("no tensor %s in %s"):format(name, self.source:path()), 0)
end

--- Whether the weights of two roles hold the same numbers.
-- @param role of a matrix that the source holds
-- @param other role of another matrix that the source holds
-- @return boolean; see ane.recipe.same
function Builder:same(role, other)
  local a, b = self.names(role, self.index) .. ".weight", self.names(other, self.index) .. ".weight"
  if self.source.same then return self.source:same(a, b) end
  if not same(self.source, a, b) then return false end
  table.insert(self.asked.same, { a, b })
  return true
end

--- Marks the weight of this role as not needed, so that a file may hold it.
-- @param role of the weight
-- @param suffix of its name after that of the role; default ".weight"
function Builder:ignore(role, suffix) self.used[self.names(role, self.index) .. (suffix or ".weight")] = true end

--- Looks up rows of a table by token id, position or token type.
-- @param role of the table [n, d_model]
-- @param opts by (nil: token ids; "positions"; "types": token types, which become an input of the graph), from (first row of the stored
-- table to use, 0-based), rest (true: ids beyond the table read row 0; another table of the graph then limits the ids)
-- @return value [1, d_model, T, 1]
function Builder:embed(role, opts)
  opts = options.check("embed", opts)
  if opts.by == "types" and not self.types then self.types = self.graph:input("types", "int32", { 1, "T" }) end
  local list = opts.by and self[opts.by] or self.ids
  local to = opts.from and self:rows(role)
  local rows = self:weight(role, { from = opts.from, to = to, matrix = opts.by ~= nil, table = not opts.by })
  local columns = self.graph:shape(rows)[2]
  if role == "token_embd" and columns and columns ~= self.cfg.d_model then
    error(("the embedding has %d columns, but must have %d according to the configuration"):format(columns, self.cfg.d_model), 0)
  end
  return self:_add("embed", role, { list, rows }, { rest = opts.rest and 1 or 0 })
end

--- Projects x with the weight of a role: W x + b, a 1x1 convolution.
-- @param x value [1, C, T, 1]
-- @param role of the weight [N, C] and of the bias [N]
-- @param opts bias (true: required; false: not used; nil: used if the file has one); from, to (use only these rows of the weight and the
-- bias, 0-based, `to` excluded); bias_of (role of the bias; default: that of the weight); name (of the value; default: the role); rows
-- (what N must be)
-- @return value [1, N, T, 1]; N = to - from if these are given
function Builder:linear(x, role, opts)
  opts = options.check("linear", opts)
  local bias = opts.bias ~= false
    and self:weight(opts.bias_of or role, { suffix = ".bias", optional = not opts.bias, from = opts.from, to = opts.to })
  local weight = self:weight(role, { from = opts.from, to = opts.to, matrix = true, rows = opts.rows })
  return self:_add("conv1x1", opts.name or role, { x, weight, bias })
end

--- The number of rows (output features) of a role's weight as the file stores it.
-- @param role of the weight
-- @return integer; raises if the file has no such weight
function Builder:rows(role)
  local info, name = self:_find(role, ".weight")
  return info and info.shape[1] or error(("no tensor %s in %s"):format(name, self.source:path()), 0)
end

--- RMSNorm: x / sqrt(mean(x^2) + eps) * (weight + offset).
-- @param x value [1, C, T, 1]
-- @param role of the weight [C / groups]
-- @param opts groups (each group of C / groups channels is normed separately; default 1), offset (default cfg.norm_offset, or 0), eps
-- (default cfg.norm_eps), weight (a value to use instead of the role's weight; false: none)
-- @return value [1, C, T, 1]
function Builder:rms_norm(x, role, opts)
  opts = options.check("rms_norm", opts)
  local weight = opts.weight
  if weight == nil then weight = self:_tensor(role, ".weight") end
  return self:_add("rms_norm", role, { x, weight },
    { eps = opts.eps or self.cfg.norm_eps, groups = opts.groups or 1, offset = opts.offset or self.cfg.norm_offset or 0 })
end

--- LayerNorm: (x - mean) / sqrt(variance + eps) * weight + bias.
-- @param x value [1, C, T, 1]
-- @param role of the weight [C] and the bias [C]
-- @param opts eps (default cfg.norm_eps), bias (true: required; nil: used if the file has one), groups (each group of C / groups channels
-- is normed separately; there is no bias then)
-- @return value [1, C, T, 1]
function Builder:layer_norm(x, role, opts)
  opts = options.check("layer_norm", opts)
  local eps, groups = opts.eps or self.cfg.norm_eps, opts.groups
  if groups then
    local y = self:_add("layer_norm", role, { x, false, false }, { eps = eps, groups = groups })
    return self:affine(y, false, self:weight(role, { flat = true }), role .. "_scale")
  end
  local bias = self:weight(role, { suffix = ".bias", optional = not opts.bias })
  return self:_add("layer_norm", role, { x, (self:_tensor(role, ".weight")), bias }, { eps = eps })
end

--- The cosines and sines of all positions, for `rope`. A recipe makes one table for each distinct rope.
-- @param r the rope: cfg.rope, or one of cfg.ropes; see ane.recipe.rope
-- @param name of the value; default "rope"
-- @return value [1, dims, T, 1]: dims / 2 cosines, then dims / 2 sines
function Builder:rope_table(r, name)
  if not r or not r.dims then error("rope_parameters names no rope for these layers", 0) end
  if r.fault then error(r.fault, 0) end
  local f, magnitude, long = rope.frequencies(r)
  return self:_add("rope_table", name or "rope", { self.positions },
    { inv_freq = f, magnitude = magnitude, long_freq = long, original = long and r.original_context, fp16 = r.fp16 })
end

--- Rotates the first `dims` channels of each head by the angles of a rope table.
-- @param x value [1, heads * head_dim, T, 1]
-- @param tab value returned by rope_table
-- @param name of the value
-- @param opts heads; layout: "half" (pairs i, i + dims / 2) or "interleaved" (pairs 2i, 2i + 1); default cfg.rope.layout, or "half"
-- @return value [1, heads * head_dim, T, 1]
function Builder:rope(x, tab, name, opts)
  opts = options.check("rope", opts)
  local layout = opts.layout or self.cfg.rope and self.cfg.rope.layout or "half"
  return self:_add("rope", name, { x, tab }, { heads = opts.heads, layout = layout })
end

--- Multiplies x by a factor that grows with the position p: 1 + beta ln(1 + floor(p / original)).
-- @param x value [1, C, T, 1]
-- @param beta number
-- @param original number of positions over which the factor is 1, an integer above 0
-- @return value [1, C, T, 1]
function Builder:position_scale(x, beta, original)
  return self:_add("position_scale", "position_scale", { x, self.positions }, { beta = beta, original = original })
end

-- The key and value cache for k and v. Layers that share keys and values share it.
function Builder:_cache(k, v, shape)
  local key = ("%s %s %d"):format(k, v, shape[2])
  local pair = self.caches[key] or { self.graph:state(self:_name "k_cache", shape), self.graph:state(self:_name "v_cache", shape) }
  self.caches[key] = pair
  return pair[1], pair[2]
end

--- Grouped-query attention with a key and value cache. Layers whose k and v are the same values share it.
-- @param q value [1, heads * head_dim, T, 1]
-- @param k value [1, kv_heads * head_dim, T, 1]
-- @param v value of the same shape as k
-- @param opts heads, kv_heads, head_dim, scale (of the scores); window (number of keys that a query sees, including its own; 0 or nil:
-- all), ahead (number of keys after its own that a query sees; 0 or nil: causal), softcap (c tanh(score / c); 0 or nil: none), sinks
-- (value [heads]: for each head, an extra score in the softmax that has no value vector), sink_scale (default 1)
-- @return value [1, heads * head_dim, T, 1]
function Builder:attention(q, k, v, opts)
  opts = options.check("attention", opts)
  local ks, vs = self:_cache(k, v, { 1, opts.kv_heads, "context", opts.head_dim })
  return self:_add("attention", "attn", { q, k, v, ks, vs, opts.sinks or false },
    { heads = opts.heads, kv_heads = opts.kv_heads, scale = opts.scale, window = opts.window or 0, ahead = opts.ahead or 0,
      softcap = opts.softcap or 0, sink_scale = opts.sink_scale or 1 })
end

--- Gated linear unit: act(gate) * up.
-- @param gate value [1, C, T, 1]
-- @param up value [1, C, T, 1]
-- @param act activation function: "silu", "gelu_tanh", "gelu_erf", "sigmoid" or "relu"
-- @return value [1, C, T, 1]
function Builder:glu(gate, up, act) return self:_add("glu", "glu", { gate, up }, { act = act }) end

--- Applies an activation function elementwise.
-- @param x value [1, C, T, 1]
-- @param act "silu", "gelu_tanh", "gelu_erf", "sigmoid" or "relu"
-- @return value [1, C, T, 1]
function Builder:act(x, act) return self:_add("act", act, { x }, { act = act }) end

--- Elementwise sum.
-- @param a value [1, C, T, 1]
-- @param b value of the same shape
-- @return value of that shape
function Builder:add(a, b) return self:_add("add", "add", { a, b }) end

--- Elementwise product.
-- @param a value [1, C, T, 1]
-- @param b value of the same shape
-- @return value of that shape
function Builder:mul(a, b) return self:_add("mul", "mul", { a, b }) end

--- Multiplies x by a number.
-- @param x value [1, C, T, 1]
-- @param by number
-- @return value [1, C, T, 1]
function Builder:scale(x, by) return self:_add("scale", "scale", { x }, { by = by }) end

--- Elementwise soft cap: cap * tanh(x / cap).
-- @param x value [1, C, T, 1]
-- @param cap number above 0
-- @return value [1, C, T, 1]
function Builder:softcap(x, cap) return self:_add("softcap", "softcap", { x }, { cap = cap }) end

--- A range of consecutive channels of each head.
-- @param x value [1, heads * C, T, 1]
-- @param from first channel, 0-based
-- @param to end of the range, excluded
-- @param heads number of heads; default 1
-- @return value [1, heads * (to - from), T, 1]
function Builder:slice(x, from, to, heads)
  return self:_add("slice", "slice", { x }, { from = from, to = to, heads = heads })
end

--- Keeps only the tokens whose logits are requested (b.out_rows). Later ops are computed for these only.
-- @param x value [1, C, T, 1]
-- @return value [1, C, W, 1]
function Builder:gather(x) return self:_add("gather", "gather", { x, self.out_rows }) end

--- Former name of `gather`, kept for one version.
Builder.take = Builder.gather

--- The weight of a role, or a view of it.
-- @param role of the weight
-- @param opts suffix of the name (default ".weight"); optional (true: a file may lack the weight, but only in all layers); expert = e
-- (replaces the %d in the role's name); index = i (slice i, 0-based, of the outermost dimension; the view lacks this dimension); count = n
-- (what that dimension must be); rows = n (what it must be in a tensor that is not stacked); from, to (rows of what remains, 0-based, `to`
-- excluded); step (only rows from, from + step, ...); transposed (true: what remains is stored [in, out]); matrix (true: a vector becomes
-- a matrix of one row, since GGUF drops dimensions of 1); flat (true: the whole tensor as a vector); part ({first, rows}: only these
-- stored rows, which `transposed` then transposes)
-- @return value of the stored or viewed shape; false if the weight is optional and absent
function Builder:weight(role, opts)
  opts = options.check("weight", opts)
  local suffix = opts.suffix or ".weight"
  local info, name = self:_find(role, suffix, opts.expert)
  if opts.optional and self.index then
    local of = self.optional[role .. suffix] or {} -- the first tensor that is held, and the first that is absent
    self.optional[role .. suffix], of[info and "held" or "absent"] = of, of[info and "held" or "absent"] or name
  end
  if not info then
    if opts.optional then return false end
    error(("no tensor %s in %s"):format(name, self.source:path()), 0)
  end
  weight_type.check(self.source, name, info.dtype)
  if opts.count and info.shape[1] ~= opts.count then
    error(("tensor %s has %d experts, but must have %d according to the configuration"):format(name, info.shape[1], opts.count), 0)
  end
  if opts.rows and info.shape[1] ~= opts.rows then
    error(("tensor %s has %d rows, but must have %d according to the configuration"):format(name, info.shape[1], opts.rows), 0)
  end
  local row = opts.matrix and #info.shape == 1
  if opts.step then
    local label = ("%s[%s,%d::%d%s]"):format(name, opts.index or "", opts.from, opts.step, opts.transposed and ",t" or "")
    return self:_const(name, label, { index = opts.index, from = opts.from, step = opts.step, transposed = opts.transposed }, role)
  end
  if opts.part then
    local from, n = opts.part[1], opts.part[2]
    local label = ("%s[%d+%d%s]"):format(name, from, n, opts.transposed and ",t" or "")
    return self:_const(name, label, { part_from = from, part_rows = n, transposed = opts.transposed }, role)
  end
  if opts.flat then return self:_const(name, name .. "[flat]", { flat = true }, role) end
  if not (opts.index or opts.from or opts.transposed or row) then return self:_const(name, name, opts.table and TABLE or nil, role) end
  local label = ("%s[%s,%s:%s%s]"):format(name, opts.index or "", opts.from or "", opts.to or "", opts.transposed and ",t" or "")
  return self:_const(name, label, { index = opts.index, from = opts.from, to = opts.to, transposed = opts.transposed, row = row }, role)
end

--- Concatenates the channels of two values, head by head.
-- @param a value [1, heads * A, T, 1]
-- @param b value [1, heads * B, T, 1]
-- @param heads number of heads; default 1
-- @return value [1, heads * (A + B), T, 1]
function Builder:concat(a, b, heads) return self:_add("concat", "concat", { a, b }, { heads = heads }) end

--- Multiplies each head by its own matrix.
-- @param x value [1, heads * C, T, 1]
-- @param weights list of values [N, C], one per head
-- @param name of the value
-- @return value [1, heads * N, T, 1]
function Builder:head_linear(x, weights, name)
  return self:_add("head_linear", name, table.move(weights, 1, #weights, 2, { x }))
end

--- Affine map per channel: (x + bias) * scale.
-- @param x value [1, C, T, 1]
-- @param bias vector [C] (see weight), or false
-- @param scale vector [C], or false
-- @param name of the value; default "affine"
-- @return value [1, C, T, 1]
function Builder:affine(x, bias, scale, name)
  return self:_add("affine", name or "affine", { x, bias or false, scale or false })
end

--- L2 norm per group: multiplies each group of n channels by sqrt(n) / max(|group|, 1.2e-7) and by the group's weight.
-- @param x value [1, C, T, 1]
-- @param weight vector [groups], or false
-- @param groups number of groups; n = C / groups
-- @param name of the value; default "l2_norm"
-- @return value [1, C, T, 1]
function Builder:l2_norm(x, weight, groups, name)
  return self:_add("l2_norm", name or "l2_norm", { x, weight or false }, { groups = groups })
end

--- Repeats each head `times` times in a row, to match key heads with their query heads.
-- @param x value [1, heads * n, T, 1]
-- @param heads number of heads of x
-- @param times number of copies of each head
-- @return value [1, heads * times * n, T, 1]
function Builder:repeat_heads(x, heads, times) return self:_add("repeat_heads", "repeat_heads", { x }, { heads = heads, times = times }) end

--- The mean of every `times` consecutive heads: the counterpart of repeat_heads.
-- @param x value [1, heads * n, T, 1]
-- @param heads number of heads of x, a multiple of `times`
-- @param times number of heads per mean
-- @return value [1, heads / times * n, T, 1]
function Builder:mean_heads(x, heads, times) return self:_add("mean_heads", "mean_heads", { x }, { heads = heads, times = times }) end

--- Causal convolution over tokens with its own state: y[t] = bias + sum over k of weight[k] x[t - K + 1 + k].
-- @param x value [1, C, T, 1]
-- @param opts weight (value [N, C / groups, K], or [C, K] for a depthwise convolution), taps (K), groups (default 1), bias (value [N]),
-- before (value [C]: x at the positions before the first token; default: zeros), name (of the value; default "conv")
-- @return value [1, N, T, 1]
function Builder:conv_causal(x, opts)
  opts = options.check("conv_causal", opts)
  local state = self.graph:state(self:_name "conv_cache", { 1, self:channels(x), opts.taps - 1, 1 })
  local inputs = { x, opts.weight, opts.bias or false, opts.before or false, state }
  return self:_add("conv_causal", opts.name or "conv", inputs, { groups = opts.groups })
end

--- The value of the previous token, kept in a state of its own; zeros for the first token.
-- @param x value [1, C, T, 1]
-- @return value [1, C, T, 1]
function Builder:delay(x)
  return self:_add("delay", "delay", { x, self.graph:state(self:_name "delay_cache", { 1, self:channels(x), 1, 1 }) })
end

--- The Mamba-2 scan with its own state (see csrc/graph/op.def).
-- @param x value [1, heads * width + 2 * groups * n, T, 1]: x, B and C, concatenated
-- @param dt value [1, heads, T, 1]
-- @param opts heads, width, groups, n; decay, d, dt_bias (values [heads]; d and dt_bias may be false), log (true: decay holds log(-A);
-- false: A), low and high (limits of the time step; nil: none)
-- @return value [1, heads * width, T, 1]
function Builder:ssm_scan(x, dt, opts)
  opts = options.check("ssm_scan", opts)
  local state = self.graph:state(self:_name "ssm_state", { 1, opts.heads, opts.n, opts.width })
  return self:_add("ssm_scan", "ssm_scan", { x, dt, opts.decay, opts.d or false, opts.dt_bias or false, state },
    { groups = opts.groups, low = opts.low or 0, high = opts.high or 0, log = opts.log and 1 or 0 })
end

--- The gated delta rule with its own state (see csrc/graph/op.def).
-- @param x value [1, 2 * key_heads * n + heads * width, T, 1]: q, k and v, concatenated
-- @param a value [1, heads, T, 1] from which the decay is computed
-- @param b value [1, heads, T, 1] from which the weight of each token (beta) is computed
-- @param opts heads, key_heads, n, width; decay, dt_bias (values [heads]), log (as for ssm_scan), interleaved (true: head h uses key
-- head h modulo key_heads)
-- @return value [1, heads * width, T, 1]
function Builder:delta_rule(x, a, b, opts)
  opts = options.check("delta_rule", opts)
  local state = self.graph:state(self:_name "delta_state", { 1, opts.heads, opts.n, opts.width })
  return self:_add("delta_rule", "delta_rule", { x, a, b, opts.decay, opts.dt_bias or false, state },
    { key_heads = opts.key_heads, log = opts.log and 1 or 0, interleaved = opts.interleaved and 1 or 0 })
end

--- The number of channels of a value.
-- @param x value [1, C, T, 1]
-- @return integer C
function Builder:channels(x) return self.graph:shape(x)[2] end

return M
