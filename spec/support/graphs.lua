--- Graphs from their own text form, so that a spec of a pass is two short texts.
--
--   local g, source = graphs.parse [[
--     input ids: int32[1, T]
--     const w: fp32[8, 4]
--     y = conv1x1(x, w) {...}
--     give y
--   ]]
--   graphs.nodes(g)   -- the lines of its nodes and results, without their types
--
-- Constants are random float32 tensors (or given: graphs.parse(text, {w = {...}})) of a temporary GGUF file.

local core = require "ane.core"
local floats = require "support.floats"
local gguf = require "support.gguf_writer"

local M = {}

local function dims(text)
  local out = {}
  for d in text:gmatch "[%w]+" do out[#out + 1] = tonumber(d) or d end
  return out
end

local function count(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end

--- A source that holds the constants of the text.
function M.source(text, given)
  local tensors = {}
  for name, shape in text:gmatch "const ([%w_.]+): fp32%[(.-)%]" do
    shape = dims(shape)
    local data = given and given[name] and floats.pack(given[name]) or floats.uniform(count(shape), #tensors + 1, 0.7)
    tensors[#tensors + 1] = { name = name, dtype = "fp32", shape = shape, data = data }
  end
  local path = gguf.write(gguf.temp(), { values = { { "general.architecture", "string", "none" } }, tensors = tensors })
  local source = assert(core.open(path))
  os.remove(path)
  return source
end

local function attribute(text)
  if text:sub(1, 1) == "[" then
    local list = {}
    for n in text:gmatch "[^%s%[%]]+" do list[#list + 1] = tonumber(n) end
    return list
  end
  return tonumber(text) or text
end

local function node(g, values, line)
  local name, op, inputs, rest = line:match "^([%w_.]+) = ([%w_]+)%((.-)%)(.*)$"
  assert(name, "no node: " .. line)
  local list, attrs = {}, {}
  for v in inputs:gmatch "[^%s,]+" do list[#list + 1] = v ~= "-" and assert(values[v], v) end
  for key, value in (rest:match "{(.*)}" or ""):gmatch "([%w_]+)=(%b[])" do attrs[key] = attribute(value) end
  for key, value in (rest:match "{(.*)}" or ""):gsub("[%w_]+=%b[]", ""):gmatch "([%w_]+)=(%S+)" do attrs[key] = attribute(value) end
  local outputs = { g:add(op, name, list, attrs) }
  for i, v in ipairs(outputs) do values[i == 1 and name or name .. "." .. i - 1] = v end
end

--- The graph of a text. Also gives its values by name, and the source of its constants.
function M.parse(text, given)
  local g, source, values = assert(core.graph "g"), M.source(text, given), {}
  for line in text:gmatch "[^\n]+" do
    line = line:match "^%s*(.-)%s*$"
    local kind, name, dtype, shape = line:match "^(%l+) ([%w_.]+): ([%w_]+)%[(.*)%]$"
    if kind == "input" then values[name] = g:input(name, dtype, dims(shape))
    elseif kind == "state" then values[name] = g:state(name, dims(shape))
    elseif kind == "const" then values[name] = g:const(name, source, name)
    elseif line:find "^give" then
      local list = {}
      for v in line:sub(5):gmatch "%S+" do list[#list + 1] = assert(values[v], v) end
      g:results(table.unpack(list))
    elseif line ~= "" and not line:find "^graph " then node(g, values, line) end
  end
  return g, values, source
end

--- The nodes and results of a graph, one a line, without types.
function M.nodes(g)
  local out = {}
  for line in g:dump():gmatch "[^\n]+" do
    if line:find " = " then out[#out + 1] = (line:gsub(" : .*$", ""))
    elseif line:find "^give" then out[#out + 1] = line end
  end
  return table.concat(out, "\n")
end

--- A text without indentation, for comparing.
function M.trim(text)
  local out = {}
  for line in text:gmatch "[^\n]+" do
    line = line:match "^%s*(.-)%s*$"
    if line ~= "" then out[#out + 1] = line end
  end
  return table.concat(out, "\n")
end

return M
