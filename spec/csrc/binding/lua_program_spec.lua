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
