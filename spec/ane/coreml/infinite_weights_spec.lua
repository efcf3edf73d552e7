-- Weights that are not finite, or beyond fp16: an export names them, whatever they are for.
local ane = require "ane"
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

local function export(path, opts)
  local model <close> = assert(ane.load(path.name, { threads = 1 }))
  local out = os.tmpname()
  os.remove(out)
  local report, message, code = model:export(out, opts)
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
