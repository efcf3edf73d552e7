-- The promise that logits do not depend on how the work is split: to the bit, on every level, for every kind of
-- weight, key-value state and activation.
local core = require "ane.core"
local floats = require "support.floats"
local gguf = require "support.gguf_writer"
local programs = require "support.programs"

local testing = core.testing
local vocab = { ["llama-kquants"] = 320 }
local models = { "llama-mixed", "llama-kquants", "qwen2-q4_0", "qwen2-bf16", "gemma3-q8_0" }

-- Long enough for several key tiles of 64 and for gemma's window of 16, and no whole number of either.
local LENGTH = 201

local function ids_of(model, n) return programs.ids(n, vocab[model] or 1024, #model) end

local function session(program, kv) return assert(program:session { context = program:context(), kv = kv }) end

-- In each: the logits of all ids, come by in another way. `p` is a program, `ids` what is fed, `whole` the expected bits.
local ways = {}
for _, step in ipairs { 1, 3, 4, 7, 64 } do
  ways[step .. " at a time"] = function(p, kv, ids)
    local s <close> = session(p, kv)
    return programs.feed(s, ids, step)
  end
end

ways["rewound and fed again"] = function(p, kv, ids)
  local s <close> = session(p, kv)
  assert(s:feed(programs.ids(#ids, 300, 99), "none")) -- stale keys of other tokens stay behind in the state
  assert(s:rewind(0))
  local rows = programs.feed(s, programs.slice(ids, 1, 70), 33)
  assert(s:feed(programs.slice(ids, 9, 90), "none"))
  assert(s:rewind(70))
  return rows .. programs.feed(s, programs.slice(ids, 71, #ids), 50)
end

ways["saved and restored"] = function(p, kv, ids)
  local from <close> = session(p, kv)
  local to <close> = session(p, kv)
  local path = gguf.temp ".state"
  assert(to:feed(programs.ids(150, 300, 5), "none"))
  local rows = programs.feed(from, programs.slice(ids, 1, #ids // 2))
  assert(from:save(path))
  local ok, message = to:restore(path)
  os.remove(path)
  assert(ok, message)
  return rows .. programs.feed(to, programs.slice(ids, #ids // 2 + 1, #ids), 41)
end

ways["forked, while its origin goes another way"] = function(p, kv, ids)
  local from <close> = session(p, kv)
  local rows = programs.feed(from, programs.slice(ids, 1, 67))
  local to <close> = assert(from:fork())
  assert(from:feed(programs.ids(50, 300, 3), "none"))
  local half = programs.feed(to, programs.slice(ids, 68, 90), 9)
  assert(from:rewind(3))
  return rows .. half .. (#ids > 90 and programs.feed(to, programs.slice(ids, 91, #ids)) or "")
end

-- Steps of a run with this session in the middle of two strangers; other lengths, other wants.
ways["in runs with other sequences"] = function(p, kv, ids)
  local a <close> = session(p, kv)
  local s <close> = session(p, kv)
  local z <close> = session(p, kv)
  local rows, at, turn = {}, 1, 0
  for _, n in ipairs { 1, 30, 1, #ids - 40, 2, 1, 5 } do
    turn = turn + 1
    local items = {
      { a, programs.ids(turn % 3 + 1, 300, turn), "last" },
      { s, programs.slice(ids, at, at + n - 1), "all" },
      { z, programs.ids(5, 300, turn + 7), turn % 2 == 0 and "argmax" or "none" },
    }
    if turn % 2 == 0 then items[1], items[2] = items[2], items[1] end
    assert(testing.run(items))
    rows[turn], at = programs.rows(s), at + n
  end
  return table.concat(rows)
end

local names = {}
for name in pairs(ways) do names[#names + 1] = name end
table.sort(names)

-- The first row that differs, for the message.
local function difference(got, want, model)
  if got == want then return nil end
  local row = 4 * (vocab[model] or 1024)
  for at = 1, #want, row do
    local d = floats.difference(got:sub(at, at + row - 1), want:sub(at, at + row - 1))
    if d then return ("position %d, %s"):format(at // row, d) end
  end
end

describe("the bits of the logits", function()
  for _, isa in ipairs(core.isa_list()) do
    -- The ways take turns over kinds of state and activations: half of them a case on the best level, two on the others.
    -- Scalar code is slow: fewer tokens there, still across two tiles.
    local among = isa == core.isa_best() and 2 or 5
    local length = isa == "ref" and 72 or LENGTH
    for _, model in ipairs(models) do
      it(("are the same for every split: %s on %s"):format(model, isa), function()
        local ids = ids_of(model, length)
        for turn, int8 in ipairs { true, false } do
          local one <close> = programs.open(model, { isa = isa, int8 = int8, threads = 1 })
          local two <close> = programs.open(model, { isa = isa, int8 = int8, threads = 2 })
          for at, kv in ipairs { "fp16", "fp32", "int8", "int16" } do
            local s <close> = session(one, kv)
            local whole = programs.feed(s, ids)
            for i, name in ipairs(names) do
              if (i + at + 3 * turn + #model) % among > 0 then goto next end
              -- Each way meets one thread or two; over the three kinds of state, both.
              local got = ways[name]((i // 2 + at + turn) % 2 == 0 and one or two, kv, ids)
              assert.is_nil(difference(got, whole, model), ("%s, kv %s, int8 %s"):format(name, kv, int8))
              ::next::
            end
          end
        end
      end)
    end
  end

  for _, model in ipairs(models) do
    it("are the same for any number of threads, and where they come and go: " .. model, function()
      for _, isa in ipairs { core.isa_list()[1], core.isa_best() } do
        -- On the best level, so many tokens that the work is divided by them (token_blocks in step_linear.c).
        local most = isa == core.isa_best() and 263 or 70
        local ids = ids_of(model, most + 5)
        for _, int8 in ipairs { true, false } do
          local whole
          for i, manner in ipairs { "together", "together", "together", "together", "mixed", "free", "mixed" } do
            local threads = i <= 4 and i or i == 7 and 2 or i
            local p <close> = programs.open(model, { isa = isa, int8 = int8, threads = threads, manner = manner })
            local s <close> = session(p, "fp16")
            local got = programs.feed(s, programs.slice(ids, 1, most)) .. programs.feed(s, programs.slice(ids, most + 1, #ids), 1)
            whole = whole or got
            assert.is_nil(difference(got, whole, model), ("%d threads, %s, %s, int8 %s"):format(threads, manner, isa, int8))
          end
        end
      end
    end)
  end

  -- A single token that sees eight tiles or more is cut by tiles among the threads.
  it("are the same where one token's keys are shared out among threads", function()
    for _, model in ipairs { "llama-mixed", "gemma3-q8_0" } do
      local ids = ids_of(model, 640)
      for _, kv in ipairs { "fp16", "fp32", "int8", "int16" } do
        local one <close> = programs.open(model, { context = 700, threads = 1 })
        local s <close> = session(one, kv)
        assert(s:feed(programs.slice(ids, 1, 505), "none"))
        local whole = programs.feed(s, programs.slice(ids, 506, 640))
        for _, threads in ipairs { 2, 3, 4 } do
          local p <close> = programs.open(model, { context = 700, threads = threads, manner = threads == 4 and "mixed" or nil })
          local t <close> = session(p, kv)
          assert(t:feed(programs.slice(ids, 1, 505), "none"))
          local got = programs.feed(t, programs.slice(ids, 506, 530), 1) .. programs.feed(t, programs.slice(ids, 531, 620))
            .. programs.feed(t, programs.slice(ids, 621, 640), 1)
          assert.is_nil(difference(got, whole, model), ("%s, kv %s, %d threads"):format(model, kv, threads))
        end
      end
    end
  end)

  -- kernels.h: every level has the order of ref. Only bf16 dots round as their instruction does.
  it("are the same on every level, but for bf16 dots", function()
    for _, model in ipairs(models) do
      local ids = ids_of(model, 40)
      for _, int8 in ipairs { true, false } do
        local whole = {}
        for _, isa in ipairs(core.isa_list()) do
          local p <close> = programs.open(model, { isa = isa, int8 = int8 })
          local bf16 = false
          for _, m in ipairs(p:info().matrices) do bf16 = bf16 or m.act == "bf16" end
          assert.is_true(not bf16 or (model == "qwen2-bf16" and int8))
          for _, kv in ipairs { "fp16", "int16" } do
            local s <close> = session(p, kv)
            local got = programs.feed(s, ids)
            whole[kv] = whole[kv] or got
            if not bf16 then assert.is_nil(difference(got, whole[kv], model), ("%s on %s, kv %s, int8 %s"):format(model, isa, kv, int8)) end
          end
        end
      end
    end
  end)

  -- A want must not change what is computed: the last row of "all" is "last", and argmax is the best of the row.
  it("are the same whatever is wanted", function()
    local p <close> = programs.open("gemma3-q8_0", { int8 = true, threads = 2, chunk = 150 })
    local ids = ids_of("gemma3-q8_0", 150)
    local all <close> = session(p, "fp16")
    local last <close> = session(p, "fp16")
    local best <close> = session(p, "fp16")
    local none <close> = session(p, "fp16")
    assert(all:feed(ids, "all"))
    assert(last:feed(ids))
    assert(best:feed(ids, "argmax"))
    assert(none:feed(programs.slice(ids, 1, 149), "none"))
    assert(none:feed(ids[150], "last"))
    assert.equal(150, all:rows())
    assert.equal(1, last:rows())
    assert.equal(150, best:rows())
    assert.equal(all:logits(150):tostring(), last:logits():tostring())
    assert.equal(all:logits(-1):tostring(), none:logits(1):tostring())
    for i = 1, 150 do
      local id, logit = best:argmax(i)
      assert.equal(all:logits(i):argmax(), id)
      assert.equal(all:logits(i):max(), logit)
      assert.same({ id, logit }, { all:argmax(i) })
    end
  end)
end)
