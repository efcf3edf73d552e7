-- Arguments that no program should give: lists whose length is a lie, tables whose metamethods close what is in use. They raise an
-- error, or are read as what they hold.
local core = require "ane.core"
local graphs = require "support.graphs"
local programs = require "support.programs"

-- A list of n numbers whose length operator gives 2^62: the border that Lua finds in a table without an array part.
local function endless(n)
  local parts = {}
  for i = 1, n do parts[i] = ("[%d]=1"):format(i) end
  for k = 0, 62 do parts[#parts + 1] = ("[%d]=1"):format(1 << k) end
  return assert(load("return {" .. table.concat(parts, ",") .. "}"))()
end

describe("a list of ids", function()
  it("may have a border far beyond its entries", function()
    local list = endless(100)
    assert.equal(1 << 62, #list)
    local ok, message = pcall(core.mask, 10, list)
    assert.is_false(ok)
    assert.matches("a list must have at most 2147483647 entries, but this one has 4611686018427387904", message)
  end)
end)

describe("a list of a grammar", function()
  local function negative(list) return setmetatable(list, { __len = function() return -1 end }) end

  it("has the entries that it holds, whatever its metamethod __len says", function()
    local many = {}
    for i = 1, 1000 do many[i] = "x" .. i end
    local m = assert(core.grammar("choice", negative(many)):matcher())
    assert.is_true(m:push "x17")
    local rules = assert(core.grammar("rules", negative { negative { negative { "=a" } } })):matcher()
    assert.is_true(rules:push "a")
    assert.is_false((pcall(core.grammar, "choice", endless(3))))
  end)
end)

describe("the description of a tokenizer", function()
  local JSON = '{"model": {"vocab": {"a": 0, "b": 1}}}'
  local FIELDS = { model = "words", splits = {}, normalisers = {}, decoders = {}, added = {} }

  it("is read without metamethods, which could close the vocabulary, or give texts that no table keeps", function()
    assert(core.tokenizer(assert(core.vocabulary_json(JSON)), FIELDS)):close()
    for _, index in ipairs { FIELDS, "closing" } do
      local vocabulary = assert(core.vocabulary_json(JSON))
      local closing = function(_, key)
        vocabulary:close()
        return FIELDS[key]
      end
      local ok, message = pcall(core.tokenizer, vocabulary, setmetatable({}, { __index = index == FIELDS and FIELDS or closing }))
      assert.is_false(ok)
      assert.matches("description: model is 'nil'", message, 1, true)
    end
  end)
end)

local TEXT = [[
  input ids: int32[1, T]
  input out_rows: int32[1, W]
  const table: fp32[16, 8]
  const w: fp32[12, 8]
  x = embed(ids, table)
  t = gather(x, out_rows)
  out = conv1x1(t, w)
  give out]]

describe("a run", function()
  local program

  lazy_setup(function()
    local g <close> = graphs.parse(TEXT)
    assert(g:passes "cpu-plain")
    program = assert(core.program(g, { threads = 1, context = 100, chunk = 32, int8 = false }))
  end)
  lazy_teardown(function() program:close() end)

  it("notices that a session was closed while the items were read", function()
    local first, second = program:session { context = 100 }, program:session { context = 100 }
    local closing = setmetatable({ second, { 1 } }, { __index = function() first:close() end })
    assert.is_false((pcall(program.run, program, { { first, { 1 } }, closing })))
    assert.is_true(second:feed { 1 })
  end)

  it("gives the last logits without the argument that says which", function()
    local session <close> = program:session { context = 100 }
    assert.is_true(session:feed { 1 })
    assert.same(session:logits(1):totable(), session:logits():totable())
  end)

  it("keeps the adapters of a program where a list of others is refused", function()
    local numbers = ("f"):rep(8):pack(1, 1, 1, 1, 1, 1, 1, 1)
    local part = { weight = "w", rank = 1, rows = 12, cols = 8, scale = 1, a = numbers, b = numbers .. numbers:sub(1, 16) }
    local adapter, closed = assert(program:adapter({ part }, 1)), assert(program:adapter({ part }, 2))
    local function logits()
      local session <close> = assert(program:session { context = 100 })
      assert(session:feed { 1 })
      return session:logits():tostring()
    end
    local plain = logits()
    program:adapt { { adapter, 1 } }
    local adapted = logits()
    assert.is_false(plain == adapted)
    closed:close()
    assert.is_false((pcall(program.adapt, program, { { adapter, 0 }, { closed, 1 } })))
    assert.is_true(logits() == adapted)
    program:adapt {}
    assert.is_true(logits() == plain)
    adapter:close()
  end)

  it("takes bytes of adapters and names as strings only", function()
    local part = { weight = 1, rank = 0, rows = 0, cols = 0, scale = 1 }
    local ok, message = pcall(program.adapter, program, { part }, 1)
    assert.is_false(ok)
    assert.matches("string expected, got number", message)
  end)
end)

describe("a table whose metamethods close what is in use", function()
  -- A table whose absent keys call a function.
  local function with(t, close) return setmetatable(t, { __index = function() close() end }) end

  local function open()
    local g <close> = graphs.parse(TEXT)
    assert(g:passes "cpu-plain")
    return assert(core.program(g, { threads = 1, context = 100, chunk = 32, int8 = false }))
  end

  it("ends a run, as an item of it", function()
    local q = open()
    local s = assert(q:session { context = 10 })
    local item = with({ s, { 1 }, mask = core.mask(12, { 1 }) }, function()
      s:close()
      q:close()
    end)
    local ok, why = pcall(q.run, q, { item })
    assert.is_false(ok)
    assert.matches("program is closed", why)
  end)

  it("closes nothing as a part of an adapter, or as options of a gradient", function()
    local p <close> = open()
    local part = with({ weight = "w", rank = 4, rows = 12, cols = 8, scale = 1 }, function() p:close() end)
    local ok, why = pcall(p.adapter, p, { part }, 1)
    assert.is_false(ok)
    assert.matches("a part of rank 4 has no a or b", why)
    local gradients <close> = assert(core.gradients(1))
    local x = core.tensor { 2, 4 }
    local closed = false
    pcall(gradients.norm, gradients, with({}, function() closed = true end), x, nil, x)
    assert.is_false(closed)
  end)
end)

-- Calls f until the collector, which runs when it allocates memory, has finalised an object, which closes x.
local function close_during(x, f, ...)
  local closed = false
  local function arm()
    setmetatable({}, { __gc = function()
      closed = true
      x:close()
    end })
  end
  collectgarbage("generational", 1, 1) -- a whole collection
  arm()
  for _ = 1, 100000 do
    if closed then break end
    pcall(f, ...)
  end
  collectgarbage("incremental", 200, 100)
  assert.is_true(closed)
end

describe("a finaliser", function()
  it("may close what a call has been given", function()
    local ids = {}
    for i = 1, 400000 do ids[i] = 1 end
    for _, which in ipairs { "session", "prefixes", "known" } do
      local g <close> = graphs.parse(TEXT)
      assert(g:passes "cpu-plain")
      local p <close> = assert(core.program(g, { threads = 1, context = 100, chunk = 32, int8 = false }))
      local prefixes <close> = assert(p:prefixes())
      local s <close> = assert(p:session { context = 100, prefixes = prefixes })
      if which == "known" then
        close_during(prefixes, prefixes.known, prefixes, ids)
      else
        close_during(which == "session" and s or prefixes, s.begin, s, prefixes, ids)
      end
    end
  end)
end)

describe("a finaliser and a list of names", function()
  it("may meet", function()
    for _, which in ipairs { "info", "values", "profile" } do
      for _ = 1, 20 do
        local p <close> = programs.open("llama-odd", { context = 8, chunk = 8 })
        assert(p:profile(true))
        close_during(p, p[which], p)
      end
    end
  end)
end)

describe("a product's gradient", function()
  it("needs a matrix that has numbers", function()
    local gradients <close> = assert(core.gradients(1))
    local g <close> = core.graph "g"
    local w = g:blank("w", { 4, 4 })
    local ok, message = pcall(gradients.product, gradients, g, w, core.tensor { 1, 4 })
    assert.is_false(ok)
    assert.matches("no matrix of the graph", message)
  end)
end)

describe("a part of a saved session", function()
  it("may be a single id, whose memory lasts until it is written", function()
    local parts, long = { { "ids", { 1 } } }, {}
    for i = 1, 300000 do long[i] = i end
    for i = 1, 20 do
      parts[2 * i], parts[2 * i + 1] = { "one" .. i, i }, { "long" .. i, long } -- the memory of long lists makes the collector run
    end
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    collectgarbage("generational", 1, 1)
    local ok = core.save_session(path, "packages", 1, parts)
    collectgarbage("incremental", 200, 100)
    assert.is_true(ok)
    local _, found = core.load_session(path, "packages", 1, 10, 10)
    for i = 1, 20 do assert.equal(("<i4"):pack(i), found["one" .. i]) end
  end)
end)

describe("a wait for input", function()
  it("needs a number of seconds", function()
    local ok, message = pcall(core.read_some, 0, 0 / 0)
    assert.is_false(ok)
    assert.matches("not a number of seconds", message)
  end)
end)
