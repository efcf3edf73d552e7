-- Orders of rank 0: their format, and how runs are divided into groups.
local orders = require "ane.pipeline.orders"

local function ids(n, from)
  local list = {}
  for i = 1, n do list[i] = from + i end
  return list
end

-- The ids of each session in the order of the groups, and the wants of its pieces.
local function joined(groups)
  local all, wants = {}, {}
  for _, group in ipairs(groups) do
    local seen = {}
    for _, item in ipairs(group) do
      assert(not seen[item.id], "a session occurs twice in a group")
      seen[item.id] = true
      all[item.id], wants[item.id] = all[item.id] or {}, wants[item.id] or {}
      for _, id in ipairs(item.ids) do table.insert(all[item.id], id) end
      table.insert(wants[item.id], item.want)
    end
  end
  return all, wants
end

describe("groups of a run", function()
  it("hold every token once and in order, whatever the items", function()
    for stages = 2, 5 do
      for _, sizes in ipairs { { 1 }, { 512 }, { 63 }, { 65 }, { 1, 1, 1, 1, 1, 1, 1, 1 }, { 1, 200, 1, 7, 310 }, { 300, 300 } } do
        for _, together in ipairs { true, false } do
          local items, want = {}, {}
          for i, n in ipairs(sizes) do
            items[i] = { id = i, ids = ids(n, 1000 * i), want = i % 2 == 1 and "last" or "all", upto = n }
            want[i] = items[i].ids
          end
          local groups = orders.groups(items, stages, false, together)
          local all, wants = joined(groups)
          assert.same(want, all)
          for i, list in ipairs(wants) do
            for j, w in ipairs(list) do assert.equal(i % 2 == 0 and "all" or j == #list and "last" or "none", w) end
          end
          assert.same(groups, orders.read_run(orders.run(groups)), "the format")
        end
      end
    end
  end)

  it("are several, so that all stages work", function()
    local items = {}
    for i = 1, 8 do items[i] = { id = i, ids = { i }, want = "argmax", upto = 1 } end
    assert.equal(4, #orders.groups(items, 4, false))
    assert.equal(1, #orders.groups(items, 4, false, true))
    for tokens, pieces in pairs { [64] = 1, [512] = 8, [1024] = 16, [4096] = 32 } do
      local groups = orders.groups({ { id = 1, ids = ids(tokens, 0), want = "last", upto = tokens } }, 2, false)
      assert.equal(pieces, #groups)
      for _, group in ipairs(groups) do assert.equal(tokens // pieces, #group[1].ids) end
    end
  end)

  it("keep items whole for models that see tokens on both sides", function()
    local groups = orders.groups({ { id = 1, ids = ids(512, 0), want = "all", upto = 512 } }, 4, true)
    assert.equal(1, #groups)
    assert.equal(512, #groups[1][1].ids)
  end)
end)

describe("rows of a group", function()
  it("are one of each token or of the last one, with logits or without", function()
    local keeps, of = orders.wanted {
      { id = 5, ids = { 1, 2 }, want = "none" }, { id = 6, ids = { 1, 2 }, want = "last" }, { id = 7, ids = { 1, 2 }, want = "argmax" },
      { id = 8, ids = { 1, 2 }, want = "all" },
    }
    assert.same({ true, false, false, true, true }, keeps)
    assert.same({ 6, 7, 7, 8, 8 }, of)
  end)

  it("are joined from parts of the head, where of equal logits the lowest id wins", function()
    local head, nan = require "ane.pipeline.head", 0 / 0
    local rows = head.join {
      { { id = 1, value = 2, logits = "a" }, { id = 2, value = nan }, { id = 3, value = 1 } },
      { { id = 10, value = 2, logits = "b" }, { id = 11, value = -5 }, { id = 12, value = 4 } },
    }
    assert.same({ { id = 1, value = 2, logits = "ab" }, { id = 11, value = -5 }, { id = 12, value = 4 } }, rows)
  end)
end)

describe("orders", function()
  it("come back as they were", function()
    assert.same({ "L", 7, 512, "fp16", "a path" }, { table.unpack({ orders.unpack(orders.pack("L", 7, 512, "fp16", "a path")) }, 1, 5) })
    assert.same({ "S", 7, "a path" }, { table.unpack({ orders.unpack(orders.pack("S", 7, "a path")) }, 1, 3) })
    local rows = { { id = 3, value = 1.5, logits = "abcd" }, { id = 9, value = -2 } }
    assert.same(rows, orders.read_rows(orders.rows(rows)))
    assert.equal("Q", (orders.unpack(orders.pack "Q")))
  end)
end)
