-- Programs that have some rows of each matrix: what they send and receive. spec/ane/pipeline/pipeline_spec.lua compares the bits of
-- several such processes with those of one.
local core = require "ane.core"
local programs = require "support.programs"
local stages = require "support.stages"

local PATH = "spec/fixtures/gguf/llama-kquants.gguf"

-- Feeds three ids to one of two ranks, all logits wanted. Both ranks have as many rows of each matrix. All rows of the other one are 1.
-- @return list of the messages: {kind ("all" or "first": to whom it is sent; "received"), bytes}; the last row of logits
local function run_rank(rank)
  local graph <close>, source = stages.graph(PATH)
  local vocab, list = graph:head().rows, {}
  local program <close> = assert(core.program(graph, {
    threads = 1, context = 32, chunk = 16,
    tensor = {
      rank = rank, ranks = 2,
      send = function(bytes, to_first)
        list[#list + 1] = { kind = to_first and "first" or "all", bytes = #bytes }
        return true
      end,
      receive = function(from)
        assert.equal(1 - rank, from)
        local last = list[#list]
        local bytes = last.kind == "all" and last.bytes or vocab // 2 * 3 * 4 -- rank 0 has sent nothing before the head
        list[#list + 1] = { kind = "received", bytes = bytes }
        return ("<f"):pack(1):rep(bytes // 4)
      end,
    },
  }))
  local session <close> = assert(program:session { context = 32 })
  assert(session:feed(programs.ids(3, 30, 1), "all"))
  local row = session:logits(3):totable()
  source:close()
  assert.equal(vocab, #row)
  return list, row
end

local function count(list, kind)
  local n = 0
  for _, one in ipairs(list) do n = n + (one.kind == kind and 1 or 0) end
  return n
end

describe("programs with divided rows", function()
  it("send the rows of the head to rank 0 only, and receive all others", function()
    local first, whole = run_rank(0)
    local second, part = run_rank(1)
    local n = #whole
    assert.equal(0, count(first, "first"))
    assert.equal(count(first, "all") + 1, count(first, "received"))
    assert.equal("received", first[#first].kind)
    assert.equal(1, count(second, "first"))
    assert.equal(count(second, "all"), count(second, "received"))
    assert.same({ kind = "first", bytes = n // 2 * 3 * 4 }, second[#second])
    for i = n // 2 + 1, n do assert.equal(1, whole[i]) end
    for i = 1, n // 2 do assert.equal(0, part[i]) end
    assert.is_true(part[n] ~= 0)
  end)

  it("exchange the result of attention instead of q, k and v where the heads are divided", function()
    local graph <close>, source = stages.graph(PATH)
    local layers, width = 0, graph:head().cols -- the heads together are as wide as the model
    for _, c in ipairs(graph:costs()) do layers = layers + (c.kv > 0 and 1 or 0) end
    source:close()
    local list = run_rank(1)
    -- of each layer: attention, its projection, the gate, the last projection; at the end the head
    assert.equal(4 * layers + 1, count(list, "all") + count(list, "first"))
    assert.equal(3 * width // 2 * 4, list[1].bytes)
  end)

  -- The best id and logit of rank 0, which receives a best id of rank 1; the bytes of the last message.
  local function best_of(id, logit)
    local graph <close>, source = stages.graph(PATH)
    local last
    local program <close> = assert(core.program(graph, {
      threads = 2, context = 32, chunk = 16,
      tensor = {
        rank = 0, ranks = 2,
        send = function(bytes)
          last = bytes
          return true
        end,
        receive = function()
          local bytes = last or ("<i4f"):pack(id, logit):rep(3)
          last = nil
          return bytes
        end,
      },
    }))
    local session <close> = assert(program:session { context = 32 })
    assert(session:feed(programs.ids(3, 30, 1), "argmax"))
    source:close()
    return session:argmax(3)
  end

  it("send one best id of each row where no logits are kept; of equal logits the lowest id is the best", function()
    local own, logit = best_of(300, -math.huge)
    assert.is_true(own < 160)
    assert.equal(own, (best_of(300, logit)))
    assert.equal(own, (best_of(300, 0 / 0)))
    assert.same({ 300, 1024.0 }, { best_of(300, 1024) })
  end)
end)
