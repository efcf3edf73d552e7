--- Checks that a recipe's graph computes the same as an ONNX graph. Both are compared node by node, from the logits backwards.
-- Usage: `local ok, reason = match.same(b, logits, lifted, weights)`

local segments = require "ane.onnx.segments"

local identity, part = segments.identity, segments.part

local M = {}

local function near(a, b, tolerance) return math.abs(a - b) <= (tolerance or 1e-6) * math.max(math.abs(a), math.abs(b)) + 1e-12 end

local function place(e)
  local node = e and e.node
  return node and ("node %s (%s)"):format(node.name, node.op) or "the graph"
end

-- One comparison: the recipe's record, the weights by name, the pairs found equal, and the first difference.
local Match = {}
Match.__index = Match

function Match:differs(e, ...)
  if not self.reason then self.reason = ("%s %s"):format(place(e), (...):format(select(2, ...))) end
  return false
end

-- Does the recipe take, as its constant `value`, the rows that the graph takes there (wanted)? Both may be nil.
function Match:weight(e, value, wanted, what)
  if not value then return wanted == nil or self:differs(e, "has a %s, but the recipe has none", what) end
  if not wanted then return self:differs(e, "has no %s, but the recipe has one", what) end
  local r = self.record[value]
  local w = r and r.weight and self.weights[r.weight]
  if not w or r.index or r.transposed then return self:differs(e, "has another %s than the recipe", what) end
  if r.from or r.to then w = part(w, r.from or 0, r.to or math.maxinteger) end
  return identity(w) == identity(wanted) or self:differs(e, "has another %s than the recipe", what)
end

-- The record of a value of the recipe. Gathers, which only choose tokens, are skipped. A slice of a product becomes a product with some
-- of the rows: `from` and `to`.
function Match:see(value)
  local r = self.record[value]
  while r and r.op == "gather" do r = self.record[r.inputs[1]] end
  if r and r.op == "slice" then
    local of = self.record[r.inputs[1]]
    if of and of.op == "conv1x1" then return { op = "conv1x1", inputs = of.inputs, attrs = {}, name = r.name, from = r.attrs.from,
      to = r.attrs.to } end
  end
  return r
end

local OPS = {}

-- Are a and b of the graph equal to x and y of the recipe, in either order?
function Match:both(a, b, x, y)
  if self:quiet(a, x) and self:same(b, y) then return true end
  if self:quiet(a, y) then return self:same(b, x) end
  return self:same(a, x) and self:same(b, y)
end

-- Compares without recording a difference.
function Match:quiet(e, value)
  local reason = self.reason
  local ok = self:same(e, value)
  self.reason = reason
  return ok
end

-- Does an expression of the graph compute a value of the recipe? Results are kept, since values are shared.
function Match:same(e, value)
  local known = self.seen[e]
  if not known then
    known = {}
    self.seen[e] = known
  end
  local entry = known[value]
  if not entry then
    local outer, r = self.reason, self:see(value)
    local fn = r and OPS[r.op]
    self.reason = nil
    local ok
    if fn then ok = fn(self, e, r)
    else ok = self:differs(e, "is where the recipe has %s, which cannot be matched in graphs", r and r.op or "a weight") end
    entry = { ok = ok, reason = self.reason }
    known[value], self.reason = entry, outer
  end
  if not entry.ok then self.reason = self.reason or entry.reason end
  return entry.ok
end

function Match:op(e, r, op)
  return e.op == op or self:differs(e, "does not match: the recipe has %s (%s) there, but the graph has %s", r.op, r.name, e.op)
end

function OPS:embed(e, r) return self:op(e, r, "embed") and self:weight(e, r.inputs[2], e.w, "table") end

function OPS:conv1x1(e, r)
  if not self:op(e, r, "linear") then return false end
  local w, b, weights = r.inputs[2], r.inputs[3], self.weights
  if r.from then -- a slice of the product
    local name, bias = self.record[w].weight, b and self.record[b].weight
    w, b = part(weights[name] or {}, r.from, r.to), bias and part(weights[bias] or {}, r.from, r.to) or nil
    if identity(w) ~= identity(e.w) or identity(b or {}) ~= identity(e.b or {}) then return self:differs(e,
      "has another weight than the recipe") end
  elseif not self:weight(e, w, e.w, "weight") or not self:weight(e, b, e.b, "bias") then
    return false
  end
  return self:same(e.x, r.inputs[1])
end

function OPS:rms_norm(e, r)
  if not self:op(e, r, "rms_norm") then return false end
  if not near(e.eps, r.attrs.eps) then return self:differs(e, "has epsilon %g, the recipe %g", e.eps, r.attrs.eps) end
  if (r.attrs.groups or 1) ~= e.groups or (r.attrs.offset or 0) ~= 0 then return self:differs(e, "norms %d groups, the recipe %d",
    e.groups, r.attrs.groups or 1) end
  return self:weight(e, r.inputs[2], e.w, "weight") and self:same(e.x, r.inputs[1])
end

local function same_list(a, b)
  if (a == nil) ~= (b == nil) then return false end
  for i = 1, a and math.max(#a, #b) or 0 do
    if not a[i] or not b[i] or not near(a[i], b[i], 1e-4) then return false end
  end
  return true
end

function OPS:rope(e, r)
  if not self:op(e, r, "rope") then return false end
  local tab = self.record[r.inputs[2]].attrs
  if r.attrs.heads ~= e.heads or r.attrs.layout ~= e.layout then return self:differs(e, "pairs channels differently from the recipe") end
  local same = same_list(tab.inv_freq, e.rope.inv_freq) and same_list(tab.long_freq or nil, e.rope.long_freq) and
    near(tab.magnitude, e.rope.magnitude, 1e-3)
  if not same or (e.rope.original or 0) ~= (tab.original or 0) or
    (e.rope.fp16 or false) ~= (tab.fp16 or false) then return self:differs(e, "rotates differently from the recipe") end
  return self:same(e.x, r.inputs[1])
end

function OPS:attention(e, r)
  if not self:op(e, r, "attention") then return false end
  local at = r.attrs
  for _, field in ipairs { "heads", "kv_heads", "window", "softcap", "scale" } do
    if not near(at[field], e[field], 1e-5) then return self:differs(e, "has %s %g, the recipe %g", field, e[field], at[field]) end
  end
  if at.ahead ~= 0 or (e.sinks and at.sink_scale ~= 1) then return self:differs(e, "sees other keys than the recipe") end
  return self:weight(e, r.inputs[6] or nil, e.sinks, "sinks") and self:same(e.q, r.inputs[1]) and self:same(e.k, r.inputs[2]) and
    self:same(e.v, r.inputs[3])
end

function OPS:glu(e, r)
  if not self:op(e, r, "mul") then return false end
  local gate, up = e.a, e.b
  if gate.op ~= "act" then gate, up = up, gate end
  if gate.op ~= "act" or gate.act ~= r.attrs.act then return self:differs(gate, "is no %s", r.attrs.act) end
  return self:same(gate.x, r.inputs[1]) and self:same(up, r.inputs[2])
end

function OPS:act(e, r)
  return self:op(e, r, "act") and (e.act == r.attrs.act or self:differs(e, "is no %s", r.attrs.act)) and self:same(e.x, r.inputs[1])
end

local function commutative(op)
  return function(self, e, r) return self:op(e, r, op) and self:both(e.a, e.b, r.inputs[1], r.inputs[2]) end
end
OPS.add, OPS.mul = commutative "add", commutative "mul"

local function with_number(op, field)
  return function(self, e, r)
    if r.attrs[field] == 1 and op == "scale" and e.op ~= "scale" then return self:same(e, r.inputs[1]) end
    if not self:op(e, r, op) then return false end
    -- weights are fp16 or better, so a stored factor may have been rounded to fp16
    if not near(e[field], r.attrs[field], 1e-3) then return self:differs(e, "has %s %g, the recipe %g", field, e[field], r.attrs[field]) end
    return self:same(e.x, r.inputs[1])
  end
end
OPS.scale, OPS.softcap = with_number("scale", "by"), with_number("softcap", "cap")

function OPS:slice(e, r)
  if not self:op(e, r, "slice") then return false end
  if e.from ~= r.attrs.from or e.to ~= r.attrs.to then return self:differs(e, "slices other channels than the recipe") end
  return self:same(e.x, r.inputs[1])
end

function OPS:conv_causal(e, r)
  if not self:op(e, r, "conv_causal") then return false end
  if r.attrs.groups ~= e.channels or r.inputs[4] then return self:differs(e, "is another convolution than the recipe's") end
  return self:weight(e, r.inputs[2], e.w, "weight") and self:weight(e, r.inputs[3] or nil, e.b, "bias") and self:same(e.x, r.inputs[1])
end

function OPS:route(e, r)
  local at = r.attrs
  if not self:op(e, r, "route") then return false end
  if e.k ~= at.k or e.score ~= at.score or (e.norm and 1 or 0) ~= at.norm or not near(e.norm_eps, at.norm_eps, 1e-3) or
    not near(e.scale, at.scale, 1e-4) then
    return self:differs(e, "weights its experts differently from the recipe")
  end
  return self:weight(e, r.inputs[2] or nil, e.bias, "bias") and self:same(e.x, r.inputs[1])
end

function OPS:experts(e, r)
  if not self:op(e, r, "experts") then return false end
  if r.attrs.count ~= #e.list or r.attrs.act ~= e.act then return self:differs(e, "has other experts than the recipe") end
  for i, x in ipairs(e.list) do
    local at = 3 + 6 * (i - 1)
    for k, role in ipairs { "gate", "up", "down" } do
      local w, b = r.inputs[at + 2 * (k - 1)], r.inputs[at + 2 * k - 1]
      if b or not self:weight(e, w, x[role], role) then return self:differs(e, "has other experts than the recipe") end
    end
  end
  return self:same(e.route, r.inputs[2]) and self:same(e.x, r.inputs[1])
end

--- Compares a recipe with a lifted graph.
-- @param b the builder of the recipe
-- @param result the recipe's logits
-- @param lifted the expression of the graph's logits
-- @param weights tensor name -> segments
-- @return true; or nil, the first difference
function M.same(b, result, lifted, weights)
  local m = setmetatable({ record = b.record, weights = weights, seen = {} }, Match)
  if m:same(lifted, result) then return true end
  return nil, m.reason or "the graph differs from the recipe"
end

return M
