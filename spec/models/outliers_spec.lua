-- Outlier blocks of int8 activations, as trained models have them: a few channels whose norm weights are far larger than all others.
-- With plain 8-bit codes the neighbours of such a channel lose their digits; the residual codes keep them.
local core = require "ane.core"
local floats = require "support.floats"
local gguf = require "support.gguf_writer"
local programs = require "support.programs"

local WIDTH, INNER, VOCAB, LAYERS = 256, 512, 64, 2
local LOUD, GAIN = 77, 100 -- the channel, and how much larger it is than the others
-- The distance from fp32 activations is 0.024. Without outlier blocks (8-bit codes alone) it is 0.12, without residual codes (loud
-- values clipped) 0.31 and 0.13.
local MOST = 0.05

local function matrix(name, rows, cols, from_norm)
  local values = floats.unpack(floats.uniform(rows * cols, #name * rows, 0.1))
  -- What the products take from the loud channel is of the size of the others: both it and its neighbours count.
  for r = 0, from_norm and rows - 1 or -1 do
    local at = r * cols + LOUD + 1
    values[at] = values[at] * 4 / GAIN
  end
  return { name = name, dtype = "fp32", shape = { rows, cols }, data = floats.pack(values) }
end

local function norm(name)
  local values = {}
  for i = 1, WIDTH do values[i] = i == LOUD + 1 and GAIN or 1 end
  return { name = name, dtype = "fp32", shape = { WIDTH }, data = floats.pack(values) }
end

local function write()
  local tensors = { matrix("token_embd.weight", VOCAB, WIDTH), norm "output_norm.weight", matrix("output.weight", VOCAB, WIDTH, true) }
  for layer = 0, LAYERS - 1 do
    local function name(part) return ("blk.%d.%s.weight"):format(layer, part) end
    for _, tensor in ipairs {
      norm(name "attn_norm"), norm(name "ffn_norm"), matrix(name "attn_q", WIDTH, WIDTH, true), matrix(name "attn_k", WIDTH, WIDTH, true),
      matrix(name "attn_v", WIDTH, WIDTH, true), matrix(name "attn_output", WIDTH, WIDTH), matrix(name "ffn_gate", INNER, WIDTH, true),
      matrix(name "ffn_up", INNER, WIDTH, true), matrix(name "ffn_down", WIDTH, INNER),
    } do tensors[#tensors + 1] = tensor end
  end
  return gguf.write(gguf.temp(), {
    values = {
      { "general.architecture", "string", "llama" }, { "general.name", "string", "outliers" }, { "llama.block_count", "uint32", LAYERS },
      { "llama.embedding_length", "uint32", WIDTH }, { "llama.feed_forward_length", "uint32", INNER },
      { "llama.attention.head_count", "uint32", 4 }, { "llama.attention.head_count_kv", "uint32", 4 },
      { "llama.attention.layer_norm_rms_epsilon", "float32", 1e-5 }, { "llama.context_length", "uint32", 64 },
      { "llama.vocab_size", "uint32", VOCAB }, { "tokenizer.ggml.model", "string", "none" },
    },
    tensors = tensors,
  })
end

-- |a - b| / |b| of two texts of floats.
local function distance(a, b)
  local difference, size = 0, 0
  for at = 1, #a, 4 do
    local x, y = ("<f"):unpack(a, at), ("<f"):unpack(b, at)
    difference, size = difference + (x - y) ^ 2, size + y * y
  end
  return math.sqrt(difference / size)
end

describe("activations with outliers", function()
  local path, ids = write(), programs.ids(24, VOCAB, 3)
  teardown(function() os.remove(path) end)

  for _, weights in ipairs { "q8_0", "q4_0" } do
    it("keep the digits of their neighbours with weights " .. weights, function()
      local function logits(o)
        o.weights, o.context, o.chunk = weights, 64, 64
        local p <close> = programs.open(path, o)
        local s <close> = assert(p:session { context = 64, kv = "fp32" })
        return programs.feed(s, ids)
      end
      local reference = logits { isa = "ref" }
      for _, level in ipairs(core.testing.matmul_levels()) do
        local d = distance(logits { isa = level, int8 = true }, reference)
        assert.is_true(d < MOST, level .. ": " .. d)
      end
    end)
  end
end)
