local testing = require("ane.core").testing
local floats = require("support.floats")

-- head_dim, rotated dimensions
local shapes = {{2, 2}, {24, 24}, {32, 8}, {64, 64}, {64, 32}, {80, 20}, {80, 80}, {96, 48}, {112, 112}, {128, 128}, {256, 64}, {7, 6}}

local function table_of(r)
  local cs, random = {}, floats.random(r)
  for i = 1, r // 2 do
    local angle = random() * 100
    cs[i], cs[r // 2 + i] = math.cos(angle), math.sin(angle)
  end
  return floats.pack(cs)
end

describe("rope", function()
  for _, level in ipairs(testing.kernel_levels()) do
    it(level .. ": same bits as ref", function()
      for _, shape in ipairs(shapes) do
        local hd, r = shape[1], shape[2]
        local x, cs = floats.uniform(3 * hd, hd + r), table_of(r)
        for _, neox in ipairs {false, true} do
          local want = testing.rope("ref", x, cs, 3, hd, r, neox)
          assert.is_nil(floats.difference(testing.rope(level, x, cs, 3, hd, r, neox), want))
        end
      end
    end)
  end

  it("rotates pairs and leaves the other dimensions", function()
    for _, shape in ipairs(shapes) do
      local hd, r = shape[1], shape[2]
      local xs, cs = floats.uniform(2 * hd, hd, 5), table_of(r)
      local x, c = floats.unpack(xs), floats.unpack(cs)
      for _, neox in ipairs {false, true} do
        local want = floats.unpack(xs)
        for h = 0, 1 do
          for t = 0, r // 2 - 1 do
            local i = h * hd + (neox and t or 2 * t) + 1
            local j = neox and i + r // 2 or i + 1
            want[i] = x[i] * c[t + 1] - x[j] * c[r // 2 + t + 1]
            want[j] = x[j] * c[t + 1] + x[i] * c[r // 2 + t + 1]
          end
        end
        local y = floats.unpack(testing.rope("ref", xs, cs, 2, hd, r, neox))
        for i = 1, 2 * hd do assert.is_true(math.abs(y[i] - want[i]) <= 1e-6) end
      end
    end
  end)
end)
