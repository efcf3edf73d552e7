-- The interface of sessions (ane.generate.session), asked of every engine: results, messages and codes are the same.
local ane = require "ane"
local core = require "ane.core"
local tiny = require "support.tiny"
local tree = require "support.tree"

local folder = tree.folder()
local SET, CONTEXT = folder .. "/set", 64

-- A model of each engine, one that is another model, and one with other options.
local ENGINES = {
  recipe = {
    open = function(opts) return ane.load(tiny.path(), opts) end,
    others = { function() return ane.load(tiny.path "llama-kquants", { context = CONTEXT }) end,
      function() return ane.load(tiny.path(), { context = CONTEXT, activations = "fp32", kv = "fp16" }) end },
  },
  packages = {
    open = function(opts)
      opts.engine = "graph"
      return ane.load(SET, opts)
    end,
    others = { function() return ane.load("spec/fixtures/mlpackage/set") end,
      function() return ane.load(SET, { context = CONTEXT, precision = "fp16" }) end },
  },
  graph = {
    open = function(opts)
      opts.engine = "graph"
      return ane.load("spec/fixtures/onnx/mixed", opts)
    end,
    others = { function() return ane.load("spec/fixtures/onnx/windows", { context = CONTEXT, engine = "graph" }) end,
      function() return ane.load("spec/fixtures/onnx/mixed", { context = CONTEXT, engine = "graph", isa = "ref" }) end },
  },
}

-- CRC-32 of zlib.
local function crc32(text)
  local crc = 0xFFFFFFFF
  for i = 1, #text do
    crc = crc ~ text:byte(i)
    for _ = 1, 8 do crc = crc >> 1 ~ (0xEDB88320 & -(crc & 1)) end
  end
  return crc ~ 0xFFFFFFFF
end

-- A saved session with other bytes at a place (from 0), whose checksum is right.
local function patched(bytes, at, with)
  local body = bytes:sub(1, at) .. with .. bytes:sub(at + #with + 1, -5)
  return body .. string.pack("<I4", crc32(body))
end

setup(function()
  local model <close> = tiny.load()
  assert(model:export(SET, { context = CONTEXT, weights = "int8" }))
end)
teardown(function() tree.remove(folder) end)

for name, engine in pairs(ENGINES) do
  describe("a session of engine " .. name, function()
    local model, s, ids
    local path = folder .. "/" .. name .. ".state"

    setup(function()
      model = assert(engine.open { context = CONTEXT, threads = 1 })
      assert.equal(name, model.engine)
      ids = {}
      for i = 1, 20 do ids[i] = (i * 37 + i * i) % (model.vocab - 1) end
    end)
    teardown(function() model:close() end)
    before_each(function() s = assert(model:session()) end)
    after_each(function() s:close() end)

    local function part(first, last) return table.move(ids, first, last, 1, {}) end
    local function row(of, i) return of:logits(i):tostring() end

    it("counts what it was fed", function()
      assert.same({ 0, {}, 0, 0, CONTEXT }, { s.length, s.ids, s:rows(), s:kv_bytes(), s.context })
      assert.is_true(s:feed(part(1, 3)))
      assert.is_true(s:feed(ids[4]))
      assert.is_true(s:feed {})
      assert.same({ 4, part(1, 4) }, { s.length, s.ids })
      assert.is_true(s:kv_bytes() > 0)
      assert.equal(("session (4 of %d tokens)"):format(CONTEXT), tostring(s))
      assert.equal(model.vocab, #s:logits())
      assert.equal("boolean", type(s.exact))
      assert.is_true(s.n_ids >= model.vocab)
    end)

    it("leaves the rows it was asked for", function()
      assert(s:feed(part(1, 5)))
      assert.equal(1, s:rows())
      local last, best = row(s), { s:argmax() }
      assert.same({ s:logits():argmax() }, best)
      assert.same(best, s:topk(1)[1])
      assert(s:rewind(0))
      assert(s:feed(part(1, 5), { want = "all" }))
      assert.equal(5, s:rows())
      if s.exact then assert.equal(last, row(s, 5)) end
      local all = {}
      for i = 1, 5 do all[i] = { s:argmax(i) } end
      assert(s:rewind(0))
      assert(s:feed(part(1, 5), { want = "argmax" }))
      assert.equal(5, s:rows())
      for i = 1, 5 do assert.same(all[i], { s:argmax(i) }) end
      assert.error_matches(function() s:logits() end, 'want = "argmax", which keeps no logits')
      assert(s:feed(ids[6], { want = "none" }))
      assert.equal(0, s:rows())
      assert.error_matches(function() s:argmax() end, "the last feed left no rows")
    end)

    it("is saved after a feed of each kind", function()
      for _, want in ipairs { "last", "all", "argmax", "best", "none" } do
        assert(s:rewind(0))
        assert(s:feed(part(1, 5), { want = want }))
        assert(s:save(path))
        if want == "argmax" or want == "best" then
          assert.error_matches(function() s:logits() end, ('want = "%s", which keeps no logits'):format(want))
        end
        local restored <close> = assert(model:session())
        assert(restored:restore(path))
        assert.same(part(1, 5), restored.ids)
        assert(s:rewind(0))
        assert(s:feed(part(1, 5)))
        assert.same({ s:argmax() }, { restored:argmax() })
      end
    end)

    it("continues a reply that has filled the context with none", function()
      local prompt = {}
      for i = 1, CONTEXT - 2 do prompt[i] = ids[1 + i % #ids] end
      assert(s:feed(prompt))
      local one = { max_tokens = 1, ignore_eos = true, details = true }
      local first = assert(s:generate { ignore_eos = true, details = true })
      assert.same({ 3, "context", CONTEXT }, { #first.ids, first.stop, s.length })
      for _ = 1, 2 do
        local more = assert(s:generate(one))
        assert.same({ {}, "context", CONTEXT }, { more.ids, more.stop, s.length })
      end
      local fork <close> = assert(s:fork())
      assert.same({}, assert(fork:generate(one)).ids)
      assert(s:rewind(-1))
      assert(s:feed(first.ids[2]))
      assert.same({ first.ids[3] }, assert(s:generate(one)).ids)
      assert.same({}, assert(s:generate(one)).ids)
    end)

    it("refuses what does not fit, and feeds none of it", function()
      local small <close> = assert(model:session { context = 4 })
      assert(small:feed(part(1, 2)))
      assert.same({ nil, "3 tokens after 2 do not fit in a context of 4", "range" }, { small:feed(part(1, 3)) })
      local beyond = small.n_ids
      assert.same({ nil, ("id %d at place 2 is not in 0 .. %d"):format(beyond, beyond - 1), "range" }, { small:feed { 1, beyond } })
      assert.same({ 2, 1 }, { small.length, small:rows() })
      assert.error_matches(function() small:rewind(3) end, "rewind: length must be %-2 .. 2, but is 3")
      assert.same({ nil, "this model sees all of the past: a part of a sequence cannot be fed alone", "unsupported" },
        { small:part(3) })
    end)

    it("stops between chunks", function()
      local function halt(_, done) if done == 8 then s:stop() end end
      assert.same({ nil, "stopped after 8 of 20 tokens", "stopped" }, { s:feed(ids, { chunk = 4, progress = halt }) })
      assert.equal(8, s.length)
      s:stop()
      assert.is_true(s.stopping)
      s:unstop()
      assert.is_true(s:feed(ids[9]))
    end)

    it("rewinds and forks to the bit", function()
      assert(s:feed(part(1, 12)))
      assert(s:feed(part(13, 20)))
      local want = row(s)
      for _ = 1, 2 do
        assert(s:rewind(12))
        assert.same({ 12, 0 }, { s.length, s:rows() })
        assert(s:feed(part(13, 20)))
        assert.equal(want, row(s))
      end
      assert(s:rewind(-8))
      local fork <close> = assert(s:fork())
      assert.same({ 12, 0, part(1, 12) }, { fork.length, fork:rows(), fork.ids })
      assert(s:feed { 1, 1, 1 })
      assert(fork:feed(part(13, 20)))
      assert.equal(want, row(fork))
    end)

    it("has the last row again when it is asked", function()
      assert.same({ nil, "the session is empty: feed it tokens first", "invalid" }, { s:recall() })
      assert(s:feed(part(1, 12)))
      assert(s:feed(ids[13]))
      local want = row(s)
      assert(s:recall())
      assert.equal(want, row(s))
      local fork <close> = assert(s:fork())
      assert(fork:recall())
      assert.equal(want, row(fork))
      assert(s:rewind(12))
      assert(s:feed(ids[13], { want = "argmax" }))
      assert(s:recall "argmax")
      assert.error_matches(function() s:logits() end, "keeps no logits")
      assert(s:recall())
      assert.same({ want, 13 }, { row(s), s.length })
      s:stop()
      assert(s:rewind(12))
      assert.equal("stopped", select(3, s:recall()))
      assert.is_true(s:recall())
    end)

    it("saves and restores all, the last row and a note too", function()
      assert(s:feed(part(1, 12)))
      local last, best = row(s), { s:argmax() }
      assert(s:save(path, "a note"))
      assert(s:feed(part(13, 20)))
      local want = row(s)
      local other <close> = assert(model:session { context = 30 })
      assert.same({ true, "a note" }, { other:restore(path) })
      assert.same({ 12, part(1, 12), 1, last }, { other.length, other.ids, other:rows(), row(other) })
      assert.same(best, { other:argmax() })
      assert(other:feed(part(13, 20)))
      assert.equal(want, row(other))
      assert(other:rewind(12))
      assert(other:feed(part(13, 20)))
      assert.equal(want, row(other))
    end)

    it("computes the last row of a file that has none", function()
      assert(s:feed(part(1, 12)))
      assert(s:feed(ids[13], { want = "argmax" }))
      local best = { s:argmax() }
      assert(s:save(path))
      local other <close> = assert(model:session())
      assert.is_true(other:restore(path))
      assert.same({ 13, 1 }, { other.length, other:rows() })
      assert.same(best, { other:argmax() })
      assert.same(best, { other:logits():argmax() })
      assert.equal(13, other.length)
      assert(s:rewind(0))
      assert(s:save(path))
      assert(other:restore(path))
      assert.same({ 0, 0 }, { other.length, other:rows() })
    end)

    it("refuses files that are not its own, by name, and stays as it was", function()
      assert(s:feed(part(1, 12)))
      assert(s:save(path))
      local bytes = assert(core.read_file(path))
      local file = folder .. "/wrong.state"
      local other <close> = assert(model:session())
      assert(other:feed(part(1, 3)))
      local want = row(other)
      local function refused(text, code, pattern)
        assert(core.write_file(file, text))
        local ok, message, got = other:restore(file)
        assert.same({ nil, code }, { ok, got }, message)
        assert.truthy(message:find(file, 1, true))
        assert.matches(pattern, message)
        assert.same({ 3, want }, { other.length, row(other) })
      end
      assert.equal(bytes, patched(bytes, 0, "ANESTATE"))
      refused("", "format", "is not a saved session")
      refused("something else", "format", "is not a saved session")
      refused(bytes:sub(1, -2), "format", "is damaged: cut short")
      refused(bytes:sub(1, 30), "format", "is damaged: cut short")
      refused(bytes .. "x", "format", "is damaged: too long")
      local middle = #bytes // 2
      refused(bytes:sub(1, middle) .. "\xA5\x5A" .. bytes:sub(middle + 3), "format", "is damaged: wrong checksum")
      refused(patched(bytes, 8, "\9"), "state", "is a saved session of version 9; this program reads version %d")
      refused(patched(bytes, 12, "\9"), "state", "was saved with version 9 of the arithmetic; this program computes with version %d")
      refused(patched(bytes, 16, "\1\2\3\4"), "state", "was saved with another model")
      refused(patched(bytes, 24, "nothing\0\0\0"), "state", "was saved with engine nothing, the session runs on engine " .. name)
      local id = bytes:find("ids", 1, true) + 3 - 1
      refused(patched(bytes, id, "\xFF\xFF\xFF\x7F"), "format", "is damaged: id out of range")
      local small <close> = assert(model:session { context = 11 })
      assert.same({ nil, path .. " holds 12 positions, the session has room for 11", "range" }, { small:restore(path) })
      assert.equal("io", select(3, other:restore(folder .. "/nothing.state")))
      assert.equal("io", select(3, other:save "/nowhere/at/all.state"))
    end)

    it("refuses files of other models, other options and other engines", function()
      assert(s:feed(part(1, 12)))
      assert(s:save(path))
      for _, open in ipairs(engine.others) do
        local other_model <close> = assert(open())
        local other <close> = assert(other_model:session())
        local ok, message, code = other:restore(path)
        assert.same({ nil, "state" }, { ok, code })
        assert.matches("was saved with another model, or with other weights, activations or kernels", message)
      end
      for other_name, other_engine in pairs(ENGINES) do
        if other_name ~= name then
          local other_model <close> = assert(other_engine.open { context = CONTEXT, threads = 1 })
          local other <close> = assert(other_model:session())
          local _, message, code = other:restore(path)
          assert.same({ path .. (" was saved with engine %s, the session runs on engine %s"):format(name, other_name), "state" },
            { message, code })
        end
      end
    end)

    it("goes on with a reply, and holds it", function()
      local opts = { max_tokens = 6, ignore_eos = true, details = true }
      local want = assert(model:generate(part(1, 12), { max_tokens = 12, ignore_eos = true, details = true })).ids
      assert.same({ nil, "the session is empty: feed it tokens first", "invalid" }, { s:generate() })
      assert(s:feed(part(1, 12)))
      local first = assert(s:generate(opts))
      assert.same(table.move(want, 1, 6, 1, {}), first.ids)
      assert.same({ "length", 12, 18 }, { first.stop, first.timings.cached_tokens, s.length })
      assert(s:save(path))
      assert.same(table.move(want, 7, 12, 1, {}), assert(s:generate(opts)).ids)
      local other <close> = assert(model:session())
      assert(other:restore(path))
      assert.same(table.move(want, 7, 12, 1, {}), assert(other:generate(opts)).ids)
      opts.session = other
      assert.same(table.move(want, 1, 6, 1, {}), assert(model:generate(part(1, 12), opts)).ids)
      assert.equal(18, other.length)
    end)

    it("holds the prompt of a reply without tokens", function()
      local opts = { max_tokens = 0, ignore_eos = true, details = true, session = s }
      assert(s:feed(part(5, 9)))
      assert.same({ "length", {} }, { assert(model:generate(part(1, 12), opts)).stop, assert(model:generate(part(1, 12), opts)).ids })
      assert.same(part(1, 12), s.ids)
      opts.session, opts.max_tokens = nil, 4
      assert.same(assert(model:generate(part(1, 12), opts)).ids, assert(s:generate(opts)).ids)
    end)

    it("streams a reply that may be broken off", function()
      assert(s:feed(part(1, 12)))
      local count = 0
      for _ in s:stream { ignore_eos = true } do
        count = count + 1
        assert.error_matches(function() s:generate() end, "the previous reply is not complete; close its stream first")
        assert.error_matches(function() model:stream({ 1 }, { session = s }) end, "the previous reply is not complete")
        if count == 3 then break end
      end
      assert.is_true(s.length >= 15)
      local want = assert(model:generate(part(1, 12), { max_tokens = s.length - 12, ignore_eos = true, details = true })).ids
      assert.same(want, table.move(s.ids, 13, s.length, 1, {}))
    end)

    it("ends a reply at the end of the context", function()
      local small <close> = assert(model:session { context = 14 })
      assert(small:feed(part(1, 12)))
      local result = assert(small:generate { ignore_eos = true, details = true })
      assert.same({ "context", 3, 14 }, { result.stop, #result.ids, small.length })
    end)

    it("samples from what was cached, with the seed's own numbers", function()
      local opts = { max_tokens = 8, temperature = 2, seed = 11, ignore_eos = true, details = true }
      local want = assert(model:generate(part(1, 12), opts)).ids
      assert(s:feed(part(1, 12), { want = "argmax" })) -- keeps no logits
      assert.same(want, assert(s:generate(opts)).ids)
    end)

    it("raises where it is misused", function()
      assert.error_matches(function() s:restore(3) end, "restore: path must be a string")
      assert.error_matches(function() s:save(path, {}) end, "save: note must be a string")
      assert.error_matches(function() s:generate { max_tokens = -1 } end, "generate: option max_tokens must be 0 or more")
      assert.error_matches(function() model:generate({ 1 }, { session = {} }) end, "option session must be an open session of this model")
      s:close()
      for _, method in ipairs { "feed", "rows", "logits", "argmax", "recall", "fork", "stop", "kv_bytes", "generate", "stream" } do
        assert.error_matches(function() s[method](s) end, "session is closed", method)
      end
      assert.error_matches(function() model:generate({ 1 }, { session = s }) end, "option session must be an open session of this model")
    end)
  end)
end
