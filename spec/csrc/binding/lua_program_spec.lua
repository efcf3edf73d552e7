local core = require "ane.core"
local programs = require "support.programs"

describe("program:run", function()
  local p = programs.open "llama-mixed"
  local ids = { programs.ids(9, 1024, 1), programs.ids(1, 1024, 2), programs.ids(20, 1024, 3) }

  local function sessions(n)
    local list = {}
    for i = 1, n do list[i] = assert(p:session { context = 32, kv = "fp16" }) end
    return list
  end

  it("gives each session what it gets alone", function()
    local together, alone, items = sessions(3), sessions(3), {}
    for i = 1, 3 do items[i] = { together[i], ids[i] } end
    assert.is_true(p:run(items, "all"))
    for i = 1, 3 do
      assert.equal(programs.feed(alone[i], ids[i]), programs.rows(together[i]))
      assert.equal(#ids[i], together[i]:length())
    end
    assert.is_true(p:run { { together[2], 7 } })
    assert.equal(1, together[2]:rows())
  end)

  it("knows the ids and the logits of its model", function()
    assert.same({ 1024, 1024 }, { p:n_ids(), p:vocab() })
  end)

  it("advances all or none", function()
    local s = sessions(2)
    local ok, message, code = p:run { { s[1], { 1 } }, { s[2], { 99999 } } }
    assert.is_nil(ok)
    assert.matches("id 99999", message)
    assert.equal("range", code)
    assert.equal(0, s[1]:length())
    ok, message = p:run { { s[1], { 1 } }, { s[1], { 2 } } }
    assert.is_nil(ok)
    assert.matches("twice", message)
  end)

  it("refuses misuse by name", function()
    local s = sessions(1)[1]
    local other <close> = programs.open "llama-mixed"
    local cases = {
      { "1 %.%. 4096 items", function() p:run {} end },
      { "each item is a list", function() p:run { 7 } end },
      { "another program", function() other:run { { s, { 1 } } } end },
      { "invalid option 'some'", function() p:run({ { s, { 1 } } }, "some") end },
      { "ane.session expected", function() p:run { { {}, { 1 } } } end },
      { "table expected", function() p:run { { s } } end },
    }
    for _, case in ipairs(cases) do assert.error_matches(case[2], case[1]) end
  end)
end)

describe("program:draw", function()
  local p = programs.open "llama-mixed"

  local function sampler(i)
    return core.sampler {
      temperature = 0.4 + i % 3, top_k = i % 4 == 0 and 40 or 0, top_p = i % 2 == 0 and 0.9 or 1, min_p = i % 5 == 0 and 0.01 or 0,
      repeat_penalty = i % 3 == 1 and 1.5 or 1, logit_bias = i % 7 == 0 and { [5] = 4, [6] = -math.huge } or nil, seed = i,
    }
  end

  it("draws what each sampler draws alone, from a copy of the row or without one", function()
    local sessions, feeds, items, recent = {}, {}, {}, { 3, 900, 3, 17 }
    for i = 1, 40 do
      sessions[i] = assert(p:session { context = 16, kv = "fp16" })
      feeds[i] = { sessions[i], programs.ids(1 + i % 3, 1024, i), want = i % 6 == 0 and "all" or "last" }
      items[i] = { sessions[i], sampler(i), 100 + i, i % 3 == 1 and recent or nil }
    end
    assert(p:run(feeds))
    for _ = 1, 3 do
      local ids, values = p:draw(items)
      assert.same({ 40, 40 }, { #ids, #values })
      for i, item in ipairs(items) do
        local want = { item[2]:draw(item[1]:logits(), item[3], item[4]) }
        assert.same(want, { ids[i], values[i] })
        assert.same(want, { item[2]:draw_row(item[1], -1, item[3], item[4]) })
      end
    end
    local first = feeds[6][1]
    assert.is_true(first:rows() > 0)
    assert.same({ items[6][2]:draw(first:logits(1), 9) }, { items[6][2]:draw_row(first, 1, 9) })
  end)

  it("says where no token is left", function()
    local s = assert(p:session { context = 4, kv = "fp16" })
    assert(s:feed({ 1 }, "last"))
    local bans = {}
    for id = 0, 1023 do bans[id] = -math.huge end
    local none = core.sampler { temperature = 1, logit_bias = bans }
    local ids = p:draw { { s, none, 0 }, { s, sampler(1), 0 } }
    assert.is_false(ids[1])
    assert.is_number(ids[2])
    assert.same({ nil, "every token is banned or has no number: nothing to choose from", "invalid" }, { none:draw_row(s, 1, 0) })
  end)

  it("refuses misuse by name", function()
    local s, fresh = assert(p:session { context = 4, kv = "fp16" }), assert(p:session { context = 4, kv = "fp16" })
    local other <close> = programs.open "llama-mixed"
    local closed = assert(p:session { context = 4, kv = "fp16" })
    closed:close()
    assert(s:feed({ 1 }, "last"))
    local one = sampler(1)
    for _, case in ipairs {
      { "1 .. 4096 items", function() p:draw {} end },
      { "each item is a list", function() p:draw { 7 } end },
      { "another program", function() other:draw { { s, one, 0 } } end },
      { "ane.sampler expected", function() p:draw { { s, s, 0 } } end },
      { "ane.session expected", function() p:draw { { one, one, 0 } } end },
      { "position|number expected", function() p:draw { { s, one } } end },
      { "session is closed", function() p:draw { { closed, one, 0 } } end },
      { "row of logits does not exist", function() p:draw { { fresh, one, 0 } } end },
      { "row of logits does not exist", function() one:draw_row(fresh, -1, 0) end },
      { "session is closed", function() one:draw_row(closed, -1, 0) end },
    } do
      local ok, message = pcall(case[2])
      assert.is_false(ok)
      local found = false
      for word in case[1]:gmatch "[^|]+" do found = found or message:find(word, 1, true) ~= nil end
      assert.is_true(found, message)
    end
    assert(s:feed({ 1 }, "argmax"))
    assert.is_false(pcall(p.draw, p, { { s, one, 0 } }))
  end)
end)

describe("program:adapt", function()
  it("changes nothing if one of the adapters is wrong", function()
    local p <close> = programs.open "llama-mixed"
    local m = p:info().matrices[1]
    local bias = ("<f"):pack(1):rep(m.rows)
    local adapter <close> = assert(p:adapter({ { weight = m.name, rank = 0, rows = m.rows, cols = m.cols, scale = 1, bias = bias } }, 7))
    local closed = assert(p:adapter({ { weight = m.name, rank = 0, rows = m.rows, cols = m.cols, scale = 1, bias = bias } }, 8))
    closed:close()
    p:adapt { { adapter, 0.5 } }
    local before <close> = assert(p:session { context = 8 })
    assert.error_matches(function() p:adapt { { adapter, 2 }, { closed, 1 } } end, "adapter is closed")
    local after <close> = assert(p:session { context = 8 })
    assert.equal(before:adapters_key(), after:adapters_key())
  end)
end)
