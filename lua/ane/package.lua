--- Core ML packages (.mlpackage) as they lie on disk: what they hold, their programs as text, their constants.
-- Needs ane.core.
-- Usage: `local pkg = assert(require("ane.package").open("Some.mlpackage")); print(pkg); print(pkg:dump())`

local core = require "ane.core"

local M = {}

local Package = {}
Package.__index = Package
Package.__name = "ane.package"

--- Opens a package. Its weights are mapped, not copied; all that it says is checked.
-- @param path of the folder
-- @return package; or nil, message, code
function M.open(path)
  local raw, message, code = core.package(path)
  if not raw then return nil, message, code end
  return setmetatable({ _raw = raw }, Package)
end

--- What the package holds.
-- @return a table: path; version (of the specification); default_function; functions, a list of {name, opset, inputs, outputs,
-- states, ops (operation -> how often), n_ops}; weights {number, bytes, files} of those in use; metadata {description, version,
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

--- What a constant holds.
-- @param output name of the constant's output; or of another operation's, with `parameter`
-- @param parameter name of an attribute, or of a parameter that the operation holds in place (those of constexpr operations);
-- default: "val", the constant itself
-- @param func name of the function; default: the default function
-- @return bytes (row-major, little-endian, types below a byte as a bit stream; for strings the text or a list of them), dtype,
-- shape; or nil, message, code
function Package:value(output, parameter, func)
  return self._raw:value(output, parameter, func)
end

--- Writes the package once more, with nothing in it that is not used.
-- @param path of a new folder, of an empty one or of a package, which is replaced in one step
-- @return true; or nil, message, code
function Package:rewrite(path)
  return self._raw:rewrite(path)
end

--- Lets the files go.
function Package:close() self._raw:close() end

Package.__close = Package.close

-- ---- As text ------------------------------------------------------------------------------------------------------------

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

--- A table of Package:info as text of several lines.
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
  return M.summary(self:info())
end

return M
