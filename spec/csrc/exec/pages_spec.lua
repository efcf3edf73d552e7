-- Pages of cached state: what sessions share, what a prefix that is known gives, and the file of prefixes.
local core = require "ane.core"
local floats = require "support.floats"
local gguf = require "support.gguf_writer"
local hf = require "support.hf"
local programs = require "support.programs"
local testing = core.testing

local path = gguf.temp ".prefixes"

after_each(function()
  testing.alloc_fail_after(-1)
  os.remove(path)
end)

local function same(got, want, text)
  local why = floats.difference(got, want)
  if why then error(text .. ": " .. why, 2) end
end

local function open(p, prefixes, kv) return assert(p:session { context = p:context(), kv = kv or "fp16", prefixes = prefixes }) end

local function joined(...)
  local all = {}
  for _, list in ipairs { ... } do table.move(list, 1, #list, #all + 1, all) end
  return all
end

-- The logits of the ids behind the first n.
local function alone(p, kv, ids, n)
  local s <close> = assert(p:session { context = p:context(), kv = kv })
  local bits = programs.feed(s, ids)
  return bits:sub(#bits // #ids * n + 1)
end

describe("sessions that share pages", function()
  local p = programs.open("llama-odd", { context = 400 })

  it("take the memory of one prefix and of their own tails", function()
    local prefixes <close> = assert(p:prefixes "fp16")
    local _, page = prefixes:bytes()
    local first <close> = open(p, prefixes)
    assert(first:feed(programs.ids(200, 77, 1), "none"))
    assert.equal(4 * page, (prefixes:bytes()))
    local forks = {}
    for i = 1, 31 do forks[i] = assert(first:fork()) end
    assert.equal(4 * page, (prefixes:bytes()))
    for i, s in ipairs(forks) do assert(s:feed({ i, 1, 2 }, "last")) end
    assert(first:feed({ 5, 1, 2 }, "last"))
    assert.equal((3 + 32) * page, (prefixes:bytes())) -- the last 8 positions of the prefix lie in the tails
    for _, s in ipairs(forks) do s:close() end
    assert.equal(4 * page, (prefixes:bytes()))
  end)

  for _, kv in ipairs { "fp16", "fp32", "int8", "int16" } do
    it("never see what another one writes: " .. kv, function()
      local ids = programs.ids(150, 77, 1)
      local from <close> = assert(p:session { context = 400, kv = kv })
      assert(from:feed(ids, "none"))
      local a <close> = assert(from:fork())
      local b <close> = assert(from:fork())
      assert(b:rewind(70))
      local tails = { programs.ids(60, 77, 2), programs.ids(130, 77, 3), programs.ids(20, 77, 4) }
      same(programs.feed(a, tails[1], 7), alone(p, kv, joined(ids, tails[1]), 150), "the first fork")
      same(programs.feed(b, tails[2]), alone(p, kv, joined(programs.slice(ids, 1, 70), tails[2]), 70), "the rewound fork")
      same(programs.feed(from, tails[3]), alone(p, kv, joined(ids, tails[3]), 150), "the origin")
    end)
  end

  it("stay as they were where a page cannot be copied", function()
    local prefixes <close> = assert(p:prefixes())
    local filler <close> = open(p, prefixes) -- with it the first eight pages of the store are taken
    assert(filler:feed(programs.ids(320, 77, 9), "none"))
    local from <close> = open(p, prefixes)
    assert(from:feed(programs.ids(100, 77, 1), "none"))
    local to <close> = assert(from:fork())
    local want = alone(p, "fp16", joined(programs.ids(100, 77, 1), { 1 }), 100)
    assert.is_true(assert(to:feed(1, "all")) and to:rewind(100)) -- room for rows is there
    local again <close> = assert(to:fork())
    testing.alloc_fail_after(0)
    local ok, message = to:feed(1, "all")
    testing.alloc_fail_after(-1)
    assert.is_nil(ok)
    assert.is_truthy(message:find("no memory", 1, true))
    assert.equal(100, to:length())
    same(programs.feed(to, { 1 }), want, "after the failure")
    same(programs.feed(again, { 1 }), want, "the other owner")
  end)
end)

describe("a known prefix", function()
  local CASES = {
    { "llama-odd", vocab = 77 }, { "gemma3-odd", vocab = 83 }, { hf.path "lfm2-odd", vocab = 53, borders = true },
    { hf.path "zaya-odd", vocab = 53, borders = true }, { hf.path "qwen2_moe_window-odd", vocab = 53 },
  }
  for _, case in ipairs(CASES) do
    for _, kv in ipairs { "fp16", "fp32", "int8", "int16" } do
      it(("gives the bits of all its tokens: %s, %s"):format(case[1]:match "[^/]+$", kv), function()
        local p <close> = programs.open(case[1], { context = 320, int8 = true })
        local prefixes <close> = assert(p:prefixes(kv))
        local ids = programs.ids(230, case.vocab, 5)
        local from <close> = open(p, prefixes, kv)
        assert(from:feed(ids, "none"))
        assert(from:keep(prefixes, true))
        for _, shared in ipairs { 230, 192, 150, 129, 128, 64, 40, 3 } do
          local prompt = joined(programs.slice(ids, 1, shared), programs.ids(30, case.vocab, 6))
          local known = prefixes:known(prompt)
          local s <close> = open(p, prefixes, kv)
          assert.equal(known, s:begin(prefixes, prompt))
          assert.is_true(known >= (case.borders and shared // 64 * 64 or shared) and known < #prompt)
          assert.same(programs.slice(prompt, 1, known), s:ids())
          local rest = programs.slice(prompt, known + 1, #prompt)
          same(programs.feed(s, rest), alone(p, kv, prompt, known), "shared " .. shared)
          if case.borders and known > 20 then -- further back than the rings reach
            assert(s:rewind(known - 20))
            same(programs.feed(s, programs.slice(prompt, known - 19, #prompt)), alone(p, kv, prompt, known - 20), "rewound")
          end
        end
      end)
    end
  end

  it("is that of the same rope, where that depends on the length", function()
    local p <close> = programs.open(hf.path "phi3", { context = 96 })
    local _, switch = p:exact()
    assert.is_true(switch and switch < 96)
    local prefixes <close> = assert(p:prefixes "fp16")
    local ids = programs.ids(switch, 47, 2)
    local from <close> = open(p, prefixes)
    assert(from:feed(ids, "none"))
    assert(from:keep(prefixes, true))
    assert.equal(switch - 1, prefixes:known(ids))
    assert.equal(0, prefixes:known(joined(ids, { 1 })))
  end)

  it("is not kept of a model that sees tokens on both sides", function()
    local p <close> = programs.open(hf.path "privacy_filter-odd", { context = 300 })
    local prefixes <close> = assert(p:prefixes "fp16")
    local s <close> = open(p, prefixes)
    assert(s:feed(programs.ids(130, 47, 2), "none"))
    assert(s:keep(prefixes, true))
    assert.equal(0, prefixes:count())
    assert.equal(0, prefixes:known(programs.ids(140, 47, 2)))
  end)
end)

describe("the tree of prefixes", function()
  local p = programs.open("llama-odd", { context = 400 })

  local function keep(prefixes, ids)
    local s <close> = open(p, prefixes)
    s:begin(prefixes, ids)
    assert(s:feed(programs.slice(ids, s:length() + 1, #ids), "none"))
    assert(s:keep(prefixes, true))
  end

  it("holds equal starts once", function()
    local prefixes <close> = assert(p:prefixes())
    local _, page = prefixes:bytes()
    local system = programs.ids(128, 77, 1)
    for i = 1, 5 do keep(prefixes, joined(system, programs.ids(40, 77, 10 + i))) end
    assert.equal(2 + 5, prefixes:count())
    assert.equal(7 * page, (prefixes:bytes()))
    keep(prefixes, joined(system, programs.ids(60, 77, 11))) -- goes on from one of them, which is then part of it
    assert.equal(7, prefixes:count())
    assert.equal(7 * page, (prefixes:bytes()))
  end)

  it("forgets what was used longest ago, leaves first, and nothing that is in use", function()
    local prefixes <close> = assert(p:prefixes())
    local _, page = prefixes:bytes()
    local a, b = programs.ids(192, 77, 1), programs.ids(192, 77, 2)
    keep(prefixes, a)
    keep(prefixes, b)
    local s <close> = open(p, prefixes)
    assert.equal(130, s:begin(prefixes, joined(programs.slice(a, 1, 130), { a[131] ~ 1 })))
    assert.equal(page, prefixes:forget(1))
    assert.equal(128, prefixes:known(joined(b, { 1 })))
    assert.equal(2 * page, prefixes:forget(1 << 40))
    assert.equal(0, prefixes:known(b))
    assert.equal(191, prefixes:known(a))
    s:close()
    assert.equal(page, prefixes:forget(page))
    assert.equal(128, prefixes:known(a))
    prefixes:forget(1 << 40)
    assert.same({ 0, 0 }, { prefixes:count(), (prefixes:bytes()) })
  end)

  it("survives its program's and its sessions' end", function()
    local q = programs.open("llama-odd", { context = 100 })
    local prefixes = assert(q:prefixes())
    local s = open(q, prefixes)
    assert(s:feed(programs.ids(80, 77, 1), "none"))
    assert(s:keep(prefixes))
    q:close()
    prefixes:close()
    assert.equal(80, s:length())
    s:close()
    assert.has_error(function() prefixes:count() end)
  end)

  it("is for sessions of the same program and type only", function()
    local other <close> = programs.open("gemma3-odd", { context = 320 })
    local prefixes <close> = assert(p:prefixes "int8")
    local foreign <close> = assert(other:prefixes "int8")
    local ids = programs.ids(200, 77, 1)
    local s <close> = open(p, prefixes, "int8")
    local t <close> = assert(other:session { context = 320, kv = "int8" })
    local wide <close> = assert(p:session { context = 320, kv = "fp32" })
    assert(s:feed(ids, "none") and s:keep(prefixes, true) and wide:feed(ids, "none"))
    for _, case in ipairs {
      { s.keep, s, foreign, true }, { t.begin, t, prefixes, ids },
    } do
      local ok, message = pcall(table.unpack(case))
      assert.is_false(ok)
      assert.matches("the prefixes are of another program than the session", message)
    end
    for _, case in ipairs { { wide.keep, wide, prefixes, true }, { wide.begin, wide, prefixes, ids } } do
      local ok, message = pcall(table.unpack(case))
      assert.is_false(ok)
      assert.matches("the prefixes hold kv of type int8, but the session has fp32", message)
    end
    assert.equal(4, prefixes:count())
    assert.equal(0, foreign:count())
  end)

  it("goes on without memory", function()
    for n = 0, 3 do
      local prefixes <close> = assert(p:prefixes())
      local s <close> = open(p, prefixes)
      assert(s:feed(programs.ids(200, 77, 1), "none"))
      testing.alloc_fail_after(n)
      local ok = s:keep(prefixes, true)
      testing.alloc_fail_after(-1)
      assert.is_nil(ok)
      assert.equal(n, prefixes:count())
      assert(s:keep(prefixes, true))
      assert.equal(4, prefixes:count())
    end
  end)
end)

describe("a file of prefixes", function()
  for _, case in ipairs { { "llama-odd", vocab = 77, last = 200 }, { hf.path "lfm2-odd", vocab = 53, last = 192 } } do
    it("gives them back: " .. case[1]:match "[^/]+$", function()
      local p <close> = programs.open(case[1], { context = 320 })
      local ids, other = programs.ids(200, case.vocab, 1), programs.ids(200, case.vocab, 2)
      do
        local prefixes <close> = assert(p:prefixes "int8")
        for _, list in ipairs { ids, other } do
          local s <close> = open(p, prefixes, "int8")
          assert(s:feed(list, "none"))
          assert(s:keep(prefixes, true))
        end
        assert(prefixes:save(path))
      end
      local prefixes <close> = assert(p:prefixes "int8")
      assert(prefixes:restore(path))
      assert.equal(case.last, prefixes:known(joined(ids, { 1 })))
      local s <close> = open(p, prefixes, "int8")
      local prompt = joined(other, programs.ids(20, case.vocab, 3))
      local n = s:begin(prefixes, prompt)
      assert.equal(case.last, n)
      same(programs.feed(s, programs.slice(prompt, n + 1, #prompt)), alone(p, "int8", prompt, n), "restored")
      local _, page = prefixes:bytes()
      local few <close> = assert(p:prefixes "int8")
      assert(few:restore(path, 2 * page + 1))
      assert.same({ 2, 128 }, { few:count(), few:known(joined(other, { 1 })) }) -- the most recently used
    end)
  end

  it("is refused where it is damaged, of another model or of another type", function()
    local p <close> = programs.open("llama-odd", { context = 320 })
    local prefixes <close> = assert(p:prefixes "fp16")
    local s <close> = open(p, prefixes)
    assert(s:feed(programs.ids(70, 77, 1), "none"))
    assert(s:keep(prefixes, true))
    assert(prefixes:save(path))
    local bytes = assert(core.read_file(path))
    local into <close> = assert(p:prefixes "fp16")
    local function refused(code, text)
      local ok, message, got = into:restore(path)
      assert.same({ nil, code }, { ok, got })
      assert.is_truthy(message:find(text, 1, true), message)
      assert.equal(0, into:count())
    end
    for at = 41, #bytes, #bytes // 97 do
      core.write_file(path, bytes:sub(1, at - 1) .. string.char(bytes:byte(at) ~ 1) .. bytes:sub(at + 1))
      refused("format", "damaged")
    end
    for n = 0, #bytes - 1, #bytes // 31 do
      core.write_file(path, bytes:sub(1, n))
      local ok, _, code = into:restore(path)
      assert.same({ nil, "format" }, { ok, code })
    end
    os.remove(path)
    local ok, message, code = into:restore(path)
    assert.same({ nil, "io" }, { ok, code })
    assert.is_truthy(message:find(path, 1, true))
    assert(s:save(path))
    refused("state", "engine")
    core.write_file(path, bytes)
    local other <close> = assert(p:prefixes "int8")
    ok, message, code = other:restore(path)
    assert.same({ nil, "state" }, { ok, code })
    assert.is_truthy(message:find("int8", 1, true))
    local q <close> = programs.open("llama-mixed", { context = 320 })
    local foreign <close> = assert(q:prefixes "fp16")
    assert.equal("state", select(3, foreign:restore(path)))
    for n = 0, 12 do
      testing.alloc_fail_after(n)
      ok, message, code = into:restore(path)
      testing.alloc_fail_after(-1)
      assert.is_truthy(ok or (code == "memory" and message:find(path, 1, true)))
    end
    assert(into:restore(path))
    assert.equal(2, into:count())
  end)
end)
