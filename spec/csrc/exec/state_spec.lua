local core = require "ane.core"
local gguf = require "support.gguf_writer"
local programs = require "support.programs"
local testing = core.testing

local path = gguf.temp ".state"
local function write(bytes) assert(core.write_file(path, bytes)) end
local function read() return assert(core.read_file(path)) end

after_each(function()
  testing.alloc_fail_after(-1)
  os.remove(path)
end)

local function session(p, kv, context) return assert(p:session { context = context or p:context(), kv = kv }) end

-- What must not change when something fails.
local function same(s, before)
  assert.same(before.ids, s:ids())
  assert.equal(before.rows, s:rows())
  if before.rows > 0 then assert.equal(before.bits, programs.rows(s)) end
end
local function keep(s) return { ids = s:ids(), rows = s:rows(), bits = programs.rows(s) } end

describe("feeding", function()
  local p = programs.open("llama-odd", { context = 20, chunk = 12 })
  local ids = programs.ids(12, 77, 1)

  it("refuses what does not fit, and changes nothing", function()
    local s <close> = session(p)
    assert(s:feed(ids, "all"))
    local before = keep(s)
    local function refused(message, code, list, want)
      assert.same({ nil, message, code }, { s:feed(list, want) })
      same(s, before)
    end
    refused("context exceeded: 12 positions are used and 9 ids are fed, the session holds 20", "range", programs.ids(9, 77, 1))
    refused("id 77 at position 13 is not in 0 .. 76", "range", { 3, 77 }, "all")
    refused("no ids to feed", "invalid", {})
    assert(s:rewind(0))
    assert(s:feed(1, "last"))
    before = keep(s)
    -- Wants more rows than there is room for: the old rows must outlive the failure.
    local t <close> = session(p)
    assert(t:feed(1, "last"))
    before = keep(t)
    assert.same({ nil, "13 ids in one run, at most 12", "range" }, { t:feed(programs.ids(13, 77, 1), "all") })
    same(t, before)
  end)

  it("raises where ids are no ids", function()
    local s <close> = session(p)
    assert.error_matches(function() s:feed { 1, "x" } end, "id 2 is x, not a token id")
    assert.error_matches(function() s:feed { 1, -1 } end, "id 2 is %-1, not a token id")
    assert.error_matches(function() s:feed { 1.5 } end, "id 1 is 1.5, not a token id")
    assert.error_matches(function() s:feed({ 1 }, "worst") end, "invalid option 'worst'")
    assert.equal(0, s:length())
  end)

  it("keeps rows only until the next change", function()
    local s <close> = session(p)
    assert.error_matches(function() s:logits() end, "row of logits does not exist: the last feed left 0")
    assert(s:feed({ 1, 2 }, "all"))
    assert.error_matches(function() s:logits(3) end, "row of logits does not exist: the last feed left 2")
    assert.error_matches(function() s:logits(-3) end, "the row of logits does not exist")
    assert(s:feed({ 1, 2 }, "argmax"))
    assert.error_matches(function() s:logits() end, "the row of logits does not exist")
    assert.is_true(s:argmax() >= 0)
    assert(s:feed({ 1 }, "none"))
    assert.error_matches(function() s:argmax() end, "row of logits does not exist: the last feed left 0")
    assert(s:feed(1))
    assert(s:rewind(3))
    assert.equal(0, s:rows())
    assert.same({ 1, 2, 1 }, s:ids())
  end)

  it("ends once where the stop flag is set, and goes on after it", function()
    local s <close> = session(p)
    assert(s:feed({ 1, 2 }, "all"))
    local before = keep(s)
    s:stop()
    assert.same({ nil, "stopped", "stopped" }, { s:feed({ 3, 4, 5 }, "all") })
    same(s, before)
    assert(s:feed { 3 })
    assert.equal(3, s:length())
  end)

  it("fills the context to the last position, and rewinds only backwards", function()
    local s <close> = session(p)
    assert(s:feed(ids))
    assert(s:feed(programs.ids(8, 77, 2)))
    assert.equal(20, s:length())
    assert.equal("range", select(3, s:feed(1)))
    assert.same({ nil, "cannot rewind to 21: the session holds 20 positions", "range" }, { s:rewind(21) })
    assert.same({ nil, "cannot rewind to -1: the session holds 20 positions", "range" }, { s:rewind(-1) })
    assert(s:rewind(20))
  end)

  it("in one run takes all items or none", function()
    local a <close> = session(p)
    local b <close> = session(p)
    assert(a:feed({ 5 }, "last"))
    local before = keep(a)
    local function refused(message, items)
      assert.equal(message, select(2, testing.run(items)))
      same(a, before)
      assert.equal(0, b:length())
    end
    refused("id 99 at position 0 is not in 0 .. 76", { { a, { 1, 2, 3 }, "all" }, { b, { 99 } } })
    refused("a session occurs twice in one run", { { a, { 1, 2 }, "all" }, { a, { 1 } } })
    refused("13 ids in one run, at most 12", { { a, programs.ids(7, 77, 1), "all" }, { b, programs.ids(6, 77, 1) } })
    b:stop()
    refused("stopped", { { a, { 1, 2 }, "all" }, { b, { 1 } } })
    local other <close> = programs.open("llama-odd", { context = 20 })
    local c <close> = session(other)
    refused("the session belongs to another model", { { a, { 1, 2 }, "all" }, { c, { 1 } } })
    assert(testing.run { { a, { 1, 2 }, "all" }, { b, { 1 }, "none" } })
    assert.same({ 3, 2, 1, 0 }, { a:length(), a:rows(), b:length(), b:rows() })
  end)

  it("allocates nothing once it goes", function()
    for _, threads in ipairs { 1, 2 } do
      local q <close> = programs.open("gemma3-odd", { threads = threads, int8 = true, context = 300 })
      local s <close> = session(q)
      assert(s:feed(programs.ids(70, 83, 1), "last"))
      assert(s:feed(1, "argmax"))
      local before = testing.alloc_count()
      for i = 1, 40 do assert(s:feed(i % 83, i % 2 == 0 and "last" or "argmax")) end
      assert(s:feed(programs.ids(60, 83, 2), "last"))
      assert(s:rewind(10))
      assert(s:feed(programs.ids(60, 83, 2), "none"))
      assert.equal(before, testing.alloc_count())
    end
  end)
end)

describe("a saved session", function()
  local p = programs.open("llama-odd", { context = 200 })

  for _, kv in ipairs { "fp16", "fp32", "int8", "int16" } do
    it("comes back with the same future: " .. kv, function()
      local s <close> = session(p, kv)
      assert(s:feed(programs.ids(90, 77, 1), "none"))
      assert(s:rewind(70)) -- the last tile holds stale keys
      assert(s:save(path))
      assert.is_true(#read() > s:kv_bytes() and #read() < s:kv_bytes() + 600)
      local want = programs.feed(s, programs.ids(20, 77, 2))
      local t <close> = session(p, kv, 90) -- a smaller context, if it is large enough
      assert(t:restore(path))
      assert.same(programs.ids(70, 77, 1), t:ids())
      assert.equal(0, t:rows())
      assert.is_true(want == programs.feed(t, programs.ids(20, 77, 2)))
    end)
  end

  it("may be empty", function()
    local s <close> = session(p)
    assert(s:save(path))
    local t <close> = session(p)
    assert(t:feed { 1, 2 })
    assert(t:restore(path))
    assert.equal(0, t:length())
  end)

  it("is refused when cut short at any 64th, or by a byte, or when longer", function()
    local s <close> = session(p)
    assert(s:feed(programs.ids(70, 77, 1), "none"))
    assert(s:save(path))
    local bytes = read()
    local t <close> = session(p)
    assert(t:feed({ 5, 6 }, "all"))
    local before = keep(t)
    local cuts = { #bytes - 1 }
    for i = 0, 63 do cuts[#cuts + 1] = #bytes * i // 64 end
    for _, n in ipairs(cuts) do
      write(bytes:sub(1, n))
      local ok, message, code = t:restore(path)
      assert.is_nil(ok)
      assert.is_true(code == "format" or code == "io", code)
      assert.is_truthy(message:find(path, 1, true))
      same(t, before)
    end
    write(bytes .. "\0")
    assert.same({ nil, path .. " is damaged: too long", "format" }, { t:restore(path) })
    same(t, before)
  end)

  it("is refused when any bit of its head, or of its state, is another", function()
    local s <close> = session(p)
    assert(s:feed(programs.ids(5, 77, 1), "none"))
    assert(s:save(path))
    local bytes = read()
    local t <close> = session(p)
    assert(t:feed({ 5, 6 }, "all"))
    local before = keep(t)
    for at = 1, #bytes, 1 do
      if at <= 64 or at % 97 == 0 or at > #bytes - 4 then
        local flipped = string.char(bytes:byte(at) ~ (1 << at % 8))
        write(bytes:sub(1, at - 1) .. flipped .. bytes:sub(at + 1))
        local ok, message = t:restore(path)
        assert.is_nil(ok, "byte " .. at)
        assert.is_string(message)
        same(t, before)
      end
    end
    write(bytes)
    assert(t:restore(path))
  end)

  it("is refused by another model, other weights, other state, other levels and too small a context", function()
    local s <close> = session(p, "fp16")
    assert(s:feed(programs.ids(30, 77, 1), "none"))
    assert(s:save(path))
    local function refused(q, o, code, pattern)
      local t <close> = assert(q:session(o))
      local ok, message, got = t:restore(path)
      assert.is_nil(ok)
      assert.equal(code, got)
      assert.matches(pattern, message)
    end
    refused(p, { context = 29, kv = "fp16" }, "range", "holds 30 positions, the session has room for 29")
    refused(p, { context = 40, kv = "int8" }, "state", "holds kv of type fp16, the session has int8")
    for _, o in ipairs { { weights = "fp16" }, { weights = "bf16" }, { int8 = true }, { isa = core.isa_list()[#core.isa_list() - 1] } } do
      local q <close> = programs.open("llama-odd", o)
      refused(q, { context = 40, kv = "fp16" }, "state", "was saved with another model, or with other weights, activations or kernels")
    end
    local q <close> = programs.open("qwen2-odd")
    refused(q, { context = 40, kv = "fp16" }, "state", "was saved with another model")
  end)

  it("is taken whichever way best ids are found, since the numbers are the same", function()
    local ways = {}
    for _, head in ipairs { "pruned", "full" } do ways[#ways + 1] = programs.open("llama-q8_0", { int8 = true, head = head }) end
    local rows = {}
    for i, from in ipairs(ways) do
      local s <close> = assert(from:session { context = 64, kv = "fp16" })
      assert(s:feed(programs.ids(30, 1000, 1), "none"))
      assert(s:save(path))
      local t <close> = assert(ways[3 - i]:session { context = 64, kv = "fp16" })
      assert(t:restore(path))
      rows[i] = programs.feed(t, programs.ids(9, 1000, 2))
    end
    assert.is_true(rows[1] == rows[2])
    for _, q in ipairs(ways) do q:close() end
  end)

  it("tells int8 weights from int8-channel, and a model from one with another norm", function()
    local q <close> = programs.open("llama-mixed", { weights = "int8", context = 64 })
    local s <close> = session(q)
    assert(s:feed({ 1, 2 }, "none"))
    assert(s:save(path))
    local r <close> = programs.open("llama-mixed", { weights = "int8-channel", context = 64 })
    local t <close> = session(r)
    assert.equal("state", select(3, t:restore(path)))
    -- One float of one norm weight.
    local file = assert(core.read_file(programs.path "llama-odd"))
    local source <close> = assert(core.open(programs.path "llama-odd"))
    for _, name in ipairs { "blk.0.attn_norm.weight", "blk.0.attn_q.bias", "token_embd.weight" } do
      local at = source:tensor(name).offset
      local changed = gguf.write(gguf.temp(), file:sub(1, at) .. string.pack("<f", 1.5) .. file:sub(at + 5))
      local u <close> = programs.open(changed, { context = 200 })
      os.remove(changed)
      local v <close> = session(p)
      assert(v:feed({ 1, 2 }, "none"))
      assert(v:save(path))
      local x <close> = session(u)
      assert.equal("state", select(3, x:restore(path)), name)
    end
  end)

  it("is not written where nobody may write, and not found where there is none", function()
    local s <close> = session(p)
    assert.equal("io", select(3, s:save "/nowhere/at/all.state"))
    assert.equal("io", select(3, s:restore(path)))
    write("")
    assert.is_nil((s:restore(path)))
    write("hello")
    assert.same({ nil, path .. " is not a saved session", "format" }, { s:restore(path) })
  end)
end)

describe("several sessions and programs", function()
  it("do not see each other", function()
    local a <close> = programs.open("llama-odd")
    local b <close> = programs.open("gemma3-odd", { threads = 2 })
    local ids = programs.ids(40, 77, 4)
    local want = {}
    for i, p in ipairs { a, b } do
      local s <close> = session(p)
      want[i] = programs.feed(s, ids, 1)
    end
    local list = { session(a), session(b), session(a), session(b) }
    local got = { "", "", "", "" }
    for at = 1, 40 do
      for i = 1, 4 do got[i] = got[i] .. programs.feed(list[i], { ids[at] }) end
    end
    for i = 1, 4 do
      assert.is_true(got[i] == want[(i - 1) % 2 + 1])
      list[i]:close()
    end
  end)
end)

describe("without memory", function()
  -- Runs fn with the n-th allocation failing, for every n it makes; each failure must be told, and the last run whole.
  local function each_allocation(fn)
    for n = 0, 3000 do
      local before = testing.alloc_fail_after(n)
      local ok, result, message = pcall(fn)
      local made = testing.alloc_fail_after(-1) - before
      if ok and result then
        if made <= n then return n end -- else it did without that one
      else
        local text = tostring(ok and message or result)
        assert.is_truthy(text:find "memory" or text:find "cannot start", text)
      end
    end
    error "no end"
  end

  it("planning fails and can be tried again", function()
    local g <close> = programs.graph "llama-mixed"
    assert(g:passes "cpu")
    local tries = each_allocation(function()
      local p, message = core.program(g, { threads = 1, context = 64, chunk = 64, weights = "q8_0" })
      if p then p:close() end
      return p, message
    end)
    assert.is_true(tries > 5, tries)
    tries = each_allocation(function() return programs.open("llama-odd", { weights = "int8" }) end)
    assert.is_true(tries > 5, tries)
  end)

  it("sessions, forks, feeds, saves and restores fail and leave all as it was", function()
    local p <close> = programs.open("llama-odd", { context = 64 })
    assert.is_true(each_allocation(function() return p:session { context = 64, kv = "int8" } end) > 3)
    local s <close> = session(p)
    assert(s:feed({ 1, 2, 3 }, "last"))
    assert.is_true(each_allocation(function() return s:fork() end) > 3)
    assert(s:save(path))
    local before = keep(s)
    each_allocation(function()
      local ok, message = s:save(path)
      same(s, before)
      return ok, message
    end)
    each_allocation(function()
      local ok, message = s:restore(path)
      if not ok then same(s, before) end
      return ok, message
    end)
    local tries = each_allocation(function()
      local ok, message = s:feed({ 4, 5, 6, 7 }, "all")
      assert.equal(ok and 7 or 3, s:length())
      return ok, message
    end)
    assert.equal(1, tries)
  end)
end)
