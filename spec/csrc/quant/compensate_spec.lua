-- Compensated rounding against an implementation of its own here: the published algorithm, with the inverse of the second moment and
-- without blocks, in Lua's doubles.
local core = require "ane.core"
local floats = require "support.floats"
local gguf = require "support.gguf_writer"

local folder

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir '" .. folder .. "'"))
end)

after_each(function() os.execute("rm -r '" .. folder .. "'") end)

-- Correlated inputs [tokens][cols] of unequal sizes.
local function inputs(tokens, cols, seed)
  local r, x = floats.random(seed), {}
  for t = 1, tokens do
    x[t] = {}
    local shared = 2 * r() - 1
    for c = 1, cols do x[t][c] = (2 * r() - 1 + shared) * (0.2 + 2 * (c * 7 % cols) / cols) end
  end
  return x
end

-- Inputs as moments have them: rounded to 1/4095 of the largest number of each column, among 128 tokens.
local function coded(x)
  local list = {}
  for t = 1, #x do list[t] = {} end
  for first = 1, #x, 128 do
    local last = math.min(first + 127, #x)
    for c = 1, #x[1] do
      local peak = 0
      for t = first, last do peak = math.max(peak, math.abs(x[t][c])) end
      for t = first, last do list[t][c] = math.floor(x[t][c] * 4095 / peak + 0.5) * peak / 4095 end
    end
  end
  return list
end

local function flat(x)
  local values = {}
  for _, row in ipairs(x) do table.move(row, 1, #row, #values + 1, values) end
  return values
end

local function second_moment(x, damp)
  local n, h, mean = #x[1], {}, 0
  for i = 1, n do
    h[i] = {}
    for j = 1, n do
      local sum = 0
      for _, row in ipairs(x) do sum = sum + row[i] * row[j] end
      h[i][j] = sum / #x
    end
    mean = mean + h[i][i] / n
  end
  for i = 1, n do h[i][i] = h[i][i] + damp * mean end
  return h
end

-- Mean of (wanted - x)' x.
local function drift_of(x, wanted)
  local d = {}
  for i = 1, #x[1] do
    d[i] = {}
    for j = 1, #x[1] do
      local sum = 0
      for t, row in ipairs(x) do sum = sum + (wanted[t][i] - row[i]) * row[j] end
      d[i][j] = sum / #x
    end
  end
  return d
end

local function times(row, matrix)
  local out = {}
  for j = 1, #matrix do
    out[j] = 0
    for i, v in ipairs(row) do out[j] = out[j] + v * matrix[i][j] end
  end
  return out
end

local function permuted(h, order)
  local out = {}
  for i = 1, #order do
    out[i] = {}
    for j = 1, #order do out[i][j] = h[order[i]][order[j]] end
  end
  return out
end

-- Gauss-Jordan.
local function inverse(h)
  local n, a = #h, {}
  for i = 1, n do
    a[i] = {}
    for j = 1, 2 * n do a[i][j] = j <= n and h[i][j] or (j - n == i and 1 or 0) end
  end
  for c = 1, n do
    local p = a[c][c]
    for j = 1, 2 * n do a[c][j] = a[c][j] / p end
    for r = 1, n do
      local f = a[r][c]
      if r ~= c and f ~= 0 then
        for j = 1, 2 * n do a[r][j] = a[r][j] - f * a[c][j] end
      end
    end
  end
  for i = 1, n do a[i] = table.move(a[i], n + 1, 2 * n, 1, {}) end
  return a
end

-- U with U' U = a, upper triangular.
local function upper(a)
  local n, u = #a, {}
  for i = 1, n do u[i] = {} end
  for i = 1, n do
    for j = i, n do
      local v = a[i][j]
      for k = 1, i - 1 do v = v - u[k][i] * u[k][j] end
      u[i][j] = i == j and math.sqrt(v) or v / u[i][i]
    end
  end
  return u
end

local function by_size(h)
  local order = {}
  for i = 1, #h do order[i] = i end
  table.sort(order, function(a, b)
    if h[a][a] ~= h[b][b] then return h[a][a] > h[b][b] end
    return a < b
  end)
  return order
end

-- GPTQ of one row: `round` gives the value for a number.
local function reference(row, order, u, round)
  local w, out = {}, {}
  for i, c in ipairs(order) do w[i] = row[c] end
  for i = 1, #w do
    local v = round(w[i])
    out[order[i]] = v
    local e = (w[i] - v) / u[i][i]
    for j = i, #w do w[j] = w[j] - e * u[i][j] end
  end
  return out
end

local function loss(row, out, h)
  local sum = 0
  for i = 1, #row do
    for j = 1, #row do sum = sum + (row[i] - out[i]) * (row[j] - out[j]) * h[i][j] end
  end
  return sum
end

-- Writes rows by a type or scheme, as quantise does. Returns their values [row][column], the bytes of the file.
local function write(rows, opts, factor, threads)
  local path, cols = folder .. "/in.gguf", #rows[1]
  gguf.write(path, {
    values = { { "general.architecture", "string", "x" } },
    tensors = { { name = "w", shape = { #rows, cols }, dtype = "fp32", data = floats.pack(flat(rows)) } },
  })
  local source <close> = assert(core.open(path))
  local to = opts.type
  if opts.scheme then opts.scheme, to = core.scheme_of(opts.scheme, #rows, cols) end
  local writer <close> = assert(core.gguf_writer(folder .. "/out.gguf", threads or 2))
  assert(writer:set("general.architecture", "string", "x"))
  assert(writer:add("w", to, { #rows, cols }))
  assert(writer:begin())
  assert(writer:send(source, "w", { factor = factor, scheme = opts.scheme }))
  assert(writer:commit())
  local out <close> = assert(core.open(folder .. "/out.gguf"))
  local values, data = {}, out:read "w"
  data = type(data) == "string" and floats.unpack(data) or floats.unpack(data:tostring())
  for r = 1, #rows do values[r] = table.move(data, (r - 1) * cols + 1, r * cols, 1, {}) end
  return values, assert(core.read_file(folder .. "/out.gguf"))
end

local function weights(rows, cols, seed)
  local r, w = floats.random(seed), {}
  for i = 1, rows do
    w[i] = {}
    for c = 1, cols do w[i][c] = (r() + r() + r() - 1.5) * 0.3 end
  end
  -- as the file has them
  for i = 1, rows do w[i] = floats.unpack(floats.pack(w[i])) end
  return w
end

local function moments_of(x, threads)
  local moments = assert(core.moments(threads or 2))
  assert(moments:add("x", core.tensor({ #x, #x[1] }, flat(x))))
  return moments
end

-- The scale of 32 values from column `from` on: the largest number of which all are whole multiples, up to 8 times.
local function scale_of(row, from)
  local peak = 0
  for c = from, from + 31 do peak = math.max(peak, math.abs(row[c])) end
  for code = 1, 8 do
    local scale, fits = peak / code, true
    for c = from, from + 31 do fits = fits and math.abs(row[c] / scale - math.floor(row[c] / scale + 0.5)) < 1e-3 end
    if fits then return scale end
  end
end

local function total(rows, out, h)
  local sum = 0
  for i = 1, #rows do sum = sum + loss(rows[i], out[i], h) end
  return sum
end

describe("moments", function()
  it("sum up rounded inputs exactly, and the largest input of a column sets its step", function()
    for _, case in ipairs { { 1, 1 }, { 3, 33 }, { 128, 40 }, { 255, 70 } } do
      local tokens, cols = table.unpack(case)
      local x = inputs(tokens, cols, 40 + cols)
      x[1][1] = 1e4 -- an outlier
      if cols > 2 then
        for t = 1, tokens do x[t][2], x[t][3] = 0, x[t][3] * 1e-15 end
      end
      local moments <close> = moments_of(x)
      local got, want = moments:diagonal("x"):totable(), coded(x)
      for c = 1, cols do
        local sum = 0
        for t = 1, tokens do sum = sum + want[t][c] ^ 2 end
        if c == 2 then sum = 0 end
        assert.is_true(math.abs(got[c] - sum / tokens) <= 1e-5 * sum / tokens, ("column %d: %g, wanted %g"):format(c, got[c], sum / tokens))
      end
    end
  end)

  it("are the same with vectors of each width, pieces of the text and threads", function()
    local most, got = core.testing.wide_most(), {}
    finally(function() core.testing.wide_most(most) end)
    local tokens, cols, rows, files = 601, 96, weights(5, 96, 33), {} -- the last piece has 45 pairs
    local x, wanted = inputs(tokens, cols, 31), inputs(tokens, cols, 32)
    for i, width in ipairs { 16, 32, 64 } do
      core.testing.wide_most(width)
      local moments <close> = assert(core.moments(i))
      assert(moments:add("x", core.tensor({ tokens, cols }, flat(x)), core.tensor({ tokens, cols }, flat(wanted))))
      got[i] = moments:diagonal("x"):tostring()
      core.testing.wide_most(most) -- the bytes of a rounded weight show sums off the diagonal, and the drift
      local factor <close> = assert(moments:factor("x", 32, 32, 0.01, 0.5))
      files[i] = write(rows, { type = "q4_0" }, factor)
    end
    for i = 2, 3 do assert.are.equal(got[1], got[i]); assert.same(files[1], files[i]) end
  end)
end)

describe("weights of tokens", function()
  it("count in the sums of products and of drifts, and not in the number of tokens", function()
    local x, wanted = inputs(300, 64, 51), inputs(300, 64, 52)
    local function moments_with(weight)
      local moments = assert(core.moments(2))
      assert(moments:add("x", core.tensor({ 300, 64 }, flat(x)), core.tensor({ 300, 64 }, flat(wanted)), weight))
      return moments
    end
    local plain <close> = moments_with(nil)
    local heavy <close> = moments_with(16) -- the root is a whole power of 2: no other bits
    assert.equal((plain:diagonal "x" * 16):tostring(), heavy:diagonal("x"):tostring())
    -- The scale of a moment does not matter: the same bytes, the drift included, and so is the prior, which counts tokens.
    local rows, files = weights(5, 64, 9), {}
    for i, moments in ipairs { plain, heavy } do
      local factor <close> = assert(moments:factor("x", 32, 32, 0.01, 0.5, 100))
      files[i] = write(rows, { type = "q4_0" }, factor)
    end
    assert.same(files[1], files[2])
  end)

  it("are as good as so many tokens", function()
    local x, cols = inputs(40, 33, 61), 33
    local once <close> = assert(core.moments(1))
    local often <close> = assert(core.moments(1))
    assert(once:add("x", core.tensor({ 40, cols }, flat(x))))
    assert(once:add("x", core.tensor({ 1, cols }, x[7]), nil, 3))
    assert(often:add("x", core.tensor({ 40, cols }, flat(x))))
    for _ = 1, 3 do assert(often:add("x", core.tensor({ 1, cols }, x[7]))) end
    local got, want = once:diagonal("x"):totable(), often:diagonal("x"):totable()
    for c = 1, cols do
      local one, three = got[c] * 41, want[c] * 43
      assert.is_true(math.abs(one - three) <= 1e-5 * three, ("column %d: %g, wanted %g"):format(c, one, three))
    end
  end)

  it("are above 0", function()
    local moments <close> = assert(core.moments(1))
    for _, weight in ipairs { 0, -1, 0 / 0, 2 ^ 31 } do
      assert.error_matches(function() moments:add("x", core.tensor({ 1, 2 }, { 1, 2 }), nil, weight) end, "not above 0, to 2%^30")
    end
  end)
end)

describe("compensated rounding", function()
  it("gives the values of the published algorithm", function()
    for _, case in ipairs { { 37, 45, 60 }, { 3, 1, 4 }, { 33, 70, 40 }, { 1, 131, 200 } } do
      local n_rows, cols, tokens = table.unpack(case)
      local x, rows = coded(inputs(tokens, cols, cols)), weights(n_rows, cols, 5)
      local moments <close> = moments_of(x)
      local factor = assert(moments:factor("x", 1, 1, 0.01))
      local got = write(rows, { scheme = "int8-channel" }, factor)
      local h = second_moment(x, 0.01)
      local order = by_size(h)
      local u = upper(inverse(permuted(h, order)))
      local plain, differ, wanted = write(rows, { scheme = "int8-channel" }), 0, {}
      for r, row in ipairs(rows) do
        local peak = 0
        for c = 1, cols do peak = math.max(peak, math.abs(row[c])) end
        local scale = peak / 127 -- within a part in 1000 of its fp16, which the plain rounding shows
        for c = 1, cols do
          if math.abs(plain[r][c]) > 100 * scale then scale = plain[r][c] / math.floor(plain[r][c] / scale + 0.5) end
        end
        local want = reference(row, order, u, function(v)
          return scale * math.max(-127, math.min(127, math.floor(v / scale + 0.5)))
        end)
        wanted[r] = want
        for c = 1, cols do
          if math.abs(want[c] - got[r][c]) > 0.01 * scale then differ = differ + 1 end
        end
      end
      assert.is_true(differ <= 0.01 * n_rows * cols, ("%d of %d differ"):format(differ, n_rows * cols)) -- near ties
      local left, published = total(rows, got, h), total(rows, wanted, h)
      assert.is_true(math.abs(left / published - 1) <= 1e-4, ("error %.9g, published %.9g"):format(left, published))
      if cols > 1 then assert.is_true(total(rows, got, h) < 0.7 * total(rows, plain, h)) end
    end
  end)

  it("leaves less error than plain rounding in every type and scheme", function()
    local x, rows = inputs(300, 256, 1), weights(35, 256, 2)
    local h = second_moment(x, 0)
    local moments <close> = moments_of(x)
    for _, name in ipairs {
      "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k",
      "q5_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4", "int8", "int8-channel", "int8-block", "int4-block",
      "int4-block64", "uint4-block", "lut4", "lut4-g16", "lut2-g16", "lut3", "lut6-g8", "lut8",
    } do
      local group, sub = core.compensate_groups(name)
      local factor = assert(moments:factor("x", group, sub, 0.01))
      local opts = not name:find "^%l+t%d" and { type = name } or { scheme = name }
      local plain, better = write(rows, opts), write(rows, opts, factor)
      local ratio = total(rows, better, h) / total(rows, plain, h)
      assert.is_true(ratio < 0.75, ("%s: %.3f"):format(name, ratio))
    end
  end)

  it("leaves hardly a code whose neighbour would be better", function()
    for _, cols in ipairs { 64, 96 } do
      local x, rows = inputs(400, cols, 11), weights(33, cols, 12)
      local h = second_moment(x, 0.01)
      local moments <close> = moments_of(x)
      local factor = assert(moments:factor("x", 32, 32, 0.01))
      for _, opts in ipairs { { type = "q4_0" }, { scheme = "int4-block" } } do
        local got = write(rows, opts, factor)
        local better = 0
        for i, row in ipairs(rows) do
          local e = {}
          for c = 1, cols do e[c] = row[c] - got[i][c] end
          local g = times(e, h)
          for c = 1, cols do
            local scale = scale_of(got[i], (c - 1) // 32 * 32 + 1)
            for _, step in ipairs { scale, -scale } do
              local code = math.abs((got[i][c] + step) / scale)
              if code < 7.5 and step * (step * h[c][c] - 2 * g[c]) < -1e-9 then better = better + 1 end
            end
          end
        end
        assert.is_true(better <= 0.003 * #rows * cols, ("%d of %d"):format(better, #rows * cols)) -- without sweeps 0.02
      end
    end
  end)

  it("takes a prior for as many tokens without correlations", function()
    local cols = 64
    local x, rows = inputs(90, cols, 15), weights(33, cols, 16)
    local h, more = second_moment(x, 0), {}
    table.move(x, 1, #x, 1, more)
    for c = 1, cols do -- their moment is the diagonal of h, times their number
      local one = {}
      for i = 1, cols do one[i] = i == c and math.sqrt(cols * h[c][c]) or 0 end
      more[#more + 1] = one
    end
    local moments <close> = moments_of(x)
    local longer <close> = moments_of(more)
    for _, opts in ipairs { { type = "q4_0" }, { type = "q4_1" } } do
      local got = write(rows, opts, assert(moments:factor("x", 32, 32, 0.01, 0, cols)))
      local want = write(rows, opts, assert(longer:factor("x", 32, 32, 0.01)))
      local both = second_moment(more, 0.01)
      assert.is_true(math.abs(total(rows, got, both) / total(rows, want, both) - 1) <= 0.002)
      assert.is_true(total(rows, got, h) > 1.01 * total(rows, write(rows, opts, assert(moments:factor("x", 32, 32, 0.01))), h))
    end
    assert.error_matches(function() moments:factor("x", 32, 32, 0.01, 0, -1) end, "not 0 or more")
  end)

  it("takes the prior for the drift too", function()
    local cols = 64
    local x, rows, wanted, r = inputs(4, cols, 21), weights(33, cols, 22), {}, floats.random(23)
    for t, row in ipairs(x) do
      wanted[t] = {}
      for c = 1, cols do wanted[t][c] = row[c] + 0.1 * (r() - 0.5) end
    end
    local h, d, more, wanted_more = second_moment(x, 0), drift_of(x, wanted), {}, {}
    table.move(x, 1, #x, 1, more)
    table.move(wanted, 1, #x, 1, wanted_more)
    for c = 1, cols do -- their moments are the diagonals of h and d, times their number
      local one, other, size = {}, {}, math.sqrt(cols * h[c][c])
      for i = 1, cols do
        one[i] = i == c and size or 0
        other[i] = i == c and size + cols * d[c][c] / size or 0
      end
      more[#more + 1], wanted_more[#wanted_more + 1] = one, other
    end
    local function rounded(list, sources, prior)
      local moments <close> = assert(core.moments(2))
      assert(moments:add("x", core.tensor({ #list, cols }, flat(list)), core.tensor({ #list, cols }, flat(sources))))
      return write(rows, { type = "q8_0" }, assert(moments:factor("x", 32, 32, 0.01, 1, prior)))
    end
    local got, want, apart = rounded(x, wanted, cols), rounded(more, wanted_more, 0), 0
    for i = 1, #rows do
      for c = 1, cols do apart = math.max(apart, math.abs(got[i][c] - want[i][c])) end
    end
    assert.is_true(apart < 0.03, ("largest difference %.3g"):format(apart)) -- one step of q8_0
  end)

  it("leaves less error on other inputs with a prior, where it has read few", function()
    local cols = 96
    local x, others, rows = inputs(2 * cols, cols, 17), inputs(2000, cols, 18), weights(33, cols, 19)
    local h = second_moment(others, 0)
    local moments <close> = moments_of(x)
    local function left(prior)
      local factor = assert(moments:factor("x", 32, 32, 0.01, 0, prior))
      return total(rows, write(rows, { type = "q4_0" }, factor), h)
    end
    assert.is_true(left(1.5 * cols) < 0.98 * left(0))
  end)

  it("follows the inputs of a source, as if the rows that fit it best were rounded", function()
    for name, cols in pairs { q4_0 = 64, ["int8-channel"] = 37, ["lut4-g16"] = 37, ["int4-block"] = 32, ["uint4-block"] = 64 } do
      local x, rows, wanted, r = inputs(200, cols, 5), weights(40, cols, 6), {}, floats.random(7)
      for t, row in ipairs(x) do
        wanted[t] = {}
        for c = 1, cols do wanted[t][c] = 1.1 * row[c] + 0.2 * row[c % cols + 1] + 0.05 * (r() - 0.5) end
      end
      local moments <close> = assert(core.moments(2))
      local plain <close> = moments_of(x)
      assert(moments:add("x", core.tensor({ #x, cols }, flat(x)), core.tensor({ #x, cols }, flat(wanted))))
      local drift, solved = drift_of(x, wanted), inverse(second_moment(x, 0.01))
      for share = 0, 1 do
        local best = {}
        for i, row in ipairs(rows) do -- w + share w D (H + damping)^-1
          local change = times(times(row, drift), solved)
          best[i] = {}
          for c = 1, cols do best[i][c] = row[c] + share * change[c] end
        end
        local group, sub = core.compensate_groups(name)
        local opts = not name:find "^%l+t%d" and { type = name } or { scheme = name }
        local got = write(rows, opts, assert(moments:factor("x", group, sub, 0.01, share)))
        local want = write(best, opts, assert(plain:factor("x", group, sub, 0.01)))
        local differ, apart = 0, 0
        for i = 1, #rows do
          for c = 1, cols do
            if math.abs(got[i][c] - want[i][c]) > 1e-3 then differ = differ + 1 end
            apart = math.max(apart, math.abs(best[i][c] - rows[i][c]))
          end
        end
        assert.is_true(differ <= 0.03 * #rows * cols, ("%s: %d of %d differ"):format(name, differ, #rows * cols)) -- near ties
        assert.equal(share == 1, apart > 0.05)
      end
    end
  end)

  it("writes the same bytes with any number of threads", function()
    local x, rows = inputs(500, 256, 3), weights(70, 256, 4)
    for _, name in ipairs { "q4_0", "q4_k", "q6_k", "iq4_xs" } do
      local seen
      for threads = 1, 3 do
        local moments <close> = moments_of(x, threads)
        local group, sub = core.compensate_groups(name)
        local _, bytes = write(rows, { type = name }, assert(moments:factor("x", group, sub, 0.01)), threads)
        assert.is_true(seen == nil or seen == bytes, name)
        seen = bytes
      end
    end
  end)

  it("writes the same bytes with vectors of each width", function()
    local x, wanted, rows = inputs(300, 256, 5), inputs(300, 256, 6), weights(37, 256, 4)
    local most = core.testing.wide_most()
    finally(function() core.testing.wide_most(most) end)
    for _, name in ipairs { "q4_0", "q6_k" } do
      local seen
      for _, width in ipairs { 16, 32, 64 } do
        core.testing.wide_most(width)
        local moments <close> = assert(core.moments(2))
        assert(moments:add("x", core.tensor({ #x, 256 }, flat(x)), core.tensor({ #x, 256 }, flat(wanted))))
        local group, sub = core.compensate_groups(name)
        local _, bytes = write(rows, { type = name }, assert(moments:factor("x", group, sub, 0.01, 0.5)))
        assert.is_true(seen == nil or seen == bytes, name)
        seen = bytes
      end
    end
  end)

  it("takes inputs that are always zero, alike, or fewer than there are columns", function()
    local x, rows = inputs(20, 64, 7), weights(4, 64, 8)
    for _, row in ipairs(x) do
      row[3], row[40] = 0, 0
      row[5] = row[6]
    end
    local moments <close> = moments_of(x)
    for _, name in ipairs { "q4_0", "q8_0" } do
      local got = write(rows, { type = name }, assert(moments:factor("x", 32, 32, 0.01)))
      for r = 1, #rows do
        for c = 1, 64 do assert.is_true(math.abs(got[r][c]) < 2) end
      end
    end
    local zero = {}
    for t = 1, 4 do
      zero[t] = {}
      for c = 1, 64 do zero[t][c] = 0.0 end
    end
    local none <close> = moments_of(zero)
    assert(none:factor("x", 32, 32, 0.01))
  end)

  it("refuses what makes no sense", function()
    local x = inputs(4, 64, 1)
    local moments <close> = moments_of(x)
    assert.same({ nil, "no second moment of y", "notfound" }, { moments:factor("y", 1, 1, 0.01) })
    assert.same({ nil, "x: 64 columns in groups of 48 and 16", "shape" }, { moments:factor("x", 48, 16, 0.01) })
    assert.error_matches(function() moments:factor("x", 1, 1, 0) end, "no positive number")
    assert.error_matches(function() moments:add("x", core.tensor({ 1, 3 }, { 1, 2, 3 })) end, "x has 64 columns, but the inputs have 3")
    assert.same({ nil, "z: an input of the layer is not finite", "invalid" },
      { moments:add("z", core.tensor({ 1, 2 }, { 1, 0 / 0 })) })
    local factor = assert(moments:factor("x", 1, 1, 0.01))
    assert.is_nil((core.compensate_groups "fp16"))
    factor:close()
    assert.error_matches(function() write(weights(2, 64, 1), { type = "q4_0" }, factor) end, "factor is closed")
    moments:close()
    assert.error_matches(function() moments:clear() end, "moments are closed")
  end)
end)
