--- Core ML packages (.mlpackage), and Core AI assets (.aimodel) as the ML Programs that they are run as: their contents, their
-- programs as text, their constants; and their functions, which run here.
-- Needs ane.core, ane.coreml.aimodel, ane.util.isa, ane.util.list, ane.util.methods, ane.util.schema and ane.util.units.
-- Usage: `local pkg = assert(require("ane.coreml.package").open("Some.mlpackage")); print(pkg:predict { x = ane.tensor { ... } }.y)`

local aimodel = require "ane.coreml.aimodel"
local core = require "ane.core"
local isa = require "ane.util.isa"
local list_of = require "ane.util.list"
local methods = require "ane.util.methods"
local schema = require "ane.util.schema"
local units = require "ane.util.units"

local M = {}

local Package = {}
Package.__index = Package
Package.__name = "ane.package"

local function package_fault(v) return getmetatable(v) ~= Package and "must be a package" or nil end

local OPTIONS = {
  precision = { type = "string", choices = { "fp32", "fp16" }, default = "fp32" },
  threads = { type = "integer", min = 1, max = 1024 },
  isa = { type = "string" },
  progress = { type = "callable" },
  backend = { type = "string", choices = { "cpu", "coreml" }, default = "cpu" },
  anywhere = { type = "boolean", default = false },
  run_memory = units.bytes_rule,
  pool_of = { type = "any", internal = true }, -- a program of another package, whose threads are shared
  memory_of = { type = "table", check = package_fault, internal = true }, -- another package, whose run_memory is shared
}

--- Opens a package, or an asset. Its weights are mapped, not copied. All of its contents are checked. Of an asset, calls are
-- inlined and integers wider than a byte are int32; dump gives the asset's own program.
-- @param path of the folder
-- @param opts how its functions run: precision ("fp32", default; "fp16": results of that type are rounded to it after each
-- operation), threads (default: physical cores), isa, progress (function("load", done, total)); run_memory: maximum bytes (or "2G") of
-- the states and the values of runs together, without the weights; default: half of the memory that is free when a run first needs more
-- than 256 MiB. A run that needs more fails with the code memory; backend = "coreml": Core ML runs the functions, on macOS 15 (never run
-- on hardware, without this limit). Every convolution must then be on the Neural Engine, unless anywhere = true
-- @return package; or nil, message, code
function M.open(path, opts)
  schema.argument({ type = "path" }, path, "package: path", 2)
  opts = schema.check(OPTIONS, opts, "package", 2)
  local raw, message, code = core.package(path, opts.memory_of and opts.memory_of._raw or units.read_bytes(opts.run_memory))
  if not raw then return nil, message, code end
  return setmetatable({ _raw = raw, _path = path, _opts = opts, _programs = {} }, Package)
end

-- ---- Running ------------------------------------------------------------------------------------------------------------

--- The program of a function as the core runs it, made at its first use.
-- @param name of the function; nil: the default one
-- @return program with run(inputs, state), info(), dump(); or nil, message, code
function Package:program(name)
  local made = self._programs[name or ""]
  if made then return made end
  local opts = self._opts
  local level, message, code
  if opts.backend == "coreml" then
    made, message, code = core.coreml { path = self._path, ["function"] = name, anywhere = opts.anywhere }
    if not made then return nil, message, code end
    self._programs[name or ""] = made
    return made
  end
  level, message, code = isa.choose(opts.isa)
  if not level then return nil, message, code end
  local progress = opts.progress
  made, message, code = self._raw:program {
    ["function"] = name, precision = opts.precision, threads = opts.threads or core.cpu_cores(), isa = level,
    progress = progress and function(done, total) progress("load", done, total) end, pool_of = opts.pool_of,
  }
  if not made then return nil, message, code end
  self._programs[name or ""] = made
  return made
end

-- Appends the numbers of nested lists to `out`. `shape` gets their dimensions, or must have them.
local function flatten(name, v, depth, shape, out)
  if type(v) ~= "table" then
    if type(v) == "boolean" then v = v and 1 or 0 end
    if type(v) ~= "number" then
      error(("predict: input %s has %s, which is not a number"):format(name, v == core.null and "null" or list_of.kind(v)), 0)
    end
    if depth <= #shape then error(("predict: input %s: lists are nested to different depths"):format(name), 0) end
    out[#out + 1] = v
    return
  end
  if #out == 0 and not shape.known then shape[depth] = #v end
  if shape[depth] ~= #v then error(("predict: input %s: lists at depth %d differ in length"):format(name, depth), 0) end
  for i = 1, #v do flatten(name, v[i], depth + 1, shape, out) end
  if depth == 1 or #v > 0 then shape.known = true end
end

-- Numbers as bytes: all integers (of 64 bits, checked against the declared type by the core) or floats.
local function pack(values)
  local whole = true
  for _, v in ipairs(values) do whole = whole and math.type(v) == "integer" end
  local format, parts = whole and "<i8" or "<f", {}
  for i, v in ipairs(values) do parts[i] = string.pack(format, v) end
  return table.concat(parts), whole and "int64" or "fp32"
end

-- The number of elements of a shape.
local function count_of(name, shape)
  local count = type(shape) == "table" and 1
  if count and #shape > 10 then error(("predict: input %s: shape has %d dimensions, but must have at most 10"):format(name, #shape), 0) end
  for _, d in ipairs(count and shape or {}) do
    if math.type(d) ~= "integer" or d < 0 then count = nil break end
    if d > 0 and count > (1 << 48) // d then error(("predict: input %s: the shape has too many elements"):format(name), 0) end
    count = count * d
  end
  return count or error(("predict: input %s: shape must be a list of integers of 0 or more"):format(name), 0)
end

-- The least and the greatest number of types that the core computes in wider ones. From 65520 on, rounding to fp16 gives infinity.
local BOUNDS = { fp16 = { -65519, 65519 }, int8 = { -128, 127 }, uint8 = { 0, 255 }, int16 = { -32768, 32767 }, uint16 = { 0, 65535 } }

-- What is wrong with numbers given for an input of type `dtype`, or nil. Infinity is a number of fp16.
local function out_of_range(name, values, dtype)
  local bounds = BOUNDS[dtype]
  for i, v in ipairs(bounds and values or {}) do
    if (v < bounds[1] or v > bounds[2]) and (dtype ~= "fp16" or math.abs(v) ~= math.huge and math.abs(v) >= 65520) then
      return ("input %s: element %d is %.14g, no %s"):format(name, i - 1, v, dtype)
    end
  end
end

-- Converts one input of predict for the core: tensors unchanged; numbers, lists and {shape, data} packed. dtype: the declared type
-- Returns the value; or nil, message.
local function input(name, v, dtype)
  if type(v) == "userdata" then return v end
  local shape, values = {}, {}
  if type(v) == "table" and v.shape then
    shape, values = v.shape, v.data or v
    local count = count_of(name, shape)
    if type(values) == "string" then return v end
    if type(values) ~= "table" then error(("predict: input %s: data is not a list"):format(name), 0) end
    if #values ~= count then
      error(("predict: input %s: the shape needs %d numbers, but the list has %d"):format(name, count, #values), 0)
    end
    local list = {}
    flatten(name, values, 1, {}, list)
    values = list
  else
    flatten(name, v, 1, shape, values)
    shape.known = nil
  end
  local fault = out_of_range(name, values, dtype)
  if fault then return nil, fault end
  local data, packed = pack(values)
  return { dtype = packed, shape = shape, data = data }
end

local function names_of(inputs)
  local names = {}
  for i, feature in ipairs(inputs) do names[i] = feature.name end
  return table.concat(names, ", ")
end

local function function_info(self, name)
  self._info = self._info or self:info()
  for _, f in ipairs(self._info.functions) do
    if f.name == (name or self._info.default_function) then return f end
  end
end

-- The declared types of a function's inputs by name. An asset is run as a program whose integers may be wider than its own.
local function types_of(self, f)
  self._types = self._types or {}
  if self._types[f.name] then return self._types[f.name] end
  self._contents = self._contents or self._info.kind == "aimodel" and aimodel.contents(self._info.path) or { functions = {} }
  local types = {}
  for _, feature in ipairs(f.inputs) do types[feature.name] = feature.dtype end
  for _, own in ipairs(self._contents.functions) do
    for _, feature in ipairs(own.name == f.name and own.inputs or {}) do types[feature.name] = feature.dtype end
  end
  self._types[f.name] = types
  return types
end

local PREDICT = { ["function"] = { type = "string" } }

--- Runs a function on its inputs.
-- @param inputs table of names: an ane.tensor, a number, lists of numbers (in lists, as deep as the shape), or {shape, data}
-- with a flat list; missing ones have their declared default, where there is one
-- @param state of this package (see state), which the call changes; nil: all zeros, for this call only
-- @param opts function = name (default: the package's default function)
-- @return table of names: ane.tensors; of other types than floats {shape, dtype, numbers ...} as a list;
-- or nil, message, code: what does not fit in the inputs, or the operation that failed
function Package:predict(inputs, state, opts)
  if type(inputs) ~= "table" then error("predict: inputs must be a table of tensors by name, but is " .. list_of.kind(inputs), 2) end
  local name = schema.check(PREDICT, opts, "predict", 2)["function"]
  local f = function_info(self, name)
  if not f then return nil, ("there is no function %s"):format(schema.shown(name)), "notfound" end
  local types, packed = types_of(self, f), {}
  for key, v in pairs(inputs) do
    if not types[key] then
      local names = #f.inputs > 0 and "; its inputs are " .. names_of(f.inputs) or ": it has none"
      return nil, ("function %s has no input \"%s\"%s"):format(f.name, tostring(key), names), "notfound"
    end
    local ok, value, fault = pcall(input, key, v, types[key])
    if not ok then error(value, 2) end
    if not value then return nil, fault, "invalid" end
    packed[key] = value
  end
  local made, message, code = self:program(name)
  if not made then return nil, message, code end
  if not state and #f.states > 0 then
    local fresh <close>, failed, why = self:state(f.name)
    if not fresh then return nil, failed, why end
    return made:run(packed, fresh)
  end
  return made:run(packed, state)
end

--- A set of the package's states, all zeros. predict reads and changes it. Functions that name the same state share it.
-- @param name of a function: the set also serves the functions whose states have the same shapes (with backend "coreml", that
-- function only); nil: all functions, if their states agree (with backend "coreml", the default function)
-- @return state: names(), get(name) (an ane.tensor, a copy), set(name, tensor), reset(), copy(), close(); or nil, message, code
function Package:state(name)
  if name ~= nil then schema.argument({ type = "string" }, name, "state: name", 2) end
  if self._opts.backend ~= "coreml" then
    if name ~= nil and not function_info(self, name) then
      return nil, ("there is no function %s"):format(schema.shown(name)), "notfound"
    end
    return self._raw:state(name)
  end
  local made, message, code = self:program(name)
  if not made then return nil, message, code end
  return made:state()
end

--- The contents of the package.
-- @return a table: path; kind ("mlpackage", "aimodel"); version (of the specification); default_function; functions, a list of
-- {name, opset, inputs, outputs, states, ops (operation -> how often), n_ops}; weights {number, bytes, files} of those in use;
-- metadata {description, version,
-- author, license, user}. Inputs, outputs and states have name, dtype, shape (-1: not known before the run), optional,
-- default_value; those of flexible shape also default (a shape) and either range ({low, high} a dimension, high nil where
-- there is no bound) or enumerated (a list of shapes).
function Package:info()
  return self._raw:info()
end

--- The description and the program as text, an operation a line. Two packages that compute the same in the same way with the
-- same weights give the same text.
-- @return text; or nil, message, code
function Package:dump()
  return self._raw:dump()
end

--- The value of a constant.
-- @param output name of the constant's output; or of another operation's, with `parameter`
-- @param parameter name of an attribute, or of a parameter that the operation holds in place (those of constexpr operations);
-- default: "val", the constant itself
-- @param func name of the function; default: the default function
-- @return bytes (row-major, little-endian, types below a byte as a bit stream; for strings the text or a list of them), dtype,
-- shape; or nil, message, code
function Package:value(output, parameter, func)
  return self._raw:value(output, parameter, func)
end

--- Writes the package again, without unused contents.
-- @param path of a new folder, of an empty one or of a package, which is replaced in one step
-- @return true; or nil, message, code
function Package:rewrite(path)
  schema.argument({ type = "path" }, path, "rewrite: path", 2)
  return self._raw:rewrite(path)
end

--- Closes the files.
function Package:close()
  for key, made in pairs(self._programs) do
    made:close()
    self._programs[key] = nil
  end
  self._raw:close()
end

Package.__close = Package.close

-- ---- Text -----------------------------------------------------------------------------------------------------------------

-- "[1, 32, 1..4, 1]"
local function shape_text(feature)
  local parts = {}
  for i, dim in ipairs(feature.shape) do
    local range = feature.range and feature.range[i]
    if range and range[1] ~= range[2] then parts[i] = ("%d..%s"):format(range[1], range[2] or "")
    else parts[i] = dim < 0 and "?" or ("%d"):format(dim) end
  end
  return "[" .. table.concat(parts, ", ") .. "]"
end

local function feature_line(kind, feature)
  local shape = shape_text(feature)
  if feature.enumerated then
    local shapes = {}
    for i, dims in ipairs(feature.enumerated) do shapes[i] = shape_text { shape = dims } end
    shape = table.concat(shapes, " or ")
  end
  return ("  %-6s %s: %s%s%s"):format(kind, feature.name, feature.dtype, shape, feature.optional and ", optional" or "")
end

-- "const 25, mul 3, ...": the most frequent first.
local function ops_line(ops)
  local names, parts = {}, {}
  for name in pairs(ops) do names[#names + 1] = name end
  table.sort(names, function(a, b) return ops[a] ~= ops[b] and ops[a] > ops[b] or ops[a] == ops[b] and a < b end)
  for i, name in ipairs(names) do parts[i] = ("%s %d"):format(name, ops[name]) end
  return "  ops    " .. table.concat(parts, ", ")
end

--- Formats a table of Package:info as text of several lines.
function M.summary(info)
  local lines = { ("%s: ML Program, specification version %d, %d weights of %d bytes"):format(info.path, info.version,
    info.weights.number, info.weights.bytes) }
  for _, f in ipairs(info.functions) do
    lines[#lines + 1] = ("function %s: %s, %d operations"):format(f.name, f.opset, f.n_ops)
    for _, feature in ipairs(f.inputs) do lines[#lines + 1] = feature_line("input", feature) end
    for _, feature in ipairs(f.states) do lines[#lines + 1] = feature_line("state", feature) end
    for _, feature in ipairs(f.outputs) do lines[#lines + 1] = feature_line("output", feature) end
    lines[#lines + 1] = ops_line(f.ops)
  end
  return table.concat(lines, "\n")
end

function Package:__tostring()
  if tostring(self._raw):match "%(closed%)$" then return "package (closed)" end
  local info = self:info()
  local contents = info.kind == "aimodel" and aimodel.contents(info.path)
  return contents and aimodel.summary(contents) or M.summary(info)
end

methods.guard(Package, Package, "package")

return M
