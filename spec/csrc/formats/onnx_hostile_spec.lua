-- ONNX files whose local functions and subgraphs grow without end when they are read: an error, after little time and memory.
local core = require "ane.core"
local onnx = require "support.onnx_writer"
local varint = require "support.varint"

-- A graph from x to y. Opens it; returns what the error says after the file's name, and its code.
local function refused(m)
  m.inputs, m.outputs = m.inputs or { { "x", "float", { 1 } }, { "c", "bool", {} } }, m.outputs or { { "y", "float" } }
  local started = os.clock()
  local source, file, code = onnx.open(m)
  if source then return assert(source:close()) end
  assert.is_true(os.clock() - started < 10)
  return { file:match ": (.*)", code }
end

local function output(name) return { { name, "float" } } end
local ONE = { nodes = { { "Constant", {}, { "one" }, attrs = { value_float = 1.0 } } }, outputs = output "one" }

-- The same in a program of its own: its end would be that of the specs.
local function answers(m)
  local path, script = os.tmpname(), os.tmpname()
  assert(core.write_file(path, onnx.model(m)))
  assert(core.write_file(script, ("print((select(2, require('ane.core').open %q)))"):format(path)))
  local pipe = assert(io.popen(("LUA_PATH='%s' LUA_CPATH='%s' lua5.4 %s 2>&1; echo $?"):format(package.path, package.cpath, script)))
  local text = pipe:read "a"
  pipe:close()
  os.remove(path)
  os.remove(script)
  return text:match ": (.*)\n0\n$" or text
end

describe("a file is refused", function()
  it("whose function calls itself in the default of an attribute", function()
    local body = { nodes = { { "F", { "one" }, { "z" }, domain = "local", name = "call" } }, outputs = output "z",
      constants = { { "one", onnx.floats({ 1 }, { 1 }) } } }
    local f = { name = "F", inputs = { "a" }, outputs = { "b" }, nodes = { { "Identity", { "a" }, { "b" } } }, defaults = { body = body } }
    assert.equal("local function F is recursive", answers { inputs = { { "x", "float", { 1 } } }, outputs = output "y", functions = { f },
      nodes = { { "F", { "x" }, { "y" }, domain = "local" } } })
  end)

  it("whose functions call each other in subgraphs, thousands deep", function()
    local functions, nodes, n = {}, {}, 4000
    for i = 1, n do
      local call = i < n and { "f" .. i + 1, { "a" }, { "s" }, domain = "local" } or { "Identity", { "a" }, { "s" } }
      functions[i] = { name = "f" .. i, inputs = { "a" }, outputs = { "b" }, nodes = {
        { "If", { "a" }, { "b" }, attrs = { then_branch = { nodes = { call }, outputs = output "s" }, else_branch = ONE } } } }
    end
    for i = n - 80, 1, -80 do nodes[#nodes + 1] = { "f" .. i, { "x" }, { "y" .. i }, domain = "local" } end
    assert.matches("^node .*: calls and subgraphs are nested deeper than 100$", answers { inputs = { { "x", "float", { 1 } } },
      outputs = output "y80", functions = functions, nodes = nodes })
  end)

  it("whose subgraphs are used twice at each of many levels", function()
    local twice = { name = "g", inputs = { "c" }, outputs = { "o" }, attrs = { "body" }, nodes = {
      { "If", { "c" }, { "o" }, attrs = { then_branch = { ref = "body" }, else_branch = { ref = "body" } } } } }
    local body = ONE
    for i = 1, 24 do
      body = { nodes = { { "g", { "c" }, { "z" .. i }, domain = "local", attrs = { body = body } } }, outputs = output("z" .. i) }
    end
    assert.same({ "node z20/o: more than 1000000 nodes in subgraphs, or these are nested deeper than 100", "format" },
      refused { functions = { twice }, nodes = { { "g", { "c" }, { "y" }, domain = "local", attrs = { body = body } } } })
  end)

  -- Functions f1 .. f6, each of which calls the next one ten times.
  local function million(last, name)
    local functions = { last }
    for i = 1, 5 do
      local nodes = {}
      for k = 1, 10 do nodes[k] = { name or "f" .. i, { k == 1 and "a" or "t" .. k - 1 }, { "t" .. k }, domain = "local" } end
      functions[i + 1], name = { name = "f" .. i + 1, inputs = { "a" }, outputs = { "t10" }, nodes = nodes }, nil
    end
    return { functions = functions, nodes = { { "f6", { "x" }, { "y" }, domain = "local" } } }
  end

  it("that copies long texts and constants for each call", function()
    local found = refused(million { name = "f1", inputs = { "a" }, outputs = { "b" }, nodes = {
        { "Identity", { "a" }, { "b" } }, { "Elu", { "a" }, { "c" }, attrs = { text = ("x"):rep(1 << 20) } } } })
    assert.matches("^node y/t1/.*: local functions take more than 1024 MB when they are inlined$", found[1])
    assert.equal("format", found[2])
  end)

  it("whose functions have thousands of inputs that no call gives", function()
    local inputs = { "a" }
    for i = 2, 20000 do inputs[i] = "i" .. i end
    assert.same({ "more than 1000000 nodes when local functions are inlined", "format" },
      refused(million { name = "f1", inputs = inputs, outputs = { "b" }, nodes = { { "Identity", { "a" }, { "b" } } } }))
  end)

  it("whose nodes have thousands of attributes", function()
    local attrs = {}
    for i = 1, 1025 do attrs["a" .. i] = i end
    assert.same({ "node y (Elu): more than 65535 inputs or outputs, or 1024 attributes", "format" },
      refused { nodes = { { "Elu", { "x" }, { "y" }, attrs = attrs } } })
    assert.same({ "local function 1 has defaults of 1025 attributes, at most 1024 are supported", "format" },
      refused { nodes = { { "Elu", { "x" }, { "y" } } }, functions = {
        { name = "F", inputs = { "a" }, outputs = { "b" }, nodes = {}, defaults = attrs } } })
  end)
end)

it("a function may call others in the default of an attribute", function()
  local half = { nodes = { { "G", { "two" }, { "z" }, domain = "local" } }, outputs = output "z",
    constants = { { "two", onnx.floats({ 1 }, { 2 }) } } }
  local m = { inputs = { { "x", "float", { 1 } }, { "c", "bool", {} } }, outputs = output "y", functions = {
    { name = "F", inputs = { "c" }, outputs = { "b" }, attrs = { "body" }, defaults = { body = half }, nodes = {
      { "If", { "c" }, { "b" }, attrs = { then_branch = { ref = "body" }, else_branch = { ref = "body" } } } } },
    { name = "G", inputs = { "a" }, outputs = { "b" }, nodes = { { "Neg", { "a" }, { "b" } } } },
  }, nodes = { { "F", { "c" }, { "y" }, domain = "local" } } }
  local source, file <close> = assert(onnx.open(m))
  assert(file)
  local graph <close> = assert(core.interp(source, { threads = 1 }))
  for on = 0, 1 do
    local out = assert(graph:run { x = onnx.floats({ 1 }, { 1 }), c = onnx.bools({}, { on }) })
    assert.equal(string.pack("<f", -2), out.y.data)
  end
end)

it("a file of empty messages, each of which takes a hundred bytes of memory, is refused", function()
  local path, nodes = os.tmpname(), ("\10\0"):rep(8000000)
  assert(core.write_file(path, "\8\10\58" .. varint(#nodes) .. nodes)) -- fields ir_version, graph
  local source, message, code = core.open(path)
  os.remove(path)
  assert.is_nil(source)
  assert.matches("at byte %d+: its messages take much more memory than the file$", message)
  assert.equal("format", code)
end)
