-- Batches under MPI: assigning rows, ranks that die, and runs under mpirun where it and the module ane.mpi are there.
local command = require "support.command"
local core = require "ane.core"
local team = require "ane.batch.ranks"
local fake_mpi = require "support.fake_mpi"
local tiny = require "support.tiny"
local tree = require "support.tree"

local HELLO, ROW, LINE = "<s4i8", "<i8i8s4s4s4", "<i8I4i8s4"

-- A module ane.mpi that knows its rows.
local function fake()
  local mpi = fake_mpi()
  mpi.finished = false
  -- The rows that a rank was given.
  function mpi.rows_of(rank)
    local list = {}
    for _, one in ipairs(mpi.sent) do
      if one[1] == rank and one[2]:sub(1, 1) == "D" then list[#list + 1] = (ROW:unpack(one[2], 2)) end
    end
    return list
  end
  return mpi
end

-- Ranks 1 .. n that are ready, and the lines that come.
local function ready(n, room)
  local mpi, lines = fake(), {}
  local ranks = team.new(mpi, n + 1, "here", 300)
  ranks:begin(room, "settings", function(row, line) lines[#lines + 1] = { row.number, line } end)
  for rank = 1, n do
    table.insert(mpi.inbox, { rank, "H" .. HELLO:pack("here", 100 + rank) })
    table.insert(mpi.inbox, { rank, "R" .. "settings" })
  end
  assert(ranks:poll(0))
  return ranks, mpi, lines
end

local function row(number) return { number = number, key = 5, text = "x" } end

local function answer(rank, number) return { rank, "L" .. LINE:pack(number, 0, 3, "line " .. number) } end

describe("ranks of a batch", function()
  it("get rows while they have room, the one with the most room first", function()
    local ranks, mpi, lines = ready(2, 2)
    for i = 1, 4 do
      assert.is_true(ranks:has_room())
      ranks:assign(row(i))
    end
    assert.is_false(ranks:has_room())
    assert.same({ 1, 3 }, mpi.rows_of(1))
    assert.same({ 2, 4 }, mpi.rows_of(2))
    table.insert(mpi.inbox, answer(2, 4))
    assert(ranks:poll(0))
    assert.same({ { 4, "line 4" } }, lines)
    assert.equal(3, ranks.active)
    ranks:assign(row(5))
    assert.same({ 2, 4, 5 }, mpi.rows_of(2))
  end)

  it("that die have their rows assigned again, and their late lines are not taken", function()
    local ranks, mpi, lines = ready(2, 3)
    for i = 1, 4 do ranks:assign(row(i)) end
    mpi.dead[101] = true
    ranks.looked = -math.huge
    table.insert(mpi.inbox, answer(1, 1))
    assert(ranks:poll(0))
    assert.same({}, lines)
    assert.equal(2, ranks.active)
    local again = {}
    for _, one in ipairs(ranks.requeued) do again[#again + 1] = one.number end
    assert.same({ 3, 1 }, again)
    ranks:assign(table.remove(ranks.requeued))
    assert.same({ 2, 4, 1 }, mpi.rows_of(2))
    table.insert(mpi.inbox, answer(2, 1))
    assert(ranks:poll(0))
    assert.same({ { 1, "line 1" } }, lines)
    table.insert(mpi.inbox, { 2, "Q" })
    ranks:close()
    assert.is_false(mpi.finished) -- it would wait for the dead one
  end)

  it("that are silent for too long count as dead if they have rows", function()
    local ranks = ready(2, 3)
    ranks:assign(row(1))
    for rank = 1, 2 do ranks.ranks[rank].heard = -math.huge end
    ranks.looked = -math.huge
    assert(ranks:poll(0))
    assert.is_true(ranks.ranks[1].dead)
    assert.is_nil(ranks.ranks[2].dead)
    assert.equal(1, #ranks.requeued)
  end)

  it("with other settings end the run by name", function()
    local mpi = fake()
    local ranks = team.new(mpi, 2, "here", 300)
    ranks:begin(1, "settings", error)
    table.insert(mpi.inbox, { 1, "H" .. HELLO:pack("there", 7) })
    table.insert(mpi.inbox, { 1, "R" .. "other" })
    local ok, message, code = ranks:poll(0)
    assert.is_nil(ok)
    assert.equal("invalid", code)
    assert.matches("rank 1 %(there%)", message)
  end)

  it("end MPI together if all are alive", function()
    local ranks, mpi = ready(1, 1)
    table.insert(mpi.inbox, { 1, "Q" })
    ranks:close()
    assert.is_true(mpi.finished)
  end)
end)

describe("mpirun ane batch", function()
  local here = select(2, tree.run "pwd"):gsub("\n", "/")
  local folder
  before_each(function() folder = tree.folder() end)
  after_each(function() tree.remove(folder) end)

  -- Why it cannot run here; nil: it can.
  local function missing()
    if not tree.has "mpirun" then return "mpirun is not installed" end
    if not pcall(require, "ane.mpi") then return "the module ane.mpi is not built: make mpi" end
  end

  -- Runs ranks; `kill` is a line of shell with the id of rank 1 in $pid.
  local function run(words, kill)
    local recovers = tree.run("mpirun --version | grep -q 'Open MPI'")
    local flags = recovers and "--oversubscribe --bind-to none --enable-recovery" or ""
    assert(core.write_file(folder .. "/rank.sh", ([[
      rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; echo $$ > pid.$rank
      exec '%s' batch '%s' "$@"
    ]]):format(here .. command.path(), here .. tiny.path())))
    return tree.run(([[
      cd '%s'; export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
      timeout 300 mpirun %s -n 3 sh rank.sh %s & job=$!
      %s
      wait $job
    ]]):format(folder, flags, words, kill or "")), recovers
  end

  it("gives the output of one process, also where a rank dies", function()
    if missing() then return pending(missing()) end
    local list = {}
    for i = 1, 600 do list[i] = core.json_encode { id = i, prompt = "Once " .. i, max_tokens = 1 + i % 7, temperature = i % 2 } end
    assert(core.write_file(folder .. "/in.jsonl", table.concat(list, "\n") .. "\n"))
    command.json { "batch", tiny.path(), folder .. "/in.jsonl", "-o", folder .. "/want", "--ordered" }
    local want = tree.read(folder .. "/want")
    local out = run "in.jsonl -o out --ordered"
    assert.is_true(out)
    assert.equal(want, tree.read(folder .. "/out"))
    local _, recovers = run("in.jsonl -o again --ordered", [[
      until [ -s again.part ] || ! kill -0 $job; do sleep 0.02; done
      kill -KILL $(cat pid.1)
    ]])
    if not recovers then run "in.jsonl -o again --ordered --resume" end
    assert.equal(want, tree.read(folder .. "/again"))
  end)
end)
