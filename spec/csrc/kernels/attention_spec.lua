local testing = require("ane.core").testing
local floats = require("support.floats")

-- A call of testing.attention with random queries, keys and values. `count`: positions written, at least pos + t.
local function case(o)
  o.kv_heads, o.count, o.seed = o.kv_heads or 1, o.count or o.pos + o.t, o.seed or o.pos + 7 * o.t
  o.n_heads = o.kv_heads * o.group
  o.scale = o.scale or 1 / math.sqrt(o.head_dim)
  if o.sinks == true then o.sinks = floats.uniform(o.n_heads, o.seed + 3, 2) end
  o.q = floats.uniform(o.t * o.n_heads * o.head_dim, o.seed, 3)
  o.k = floats.uniform(o.count * o.kv_heads * o.head_dim, o.seed + 1, 3)
  o.v = floats.uniform(o.count * o.kv_heads * o.head_dim, o.seed + 2, 2)
  return o
end

local function with(o, changes)
  local copy = {}
  for k, v in pairs(o) do copy[k] = v end
  for k, v in pairs(changes) do copy[k] = v end
  return copy
end

local function text(o)
  return ("%s%s group %d head_dim %d pos %d t %d window %d ahead %d%s"):format(o.dtype, o.relative and " relative" or "", o.group,
    o.head_dim, o.pos, o.t, o.window or 0, o.ahead or 0, o.sinks and " sinks" or "")
end

-- Every length against every place; the other traits take turns.
local head_dims, groups, dtypes = {24, 64, 80, 32, 7, 96, 112}, {1, 3, 7, 2, 16, 5}, {"fp16", "int8", "fp32", "int16"}
local cases, turn = {}, 0
for _, pos in ipairs {0, 1, 63, 64, 65, 500} do
  for _, t in ipairs {1, 2, 7, 64, 65, 130} do
    for _, window in ipairs {0, 1, 5, 64, 100} do
      turn = turn + 1
      if t < 64 or (turn + pos) % 3 == 0 then
        cases[#cases + 1] = {pos = pos, t = t, window = window, head_dim = head_dims[turn % 7 + 1],
          group = t < 64 and groups[turn % 6 + 1] or groups[turn % 4 + 1], dtype = dtypes[turn % 4 + 1],
          softcap = turn % 5 == 0 and 2.5 or 0, kv_heads = 1 + turn % 2, stale = turn}
      end
    end
  end
end
for _, dtype in ipairs(dtypes) do
  for _, shape in ipairs {{64, 3}, {64, 7}, {128, 8}, {256, 4}, {80, 1}, {24, 16}} do
    cases[#cases + 1] = {pos = 120, t = 20, head_dim = shape[1], group = shape[2], dtype = dtype}
  end
end

-- Blocks of many rows, with tiles that all, some or only the last of them see; panels of every number of rows, also an odd number.
for i, shape in ipairs {{64, 3, 150}, {64, 7, 150}, {80, 5, 101}, {7, 2, 140}, {33, 1, 197}, {64, 4, 67}} do
  for j, dtype in ipairs(dtypes) do
    cases[#cases + 1] = {pos = 70, t = shape[3], head_dim = shape[1], group = shape[2], dtype = dtype,
      window = (i + j) % 3 == 0 and 90 or 0, softcap = (i + j) % 4 == 0 and 1.5 or 0, sinks = i == 1 or nil}
  end
end

-- Both sides: whole sequences, so from position 0; and sinks with and without. A negative sink is as good as none, a
-- large one takes nearly all.
turn = 0
for _, t in ipairs {1, 2, 63, 64, 65, 130, 200} do
  for _, ahead in ipairs {0, 1, 5, 64, 100, 1000} do
    turn = turn + 1
    cases[#cases + 1] = {pos = 0, t = t, ahead = ahead, window = ({0, ahead + 1, 3})[turn % 3 + 1], sinks = turn % 2 == 0 or nil,
      head_dim = head_dims[turn % 7 + 1], group = groups[turn % 6 + 1], dtype = dtypes[turn % 4 + 1], kv_heads = 1 + turn % 2,
      softcap = turn % 5 == 0 and 2.5 or 0, stale = turn}
  end
end
for _, sink in ipairs {-80, 0, 30, 200} do
  cases[#cases + 1] = {pos = 70, t = 9, window = 40, head_dim = 16, group = 1, dtype = "fp32", sinks = floats.pack {sink}}
end

-- Relative keys, for attention without sinks and softcap, on one side.
for i = 1, #cases do
  local o = cases[i]
  if o.dtype == "int16" and not o.sinks and (o.softcap or 0) == 0 and (o.ahead or 0) == 0 then
    cases[#cases + 1] = with(o, {relative = true})
  end
end
-- Long heads; a scale below 0, which turns the order of the scores round.
for i, head_dim in ipairs {64, 65, 127, 128, 130, 192, 256, 576} do
  cases[#cases + 1] = {pos = 63 + i, t = 9, group = i, head_dim = head_dim, dtype = "int16", relative = i % 2 == 0,
    window = i % 3 * 40, softcap = i % 4 == 1 and 2 or 0}
  cases[#cases + 1] = {pos = 63 + i, t = 2, group = 3, head_dim = head_dim, dtype = "int16", scale = -0.05, relative = i % 2 == 1}
end

-- A third of the cases, for emulators (spec/arm). No trait has a period of 11.
if os.getenv "ANE_SHORT" then
  local some = {}
  for i, o in ipairs(cases) do
    if i % 11 % 3 == 0 then some[#some + 1] = o end
  end
  cases = some
end

describe("attention", function()
  local wanted = {} -- by ref, of each case

  for _, level in ipairs(testing.kernel_levels()) do
    it(level .. ": same bits as ref, whole, query by query and in parts", function()
      for i, given in ipairs(cases) do
        local o = case(with(given, {}))
        wanted[i] = wanted[i] or testing.attention("ref", o)
        for _, how in ipairs {"whole", "single", "parts"} do
          assert.is_nil(floats.difference(testing.attention(level, with(o, {how = how})), wanted[i]), how .. ": " .. text(o))
        end
      end
    end)

    it(level .. ": later keys and stale memory change nothing", function()
      for _, dtype in ipairs(dtypes) do
        for _, head_dim in ipairs {64, 24} do
          for _, pos in ipairs {3, 70} do
            local o = case {pos = pos, t = 6, group = 3, head_dim = head_dim, dtype = dtype, count = pos + 40}
            local row = o.kv_heads * head_dim * 4
            local short = with(o, {count = pos + 6, k = o.k:sub(1, (pos + 6) * row), v = o.v:sub(1, (pos + 6) * row)})
            local want = testing.attention(level, short)
            assert.equal(want, testing.attention(level, o))
            assert.equal(want, testing.attention(level, with(short, {stale = 11})))
            assert.equal(want, testing.attention(level, with(o, {stale = 12})))
          end
        end
      end
    end)
  end

  -- Rounding of scores of about 10 to 2^-24 and of sums over keys; codes are within half a step of max / 127, values of int16 of
  -- max / 3800.
  local tolerances = {fp32 = 5e-6, fp16 = 4e-3, int16 = 2e-3, int8 = 4e-2}

  local function truth(o)
    local q, k, v = floats.unpack(o.q), floats.unpack(o.k), floats.unpack(o.v)
    local hd, out = o.head_dim, {}
    for t = 0, o.t - 1 do
      for h = 0, o.n_heads - 1 do
        local kv, p, s, largest, sum = h // o.group, o.pos + t, {}, -math.huge, 0
        local first = (o.window or 0) > 0 and math.max(0, p - o.window + 1) or 0
        local last, sink = math.min(p + (o.ahead or 0), o.pos + o.t - 1), o.sinks and floats.unpack(o.sinks)[h + 1]
        for j = first, last do
          local dot = 0
          for d = 1, hd do dot = dot + q[(t * o.n_heads + h) * hd + d] * k[(j * o.kv_heads + kv) * hd + d] end
          s[j] = dot * o.scale
          if (o.softcap or 0) > 0 then
            local e = math.exp(-2 * s[j] / o.softcap)
            s[j] = o.softcap * (1 - e) / (1 + e)
          end
          largest = math.max(largest, s[j])
        end
        if sink then sum = math.exp(sink - largest) end
        for j = first, last do
          s[j] = math.exp(s[j] - largest)
          sum = sum + s[j]
        end
        for d = 1, hd do
          local o_d = 0
          for j = first, last do o_d = o_d + s[j] * v[(j * o.kv_heads + kv) * hd + d] end
          out[#out + 1] = o_d / sum
        end
      end
    end
    return out
  end

  for dtype, tolerance in pairs(tolerances) do
    it(dtype .. ": is softmax(scale q k) v in double precision", function()
      for _, o in ipairs {
        {pos = 0, t = 1, group = 1, head_dim = 64}, {pos = 0, t = 70, group = 2, head_dim = 24},
        {pos = 65, t = 7, group = 3, head_dim = 80, kv_heads = 2}, {pos = 130, t = 5, group = 2, head_dim = 32, window = 64},
        {pos = 63, t = 9, group = 1, head_dim = 24, window = 5}, {pos = 100, t = 3, group = 3, head_dim = 16, softcap = 1.5},
        {pos = 0, t = 70, group = 2, head_dim = 24, ahead = 3, window = 4},
        {pos = 0, t = 130, group = 3, head_dim = 16, ahead = 70, sinks = true},
        {pos = 66, t = 5, group = 4, head_dim = 24, sinks = true, window = 20},
        {pos = 70, t = 5, group = 3, head_dim = 64, relative = true}, {pos = 66, t = 4, group = 2, head_dim = 80, scale = -0.1},
        {pos = 130, t = 5, group = 2, head_dim = 32, window = 64, relative = true},
        {pos = 0, t = 9, group = 1, head_dim = 130, relative = true},
      } do
        o = case(with(o, {dtype = dtype, stale = 3}))
        local got, want = floats.unpack(testing.attention("ref", o)), truth(o)
        assert.equal(#want, #got)
        for i = 1, #want do assert.is_true(math.abs(got[i] - want[i]) <= tolerance, text(o)) end
      end
    end)
  end
end)

describe("the cache", function()
  local function written(level, o)
    return table.concat({testing.kv_write(level, o)}, "|")
  end

  local function cache(dtype, head_dim, count)
    local o = {dtype = dtype, head_dim = head_dim, kv_heads = 2, count = count, relative = head_dim % 3 == 0}
    o.k, o.v = floats.uniform(count * 2 * head_dim, head_dim, 5), floats.uniform(count * 2 * head_dim, head_dim + 1, 5)
    return o
  end

  for _, level in ipairs(testing.kernel_levels()) do
    it(level .. ": is written with the same bytes as by ref", function()
      for _, dtype in ipairs(dtypes) do
        for _, head_dim in ipairs {1, 7, 8, 24, 33, 64, 80, 128} do
          local o = cache(dtype, head_dim, 67)
          assert.is_true(written(level, o) == written("ref", o), dtype .. " " .. head_dim)
        end
      end
    end)

    it(level .. ": is written with the same bytes, however many tokens at a time and from wherever on", function()
      local wanted = {}
      for _, dtype in ipairs(dtypes) do
        for i, head_dim in ipairs {1, 4, 7, 16, 24, 33, 64, 80} do
          for _, start in ipairs {0, 1, 15, 48, 61} do
            local o = with(cache(dtype, head_dim, 90 + i), {start = start, stale = 9})
            local want = written("ref", with(o, {run = 1}))
            wanted[#wanted + 1] = want
            for _, run in ipairs {0, 1, 2, 5, 16, 17, 64} do
              local same = written(level, with(o, {run = run})) == want
              assert.is_true(same, ("%s head_dim %d from %d, %d a call"):format(dtype, head_dim, start, run))
            end
          end
        end
      end
      assert.is_true(wanted[1] ~= wanted[2]) -- the place counts
    end)

    it(level .. ": takes zeros, subnormal, huge and tiny values", function()
      for _, dtype in ipairs(dtypes) do
        for _, values in ipairs {{0.0, -0.0}, {2.0 ^ -149, -2.0 ^ -149}, {6e4, -65519}, {1e-37, -1e-40}, {3e38, 1}, {2.0 ^ -25, 6.1e-5}} do
          local x = floats.pack(values)
          local o = {dtype = dtype, head_dim = 2, kv_heads = 1, count = 1, k = x, v = x}
          assert.is_true(written(level, o) == written("ref", o), dtype .. " " .. values[1])
        end
      end
    end)
  end

  it("has K transposed and V in rows, tile by tile", function()
    local o = cache("fp32", 3, 66)
    local k, v = testing.kv_write("ref", o)
    k, v = floats.unpack(k), floats.unpack(v)
    local k_in, v_in = floats.unpack(o.k), floats.unpack(o.v)
    for h = 0, 1 do
      for p = 0, 65 do
        for d = 0, 2 do
          local tile, j = (h * 2 + p // 64) * 64 * 3, p % 64
          assert.equal(k_in[(p * 2 + h) * 3 + d + 1], k[tile + d * 64 + j + 1])
          assert.equal(v_in[(p * 2 + h) * 3 + d + 1], v[tile + j * 3 + d + 1])
        end
      end
    end
  end)

  it("int16 keys may be relative to the first, which is kept", function()
    local o = cache("int16", 3, 66)
    local k, _, scales, _, bases = testing.kv_write("ref", o)
    local k_in = floats.unpack(o.k)
    for h = 0, 1 do
      for d = 0, 2 do
        assert.equal(k_in[h * 3 + d + 1], (string.unpack("<f", bases, (h * 2 * 3 + d) * 4 + 1)))
        for p = 0, 65 do
          local tile, j = (h * 2 + p // 64) * 64, p % 64
          local scale = string.unpack("<f", scales, (tile + j) * 4 + 1)
          local code = string.unpack("<i2", k, (tile * 4 + (d // 2 * 64 + j) * 2 + d % 2) * 2 + 1)
          local want = k_in[(p * 2 + h) * 3 + d + 1] - k_in[h * 3 + d + 1]
          assert.is_true(p > 0 or code == 0 and scale == 0)
          assert.is_true(math.abs(code * scale - want) <= 0.51 * scale and math.abs(code) <= 32767, p)
        end
      end
    end
  end)

  it("int16 keys have codes whose sums of products fit in 32 bits", function()
    for _, head_dim in ipairs {1, 2, 64, 128, 576} do
      for _, value in ipairs {1, -3e-5} do
        local flat = {}
        for d = 1, head_dim do flat[d] = value * (d % 2 == 0 and 1 or -1) end
        local x = floats.pack(flat)
        local k = testing.kv_write("ref", {dtype = "int16", head_dim = head_dim, kv_heads = 1, count = 1, k = x, v = x})
        local sum = 0
        for d = 0, head_dim - 1 do sum = sum + string.unpack("<i2", k, (d // 2 * 64 * 2 + d % 2) * 2 + 1) ^ 2 end
        assert.is_true(sum < 2 ^ 31 and sum > (head_dim == 1 and 32766 ^ 2 or 2 ^ 31 * 0.97), head_dim)
      end
    end
  end)

  it("int8 has scale max / 127 and codes to nearest even", function()
    local x = floats.pack {254, -254, 1, 3, 5, -1, 2, 100.9}
    local k, _, scales = testing.kv_write("ref", {dtype = "int8", head_dim = 8, kv_heads = 1, count = 1, k = x, v = x})
    local codes = {}
    for d = 0, 7 do codes[d + 1] = string.unpack("b", k, d * 64 + 1) end
    assert.same({127, -127, 0, 2, 2, 0, 1, 50}, codes)
    assert.equal(2, (string.unpack("<f", scales)))
  end)
end)
