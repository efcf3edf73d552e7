--- Rotations of a model that are folded into its weights. The model computes the same, and its weights have fewer outliers to round.
-- Needs ane.core, ane.quantise.overlay and ane.util.failure.
-- Usage: `local source = assert(rotate.source(builder, logits, source))` in the `examine` of ane.recipe.build
--
-- RMSNorm with a weight of ones commutes with an orthogonal matrix Q. So the weights of norms move into the matrices that read them,
-- and the residual stream is rotated: embeddings and readers become W Q, writers Q' W. A second matrix for each layer rotates the values
-- of each head: rows of attn_v, columns of attn_output. These are R1 and R2 of Liu et al. 2024, "SpinQuant" (arXiv 2405.16406), after
-- Ashkboos et al. 2024, "QuaRot" (arXiv 2404.00456), with fixed matrices (ane_rotation). A tied head becomes a matrix of its own.
--
-- The graph that the recipe has built decides what can be rotated. The stream consists of the embedding and all sums with it. A block
-- cannot be rotated if anything but a norm reads the stream, if anything but a matrix reads the norm, or if its output passes a norm
-- before it is added.

local core = require "ane.core"
local failure = require "ane.util.failure"
local overlay = require "ane.quantise.overlay"

local raise, try = failure.raise, failure.try

local M = {}

-- Seed of the residual stream. Layer i has SEED + 1 + i.
local SEED <const> = 0x616e65

-- ---- The graph --------------------------------------------------------------------------------------------------------

-- Users of each value: list of {value (the result), node, at (index of the input)}, in the order of names.
local function users_of(record)
  local users = {}
  for value, node in pairs(record) do
    for i, input in ipairs(node.op and node.inputs or {}) do
      if input then
        users[input] = users[input] or {}
        table.insert(users[input], { value = value, node = node, at = i })
      end
    end
  end
  for _, list in pairs(users) do
    table.sort(list, function(a, b)
      if a.node.name ~= b.node.name then return a.node.name < b.node.name end
      return a.at < b.at
    end)
  end
  return users
end

local function refuse(self, what, ...)
  raise("unsupported", "%s: option transform: rotate: " .. what, self.path, ...)
end

-- Raises if ane_rotation does not take vectors of this width: the matrix of its odd factor is dense, so that factor is limited.
local function check_width(self, what, width)
  local odd = width
  while odd > 0 and odd % 2 == 0 do odd = odd // 2 end
  if width > 65536 then refuse(self, "%s is %d, the most is 65536", what, width) end
  if odd > 4095 then refuse(self, "%s is %d, whose odd factor is %d; the most is 4095", what, width, odd) end
end

-- The whole weight, or rows of it, at input i of a node; nil for a part of another kind.
local function weight_of(self, node, i)
  local w = node.inputs[i] and self.record[node.inputs[i]]
  if w and w.weight and not (w.index or w.step or w.transposed) then return w end
end

-- Adds changes to the tensor w, which is input i of a node; at most one for each side.
-- @param side "columns", "rows" or "norm": which of the tensor's uses must agree
-- @param name of the new tensor; default: the tensor's own
local function change(self, node, i, side, changes, name)
  local w = self.record[node.inputs[i]]
  name = name or w.weight
  local edit = self.edits[name]
  if not edit then
    edit = { name = name, from = w.weight, changes = {}, sides = {}, uses = {} }
    self.edits[name] = edit
    self.order[#self.order + 1] = edit
  end
  local use = node.name .. ":" .. i
  edit.uses[use] = edit.uses[use] or {}
  edit.uses[use][side] = true
  if edit.sides[side] then return edit end
  edit.sides[side] = true
  table.move(changes, 1, #changes, #edit.changes + 1, edit.changes)
  return edit
end

-- The factors of a norm (its weight, plus the norm's offset) as float32 bytes.
local function norm_factors(self, node, w)
  local plain <close> = try(core.merged(self.source, { { name = w.weight, changes = {} } }))
  local values = core.tensor({ self.source:tensor(w.weight).shape[1] }, try(plain:read(w.weight)))
  return (values + (node.attrs.offset or 0)):tostring()
end

-- Replaces the weight of a norm by one whose factors are 1.
local function plain_norm(self, node)
  local ones = core.tensor { self.width }
  ones:fill(1 - (node.attrs.offset or 0))
  change(self, node, 2, "norm", { { values = ones:tostring() } })
end

-- A matrix that reads the normed stream: W g Q. A tied head gets a name of its own.
local function add_reader(self, user, norm, factors)
  local node = user.node
  local w = node.op == "conv1x1" and user.at == 1 and weight_of(self, node, 2)
  if not w then refuse(self, "the step %s reads the residual stream, but is not a matrix", node.name) end
  local name = self.tables[w.weight] and (self.head or refuse(self, "%s has no name for a separate head", w.weight)) or nil
  local edit = change(self, node, 2, "columns", { { columns = factors }, { rotate = self.width, seed = SEED } }, name)
  if edit.norm and edit.norm ~= norm then refuse(self, "tensor %s follows two norms", w.weight) end
  edit.norm = norm
end

-- Follows the normed stream to the matrices that read it.
local function readers_of(self, value, norm, factors)
  if not self.users[value] then refuse(self, "the normed residual stream is the result of the model") end
  for _, user in ipairs(self.users[value]) do
    if user.node.op == "gather" and user.at == 1 then
      readers_of(self, user.value, norm, factors)
    else
      add_reader(self, user, norm, factors)
    end
  end
end

local function add_norm(self, user)
  local node = user.node
  local w = weight_of(self, node, 2)
  if user.at ~= 1 or node.attrs.groups ~= 1 or not w then refuse(self, "the step %s norms parts of the residual stream", node.name) end
  readers_of(self, user.value, w.weight, norm_factors(self, node, w))
  plain_norm(self, node)
end

-- A matrix whose result is added to the stream: Q' W, and its bias b Q.
local function add_writer(self, value)
  local node = self.record[value]
  local w = node.op == "conv1x1" and weight_of(self, node, 2)
  if not w or w.from then refuse(self, "the step %s writes to the residual stream, but is not a matrix", node.name) end
  change(self, node, 2, "rows", { { rotate = self.width, seed = SEED, rows = true } })
  if node.inputs[3] then
    if not weight_of(self, node, 3) then refuse(self, "the bias of %s is computed", node.name) end
    change(self, node, 3, "columns", { { rotate = self.width, seed = SEED } })
  end
end

local function add_table(self, value)
  local node = self.record[value]
  local w = weight_of(self, node, 2)
  if not w or w.from then refuse(self, "the table of the step %s is not looked up as it is", node.name) end
  self.tables[w.weight] = true
  change(self, node, 2, "columns", { { rotate = self.width, seed = SEED } })
end

local visit, join

local PASSES = { add = 2, scale = 1, gather = 1 } -- inputs of the steps that keep the stream a stream

-- Adds a value to the stream, and the values of which it is the sum, a multiple or the rows.
function join(self, value)
  if self.seen[value] then return end
  local node = self.record[value]
  if node.op == "embed" then
    add_table(self, value)
  elseif PASSES[node.op] then
    for i = 1, PASSES[node.op] do join(self, node.inputs[i]) end
  else
    add_writer(self, value)
  end
  visit(self, value)
end

-- Follows the stream to all that reads it.
function visit(self, value)
  if self.seen[value] then return end
  self.seen[value] = true
  if value == self.result then refuse(self, "the residual stream is the result of the model") end
  for _, user in ipairs(self.users[value] or {}) do
    local node = user.node
    if PASSES[node.op] then
      if node.op == "add" then join(self, node.inputs[3 - user.at]) end
      visit(self, user.value)
    elseif node.op == "rms_norm" then
      self.norms[#self.norms + 1] = user
    else
      refuse(self, "the step %s reads the residual stream before a norm", node.name)
    end
  end
end

-- ---- Heads ------------------------------------------------------------------------------------------------------------

-- Input i of a matrix where no other step uses that constant; nil if one does.
local function own_weight(self, node, i)
  local w = weight_of(self, node, i)
  return w and #self.users[node.inputs[i]] == 1 and w or nil
end

-- The matrix that alone reads the result of an attention; nil where something else does.
local function output_of(self, value)
  local users = self.users[value] or {}
  local node = #users == 1 and users[1].at == 1 and users[1].node
  local w = node and node.op == "conv1x1" and own_weight(self, node, 2)
  return w and not w.from and node or nil
end

-- The rotation of the values of each head, where a matrix makes them for one attention alone, and a matrix reads them.
local function add_heads(self, value, node)
  local v, output = self.record[node.inputs[3]], output_of(self, value)
  if v.op ~= "conv1x1" or #self.users[node.inputs[3]] ~= 1 or not output then return end
  local w, bias = own_weight(self, v, 2), v.inputs[3] and own_weight(self, v, 3)
  if not w or (v.inputs[3] and (not bias or bias.from)) then return end
  local from, to = w.from or 0, w.to or self.source:tensor(w.weight).shape[1]
  check_width(self, "the width of a head", (to - from) // node.attrs.kv_heads)
  local rotation = { rotate = (to - from) // node.attrs.kv_heads, seed = SEED + 1 + (w.layer or 0) }
  change(self, v, 2, "heads", { { rotate = rotation.rotate, seed = rotation.seed, rows = true, from = from, to = to } })
  change(self, output, 2, "heads", { rotation })
  if bias then change(self, v, 3, "heads", { rotation }) end
end

-- ---- Tensors ----------------------------------------------------------------------------------------------------------

local function words(set)
  local list = {}
  for word in pairs(set) do
    if word ~= "heads" then list[#list + 1] = word end -- part of a fused weight, or a weight with one use
  end
  table.sort(list)
  return table.concat(list, " ")
end

-- Raises if a changed tensor has another use for which the change is wrong.
local function check_uses(self)
  local total, covered = {}, {}
  for value, node in pairs(self.record) do
    if node.weight then total[node.weight] = (total[node.weight] or 0) + #(self.users[value] or {}) end
  end
  for _, edit in ipairs(self.order) do
    local same
    for _, sides in pairs(edit.uses) do
      local text = words(sides)
      if text ~= (same or text) then refuse(self, "the uses of tensor %s differ", edit.from) end
      same = text
      covered[edit.from] = (covered[edit.from] or 0) + 1
    end
  end
  for _, edit in ipairs(self.order) do
    if covered[edit.from] ~= total[edit.from] then refuse(self, "tensor %s is used in other places too", edit.from) end
  end
end

-- The values of the record whose node fits, in the order of names: list of {name, value, node}.
local function nodes(record, op)
  local list = {}
  for value, node in pairs(record) do
    if node.op == op then list[#list + 1] = { node.name, value, node } end
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

--- The source of a model with its rotations folded in. Changed tensors are fp32.
-- @param b the builder, after the recipe has built (ane.recipe.builder)
-- @param logits the value that the recipe has returned
-- @param source of the weights; the result keeps it open
-- @param later true: matrices are computed for each use (ane.quantise.overlay); otherwise all at once
-- @return a source; or nil, message, code: "unsupported" names the step that cannot be rotated
function M.source(b, logits, source, later)
  return failure.catch(function()
    local self = {
      record = b.record, users = users_of(b.record), source = source, path = source:path(), result = logits, edits = {}, order = {},
      tables = {}, seen = {}, norms = {},
    }
    local ok, head = pcall(b.names, "output")
    if not ok and failure.code(head) == "memory" then error(head, 0) end
    self.head = ok and head .. ".weight" or nil
    for _, entry in ipairs(nodes(b.record, "embed")) do
      if entry[3].inputs[1] == b.ids then
        self.width = b:channels(entry[2])
        join(self, entry[2])
      end
    end
    if not self.width then refuse(self, "the model has no embedding") end
    check_width(self, "the width of the model", self.width)
    table.sort(self.norms, function(x, y) return x.node.name < y.node.name end)
    for _, user in ipairs(self.norms) do add_norm(self, user) end
    for _, entry in ipairs(nodes(b.record, "attention")) do add_heads(self, entry[2], entry[3]) end
    check_uses(self)
    return later and overlay.computed(source, self.order) or try(core.merged(source, self.order))
  end)
end

return M
