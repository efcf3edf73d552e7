-- Rotations of core.merged against their definition: random signs, then a Hadamard matrix and, for the odd factor, a DCT.
local core = require "ane.core"
local gguf = require "support.gguf_writer"

local path

after_each(function() os.remove(path) end)

-- The matrix [rows][cols] of values(r, c) after the changes.
local function changed(rows, cols, values, changes)
  local data = {}
  for r = 1, rows do
    for c = 1, cols do data[#data + 1] = values(r, c) end
  end
  path = gguf.temp()
  gguf.write(path, {
    values = { { "general.architecture", "string", "none" } },
    tensors = { { name = "w", shape = { rows, cols }, dtype = "fp32", data = core.tensor({ #data }, data):tostring() } },
  })
  local source <close> = assert(core.open(path))
  local merged <close> = assert(core.merged(source, { { name = "w", changes = changes } }))
  local flat, out = core.tensor({ rows * cols }, assert(merged:read "w")):totable(), {}
  for r = 1, rows do out[r] = table.move(flat, (r - 1) * cols + 1, r * cols, 1, {}) end
  return out
end

local function unit(r, c) return r == c and 1 or 0 end

local function odd_part(n)
  while n % 2 == 0 do n = n // 2 end
  return n
end

-- Entry [i][j] (from 0) of the matrix without signs.
local function entry(n, i, j)
  local odd = odd_part(n)
  local a, b, parity = i // odd & j // odd, 0, 0
  while a >> b > 0 do
    parity = parity + (a >> b & 1)
    b = b + 1
  end
  local k, l = i % odd, j % odd
  local cosine = math.cos(math.pi * (2 * l + 1) * k / (2 * odd)) * math.sqrt((k > 0 and 2 or 1) / odd)
  return (-1) ^ parity * cosine * math.sqrt(odd / n)
end

-- Rows and columns of both agree within rounding.
local function same(want, got)
  for r = 1, #want do
    for c = 1, #want[r] do assert.near(want[r][c], got[r][c], 2e-6) end
  end
end

describe("rotations of weights", function()
  for _, n in ipairs { 1, 2, 3, 8, 12, 20, 45 } do
    it(("have the %d rows of their definition, with signs"):format(n), function()
      local q, minus = changed(n, n, unit, { { rotate = n, seed = 7 } }), 0
      for i = 1, n do
        local sign = q[i][1] * entry(n, i - 1, 0) < 0 and -1 or 1
        if sign < 0 then minus = minus + 1 end
        for j = 1, n do assert.near(sign * entry(n, i - 1, j - 1), q[i][j], 1e-6) end
      end
      if n >= 20 then assert.is_true(minus > n // 5 and minus < n - n // 5) end
    end)
  end

  it("rotate rows by the transposed matrix, block by block and within bounds", function()
    local function values(r, c) return math.sin(r * 3 + c * c) end
    local q = changed(6, 6, unit, { { rotate = 6, seed = 3 } })
      local want = {}
    for r = 1, 24 do
      want[r] = {}
      local block = (r - 1) // 6 * 6
      for c = 1, 37 do
        local sum = 0
        for i = 1, 6 do sum = sum + q[i][r - block] * values(block + i, c) end
        want[r][c] = (r > 6 and r <= 18) and sum or values(r, c)
      end
    end
    local got = changed(24, 37, values, { { rotate = 6, seed = 3, rows = true, from = 6, to = 18 } })
    same(want, got)
  end)

  it("differ by their seed only", function()
    local a = changed(8, 8, unit, { { rotate = 8, seed = 1 } })
    assert.same(a, changed(8, 8, unit, { { rotate = 8, seed = 1 } }))
    assert.not_same(a, changed(8, 8, unit, { { rotate = 8, seed = 2 } }))
  end)

  it("come after factors of columns, in the order of the list", function()
    local factors = core.tensor({ 4 }, { 1, 2, 3, 4 }):tostring()
    local q = changed(4, 4, unit, { { rotate = 4, seed = 5 } })
    local want = {}
    for i = 1, 4 do
      want[i] = {}
      for j = 1, 4 do want[i][j] = i * q[i][j] end
    end
    same(want, changed(4, 4, unit, { { columns = factors }, { rotate = 4, seed = 5 } }))
  end)

  it("refuse what is no whole number of blocks", function()
    assert.has_error(function() changed(4, 6, unit, { { rotate = 4 } }) end)
    assert.has_error(function() changed(6, 4, unit, { { rotate = 4, rows = true } }) end)
    assert.has_error(function() changed(4, 4, unit, { { rotate = 1 << 20 } }) end)
    assert.error_matches(function() changed(1, 4097, unit, { { rotate = 4097 } }) end, "has the odd factor 4097, the most is 4095")
  end)
end)

describe("core.merged", function()
  it("takes a tensor in another type", function()
    path = gguf.temp()
    local values = {}
    for i = 1, 64 do values[i] = i / 4 end
    gguf.write(path, {
      values = { { "general.architecture", "string", "none" } },
      tensors = { { name = "w", shape = { 2, 32 }, dtype = "fp32", data = core.tensor({ 64 }, values):tostring() } },
    })
    local source <close> = assert(core.open(path))
    local bytes = core.testing.encode("q8_0", source:read "w")
    local merged <close> = assert(core.merged(source, { { name = "w", dtype = "q8_0", bytes = bytes } }))
    assert.same({ "q8_0", { 2, 32 } }, { merged:tensor("w").dtype, merged:tensor("w").shape })
    local back <close> = assert(core.merged(merged, { { name = "w", changes = {} } }))
    assert.equal(core.testing.decode("q8_0", bytes), back:read "w")
    assert.error_matches(function() core.merged(source, { { name = "w", dtype = "q8_0", bytes = "short" } }) end, "tensor w has 5 bytes")
    assert.error_matches(function() core.merged(source, { { name = "w", dtype = "q9", bytes = bytes } }) end, "no type q9")
  end)
end)
