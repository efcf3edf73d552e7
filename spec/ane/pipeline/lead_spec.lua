-- What rank 0 says where it cannot describe a model to the others, or read what they answer.
local core = require "ane.core"
local lead = require "ane.pipeline.lead"
local loader = require "ane.model.loader"
local orders = require "ane.pipeline.orders"
local recipe = require "ane.recipe"

-- A team of two whose other rank gives these answers. Its list `told` gets what is told to all ranks.
local function team_of(answers)
  local team = { rank = 0, size = 2, near = 2, host = "here", others = { { host = "here" } }, told = {} }
  function team:tell(_, text) table.insert(self.told, text) return true end
  function team.name(_, rank) return ("rank %d (here)"):format(rank) end
  function team.take() return table.remove(answers, 1) end
  return team
end

local function graph_of(identity)
  return { costs = function() return { 1, 1, 1 } end, identity = function() return table.unpack(identity, 1, 3) end }
end

local OPTIONS, JOB = { chunk = 16, threads = 1 }, { path = "a model" }

describe("rank 0", function()
  it("gives the reason where the model cannot be identified", function()
    local team = team_of {}
    local graph = graph_of { nil, "no memory for names", "memory" }
    local program, message, code = lead.program(team, graph, OPTIONS, JOB, { parallel = "tensor" })
    assert.is_nil(program)
    assert.same({ "no memory for names", "memory" }, { message, code })
    assert.same({}, team.told) -- the others are not told of a model that they cannot have
  end)

  it("gives the reason where an answer cannot be read", function()
    local team = team_of { "+{" } -- as where the memory ends while it is decoded
    local program, message, code = lead.program(team, graph_of { 1 }, OPTIONS, JOB, { parallel = "pipeline" })
    assert.is_nil(program)
    assert.is_string(message)
    assert.equal("format", code)
    assert.equal("I", orders.unpack(team.told[1]))
  end)

  it("takes memory that is not known for enough", function()
    local step = { name = "layers.0.a", weights = 1e9, read = 1e9, values = 1, table = 0, kv = 0, crossing = 1 }
    local function reached() return nil, "reached" end
    local graph = { costs = function() return { step, step, step } end, head = function() end, identity = reached }
    local free <close> = setmetatable({ core.memory }, { __close = function(t) core.memory = t[1] end })
    function core.memory() return { available = 0, resident = 0 } end
    local team = team_of { '+{"free": 0, "threads": 1, "speed": 1}' }
    local _, message = lead.program(team, graph, OPTIONS, JOB, { parallel = "pipeline" })
    assert.equal("reached", message)
    assert.is_function(free[1])
  end)

  it("takes the answers of the others, and has them close the model, where its own part raises", function()
    local answers = { "+{}" }
    local team = team_of(answers)
    assert.has_error(function() lead.program(team, graph_of { 1 }, OPTIONS, JOB, { parallel = "tensor" }) end) -- the graph is none
    assert.same({}, answers)
    assert.equal("Q", team.told[#team.told])
    assert.is_nil(team.busy)
  end)

  it("refuses a session's file whose note holds no rows", function()
    local path = "spec/fixtures/gguf/llama-mixed.gguf"
    local source <close> = assert(core.open(path))
    local r, cfg = assert(loader.identify(source, path, {}))
    local graph <close> = assert(recipe.build(r, cfg, source))
    assert(graph:passes "cpu")
    local team = team_of {}
    team.size, team.near, team.others = 1, 1, {}
    local program <close> = setmetatable({ assert(lead.program(team, graph,
      { chunk = 16, threads = 1, context = 64 }, { path = path }, { parallel = "pipeline" })) }, { __close = function(t) t[1]:close() end })
    local session = assert(program[1]:session { context = 64, kv = "fp16" })
    assert(session:feed({ 1, 2, 3 }, "none"))
    local file <close> = setmetatable({ path = os.tmpname() }, { __close = function(f) os.remove(f.path) end })
    assert(session:save(file.path, "mine"))
    assert.same({ true, "mine" }, { session:restore(file.path) })
    local row = orders.rows { { id = 1, value = 1, logits = "four" } }
    for _, rows in ipairs { "no rows", row } do
      assert(session.own:save(file.path, ("<Bs4s4"):pack(0, "", rows)))
      local done, message, code = session:restore(file.path)
      assert.is_nil(done)
      assert.matches("is damaged: it has no note of a model on several ranks", message, 1, true)
      assert.equal("format", code)
      assert.equal(3, session:length())
    end
  end)
end)
