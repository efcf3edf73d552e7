--- The builtin tests of jinja2: the names after `is`.
-- Needs ane.jinja.call, limits, operators, text and value; ane.jinja.filters for the test `filter`.
-- Usage: `tests.find("odd")` returns a signature of ane.jinja.call

local call = require "ane.jinja.call"
local limits = require "ane.jinja.limits"
local operators = require "ane.jinja.operators"
local text = require "ane.jinja.text"
local value = require "ane.jinja.value"

local kind = value.kind

local M = {}

local TESTS = {}

local function def(names, parameters, min, fn)
  for name in names:gmatch("%S+") do TESTS[name] = call.signature(name, parameters, min, fn) end
end

local function is_kind(...)
  local kinds = {}
  for _, k in ipairs { ... } do kinds[k] = true end
  return function(_, v) return kinds[kind(v)] == true end
end

def("defined", "", 0, function(_, v) return kind(v) ~= "undefined" end)
def("undefined", "", 0, is_kind "undefined")
def("none", "", 0, is_kind "none")
def("boolean", "", 0, is_kind "bool")
def("true", "", 0, function(_, v) return v == true end)
def("false", "", 0, function(_, v) return v == false end)
def("integer", "", 0, is_kind("int", "bigint"))
def("float", "", 0, is_kind "float")
def("number", "", 0, is_kind("int", "float", "bool", "bigint"))
def("string", "", 0, is_kind("str", "markup"))
def("mapping", "", 0, is_kind "dict")
def("escaped", "", 0, is_kind "markup")
def("sequence", "", 0, is_kind("str", "markup", "list", "tuple", "dict", "range", "undefined"))
def("iterable", "", 0, is_kind("str", "markup", "list", "tuple", "dict", "range", "undefined", "iter", "view", "loop"))
-- Undefined of jinja2 has a __call__, which raises.
def("callable", "", 0, is_kind("func", "macro", "loop", "joiner", "dicttype", "undefined"))

local function modulo(rt, v, n)
  return operators.binary["%"](rt, v, n)
end

def("odd", "", 0, function(rt, v) return value.eq(rt, modulo(rt, v, 2), 1) end)
def("even", "", 0, function(rt, v) return value.eq(rt, modulo(rt, v, 2), 0) end)
def("divisibleby", "num", 1, function(rt, v, n) return value.eq(rt, modulo(rt, v, n), 0) end)

for name, test in pairs { lower = text.is_lower, upper = text.is_upper } do
  def(name, "", 0, function(rt, v)
    local s = value.str(rt, v)
    limits.walk(rt, #s)
    return test(s)
  end)
end

def("sameas", "other", 1, function(rt, v, other)
  if type(v) == "string" then limits.scan(rt, #v) end
  return rawequal(v, other) and math.type(v) == math.type(other) -- rawequal(1, 1.0) is true
end)

def("in", "seq", 1, function(rt, v, seq) return value.contains(rt, seq, v) end)

for op, names in pairs {
  ["=="] = "== eq equalto", ["!="] = "!= ne", [">"] = "> gt greaterthan", [">="] = ">= ge", ["<"] = "< lt lessthan", ["<="] = "<= le",
} do
  def(names, "other", 1, operators.compare[op])
end

def("test", "", 0, function(_, v) return TESTS[value.as_string(v) or false] ~= nil end)

def("filter", "", 0, function(_, v)
  local filters = require "ane.jinja.filters" -- lazily: the filters require the tests, for select and its like
  return filters.find(value.as_string(v) or false) ~= nil
end)

--- The names of all tests, sorted.
function M.names()
  local out = {}
  for name in pairs(TESTS) do out[#out + 1] = name end
  table.sort(out)
  return out
end

--- The signature of a test, or nil.
function M.find(name)
  return TESTS[name]
end

return M
