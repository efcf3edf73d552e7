-- The promise that logits do not depend on how the work is split, to the bit, for models whose states are more than keys
-- and values (columns of convolutions, tokens before), whose tokens go to different experts, or whose rope depends on
-- the length. The windows of kept columns are 64 beyond what a step looks back.
local core = require "ane.core"
local floats = require "support.floats"
local gguf = require "support.gguf_writer"
local hf = require "support.hf"
local programs = require "support.programs"

local testing = core.testing
local MODELS = { "lfm2-odd", "lfm2_moe-odd", "zaya-odd", "qwen2_moe_window-odd" }
local VOCAB, LENGTH = 53, 140

local function open(model, o)
  o = o or {}
  o.context = o.context or 320
  return programs.open(hf.path(model), o)
end

local function session(p, kv) return assert(p:session { context = p:context(), kv = kv or "fp16" }) end

local function same(got, want, text)
  local why = floats.difference(got, want)
  if why then error(text .. ": " .. why, 2) end
end

local IDS = programs.ids(LENGTH, VOCAB, 11)
local function some(from, to) return programs.slice(IDS, from, to) end
local function stranger(n, seed) return programs.ids(n, VOCAB, seed or 99) end

-- In each: the logits of all ids, come by in another way.
local ways = {}
for _, step in ipairs { 1, 4, 7, 64 } do -- and whole
  ways[step .. " at a time"] = function(p, kv)
    local s <close> = session(p, kv)
    return programs.feed(s, IDS, step)
  end
end

-- Every number of tokens back, from a state that has gone astray for as many tokens.
ways["rewound by 1 to 100 tokens"] = function(p, kv)
  local s <close> = session(p, kv)
  local rows = programs.feed(s, some(1, 40))
  for back = 1, 100, p:info().threads == 1 and kv == "fp32" and 3 or 33 do
    assert(s:feed(stranger(back, back), "none"))
    assert(s:rewind(40))
    assert.equal(40, s:length())
    assert.equal(0, s:rows())
  end
  return rows .. programs.feed(s, some(41, LENGTH))
end

ways["rewound into what was right, near and far"] = function(p, kv)
  local s <close> = session(p, kv)
  programs.feed(s, IDS, 50)
  local tail = {}
  for _, n in ipairs { 139, 138, 90, 80, 76, 74, 50, 3, 2, 1 } do
    assert(s:rewind(n))
    tail[n] = programs.feed(s, some(n + 1, math.min(n + 5, LENGTH)), 2)
  end
  assert(s:rewind(0))
  local whole = programs.feed(s, IDS, 33)
  for n, bits in pairs(tail) do
    local row = #whole // LENGTH
    same(bits, whole:sub(n * row + 1, n * row + #bits), "from " .. n)
  end
  return whole
end

ways["saved and restored, twice"] = function(p, kv)
  local from <close> = session(p, kv)
  local to <close> = session(p, kv)
  local path = gguf.temp ".state"
  assert(to:feed(stranger(150), "none"))
  local rows = programs.feed(from, some(1, 71))
  assert(from:feed(stranger(40), "none"))
  assert(from:rewind(71)) -- stale columns are saved, too
  assert(from:save(path))
  assert(to:restore(path))
  rows = rows .. programs.feed(to, some(72, 80), 3)
  assert(to:save(path))
  assert(from:restore(path))
  os.remove(path)
  assert(from:rewind(75)) -- restored columns serve a rewind
  same(programs.feed(from, some(76, 80)), rows:sub(-5 * (#rows // 80)), "after a restored rewind")
  return rows .. programs.feed(from, some(81, LENGTH), 41)
end

ways["forked, while its origin goes another way"] = function(p, kv)
  local from <close> = session(p, kv)
  local rows = programs.feed(from, some(1, 67))
  local to <close> = assert(from:fork())
  assert(from:feed(stranger(50), "none"))
  local half = programs.feed(to, some(68, 90), 9)
  assert(from:rewind(3))
  assert(to:rewind(80))
  return rows .. half .. programs.feed(to, some(91 - 10, LENGTH)):sub(10 * (#rows // 67) + 1)
end

ways["in runs with other sequences"] = function(p, kv)
  local a <close> = session(p, kv)
  local s <close> = session(p, kv)
  local z <close> = session(p, kv)
  local rows, at, turn = {}, 1, 0
  for _, n in ipairs { 1, 30, 1, LENGTH - 40, 2, 1, 5 } do
    turn = turn + 1
    local items = {
      { a, stranger(turn % 3 + 1, turn), "last" }, { s, some(at, at + n - 1), "all" },
      { z, stranger(5, turn + 7), turn % 2 == 0 and "argmax" or "none" },
    }
    if turn % 2 == 0 then items[1], items[2] = items[2], items[1] end
    assert(testing.run(items))
    rows[turn], at = programs.rows(s), at + n
  end
  return table.concat(rows)
end

describe("logits of", function()
  for i, model in ipairs(MODELS) do
    it(model .. " are the same bits come by in any way", function()
      for _, int8 in ipairs { i % 2 == 0, i % 2 == 1 } do
        local whole
        for _, threads in ipairs(int8 and { 2 } or { 1, 2, 3 }) do
          -- int8 weights meet int8 activations; the bfloat16 of the file meets its like where the machine has the dot.
          local p <close> = open(model, {
            threads = threads, int8 = int8, weights = int8 and i % 2 == 0 and "int8-channel" or nil,
            manner = threads == 3 and "mixed" or nil,
          })
          local kv = ({ "fp32", i % 2 == 0 and "int16" or "fp16", "int8" })[threads]
          local s <close> = session(p, kv)
          local bits = programs.feed(s, IDS)
          local other <close> = session(p, "fp16")
          whole = whole or programs.feed(other, IDS)
          same(programs.feed(session(p, "fp16"), IDS), whole, threads .. " threads")
          for name, way in pairs(ways) do same(way(p, kv), bits, ("%s, %d threads, int8 %s"):format(name, threads, int8)) end
        end
      end
    end)

    it(model .. " do not depend on how on any level", function()
      for _, isa in ipairs(core.isa_list()) do
        for _, int8 in ipairs { false, true } do
          local p <close> = open(model, { threads = 2, isa = isa, int8 = int8 })
          local s <close> = session(p)
          local whole = programs.feed(s, IDS)
          for _, name in ipairs { "7 at a time", "rewound into what was right, near and far" } do
            same(ways[name](p, "fp16"), whole, ("%s on %s, int8 %s"):format(name, isa, int8))
          end
        end
      end
    end)
  end

  it("any chunk size of a program are the same", function()
    for _, model in ipairs(MODELS) do
      local whole
      for _, chunk in ipairs { 200, 1, 5, 64 } do
        local p <close> = open(model, { chunk = chunk, threads = 2 })
        local s <close> = session(p)
        local bits = programs.feed(s, IDS, chunk < LENGTH and chunk or nil)
        whole = whole or bits
        same(bits, whole, model .. " in chunks of " .. chunk)
      end
    end
  end)

  it("fp32 activations are the same on every level", function()
    for _, model in ipairs(MODELS) do
      local whole
      for _, isa in ipairs(core.isa_list()) do
        local p <close> = open(model, { isa = isa })
        local s <close> = session(p, "fp32")
        local bits = programs.feed(s, IDS)
        whole = whole or bits
        same(bits, whole, model .. " on " .. isa)
      end
    end
  end)

  it("a model of both sides do not depend on threads, levels, or other sequences", function()
    for _, int8 in ipairs { false, true } do
      for _, isa in ipairs(core.isa_list()) do
        local whole
        for threads = 1, 3, 2 do
          -- The larger one has rows of whole blocks, which the odd one has not.
          local p <close> = open(int8 and "privacy_filter" or "privacy_filter-odd",
            { isa = isa, threads = threads, int8 = int8, weights = int8 and "int8" or nil })
          local list = {}
          for i = 1, LENGTH do list[i] = IDS[i] % 47 end
          local s <close> = session(p)
          local t <close> = session(p)
          local bits = programs.feed(s, list)
          whole = whole or bits
          same(bits, whole, isa .. " " .. threads)
          assert(s:rewind(0))
          assert(testing.run { { t, { 5, 6, 7 }, "all" }, { s, list, "all" } })
          same(programs.rows(s), whole, "beside another")
        end
      end
    end
  end)
end)

describe("what rings keep", function()
  it("is replayed only if it is no longer kept", function()
    local p <close> = open("lfm2-odd", { threads = 1 }) -- four taps: three columns back
    local s <close> = session(p)
    assert(s:feed(IDS, "none"))
    local function replays(n)
      local before = s:replayed()
      assert(s:rewind(n))
      return s:replayed() - before
    end
    assert.equal(0, replays(LENGTH - 1))
    assert.equal(0, replays(LENGTH - 64))
    assert.equal(75, replays(75)) -- one too far: fed again from the start
    assert.equal(0, replays(74))
    assert(s:rewind(0))
    assert(s:feed(some(1, 60), "none"))
    assert.equal(0, replays(1)) -- all that there was is still there
    assert(s:feed(some(2, 60), "none"))
    assert.equal(0, replays(0))
  end)

  it("is checked in a saved file to the last bit", function()
    local path = gguf.temp ".state"
    local p <close> = open("lfm2-odd", { threads = 1 })
    local s <close> = session(p)
    assert(s:feed(some(1, 20), "none"))
    assert(s:save(path))
    local bytes = assert(core.read_file(path))
    local t <close> = session(p)
    assert(t:feed(some(1, 5), "all"))
    local before, ids = programs.rows(t), t:ids()
    local function refused(changed, what)
      assert(core.write_file(path, changed))
      assert.is_nil((t:restore(path)), what)
      assert.same(ids, t:ids())
      assert.equal(before, programs.rows(t))
    end
    for at = 1, #bytes, 211 do
      refused(bytes:sub(1, at - 1) .. string.char(bytes:byte(at) ~ 4) .. bytes:sub(at + 1), "flipped at " .. at)
    end
    for n = 0, #bytes - 1, 509 do refused(bytes:sub(1, n), "cut at " .. n) end
    os.remove(path)
    -- And the refusals have left its columns alone.
    local want = programs.feed(t, some(6, 30))
    local u <close> = session(p)
    same(programs.feed(u, some(1, 30)):sub(-#want), want, "after refusals")
  end)

  it("is not taken by another model of the same shape", function()
    local path = gguf.temp ".state"
    local a <close> = open("zaya-odd", { threads = 1 })
    local b <close> = open("lfm2-odd", { threads = 1 })
    local c <close> = open("zaya-odd", { threads = 1, soft = true })
    local s <close> = session(a)
    assert(s:feed(some(1, 20), "none"))
    assert(s:save(path))
    for _, p in ipairs { b, c } do
      local t <close> = session(p)
      assert.equal("state", select(3, t:restore(path)))
    end
    os.remove(path)
  end)
end)
