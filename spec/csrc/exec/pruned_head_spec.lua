-- The pruned head of q8_0 weights: the id and the logit of the whole head, to the bit, at every level, with any
-- number of threads.
local core = require "ane.core"
local programs = require "support.programs"
local tiny_llama = require "support.tiny_llama"

local testing = core.testing
local levels = testing.matmul_levels()
local models = { "llama-mixed", "llama-kquants", "qwen2-q4_0", "qwen2-bf16" }
local vocab = { ["llama-kquants"] = 320 }

-- Best ids and logits of ids fed in pieces; nil: one by one.
local function best_of(program, ids, piece)
  local s <close> = assert(program:session { context = program:context(), kv = "fp16" })
  local out = {}
  for from = 1, #ids, piece or 1 do
    local to = math.min(from + (piece or 1) - 1, #ids)
    assert(s:feed(table.move(ids, from, to, 1, {}), "argmax"))
    for row = 1, to - from + 1 do out[#out + 1] = ("%d %a"):format(s:argmax(row)) end
  end
  return out
end

-- Logits of all of them, fed in pieces.
local function logits_of(program, ids, piece)
  local s <close> = assert(program:session { context = program:context(), kv = "fp16" })
  return programs.feed(s, ids, piece)
end

describe("the pruned head", function()
  for _, model in ipairs(models) do
    it("finds what the whole head gives: " .. model, function()
      local ids = programs.ids(40, vocab[model] or 1024, 7)
      for _, level in ipairs(levels) do
        local whole <close> = programs.open(model, { isa = level, int8 = true, weights = "q8_0", head = "full" })
        local want, rows = best_of(whole, ids), logits_of(whole, ids)
        assert.same({ 0, 0, 0 }, { whole:head() })
        for threads = 1, 4 do
          local manner = threads == 4 and "mixed" or nil
          local o = {
            isa = level, int8 = true, weights = "q8_0", threads = threads, chunk = threads, manner = manner, head = "pruned",
          }
          local pruned <close> = programs.open(model, o)
          assert.same(want, best_of(pruned, ids))
          local tokens, read, bytes = pruned:head()
          assert.is_true(rows == logits_of(pruned, ids, threads))
          assert(tokens > 0 and bytes > 0 and read > bytes * tokens * 0.5)
          assert.same(want, best_of(pruned, ids, threads))
        end
      end
    end)
  end

  -- What may follow the product of the head: factors, caps, both; what may not: a factor that turns the order round.
  local behind = {
    { "a factor", true, function(b, x) return b:scale(x, 1 / 6) end },
    { "a factor whose products underflow", true, function(b, x) return b:scale(x, 2 ^ -140) end },
    { "a cap", true, function(b, x) return b:softcap(x, 30) end },
    { "a cap that all logits reach", true, function(b, x) return b:softcap(b:scale(x, 1000), 0.5) end },
    { "a factor, a cap and a factor", true, function(b, x) return b:scale(b:softcap(b:scale(x, 3), 2.5), 7) end },
    { "a negative factor", false, function(b, x) return b:scale(x, -1) end },
    { "a sum", false, function(b, x) return b:add(x, x) end },
  }
  for _, case in ipairs(behind) do
    local what, pruned, step = table.unpack(case)
    it(("is %s before %s"):format(pruned and "pruned" or "whole", what), function()
      local llama = require "ane.models.llama"
      local function open(o)
        local r = setmetatable({ build = function(b, cfg) return step(b, llama.build(b, cfg)) end }, { __index = llama })
        local graph <close> = programs.graph("llama-mixed", r)
        assert(graph:passes "cpu")
        o.int8, o.weights, o.context, o.chunk = true, "q8_0", 128, 4
        return programs.made(nil, core.program, graph, o)
      end
      local ids = programs.ids(24, 1024, 5)
      for _, level in ipairs(levels) do
        local whole <close> = open { isa = level, threads = 1, head = "full" }
        local want, rows = best_of(whole, ids), logits_of(whole, ids, 4)
        for _, threads in ipairs { 1, 3 } do
          local p <close> = open { isa = level, threads = threads, head = "pruned" }
          assert.same(want, best_of(p, ids))
          assert.equal(pruned, p:head() > 0)
          assert.same(want, best_of(p, ids, 3))
          assert.is_true(rows == logits_of(p, ids, 4))
        end
      end
    end)
  end

  it("takes up to three output rows", function()
    local ids = programs.ids(40, 1024, 3)
    local whole <close> = programs.open("qwen2-q4_0", { int8 = true, weights = "q8_0", head = "full" })
    local want = best_of(whole, ids)
    for piece = 1, 4 do
      local pruned <close> = programs.open("qwen2-q4_0", { int8 = true, weights = "q8_0", threads = 2, chunk = piece, head = "pruned" })
      assert.same(want, best_of(pruned, ids, piece))
      assert.equal(piece == 4, pruned:head() == 0)
    end
  end)

  -- Masks: of one id, of few, of every other, of nearly all; at the borders of words and groups.
  local function masks_of(n)
    local lists = { { 0 }, { n - 1 }, { 15, 16, 31, 32, n - 2 }, {}, {}, {}, {} }
    for id = 0, n - 1 do
      if id % 97 == 5 then table.insert(lists[4], id) end
      if id % 2 == 1 then table.insert(lists[5], id) end
      if id % 5 ~= 0 then table.insert(lists[6], id) end
      if id // 128 % 2 == 1 then table.insert(lists[7], id) end
    end
    return lists
  end

  -- The best of the listed ids by the logits of a row; of equal ones the lowest.
  local function best_in(logits, list)
    local best, value = nil, -math.huge
    for _, id in ipairs(list) do
      if logits:get(id + 1) > value then best, value = id, logits:get(id + 1) end
    end
    return ("%d %a"):format(best, value)
  end

  for _, model in ipairs(models) do
    it("searches among the ids of a mask: " .. model, function()
      local n = vocab[model] or 1024
      local ids, lists = programs.ids(14, n, 11), masks_of(n)
      for _, level in ipairs(levels) do
        local whole <close> = programs.open(model, { isa = level, int8 = true, weights = "q8_0", head = "full" })
        local s <close> = assert(whole:session { context = 64, kv = "fp16" })
        local want = {}
        for i, id in ipairs(ids) do
          assert(s:feed(id, "last"))
          want[i] = best_in(s:logits(), lists[i % #lists + 1])
        end
        for _, o in ipairs { { 1, "full" }, { 3, "full" }, { 1, "pruned" }, { 2, "pruned" }, { 4, "pruned", "mixed" } } do
          local program <close> = programs.open(model, {
            isa = level, int8 = true, weights = "q8_0", threads = o[1], head = o[2], manner = o[3],
          })
          local t <close> = assert(program:session { context = 64, kv = "fp16" })
          for i, id in ipairs(ids) do
            local mask = core.mask(program:mask_size(), lists[i % #lists + 1])
            assert(t:feed(id, "best", nil, mask))
            assert.equal(1, t:rows())
            assert.equal(want[i], ("%d %a"):format(t:argmax()))
            if o[2] == "pruned" then
              assert(t:rewind(i - 1))
              assert(t:feed(id, "best"))
              assert(t:rewind(i - 1))
              assert(t:feed(id, "best", nil, mask))
              assert.equal(want[i], ("%d %a"):format(t:argmax()))
            end
          end
        end
      end
    end)
  end

  it("has a mask for each sequence of a run", function()
    for _, head in ipairs { "full", "pruned" } do
      local p <close> = programs.open("qwen2-q4_0", { int8 = true, weights = "q8_0", threads = 2, head = head })
      local lists, items, want, open = masks_of(1024), {}, {}, {}
      for i = 1, 3 do
        local alone <close> = assert(p:session { context = 64, kv = "fp16" })
        assert(alone:feed({ 5 * i, 7 }, "last"))
        open[i] = assert(p:session { context = 64, kv = "fp16" })
        local list = lists[i + 3]
        items[i] = { open[i], { 5 * i, 7 }, want = "best", mask = core.mask(1024, list) }
        if i == 2 then items[i].mask, list = nil, lists[5] end
        if i == 2 then
          list = {}
          for id = 0, 1023 do list[#list + 1] = id end
        end
        want[i] = best_in(alone:logits(), list)
      end
      assert(p:run(items))
      for i, s in ipairs(open) do assert.equal(want[i], ("%d %a"):format(s:argmax())) end
      -- Beside a sequence whose logits are kept.
      for _, s in ipairs(open) do assert(s:rewind(0)) end
      items[2].want = "last"
      assert(p:run(items))
      for _, i in ipairs { 1, 3 } do assert.equal(want[i], ("%d %a"):format(open[i]:argmax())) end
      local logits = open[2]:logits()
      for id = 0, 1023 do assert.is_true(logits:get(id + 1) > -math.huge) end
      for _, s in ipairs(open) do s:close() end
    end
  end)

  it("reads little if few ids are allowed", function()
    local p <close> = programs.open("qwen2-q4_0", { int8 = true, weights = "q8_0", head = "pruned" })
    local s <close> = assert(p:session { context = 64, kv = "fp16" })
    assert(s:feed(1, "best", nil, core.mask(1024, { 3, 700 })))
    local count, read, whole = p:head()
    assert.equal(1, count)
    assert.is_true(read <= whole * 4 // 64) -- two groups of 64, each read once for its bounds and once for its products
  end)

  it("refuses a mask that is too short, or for other rows", function()
    local p <close> = programs.open("qwen2-q4_0", { int8 = true })
    local s <close> = assert(p:session { context = 64, kv = "fp16" })
    assert.has_error(function() s:feed(1, "best", nil, core.mask(1023)) end)
    assert.has_error(function() core.mask(4, { 4 }) end)
    local ok, _, code = s:feed({ 1, 2 }, "argmax", nil, core.mask(1024, { 1 }))
    assert.same({ nil, "invalid", 0 }, { ok, code, s:length() })
  end)

  it("is left out where the head is not q8_0 or logits are kept", function()
    local plain <close> = programs.open("llama-mixed", { int8 = true, weights = "q4_0", head = "pruned" })
    best_of(plain, { 1, 2 })
    assert.same({ 0, 0, 0 }, { plain:head() })
    local fp32 <close> = programs.open("llama-mixed", { weights = "q8_0", head = "pruned" })
    best_of(fp32, { 1, 2 })
    assert.same({ 0, 0, 0 }, { fp32:head() })
    local kept <close> = programs.open("llama-mixed", { int8 = true, weights = "q8_0", head = "pruned" })
    local s <close> = assert(kept:session { context = 64, kv = "fp16" })
    assert(s:feed({ 1 }, "last"))
    assert(s:feed({ 1, 2, 3, 4, 5 }, "argmax"))
    assert.equal(0, (kept:head()))
    assert(s:feed({ 1 }, "argmax"))
    assert.equal(1, (kept:head()))
  end)

  -- A llama of one layer, of rows x 512 codes in the head, and the bytes of those.
  local function with_head(rows)
    local cols = 512
    local path = tiny_llama.write(function(file, set, replace)
      set("llama.vocab_size", "uint32", rows)
      set("llama.embedding_length", "uint32", cols)
      for _, t in ipairs(file.tensors) do
        for at, n in ipairs(t.shape) do t.shape[at] = n == 16 and cols or n == 8 and cols // 2 or n end
        replace(t.name, table.unpack(t.shape))
      end
      local row = ("\0\x20" .. ("\1\2\xff\xfe"):rep(8)):rep(cols // 32)
      file.tensors[1] = { name = "token_embd.weight", dtype = "q8_0", shape = { rows, cols }, data = row:rep(rows) }
    end)
    return path, rows * cols // 32 * 34
  end

  it("is what large heads get where nothing is asked for", function()
    for rows, pruned in pairs { [87200] = false, [89600] = true } do
      local path, bytes = with_head(rows)
      assert.equal(pruned, bytes >= 48e6)
      for head, expected in pairs { auto = pruned, pruned = true, full = false } do
        local p <close> = programs.open(path, { int8 = true, context = 8, chunk = 1, head = head ~= "auto" and head or nil })
        local best = best_of(p, { 1 })
        assert.same({ head, "0", expected }, { head, best[1]:match "^%d+", p:head() > 0 })
      end
      os.remove(path)
    end
  end)

  it("is part of the profile", function()
    local p <close> = programs.open("llama-mixed", { int8 = true, weights = "q8_0", head = "pruned" })
    assert(p:profile(true))
    best_of(p, { 1 })
    local _, read = p:head()
    local rows = p:profile()
    assert.equal(read, math.tointeger(rows[#rows - 1].bytes))
  end)
end)
