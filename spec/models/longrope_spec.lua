-- Phi-3, whose rope has other factors once the sequence is longer than 32: the same bits whatever way it came to be on
-- its side of the switch, and on the far side what recomputing everything gives.
local core = require "ane.core"
local floats = require "support.floats"
local gguf = require "support.gguf_writer"
local hf = require "support.hf"
local programs = require "support.programs"

local SWITCH, LENGTH = 32, 60
local IDS = programs.ids(LENGTH, 1000, 4)
local ROW = 1024 * 4

local function some(from, to) return programs.slice(IDS, from, to) end

local function same(got, want, text)
  local why = floats.difference(got, want)
  if why then error(text .. ": " .. why, 2) end
end

local function rows(bits, from, to) return bits:sub((from - 1) * ROW + 1, to * ROW) end

-- What IDS[1..n] give fed whole, as the last `count` rows.
local function whole(p, n, count)
  local s <close> = assert(p:session { context = 100, kv = "fp32" })
  local bits = programs.feed(s, some(1, n))
  return rows(bits, n - count + 1, n)
end

local function open(o)
  o.context = 100
  return programs.open(hf.path "phi3", o)
end

for _, o in ipairs { { threads = 1 }, { threads = 3 }, { threads = 2, int8 = true, weights = "int8" }, { threads = 2, chunk = 7 } } do
  local p = open(o)
  local limit = o.chunk or LENGTH
  local label = ("threads %d, int8 %s, chunk %d"):format(o.threads, o.int8 or false, limit)

  local function session() return assert(p:session { context = 100, kv = "fp32" }) end
  local function feed(s, from, to, step) return programs.feed(s, some(from, to), math.min(step or limit, limit)) end

  describe("longrope, " .. label, function()
    -- A program of short chunks feeds its 60 tokens in nine calls: only its rows behind the switch compare.
    local far = (function()
      local q <close> = open { threads = 1, int8 = o.int8, weights = o.weights }
      return whole(q, LENGTH, LENGTH)
    end)()
    local near = (function()
      local q <close> = open { threads = 1, int8 = o.int8, weights = o.weights }
      return whole(q, SWITCH, SWITCH)
    end)()

    it("gives other numbers on the two sides, for the first tokens already", function()
      assert.is_true(rows(far, 2, SWITCH) ~= rows(near, 2, SWITCH))
    end)

    it("stays on the near side up to its last token, in any steps", function()
      for _, step in ipairs { 1, 4, 7, 32 } do
        local s <close> = session()
        same(feed(s, 1, SWITCH, step), near, "steps of " .. step)
        assert.equal(0, s:replayed())
      end
    end)

    it("crosses call by call with one replay, then goes on as if fed whole", function()
      for _, step in ipairs { 1, 5, 28 } do
        local s <close> = session()
        feed(s, 1, SWITCH, 8)
        same(feed(s, SWITCH + 1, LENGTH, step), rows(far, SWITCH + 1, LENGTH), "steps of " .. step)
        assert.equal(SWITCH, s:replayed())
      end
    end)

    it("crosses back where it is rewound below the switch and fed again", function()
      local s <close> = session()
      feed(s, 1, LENGTH)
      local before = s:replayed()
      assert(s:rewind(20))
      same(feed(s, 21, SWITCH), rows(near, 21, SWITCH), "near again")
      assert.equal(before + 20, s:replayed())
      same(feed(s, SWITCH + 1, 50, 3), rows(far, SWITCH + 1, 50), "far again")
      assert.equal(before + 20 + SWITCH, s:replayed())
      assert(s:rewind(40)) -- still beyond: nothing to make again
      same(feed(s, 41, LENGTH), rows(far, 41, LENGTH), "within the far side")
      assert.equal(before + 20 + SWITCH, s:replayed())
    end)

    it("is saved, restored and forked on either side", function()
      local path = gguf.temp ".state"
      for _, n in ipairs { 10, SWITCH, SWITCH + 8 } do
        local s <close> = session()
        feed(s, 1, n)
        assert(s:save(path))
        local t <close> = session()
        assert(t:feed(programs.ids(5, 1000, 9), "none"))
        assert(t:restore(path))
        local u <close> = assert(s:fork())
        for _, v in ipairs { t, u } do
          local to = n < SWITCH and SWITCH or LENGTH
          same(feed(v, n + 1, math.max(to, n + 1), 6), rows(n < SWITCH and near or far, n + 1, math.max(to, n + 1)), "after " .. n)
          assert.equal(n == SWITCH and SWITCH or 0, v:replayed())
        end
      end
      os.remove(path)
    end)

    it("does not see sequences of the other side in its run", function()
      local a <close> = session()
      local b <close> = session()
      feed(a, 1, SWITCH)
      feed(b, 1, SWITCH - 2)
      assert(core.testing.run { { a, some(SWITCH + 1, SWITCH + 2), "all" }, { b, some(SWITCH - 1, SWITCH), "all" } })
      same(programs.rows(a), rows(far, SWITCH + 1, SWITCH + 2), "far")
      same(programs.rows(b), rows(near, SWITCH - 1, SWITCH), "near")
    end)
  end)
end

describe("longrope", function()
  it("in one feed of several chunks takes the long factors from the first chunk on", function()
    local want <close> = open { threads = 1 }
    local p <close> = open { threads = 2, chunk = 7 }
    local s <close> = require("ane.generate.session").open(p, { context = 100, kv = "fp32" })
    assert(s:feed(IDS, { want = "all" }))
    local bits = {}
    for i = 1, LENGTH do bits[i] = s:logits(i):tostring() end
    same(table.concat(bits), whole(want, LENGTH, LENGTH), "in chunks")
    assert.equal(0, s._core:replayed())
  end)

  it("decodes over the switch as a full recomputation does", function()
    local prompts = hf.golden "phi3"
    local found
    for _, prompt in ipairs(prompts) do
      if prompt.name == "cross" then
        found = true
        for _, isa in ipairs(core.isa_list()) do
          local p <close> = open { threads = 1, isa = isa }
          local s <close> = assert(p:session { context = 100, kv = "fp32" })
          assert.same(prompt.greedy, programs.greedy(s, prompt.ids, #prompt.greedy))
          assert.equal(SWITCH, s:replayed())
        end
      end
    end
    assert.is_true(found)
  end)

  it("stopped while it makes its state again is shorter, and right", function()
    local p <close> = open { threads = 1, chunk = 16 }
    local s <close> = assert(p:session { context = 100, kv = "fp32" })
    assert(s:feed(some(1, 16), "none"))
    assert(s:feed(some(17, SWITCH), "none"))
    s:stop()
    assert.equal("stopped", select(3, s:feed(some(SWITCH + 1, 40), "all")))
    local n = s:length()
    same(programs.feed(s, some(n + 1, LENGTH), 14):sub(-20 * ROW), whole(open { threads = 1 }, LENGTH, 20), "goes on")
  end)
end)
