-- Weights that are not finite, or beyond fp16: load, quantise and export name them.
local ane = require "ane"
local core = require "ane.core"
local exporter = require "ane.coreml.export"
local hf = require "support.hf"

-- A copy of a folder; number 5 of its tensor `name` is `value`.
local function folder(from, name, value)
  local pack, found = { F32 = "<f", BF16 = "<f", F16 = "<I2" }, false
  local path = hf.changed(from, nil, function(t)
    if t.name ~= name then return t end
    found = true
    local bytes = t.dtype == "F16" and ("<I2"):pack(0x7C00) or pack[t.dtype]:pack(value)
    if t.dtype == "BF16" then bytes = bytes:sub(3) end
    t.data = t.data:sub(1, 5 * #bytes) .. bytes .. t.data:sub(6 * #bytes + 1)
    return t
  end)
  assert(found, name)
  return path
end

-- An export without a program of the model: its plan refuses such vectors before.
local function export(path, opts)
  local out = os.tmpname()
  os.remove(out)
  local report, message, code = exporter.of_path(path.name, out, opts)
  os.execute("rm -rf " .. out .. "*")
  return report, message, code
end

describe("an export of a weight that is not finite", function()
  local cases = {
    { "qwen3-odd", "model.norm.weight", true }, { "qwen3-odd", "model.layers.1.input_layernorm.weight", true },
    { "qwen3-odd", "model.layers.1.mlp.up_proj.weight" }, { "qwen3-odd", "model.embed_tokens.weight" },
    { "bert", "embeddings.position_embeddings.weight" }, { "bert", "embeddings.LayerNorm.bias", true },
  }
  for _, case in ipairs(cases) do
    for _, target in ipairs { "coreml", "coreai" } do
      it(("names it: %s, %s, %s"):format(case[1], case[2], target), function()
        for _, value in ipairs { math.huge, 0 / 0, -70144.0 } do
          local path <close> = folder(case[1], case[2], value)
          local report, message, code = export(path, { weights = "int8", context = 16, target = target })
          assert.same({ nil, "invalid" }, { report, code })
          local at = message:find(case[2] .. ": ", 1, true)
          local what = (case[3] and ": element 5 is" or ": row 0 has an element that is") .. " not finite, or beyond fp16"
          assert.is_truthy(at and message:find(what, at, true), message)
        end
      end)
    end
  end
end)

describe("weights beyond fp16", function()
  it("are refused in every scheme, since packages compute in fp16", function()
    local path <close> = folder("granite-odd", "model.layers.1.mlp.down_proj.weight", 2e7)
    for _, scheme in ipairs { "fp16", "int8", "int8-channel", "int4-block", "uint4-block", "lut4" } do
      local report, message, code = export(path, { weights = scheme, context = 16 })
      assert.same({ nil, "invalid" }, { report, code }, scheme)
      assert.matches("down_proj.weight: row 0 has an element that is not finite, or beyond fp16", message, 1, true)
    end
  end)
end)

describe("matrices that are not finite", function()
  for _, case in ipairs {
    { "olmo2-odd", "model.layers.1.self_attn.q_proj.weight" }, { "qwen3-odd", "model.layers.1.mlp.down_proj.weight" },
    { "mamba2-odd", "backbone.layers.0.mixer.in_proj.weight" }, { "qwen3_moe-odd", "model.layers.1.mlp.experts.3.up_proj.weight" },
  } do
    it("are refused by load, whose int8 activations would hide them: " .. case[2], function()
      for _, value in ipairs { 0 / 0, -math.huge } do
        local path <close> = folder(case[1], case[2], value)
        for _, weights in ipairs { false, "q8_0", "int8" } do
          local model, message, code = ane.load(path.name, { weights = weights or nil })
          assert.same({ nil, "invalid" }, { model, code })
          assert.matches("weight .*%.weight.*: row %d+ has an element that is not finite", message)
        end
      end
    end)
  end

  it("name the row of an embedding when its id is used", function()
    local path <close> = folder("qwen3_moe-odd", "model.embed_tokens.weight", 0 / 0)
    local model <close> = assert(ane.load(path.name))
    local session <close> = assert(model:session())
    assert(session:feed { 1, 2 })
    local got, message, code = session:feed { 1, 0, 2 }
    assert.same({ nil, "invalid" }, { got, code })
    assert.matches("weight model.embed_tokens.weight: row 0 has an element that is not finite", message, 1, true)
  end)

  it("are refused in a GGUF file, by the scale of a block", function()
    local text = assert(core.read_file "spec/fixtures/gguf/llama-kquants.gguf")
    local from <close> = assert(core.open "spec/fixtures/gguf/llama-kquants.gguf")
    local bytes_of_block = { q2_k = 84, q3_k = 110, q4_k = 144, q5_k = 176, q6_k = 210, iq4_xs = 136, iq4_nl = 18, iq3_s = 110, iq2_s = 82 }
    local scale = { q2_k = 82, q3_k = 108, q4_k = 0, q5_k = 2, q6_k = 208, iq4_xs = 0, iq4_nl = 0, iq3_s = 0, iq2_s = 0 }
    local kinds = 0
    for _, t in ipairs(from:tensors()) do
      if scale[t.dtype] and t.name ~= "token_embd.weight" then -- an embedding is read when its ids are used
        kinds = kinds + 1
        local place = t.offset + t.bytes - bytes_of_block[t.dtype] + scale[t.dtype] -- of the last block
        local path = os.tmpname()
        assert(core.write_file(path, text:sub(1, place) .. ("<I2"):pack(0xFC00) .. text:sub(place + 3)))
        local model, message, code = ane.load(path)
        assert.same({ nil, "invalid" }, { model, code }, t.name)
        assert.matches(("weight %s: row %d has an element that is not finite"):format(t.name, t.shape[1] - 1), message, 1, true)
        if not t.dtype:find "^iq[23]" then -- these are read only
          local source <close> = assert(core.open(path))
          local opts = { weights = "fp32", mixed = { ["*"] = t.dtype } }
          local report, why, kind = require("ane.quantise").run(source, path .. ".out", opts)
          assert.same({ nil, "invalid" }, { report, kind }, t.name)
          assert.matches(("%s: element %%d+ of row %d is not finite"):format(t.name, t.shape[1] - 1), why)
        end
        os.remove(path)
      end
    end
    assert.equal(14, kinds)
  end)
end)

describe("norms and biases that are not finite", function()
  for _, case in ipairs {
    { "granite-odd", "model.layers.1.input_layernorm.weight" }, { "starcoder2-odd", "model.layers.0.self_attn.q_proj.bias" },
  } do
    it("are refused by load and quantise: " .. case[2], function()
      for _, value in ipairs { 0 / 0, -math.huge } do
        local path <close> = folder(case[1], case[2], value)
        local model, message, code = ane.load(path.name)
        assert.same({ nil, "invalid" }, { model, code })
        assert.matches("weight " .. case[2] .. ": element 5 is not finite", message, 1, true)
        local source <close> = assert(core.open(path.name))
        for _, weights in ipairs { "q8_0", "fp32" } do
          local report
          report, message, code = require("ane.quantise").run(source, path.name .. "/out.gguf", { weights = weights })
          assert.same({ nil, "invalid" }, { report, code })
          assert.matches(case[2] .. ": element 5 of row 0 is not finite", message, 1, true)
        end
      end
    end)
  end

  it("are not copied from a GGUF file either", function()
    local path = os.tmpname()
    local text = assert(core.read_file "spec/fixtures/gguf/llama-q8_0.gguf")
    local from <close> = assert(core.open "spec/fixtures/gguf/llama-q8_0.gguf")
    local norm = assert(from:read "blk.1.attn_norm.weight")
    local at = assert(text:find(norm, 1, true))
    assert(core.write_file(path, text:sub(1, at + 7) .. ("<f"):pack(0 / 0) .. text:sub(at + 12)))
    local source <close> = assert(core.open(path))
    local report, message, code = require("ane.quantise").run(source, path .. ".out", { weights = "q4_0" })
    os.remove(path)
    assert.same({ nil, "invalid" }, { report, code })
    assert.matches("blk.1.attn_norm.weight: element 2 of row 0 is not finite", message, 1, true)
  end)
end)
