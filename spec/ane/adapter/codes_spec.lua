-- LoRA adapters whose A and B are in 8-bit codes: their bits at every level, for every split, and their distance from exact factors.
local adapters = require "support.adapters"
local ane = require "ane"
local core = require "ane.core"
local st = require "support.safetensors_writer"

local LLAMA, ALL = "spec/fixtures/hf/llama", { "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj" }
local IDS = {}
for i = 1, 37 do IDS[i] = 1 + i * 29 % 90 end

local made = {}
local function folder(rank, seed, targets, config)
  local path = adapters.peft { tensors = adapters.pairs_of(LLAMA, targets or ALL, rank, seed), config = config or { r = rank } }
  made[#made + 1] = path
  return path
end

local function load(opts)
  local all = { weights = "q8_0", threads = 1, context = 64 }
  for key, value in pairs(opts or {}) do all[key] = value end
  return assert(ane.load(LLAMA, all))
end

-- The logits of all tokens, fed in pieces of `step`.
local function logits(model, chosen, step)
  local session <close> = assert(model:session { adapters = chosen })
  local rows = {}
  for from = 1, #IDS, step do
    assert(session:feed(table.move(IDS, from, math.min(from + step - 1, #IDS), 1, {}), { want = "all" }))
    for i = 1, session:rows() do rows[#rows + 1] = session:logits(i):tostring() end
  end
  return table.concat(rows)
end

local function floats(bytes)
  local out = {}
  for i = 1, #bytes, 4 do out[#out + 1] = string.unpack("<f", bytes, i) end
  return out
end

-- The cosine of a - b and c - d.
local function likeness(a, b, c, d)
  local xy, xx, yy = 0, 0, 0
  a, b, c, d = floats(a), floats(b), floats(c), floats(d)
  for i = 1, #a do
    local x, y = a[i] - b[i], c[i] - d[i]
    xy, xx, yy = xy + x * y, xx + x * x, yy + y * y
  end
  return xy / math.sqrt(xx * yy)
end

describe("LoRA adapters in 8-bit codes", function()
  teardown(function() for _, path in ipairs(made) do st.remove(path) end end)

  it("give the same bits at every level, for every split and number of threads, alone and added up", function()
    local sixteen, five, long = folder(16, 1), folder(5, 2), folder(40, 3, { "q_proj", "down_proj" })
    local choices = { { sixteen }, { five }, { long }, { sixteen, { path = long, scale = 0.5 }, five } }
    local want = {}
    for _, isa in ipairs(core.isa_list()) do
      for threads = 1, 2 do
        local model <close> = load { isa = isa, threads = threads }
        for i, chosen in ipairs(choices) do
          want[i] = want[i] or logits(model, chosen, #IDS)
          for _, step in ipairs { #IDS, 1, 5 } do
            local got = logits(model, chosen, step)
            assert.is_true(want[i] == got, ("choice %d, %s, %d threads, pieces of %d"):format(i, isa, threads, step))
          end
        end
      end
    end
  end)

  it("change the logits as factors in fp32 with fp32 activations do", function()
    local path = folder(16, 4)
    local model <close> = load()
    local exact <close> = load { activations = "fp32" }
    local fine = likeness(logits(exact, { path }, 37), logits(exact, {}, 37), logits(model, { path }, 37), logits(model, {}, 37))
    assert.is_true(fine > 0.98, fine)
  end)

  it("take factors of any size", function()
    local tiny, huge, plain = {}, {}, adapters.pairs_of(LLAMA, ALL, 4, 5)
    for i, t in ipairs(plain) do -- A times 2^-20 and B times 2^20, and the other way round: the product is the same
      local up = t.name:find "lora_A" and 2.0 ^ 20 or 2.0 ^ -20
      local x, y = floats(t.data), floats(t.data)
      for k = 1, #x do x[k], y[k] = x[k] * up, y[k] / up end
      huge[i] = { name = t.name, dtype = "F32", shape = t.shape, data = st.f32(x) }
      tiny[i] = { name = t.name, dtype = "F32", shape = t.shape, data = st.f32(y) }
    end
    local model <close> = load()
    local got = {}
    for i, tensors in ipairs { plain, huge, tiny } do
      made[#made + 1] = adapters.peft { tensors = tensors }
      got[i] = logits(model, { made[#made] }, 37)
    end
    assert.is_true(got[1] == got[2])
    assert.is_true(got[1] == got[3])
  end)

  it("of scale 0 have the bits of the base", function()
    local model <close> = load()
    assert.is_true(logits(model, {}, 37) == logits(model, { { path = folder(16, 6), scale = 0 } }, 37))
  end)
end)
