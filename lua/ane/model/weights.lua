--- Types of weights in memory: their names, rules by pattern, and the report of their errors.
-- Needs ane.core, ane.util.failure and ane.util.list. Usage: `local rules = weights.rules {attn_v = "q6_k", {"ffn_down", "int8"}}`

local core = require "ane.core"
local failure = require "ane.util.failure"
local list_of = require "ane.util.list"

local M = {}

--- The names that `weights` of load takes. int8: one scale per tensor, int8-channel: one per row, int8-block and int4-block: one per
-- 32 columns (int4-block64: per 64), uint4-block: a scale and an offset per 32 columns, lut2, lut3, lut4, lut6, lut8: a table of 4 to
-- 256 values per tensor (-g8, -g16, -g32: per 8, 16 or 32 rows).
M.names = { "file" }
for _, name in ipairs(core.mil_schemes()) do
  if name ~= "fp16" then M.names[#M.names + 1] = name end
end
for _, name in ipairs { "fp16", "bf16", "fp32" } do M.names[#M.names + 1] = name end

--- Names of transforms: other weights with which a model computes the same (ane.model.loader).
M.transforms = { "none", "rotate" }

--- Returns the rows of core.dtypes() for which keep(row) is true, largest first; among equal sizes the smaller block comes first.
-- @return list of rows
function M.by_size(keep)
  local rows, order = {}, {}
  for i, row in ipairs(core.dtypes()) do
    order[row] = i
    if keep(row) then rows[#rows + 1] = row end
  end
  table.sort(rows, function(a, b)
    if a.bits ~= b.bits then return a.bits > b.bits end
    return order[a] < order[b]
  end)
  return rows
end

-- M.names goes on with the quant types that can be encoded and have a layout.
for _, row in ipairs(M.by_size(function(row) return row.block > 1 and row.encodes and row.packed end)) do
  M.names[#M.names + 1] = row.name
end

local known = {}
for _, name in ipairs(M.names) do known[name] = true end

--- Returns what is wrong with the name of a type, or nil.
function M.fault(name)
  if known[name] then return nil end
  return ("is %q: choose %s"):format(name, table.concat(M.names, ", "))
end

--- Returns what is wrong with rules by pattern, {pattern = name} or a list of {pattern, name}, or nil.
-- @param fault function(name), as M.fault
function M.rules_fault(mixed, fault)
  for i = 1, rawlen(mixed) do
    if mixed[i] == nil then return ("must be {pattern = type} or a list of {pattern, type}, but has no entry %d"):format(i) end
  end
  for key, value in pairs(mixed) do
    local pattern, name = key, value
    local listed = math.type(key) == "integer" and key >= 1 and key <= rawlen(mixed)
    if listed and type(value) == "table" then pattern, name = rawget(value, 1), rawlen(value) == 2 and rawget(value, 2) end
    if type(pattern) ~= "string" or pattern == "" or pattern:find("\0", 1, true) or type(name) ~= "string" then
      return "must be {pattern = type} or a list of {pattern, type}"
    end
    local wrong = fault(name)
    if wrong then return ("for %q %s"):format(pattern, wrong) end
  end
end

--- Returns the rules in order: list of {pattern, name, ordered}. Rules that are keys of a table have no order, so it is an error if
-- two of them match one tensor and differ.
function M.rules(mixed)
  local rules, keys = {}, {}
  for i, row in ipairs(mixed or {}) do rules[i] = { row[1], row[2], true } end
  for key in pairs(mixed or {}) do
    if type(key) == "string" then keys[#keys + 1] = key end
  end
  table.sort(keys)
  for _, key in ipairs(keys) do rules[#rules + 1] = { key, mixed[key], false } end
  return rules
end

-- Does a pattern match one of the names of a tensor? name, gguf_name: nil: it has none.
local function matches(pattern, name, source_name, gguf_name)
  return core.glob(pattern, name) or source_name and core.glob(pattern, source_name) or gguf_name and core.glob(pattern, gguf_name)
end

--- Does the importance of columns change what a load makes of this type?
function M.weighs(name) return name:find "^u?int4%-block" ~= nil or name:find "^lut" ~= nil end

--- Says of a calibration text that it "has no effect on" the types that are asked for, because none of them takes the importance of
-- columns; nil: it has one.
-- @param opts weights, mixed, fallback
-- @param default the type without opts.weights
-- @param weighs, wanted the function that says which types take it, and their names; default: those of a load
function M.unread_text(opts, default, weighs, wanted)
  local asked = { opts.weights or default, opts.fallback }
  for _, rule in ipairs(M.rules(opts.mixed)) do asked[#asked + 1] = rule[2] end
  for _, name in ipairs(asked) do
    if (weighs or M.weighs)(name) then return nil end
  end
  local what = "has no effect on %s: it is for %s"
  return what:format(table.concat(asked, ", "), wanted or "int4-block, int4-block64, uint4-block and lut2 .. lut8")
end

--- The name that rules give to a tensor, or nil. A pattern may match any of its names. The last match counts; a rule that matches gets
-- the field `used`. Raises as ane.util.failure does if an unordered rule and one before it match and differ. core.program follows the
-- same rule (`mixed` and `names`, csrc/exec/weights.c).
-- @param rules of M.rules
-- @param tensor its name
-- @param source_name its name in the model's file, or nil
-- @param gguf_name the name of its role in GGUF files (ane.recipe.names.in_gguf), or nil
function M.ruled(rules, tensor, source_name, gguf_name)
  local found
  for _, rule in ipairs(rules) do
    local pattern, to, ordered = table.unpack(rule)
    if matches(pattern, tensor, source_name, gguf_name) then
      if found and not ordered and found[2] ~= to then
        local what = "option mixed: tensor %s matches %q and %q, which ask for %s and %s; a list of {pattern, type} has an order"
        failure.raise("invalid", what, tensor, found[1], pattern, found[2], to)
      end
      rule.used, found = true, rule
    end
  end
  return found and found[2]
end

--- Adds exact, rms and snr_db (nil where exact) to a row, from sums of squares.
function M.measure(row, count, error, signal)
  row.exact = error == 0
  row.rms = count > 0 and math.sqrt(error / count) or 0.0
  if error > 0 and signal > 0 then row.snr_db = 10 * math.log(signal / error, 10) end
  return row
end

--- The type of each weight matrix of a program, and its error.
-- @param matrices of program:info()
-- @return list of {name, rows, cols, from (type as stored), weights (type in memory), form (the layout), activations (of its kernel),
-- bytes, exact, max_abs, rms, snr_db (nil where exact)}
function M.report(matrices)
  local list = {}
  for i, m in ipairs(matrices or {}) do
    list[i] = M.measure({
      name = m.name, rows = m.rows, cols = m.cols, from = m.stored, weights = m.weights or m.dtype, form = m.form,
      activations = m.act, bytes = m.bytes, max_abs = m.max_abs or 0.0,
    }, m.rows * m.cols, m.error or 0.0, m.signal or 0.0)
  end
  return list
end

-- Columns of a block by type.
local blocks = {}
for _, row in ipairs(core.dtypes()) do blocks[row.name] = row.block end

--- Says which matrices of a program are not held as requested, because their shape does not take that type.
-- @param matrices of program:info()
-- @return list of texts, one for each pair of a requested type and the one that is held instead
function M.unfit(matrices)
  local groups, texts = {}, {}
  for _, m in ipairs(matrices or {}) do
    local held = m.weights or m.dtype
    local key = m.unfit and m.unfit .. " " .. held
    if key and not groups[key] then
      groups[key] = { asked = m.unfit, held = held, count = 0 }
      groups[#groups + 1] = groups[key]
    end
    if key then groups[key].count = groups[key].count + 1 end
  end
  for i, g in ipairs(groups) do
    local block = blocks[g.asked]
    local why = block and ("rows that are not whole blocks of %d columns"):format(block) or "shapes that it does not fit"
    texts[i] = ("weights %s: %d of %d matrices have %s, and are held as %s"):format(g.asked, g.count, #matrices, why, g.held)
  end
  return texts
end

local NUMBERS <const> = "option importance: %s: must have a finite number of 0 or more for each column"

--- Checks the option importance and turns its lists into tensors.
-- @param importance name -> list or tensor
-- @return name -> tensor
-- @raise a failure of ane.util.failure if a key is not a name, or a value is not a list of finite numbers of 0 or more
function M.importance(importance)
  local out = {}
  for name, values in pairs(importance) do
    if type(name) ~= "string" then
      failure.raise("invalid", "option importance: key %s is not the name of a tensor", list_of.shown(name))
    end
    for i, v in ipairs(type(values) == "table" and values or {}) do
      if type(v) ~= "number" then failure.raise("invalid", "option importance: %s[%d] is not a number", name, i) end
    end
    if type(values) == "table" then values = core.tensor({ #values }, values) end
    if type(values) ~= "userdata" then failure.raise("invalid", NUMBERS, name) end
    if #values == 0 or not (values:min() >= 0 and values:dot(values) < math.huge) then failure.raise("invalid", NUMBERS, name) end
    out[name] = values
  end
  return out
end

--- The tensors of M.importance as core.program takes them: float32 bytes.
function M.bytes(importance)
  local out = {}
  for name, values in pairs(importance) do out[name] = values:tostring() end
  return out
end

--- Checks the names and lengths of the option importance. Names of parts of tensors ("name[3,:]") are allowed beside those of tensors.
-- @param importance of M.importance
-- @return true
-- @raise a failure if a name is neither a matrix of the program nor a tensor of its source, or if a matrix has another number of columns
function M.check_importance(program, source, importance)
  local columns = {}
  for _, m in ipairs(program:info().matrices) do columns[m.name] = m.cols end
  for name, values in pairs(importance) do
    local cols = columns[name]
    if not cols and not name:find("[", 1, true) and not source:tensor(name) then
      failure.raise("invalid", "option importance: no tensor %s", name)
    end
    if cols and cols ~= #values then
      failure.raise("invalid", "option importance: %s has %d columns, but the option has %d numbers", name, cols, #values)
    end
  end
  return true
end

return M
