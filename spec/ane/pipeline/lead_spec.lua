-- What rank 0 says where it cannot describe a model to the others, or read what they answer.
local lead = require "ane.pipeline.lead"
local orders = require "ane.pipeline.orders"

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
end)
