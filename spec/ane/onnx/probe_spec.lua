-- Masks, lengths and ropes of a graph, found from the values that it gives for some lengths.
local onnx = require "support.onnx_writer"
local probe = require "ane.onnx.probe"

local NODE = { name = "node", op = "Attention" }

-- A lift whose graph gives fn(past, tokens) -> shape, numbers for value 1 and 2.
local function lift_of(...)
  local fns = { ... }
  local g = { data = {}, static = {}, doc = { values = { { name = "a" }, { name = "b" } } } }
  function g.evaluate(_, v, past, tokens)
    local shape, list = fns[v](past, tokens)
    return onnx.floats(shape, list)
  end
  function g:numbers(v, past, tokens) return self:evaluate(v, past, tokens).values end
  return { graph = g, context = 64 }
end

local function refused(pattern, fn, ...)
  local ok, raised = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_true(type(raised) == "table" and raised.uncovered, tostring(raised))
  assert.matches(pattern, raised.message)
end

-- A mask: 0 where seen(query, key), else -1e9.
local function mask(seen)
  return function(past, tokens)
    local list = {}
    for i = 0, tokens - 1 do
      for j = 0, past + tokens - 1 do list[#list + 1] = seen(past + i, j) and 0 or -1e9 end
    end
    return { 1, 1, tokens, past + tokens }, list
  end
end

describe("probing", function()
  it("finds causal masks and windows", function()
    local causal = lift_of(mask(function(i, j) return j <= i end))
    assert.equal(0, probe.mask(causal, NODE, 1, false))
    local window = lift_of(mask(function(i, j) return j <= i and j > i - 9 end))
    assert.equal(9, probe.mask(window, NODE, 1, false))
    assert.equal(0, probe.mask(causal, NODE, 0, true))
  end)

  it("refuses other masks", function()
    refused("has no mask", probe.mask, lift_of(), NODE, 0, false)
    refused("neither causal nor a window", probe.mask, lift_of(mask(function() return true end)), NODE, 1, false)
    refused("neither causal nor a window", probe.mask, lift_of(mask(function(i, j) return j <= i and j ~= 2 end)), NODE, 1, false)
    refused("something else than a mask", probe.mask, lift_of(function(past, tokens)
      local list = {}
      for i = 1, tokens * (past + tokens) do list[i] = -i / 1000 end
      return { tokens, past + tokens }, list
    end), NODE, 1, false)
    local data = lift_of(mask(function(i, j) return j <= i end))
    data.graph.data[1] = true
    refused("depends on tokens", probe.mask, data, NODE, 1, false)
  end)

  it("takes the lengths of the tokens only", function()
    local function last(past, tokens) return { 1 }, { past + tokens - 1 } end
    local function total(past, tokens) return { 1 }, { past + tokens } end
    probe.lengths(lift_of(last, total), NODE, 1, 2)
    refused("other lengths", probe.lengths, lift_of(total, total), NODE, 1, 2)
    refused("lacks its lengths", probe.lengths, lift_of(last, total), NODE, 1, 0)
  end)

  it("finds the frequencies and the magnitude of a rope", function()
    local want = { 1, 0.3, 0.01, 1e-4 }
    local function rows(fn)
      return function()
        local list = {}
        for row = 0, 63 do
          for _, f in ipairs(want) do list[#list + 1] = 1.2 * fn(row * f) end
        end
        return { 64, #want }, list
      end
    end
    local lift = lift_of(rows(math.cos), rows(math.sin))
    lift.graph.static = { true, true }
    local rope = probe.rope(lift, NODE, 1, 2, 0)
    assert.equal(8, rope.dims)
    assert.is_true(math.abs(rope.magnitude - 1.2) < 1e-5)
    for i, f in ipairs(want) do assert.is_true(math.abs(rope.inv_freq[i] - f) < 1e-4 * f + 1e-7, rope.inv_freq[i]) end
    assert.is_nil(rope.long_freq)
    refused("no constant frequencies give", probe.rope, (function()
      local odd = lift_of(rows(function(p) return math.cos(p * p) end), rows(function(p) return math.sin(p * p) end))
      odd.graph.static = { true, true }
      return odd
    end)(), NODE, 1, 2, 0)
    refused("rotates without tables", probe.rope, lift, NODE, 0, 2, 0)
  end)

  describe("of a table with the rows of short and long texts one after the other", function()
    local short, long = { 1, 0.3, 0.01 }, { 0.7, 0.05, 0.002 }
    -- 20 rows of short texts, then 64 of long ones, which positions from `from` on take with `shift` added.
    local function combined(fn, shift, from)
      local function rows(wave)
        return function()
          local list = {}
          for row = 0, 83 do
            for i = 1, 3 do list[#list + 1] = wave(row < 20 and row * short[i] or (row - 20) * long[i]) end
          end
          return { 84, 3 }, list
        end
      end
      local function positions(past, tokens)
        local list = {}
        for i = 0, tokens - 1 do list[i + 1] = past + i + (past + tokens > from and shift or 0) end
        return { 1, tokens }, list
      end
      local lift = lift_of(rows(math.cos), rows(math.sin), fn or positions)
      lift.graph.doc.values[3] = { name = "positions" }
      lift.graph.static = { true, true }
      return lift
    end

    it("finds both, and the length from which on the long ones count", function()
      local rope = probe.rope(combined(nil, 20, 20), NODE, 1, 2, 3)
      assert.same({ 6, 20, 64 }, { rope.dims, rope.original, rope.rows })
      for i = 1, 3 do
        assert.is_true(math.abs(rope.inv_freq[i] - short[i]) < 1e-3 * short[i])
        assert.is_true(math.abs(rope.long_freq[i] - long[i]) < 1e-3 * long[i])
      end
    end)

    it("refuses positions that are neither those of the tokens nor all shifted alike", function()
      refused("other positions than those of the tokens", probe.rope, combined(nil, 19, 20), NODE, 1, 2, 3)
      refused("other positions than those of the tokens", probe.rope, combined(function(past, tokens)
        local list = {}
        for i = 0, tokens - 1 do list[i + 1] = (past + i) * 2 end
        return { 1, tokens }, list
      end), NODE, 1, 2, 3)
      refused("other positions than those of the tokens", probe.rope, combined(function(past, tokens)
        local list = {}
        for i = 0, tokens - 1 do list[i + 1] = past + i + (past + i >= 20 and 20 or 0) end
        return { 1, tokens }, list
      end), NODE, 1, 2, 3)
    end)
  end)
end)
