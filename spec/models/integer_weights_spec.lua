-- Weights that a file holds as integers without a scheme that says what they stand for: they are refused by name and type.
local ane = require "ane"
local core = require "ane.core"
local gguf = require "support.gguf_writer"
local hf = require "support.hf"
local quantise = require "ane.quantise"
local tiny_llama = require "support.tiny_llama"

local SAFETENSORS = { I8 = { 1, "int8" }, U8 = { 1, "uint8" }, I16 = { 2, "int16" }, I32 = { 4, "int32" }, I64 = { 8, "int64" } }

-- A copy of a folder whose tensor `name` is of an integer type.
local function folder(from, name, dtype)
  return hf.changed(from, nil, function(t)
    if t.name ~= name then return t end
    local n = 1
    for _, size in ipairs(t.shape) do n = n * size end
    t.dtype, t.data = dtype, ("\1"):rep(n * SAFETENSORS[dtype][1])
    return t
  end)
end

local function refused(name, dtype, result, message, code)
  assert.is_nil(result)
  local what = ("tensor %s must be floats or a quantised type, but is of type %s"):format(name, dtype)
  assert.is_truthy(message:find(what, 1, true), message)
  assert.equal("unsupported", code)
end

describe("a weight of integers", function()
  it("of a folder is refused, whatever it is for", function()
    for dtype, row in pairs(SAFETENSORS) do
      for _, case in ipairs {
        { "qwen3-odd", "model.layers.0.mlp.up_proj.weight" }, { "qwen3-odd", "model.norm.weight" },
        { "qwen3-odd", "model.embed_tokens.weight" },
        { "qwen3_moe-odd", "model.layers.1.mlp.experts.2.up_proj.weight" },
        { "gpt_oss-odd", "model.layers.1.mlp.experts.down_proj" },
        { "deepseek_v3-odd", "model.layers.1.self_attn.kv_b_proj.weight" },
        { "starcoder2-odd", "model.layers.1.input_layernorm.bias" },
      } do
        local path <close> = folder(case[1], case[2], dtype)
        refused(case[2], row[2], ane.load(path.name, { threads = 1 }))
      end
    end
  end)

  it("of a GGUF file is refused", function()
    for _, dtype in ipairs { "int8", "int16", "int32", "int64" } do
      for _, name in ipairs { "blk.0.ffn_up.weight", "output_norm.weight", "token_embd.weight" } do
        local path = tiny_llama.write(function(file)
          for _, t in ipairs(file.tensors) do
            local n = t.shape[1] * (t.shape[2] or 1)
            if t.name == name then t.dtype, t.data = dtype, ("\1"):rep(n * gguf.dtypes[dtype][3]) end
          end
        end)
        finally(function() os.remove(path) end)
        refused(name, dtype, ane.load(path, { threads = 1 }))
      end
    end
  end)

  it("is not quantised", function()
    for from, name in pairs {
      ["qwen3-odd"] = "model.layers.0.mlp.up_proj.weight",
      ["lfm2_moe-odd"] = "model.layers.2.feed_forward.experts.1.w1.weight",
    } do
      local path <close> = folder(from, name, "I8")
      local source <close> = assert(core.open(path.name))
      refused(name, "int8", quantise.run(source, path.name .. "/out.gguf", { weights = "q8_0", threads = 1 }))
    end
  end)
end)
