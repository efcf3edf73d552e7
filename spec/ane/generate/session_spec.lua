local tiny = require "support.tiny"

-- n ids that are the same each time.
local function some_ids(n)
  local ids = {}
  for i = 1, n do ids[i] = (i * 37 + i * i) % 1000 end
  return ids
end

describe("session", function()
  local model, s
  setup(function() model = tiny.load(nil, { context = 2048 }) end)
  teardown(function() model:close() end)
  before_each(function() s = model:session() end)
  after_each(function() s:close() end)

  it("counts what it was fed", function()
    assert.equal(0, s.length)
    assert.is_true(s:feed { 1, 2, 3 })
    assert.is_true(s:feed(4))
    assert.equal(4, s.length)
    assert.same({ 1, 2, 3, 4 }, s.ids)
    assert.is_true(s:feed {})
    assert.equal(4, s.length)
    assert.equal(2048, s.context)
    assert.is_true(s:kv_bytes() > 0)
    assert.equal("session (4 of 2048 tokens)", tostring(s))
  end)

  it("keeps its rows where it is fed nothing", function()
    local ids = some_ids(6)
    assert(s:feed(ids, { want = "all", chunk = 4 }))
    local first = s:logits(1):tostring()
    for _, want in ipairs { "all", "argmax", "last", "none" } do
      assert.is_true(s:feed({}, { want = want }))
      assert.equal(6, s:rows())
      assert.equal(first, s:logits(1):tostring())
    end
    assert(s:feed(ids, { want = "argmax" }))
    assert.is_true(s:feed {})
    assert(s:recall())
    assert.equal(1024, #s:logits())
  end)

  it("gives the rows it was asked for", function()
    local ids = some_ids(5)
    s:feed(ids)
    assert.equal(1, s:rows())
    local last = s:logits()
    assert.equal(1024, #last)
    assert.same({ last:argmax() }, { s:argmax() })
    assert.same(last:topk(4), s:topk(4))
    s:rewind(0)
    s:feed(ids, { want = "all" })
    assert.equal(5, s:rows())
    assert.equal(last:tostring(), s:logits(-1):tostring())
    assert.equal(last:tostring(), s:logits(5):tostring())
    s:rewind(0)
    s:feed(ids, { want = "argmax" })
    assert.equal(5, s:rows())
    assert.same({ last:argmax() }, { s:argmax(5) })
    s:feed(1, { want = "none" })
    assert.equal(0, s:rows())
  end)

  it("keeps its rows where nothing is fed", function()
    local ids = some_ids(5)
    for _, want in ipairs { "last", "all", "argmax", "best", "none" } do
      for _, chunk in ipairs { 2, 8 } do
        s:rewind(0)
        assert(s:feed(ids, { want = want, chunk = chunk }))
        local rows, best = s:rows(), want ~= "none" and { s:argmax() }
        for _, other in ipairs { "last", "argmax", "none" } do
          assert.is_true(s:feed({}, { want = other }))
          assert.equal(rows, s:rows())
          if best then assert.same(best, { s:argmax() }) end
        end
        assert(s:recall())
        assert.equal(1024, #s:logits())
      end
    end
  end)

  it("gives the same rows however the ids are cut, over several chunks too", function()
    local ids = some_ids(700) -- more than one chunk of 512
    local other <close> = model:session()
    s:feed(ids, { want = "all" })
    assert.equal(700, s:rows())
    local best = {}
    other:feed(ids, { want = "argmax", chunk = 33 })
    assert.equal(700, other:rows())
    for i = 1, 700 do best[i] = other:argmax(i) end
    other:rewind(0)
    local at = 0
    other:feed(ids, { want = "all", chunk = 97, each = function(session, first, count)
      assert.equal(at + 1, first)
      for i = 1, count do
        at = at + 1
        if at % 50 == 1 or at > 690 then assert.equal(s:logits(at):tostring(), session:logits(i):tostring()) end
        assert.equal(best[at], (session:argmax(i)))
      end
    end })
    assert.equal(700, at)
    assert.equal(s:logits(-1):tostring(), other:logits(-1):tostring())
  end)

  it("rewinds, forks, saves and restores to the bit", function()
    local ids = some_ids(20)
    s:feed(ids)
    local want = s:logits():tostring()
    assert.is_true(s:rewind(12))
    assert.equal(12, s.length)
    assert.equal(0, s:rows())
    local fork <close> = assert(s:fork())
    local path = os.tmpname()
    assert.is_true(s:save(path))
    local rest = table.move(ids, 13, 20, 1, {})
    s:feed(rest)
    assert.equal(want, s:logits():tostring())
    fork:feed(rest)
    assert.equal(want, fork:logits():tostring())
    local again <close> = model:session()
    assert.is_true(again:restore(path))
    assert.equal(12, again.length)
    again:feed(rest)
    assert.equal(want, again:logits():tostring())
    os.remove(path)
    s:rewind(-8)
    assert.equal(12, s.length)
  end)

  it("says what a file is that it cannot restore", function()
    s:feed(1)
    local ok, message = s:restore(tiny.path())
    assert.is_nil(ok)
    assert.is_string(message)
    assert.equal(1, s.length)
    assert.is_nil((s:save "/nonexistent/folder/file"))
  end)

  it("refuses what does not fit, and feeds none of it", function()
    local small <close> = model:session { context = 4 }
    assert.is_true(small:feed { 1, 2 })
    local ok, message, code = small:feed { 1, 2, 3 }
    assert.same({ nil, "3 tokens after 2 do not fit in a context of 4", "range" }, { ok, message, code })
    assert.equal(2, small.length)
    ok, message, code = small:feed(1024)
    assert.is_nil(ok)
    assert.matches("1024", message)
    assert.equal("range", code)
    assert.equal(2, small.length)
  end)

  it("stops between chunks", function()
    local ok, message, code = s:feed(some_ids(600), { chunk = 100, progress = function(stage, done, total)
      assert.same({ "prefill", 600 }, { stage, total })
      if done == 200 then s:stop() end
    end })
    assert.same({ nil, "stopped after 200 of 600 tokens", "stopped" }, { ok, message, code })
    assert.equal(200, s.length)
    assert.is_true(s:feed(1))
    s:stop()
    assert.equal("stopped", select(3, s:feed(1)))
    assert.is_true(s:feed(1))
  end)

  it("is interrupted between chunks, as by Ctrl-C", function()
    local chunks = 0
    local ok, message = pcall(s.feed, s, some_ids(500), { chunk = 10, progress = function()
      chunks = chunks + 1
      if chunks == 3 then error("interrupted!", 0) end
    end })
    assert.same({ false, "interrupted!" }, { ok, message })
    assert.equal(30, s.length)
    assert.is_true(s:feed(1))
  end)

  it("raises on misuse, at the caller's line", function()
    local cases = {
      { 'want is "some": choose last, all, argmax, best, none', function() s:feed({ 1 }, { want = "some" }) end },
      { "ids must be a list", function() s:feed "text" end },
      { "not a token id", function() s:feed { "x" } end },
      { "left no rows", function() s:logits() end },
      { "row must be 1 %.%. 1, or %-1 %.%. %-1 from the end, but is 2", function()
        s:feed(1)
        s:logits(2)
      end },
      { "keeps no logits", function()
        s:feed(1, { want = "argmax" })
        s:logits()
      end },
      { "rewind: length", function() s:rewind(999) end },
      { "topk: k", function() s:topk() end },
      { "context must be 1 .. 2048", function() model:session { context = 4096 } end },
      { "unknown option", function() model:session { contxt = 1 } end },
    }
    for _, case in ipairs(cases) do
      local ok, message = pcall(case[2])
      assert.is_false(ok)
      assert.matches(case[1], message)
      assert.matches("session_spec.lua:%d+:", message)
    end
  end)

  it("can be closed twice and then does nothing but raise", function()
    s:feed(1)
    s:close()
    s:close()
    assert.is_true(s.closed)
    assert.equal("session (closed)", tostring(s))
    for _, method in ipairs { "feed", "logits", "argmax", "topk", "rewind", "save", "restore", "fork", "stop", "kv_bytes", "rows" } do
      assert.error_matches(function() s[method](s, 1) end, "session is closed")
    end
    assert.error_matches(function() return s.length end, "session is closed")
  end)

  it("continues within a grammar after a feed that kept the best id only", function()
    local grammar = assert(require("ane").grammar.choice { "no", "yes", "perhaps" })
    local ids = assert(model.tokenizer:encode "Is it?")
    local want = assert(model:generate(ids, { grammar = grammar }))
    for _, kept in ipairs { "last", "all", "argmax", "best", "none" } do
      s:rewind(0)
      assert(s:feed(ids, { want = kept }))
      assert.equal(want, s:generate { grammar = grammar })
    end
  end)

  it("is not changed by a callback of its feed", function()
    local ids = some_ids(6)
    for _, name in ipairs { "progress", "each" } do
      for _, change in ipairs { function() s:feed(1) end, function() s:rewind(0) end, function() s:recall() end } do
        s:rewind(0)
        assert.error_matches(function() s:feed(ids, { chunk = 2, want = "all", [name] = change }) end,
          "session: a feed is in progress, and would continue after other tokens")
        assert.equal(2, s.length)
        assert(s:feed(ids[3]))
      end
    end
    local fork
    assert(s:feed(ids, { chunk = 2, progress = function(_, done) if done == 2 then fork = assert(s:fork()) end end }))
    assert.same({ 5, 9 }, { fork.length, s.length })
    fork:close()
    coroutine.wrap(function() s:feed(ids, { chunk = 2, progress = coroutine.yield }) end)() -- abandoned
    assert.error_matches(function() s:rewind(0) end, "a feed is in progress")
    collectgarbage()
    collectgarbage()
    assert(s:rewind(0))
  end)

  it("may be closed by its own callback", function()
    local mine = model:session()
    local ok, message = pcall(mine.feed, mine, { 1, 2, 3 }, { chunk = 1, progress = function() mine:close() end })
    assert.is_false(ok)
    assert.matches("closed", message)
  end)
end)
