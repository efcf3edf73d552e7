-- Messages between ranks: order, waits that end, and ranks that are lost. The module ane.mpi is one that the spec writes.
local core = require "ane.core"
local fake_mpi = require "support.fake_mpi"
local team = require "ane.pipeline.team"

local HELLO = "<s4i8s4B"

-- Rank `rank` of `size`; hello: texts that others send at the begin, by rank.
local function fake(rank, size, hello)
  local mpi = fake_mpi()
  mpi.under_way = 0
  function mpi.init() return rank, size, size, "here" end
  function mpi.pending() return mpi.under_way end
  for other = 0, size - 1 do
    local version = hello and hello[other] or "v"
    if other ~= rank then table.insert(mpi.inbox, { other, "H" .. HELLO:pack("here", 100 + other, version, 0) }) end
  end
  return mpi
end

local function open(rank, size, timeout)
  local mpi = fake(rank, size)
  return assert(team.new(mpi, { version = "v", timeout = timeout })), mpi
end

describe("a team of ranks", function()
  it("gives messages in order, by sender and kind", function()
    local ranks, mpi = open(0, 3)
    for _, one in ipairs { { 1, "A1" }, { 2, "V5" }, { 1, "A2" }, { 2, "A3" }, { 1, "V4" } } do table.insert(mpi.inbox, one) end
    assert.equal("3", ranks:take(2, "A"))
    assert.equal("1", ranks:take(1, "A"))
    assert.equal("4", ranks:take(1, "V"))
    assert.equal("2", ranks:take(1, "A"))
    assert.equal("5", ranks:take(2, "V"))
  end)

  it("refuses ranks of another version, by name", function()
    local mpi = fake(0, 3, { [2] = "other" })
    local ranks, message, code = team.new(mpi, { version = "v" })
    assert.is_nil(ranks)
    assert.equal("invalid", code)
    assert.matches("rank 2 %(here%)", message)
  end)

  it("waits no longer than the timeout, and names who was silent", function()
    local ranks = open(0, 2, 0.01)
    local text, message, code = ranks:take(1, "V")
    assert.is_nil(text)
    assert.equal("io", code)
    assert.matches("rank 1 %(here%) has not sent a message", message)
  end)

  it("ends waits for memory that a rank shares", function()
    local ranks, mpi = open(0, 2, 0.01)
    assert.is_true(ranks:look(1, 0.005))
    local ok, message, code = ranks:look(1, 0.02)
    assert.is_nil(ok)
    assert.equal("io", code)
    assert.matches("rank 1 %(here%) has not sent a message", message)
    table.insert(mpi.inbox, { 1, "Edisk full" })
    ranks:look(1, 0)
    ok, message = ranks:look(1, 0)
    assert.is_nil(ok)
    assert.equal("rank 1 (here): disk full", message)
  end)

  it("notices that a process has ended", function()
    local ranks, mpi = open(0, 3)
    mpi.dead[102] = true
    ranks.looked = -math.huge
    local text, message = ranks:take(1, "V")
    assert.is_nil(text)
    assert.matches("rank 2 %(here%): the process has ended", message)
    ranks:leave()
    assert.is_nil(mpi.finished) -- it would wait for the dead one
  end)

  it("fails all waits of rank 0 when a rank says that it has failed", function()
    local ranks, mpi = open(0, 3)
    table.insert(mpi.inbox, { 2, "Eno memory" })
    for _ = 1, 2 do
      local text, message = ranks:take(1, "V")
      assert.is_nil(text)
      assert.equal("rank 2 (here): no memory", message)
    end
  end)

  it("ends the waits of the others when rank 0 ends the work", function()
    local ranks, mpi = open(1, 3)
    table.insert(mpi.inbox, { 0, "Cone" })
    table.insert(mpi.inbox, { 0, "X" })
    assert.equal("one", ranks:take(0, "C", true))
    local _, _, code = ranks:take(0, "A")
    assert.equal("stopped", code)
    _, _, code = ranks:take(0, "C", true)
    assert.equal("stopped", code)
    ranks:leave()
    assert.is_true(mpi.finished)
  end)

  it("does not send for ever to a rank that takes nothing", function()
    local ranks, mpi = open(0, 2, 0.01)
    mpi.under_way = 1 << 30
    local started = core.clock()
    local ok, message = ranks:send(1, "A", "x")
    assert.is_nil(ok)
    assert.matches("has not received a message", message)
    assert.is_true(core.clock() >= started)
  end)
end)

describe("a launcher", function()
  local pipeline, getenv = require "ane.pipeline", os.getenv

  -- Calls fn with these variables and no others.
  local function with(variables, fn)
    os.getenv = function(name) return variables[name] end -- luacheck: ignore
    local ok, message = pcall(fn)
    os.getenv = getenv -- luacheck: ignore
    assert(ok, message)
  end

  it("is known by its variables: Open MPI, MPICH, srun with pmix", function()
    for _, variables in ipairs {
      { OMPI_COMM_WORLD_SIZE = "2", OMPI_COMM_WORLD_RANK = "1" }, { PMI_SIZE = "2", PMI_RANK = "1" },
      { PMIX_RANK = "1", SLURM_STEP_NUM_TASKS = "2" },
    } do
      with(variables, function()
        assert.is_true(pipeline.is_launched())
        assert.equal(1, pipeline.launched_rank())
      end)
    end
    for _, variables in ipairs { {}, { PMI_SIZE = "1" }, { SLURM_STEP_NUM_TASKS = "4" }, { SLURM_NTASKS = "4" } } do
      with(variables, function() assert.is_false(pipeline.is_launched()) end)
    end
  end)

  it("must find as many processes as MPI does", function()
    with({ PMI_SIZE = "3" }, function()
      assert.is_true(pipeline.check_size(3))
      local ok, message, code = pipeline.check_size(1)
      assert.is_nil(ok)
      assert.equal("unsupported", code)
      assert.matches("started 3 processes, and MPI finds only this one", message)
    end)
    with({ SLURM_STEP_NUM_TASKS = "2" }, function() assert.is_nil((pipeline.check_size(1))) end)
    with({}, function() assert.is_true(pipeline.check_size(1)) end)
  end)
end)
