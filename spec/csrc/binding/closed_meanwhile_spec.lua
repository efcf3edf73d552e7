-- Objects that a callback or a metamethod closes while a function uses them: an error, never memory that is gone.
local core = require "ane.core"
local floats = require "support.floats"
local gguf = require "support.gguf_writer"
local ops = require "support.ops"

local PATHS = {}

local function fresh()
  local path = os.tmpname()
  os.remove(path)
  PATHS[#PATHS + 1] = path
  return path
end

teardown(function()
  for _, path in ipairs(PATHS) do os.execute(("rm -rf '%s' '%s'.*"):format(path, path)) end
end)

local function graph()
  return ops.graph(ops.new {
    channels = 32, out = 64, consts = { v = { 64, 32 }, w = { 64, 64 } }, text = "a = conv1x1(x, v)\ny = conv1x1(a, w)",
  })
end

local OPTIONS = { context = 16, whole = true, weights = "int8", embed = true, threads = 1 }

describe("an exporter", function()
  -- Exports a shard; `act` is called after each matrix.
  local function fails(why, act)
    local g <close> = graph()
    local e <close> = assert(core.mil_exporter(g, OPTIONS))
    local ok, message = pcall(e.write, e, 1, fresh(), function() act(e, g) end)
    assert.is_false(ok)
    assert.matches(why, message)
    assert(e:write(1, fresh())) -- both are still open
  end

  it("cannot be closed or used while it writes", function()
    fails("exporter is busy", function(e) e:close() end)
    fails("exporter is busy", function(e) e:write(1, fresh()) end)
    fails("exporter is busy", function(e) e:tables() end)
  end)

  it("has a graph that cannot be closed while it writes", function()
    fails("graph is in use", function(_, g) g:close() end)
  end)

  it("may ask for its numbers meanwhile", function()
    local g <close> = graph()
    local e <close> = assert(core.mil_exporter(g, OPTIONS))
    local count, kept
    assert(e:write(1, fresh(), function() count, kept = e:count(), e:kept() end))
    assert.same({ 1, 0 }, { count, kept })
  end)

  it("keeps the importance of its matrices, whatever becomes of the table", function()
    local g <close> = graph()
    local function write(change)
      local columns = {}
      for i = 1, 64 do columns[i] = i <= 8 and 1000.0 or 0.001 end
      local o = { importance = { w = core.tensor({ 64 }, columns) } }
      for key, value in pairs(OPTIONS) do o[key] = value end
      o.weights = "lut4"
      local e <close> = assert(core.mil_exporter(g, o))
      local path, others = fresh(), nil
      if change then
        o.importance.w = nil
        collectgarbage()
        for i = 1, 64 do columns[i] = i > 8 and 1000.0 or 0.001 end
        others = {}
        for i = 1, 200 do others[i] = core.tensor({ 64 }, columns) end
      end
      assert(e:write(1, path))
      assert.equal(change and 200 or nil, others and #others)
      return assert(core.read_file(path .. "/Data/com.apple.CoreML/weights/weight.bin"))
    end
    assert.is_true(write(false) == write(true))
  end)

  it("keeps the numbers of dense layers while it writes", function()
    local function write(change)
      local o = ops.new { channels = 64, out = 64, consts = { w = { 64, 64 } }, text = "y = conv1x1(x, w)" }
      local g <close> = ops.graph(o)
      local e <close> = assert(core.mil_exporter(g, { weights = "int8", threads = 1, stateless = true, hidden = true }))
      local dense = { rows = 64, columns = 64, weight = floats.uniform(4096, 1, 1) }
      local others, path = {}, fresh()
      local wrote = change and function()
        dense.weight = nil
        collectgarbage()
        for i = 1, 100 do others[i] = floats.uniform(4096, i + 1, 1) end
      end
      assert(e:coreai(path, { 8 }, { 8 }, wrote, nil, { poolings = { "mean" }, dense = { dense } }))
      return assert(core.read_file(path .. "/main.mlirb")), #others
    end
    assert.is_true(write(false) == write(true))
  end)
end)

describe("a writer of GGUF files", function()
  local source, path

  before_each(function()
    path = gguf.write(gguf.temp(), {
      values = { { "general.architecture", "string", "tiny" } },
      tensors = { { name = "a", dtype = "fp32", shape = { 4, 32 }, data = floats.uniform(128, 1, 1) } },
    })
    source = assert(core.open(path))
  end)
  after_each(function()
    source:close()
    os.remove(path)
  end)

  -- Options whose field `name` calls act before it is given.
  local function acting(name, act, value)
    return setmetatable({}, { __index = function(_, key)
      if key ~= name then return nil end
      act()
      return value
    end })
  end

  local function writer()
    local w = assert(core.gguf_writer(fresh(), 1))
    assert(w:add("a", "q8_0", { 4, 32 }))
    assert(w:begin())
    return w
  end

  it("reads its options without metamethods, which could close it or the source", function()
    for _, name in ipairs { "first", "add", "importance", "factor", "keep", "progress", "scheme" } do
      local w <close> = writer()
      local other <close> = assert(core.open(path))
      assert(w:send(other, "a", acting(name, function() w:close() end)))
      local v <close> = writer()
      assert(v:send(other, "a", acting(name, function() other:close() end)))
      local ok, message = pcall(core.rounded, other, "a", acting(name, function() other:close() end, "int8"), 1)
      assert.is_false(ok)
      assert.matches("no scheme", message)
      assert.equal(1, other:n_tensors())
    end
  end)

  it("rounds all rows of a tensor, whichever rows the options name", function()
    local all = assert(core.rounded(source, "a", { scheme = "int8" }, 1))
    assert.equal(512, #all)
    assert.is_true(all == core.rounded(source, "a", { scheme = "int8", first = 3, last = 4 }, 1))
  end)
end)

describe("a factor", function()
  it("that its progress function closes ends the work", function()
    local rows, cols = 4096, 512
    local path = gguf.write(gguf.temp(), {
      values = { { "general.architecture", "string", "tiny" } },
      tensors = { { name = "a", dtype = "fp32", shape = { rows, cols }, data = floats.uniform(rows * cols, 1, 1) } },
    })
    local source <close> = assert(core.open(path))
    os.remove(path)
    local moments <close> = assert(core.moments(1))
    assert(moments:add("x", core.tensor({ 2 * cols, cols }, ops.random(2 * cols * cols, 3))))
    local factor = assert(moments:factor("x", 32, 32, 0.1))
    local w <close> = assert(core.gguf_writer(fresh(), 1))
    assert(w:add("a", "q8_0", { rows, cols }))
    assert(w:begin())
    local result, message = w:send(source, "a", { factor = factor, progress = function() factor:close() end })
    assert.is_nil(result)
    assert.matches("tensor a: the factor was closed", message)
  end)
end)

describe("a matcher", function()
  it("needs the file beside which an embedding lies", function()
    local g <close> = graph()
    local e <close> = assert(core.mil_exporter(g, OPTIONS))
    local path = fresh()
    assert(e:write(1, path))
    local m <close> = assert(core.mil_matcher(g, OPTIONS))
    assert(m:match(1, path))
    local ok, message = pcall(m.weights, m, path, nil, "embed.bin", 32)
    assert.is_false(ok)
    assert.matches("bad argument #3", message)
  end)
end)

describe("options", function()
  -- A table without entries that calls act for each field.
  local function acting(act) return setmetatable({}, { __index = act }) end

  it("are read without metamethods, which could close what the call uses", function()
    local source <close> = assert(core.open "spec/fixtures/onnx/extra/model.onnx")
    assert(core.interp(source, acting(function() source:close() end))):close()
    assert.is_true(source:n_tensors() > 0)
    local g <close> = graph()
    local e <close> = assert(core.mil_exporter(g, OPTIONS))
    local path = fresh()
    assert(e:write(1, path))
    local p = assert(core.package(path))
    assert(p:program(acting(function() p:close() end))):close()
    assert.equal("mlpackage", p:info().kind)
    p:close()
    assert(g:passes "cpu")
    local o = setmetatable({ threads = 1, context = 16, chunk = 4, int8 = false }, { __index = function() g:close() end })
    local program <close> = assert(core.program(g, o))
    assert.matches("nodes", tostring(g))
    assert.is_truthy(program)
  end)
end)
