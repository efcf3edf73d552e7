-- Language models from graphs: names that a configuration gives to inputs and outputs, and what a session does with them.
local core = require "ane.core"
local onnx = require "support.onnx_writer"

-- A graph with two caches of rows of a head, to which each token adds its id.
local function two_caches()
  local past = { 1, 2, "p", 4 }
  return onnx.open { inputs = { { "ids", "int64", { 1, "n" } }, { "past_a", "float", past }, { "past_b", "float", past } },
    outputs = { { "a", "float", { 1, 2, "t", 4 } }, { "b", "float", { 1, 2, "t", 4 } }, { "logits", "float", { 1, 2, "n", 4 } } },
    constants = { { "axes", onnx.ints({ 2 }, { 1, 3 }) }, { "shape", onnx.ints({ 4 }, { 1, 2, 1, 4 }) } },
    nodes = { { "Cast", { "ids" }, { "f" }, attrs = { to = 1 } }, { "Unsqueeze", { "f", "axes" }, { "u" } },
      { "Expand", { "u", "shape" }, { "e" } }, { "Concat", { "past_a", "e" }, { "a" }, attrs = { axis = 2 } },
      { "Concat", { "past_b", "e" }, { "b" }, attrs = { axis = 2 } }, { "Add", { "e", "e" }, { "logits" } } } }
end

-- A program with other names than ids, logits and the two caches.
local function program(names)
  local source, file <close> = assert(two_caches())
  assert(file)
  local states = { { past = "past_a", present = "a" }, { past = names.past or "past_b", present = names.b or "b" } }
  return core.graph_program(source, { ids = names.ids or "ids", mask = names.mask, logits = names.logits or "logits", states = states,
    context = 8, chunk = 8, threads = 1 })
end

local function refused(names)
  local made, message, code = program(names)
  assert.is_nil(made)
  return { message:match ": (.*)", code }
end

it("a graph runs with its caches", function()
  local session <close> = assert(assert(program {}):session())
  assert(session:feed({ 1, 2 }, "all"))
  assert(session:feed({ 3 }, "all"))
  assert.same({ 6, 6, 6, 6 }, session:logits(1):totable())
  assert.same({ 24, 24 }, { #session:get(1), #session:get(2) })
end)

it("names last until the graph is read, whatever happens to the options", function()
  local long = ("x"):rep(60)
  local function drop()
    collectgarbage()
    collectgarbage()
    local others = {}
    for i = 1, 200 do others[i] = ("y"):rep(55) .. i end
    return #others
  end
  local source, file <close> = assert(onnx.open {
    inputs = { { "ids" .. long, "int64", { 1, "n" } } }, outputs = { { "logits" .. long, "float", { 1, "n", 4 } } },
    constants = { { "w", onnx.floats({ 1, 4 }, { 1, 1, 1, 1 }) }, { "axes", onnx.ints({ 1 }, { 2 }) } },
    nodes = { { "Cast", { "ids" .. long }, { "f" }, attrs = { to = 1 } }, { "Unsqueeze", { "f", "axes" }, { "u" } },
      { "MatMul", { "u", "w" }, { "logits" .. long } } },
  })
  assert(file)
  local options = { states = {}, context = 8, chunk = 8, threads = 1 }
  options.ids, options.logits = table.concat { "ids", long }, table.concat { "logits", long }
  local called = 0
  options.progress = function()
    called = called + 1
    options.ids, options.logits = nil, nil
    drop()
  end
  local p <close> = assert(core.graph_program(source, options))
  assert(p)
  assert.is_true(called > 0)
end)

it("an input or output with two meanings is refused", function()
  assert.same({ "output a must have one meaning, but is named for two", "invalid" }, refused { b = "a" })
  assert.same({ "output b must have one meaning, but is named for two", "invalid" }, refused { logits = "b" })
  assert.same({ "input past_a must have one meaning, but is named for two", "invalid" }, refused { past = "past_a" })
  assert.same({ "input ids must have one meaning, but is named for two", "invalid" }, refused { mask = "ids" })
  assert.same({ "input past_b must have one meaning, but is named for two", "invalid" }, refused { ids = "past_b" })
end)
