--- Core ML packages: parts "model", "weights", "manifest". Every function runs once; some inputs are written again.
local ane = require "ane"
local bundle = require "lib.bundle"
local mutate_json = require "lib.mutate_json"
local mutate_proto = require "lib.mutate_proto"
local mlpackage = require "support.mlpackage"
local ports = require "lib.ports"
local promise = require "lib.promise"
local scratch = require "lib.scratch"
local use = require "lib.use"

local M = {}

M.mutate = bundle.mutator {
  mutate_proto.mutate, manifest = mutate_json.mutator { "com.apple.CoreML/weights", "../x", "path", "rootModelIdentifier" },
  weights = function(text, most, _, bytes) return bytes(text, most) end,
}

local path = scratch.path .. "/case.mlpackage"
scratch.folder "case.mlpackage/Data/com.apple.CoreML/weights"

local function predict(pkg, f)
  local inputs = ports.inputs(f.inputs)
  if not inputs then return end
  local state = #f.states > 0 and promise.keep("state", pkg:state()) or nil
  promise.misuse("predict", { "^predict: " }, pkg.predict, pkg, inputs, state, { ["function"] = f.name })
  if state then state:close() end
end

M.words = {}
for op in scratch.read("csrc/interp/mil.def"):gmatch "MIL_OP%(([%w_]+)" do M.words[#M.words + 1] = op end

function M.run(data)
  local parts = bundle.split(data)
  mlpackage.write(path, parts.model or data, parts.weights or "", parts.manifest or mlpackage.MANIFEST)
  local pkg = promise.keep("package", ane.package(path, { threads = 1, run_memory = use.RUN_MEMORY }))
  if not pkg then return end
  local info = pkg:info()
  local before = pkg:dump()
  for _, f in ipairs(info.functions) do predict(pkg, f) end
  if #data % 8 == 0 and promise.keep("rewrite", pkg:rewrite(scratch.path .. "/again.mlpackage")) then
    local again <close> = assert(ane.package(scratch.path .. "/again.mlpackage"))
    if again:dump() ~= before then error "the package that was written again differs" end
  end
  scratch.remove "again.mlpackage"
  pkg:close()
end

local FIXTURES = { "mlp_lut4", "mlp_int4_block", "attn_state_slice", "moe_softmax", "ops_move", "ops_const18" }

-- A product with a transposed constant, and parameters that are stored as codes.
local function coded()
  local const, op, value = mlpackage.const, mlpackage.op, mlpackage.value
  local square, one, int8 = mlpackage.tensor("fp16", { 2, 2 }), mlpackage.tensor("fp16", {}), mlpackage.tensor(21, {})
  return mlpackage.tiny(function(t)
    t.inputs = { { "x", square } }
    t.ops = {
      const("w", square, mlpackage.blob(square, 64)),
      op("constexpr_affine_dequantize", nil, { { "flag", one } }, { { "axis", value(mlpackage.tensor("int32", {}), 2, "\0") },
        { "quantized_data", value(int8, 7, "\1") }, { "scale", value(one, 7, "\0\60") }, { "zero_point", value(int8, 7, "\0") } }),
      op("transpose", { { "x", { "w" } } }, { { "v", square } }),
      op("matmul", { { "x", { "x" } }, { "y", { "v" } }, { "transpose_y", { "flag" } } }, { { "y", square } }),
    }
    t.description = { { 1, mlpackage.feature("x", 65552, { 2, 2 }) }, { 10, mlpackage.feature("y", 65552, { 2, 2 }) } }
  end)
end

function M.seeds()
  local out = { { "coded", bundle.join { { "model", coded() }, { "weights", mlpackage.weights { { 1, ("\0\60"):rep(4) } } } } },
    { "tiny", bundle.join { { "model", mlpackage.tiny() }, { "weights", mlpackage.weights { { 1, ("\0\60"):rep(4) } } },
    { "manifest", mlpackage.MANIFEST } } } }
  for _, name in ipairs(FIXTURES) do
    local from = ("spec/fixtures/mlpackage/%s/model.mlpackage"):format(name)
    out[#out + 1] = { name, bundle.join { { "model", mlpackage.read(from, "model") }, { "weights", mlpackage.read(from, "weights") } } }
  end
  return out
end

return M
