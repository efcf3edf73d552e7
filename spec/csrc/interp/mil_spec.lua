-- Core ML functions on the primitive kernels: control flow, functions that share states, kinds of shapes; what is wrong with
-- a program is told by the operation, and nothing that a file says ends the process.
local ane = require "ane"
local core = require "ane.core"
local mlpackage = require "support.mlpackage"
local tree = require "support.tree"

local FOLDER = "spec/fixtures/mlpackage/"

local function flat(t) return type(t) == "userdata" and t:reshape({ #t }):totable() or table.move(t, 1, #t, 1, {}) end

describe("a Core ML function", function()
  it("follows cond and while_loop", function() -- made by spec/golden/package_flow.py, whose comments say what it computes
    local pkg <close> = assert(ane.package(FOLDER .. "flow.mlpackage"))
    for _, case in ipairs {
      { { 1, 2, 3 }, 50, 9, { 16, 32, 48 }, 4, 60 }, { { 1, 2, 3 }, 50, 2, { 4, 8, 12 }, 2, 60 },
      { { -1, 0, 0 }, 50, 3, { -8, 0, 0 }, 3, -13 }, { { -1, 0, 0 }, 50, 0, { -1, 0, 0 }, 0, -10 },
    } do
      local out = assert(pkg:predict { x = case[1], least = { case[2] }, n = { case[3] } })
      assert.same({ case[4], { case[5] }, { case[6] } }, { flat(out.y), flat(out.turns), flat(out.sign) })
    end
  end)

  it("shares its states with others of the package", function()
    local pkg <close> = assert(ane.package(FOLDER .. "functions.mlpackage"))
    local state = assert(pkg:state())
    local x = { { 1, 2, 3, 4 } }
    assert.same({ 1, 2, 3, 4 }, flat(assert(pkg:predict({ x = x }, state)).y))
    assert.same({ 2, 4, 6, 8 }, flat(assert(pkg:predict({ x = x }, state)).y))
    local scale = { ["function"] = "scale" }
    assert.same({ 2, 8, 18, 32 }, flat(assert(pkg:predict({ x = x }, state, scale)).y))
    assert.same({ 0, 0, 0, 0 }, flat(assert(pkg:predict({ x = x }, nil, scale)).y))
    assert.same({ 2, 4, 6, 8 }, flat(state:get "kept"))
    pkg:close()
    assert.same({ 2, 4, 6, 8 }, flat(state:get "kept")) -- the package stays as long as it is needed
    assert.has_error(function() pkg:predict { x = x } end, "package is closed")
  end)

  it("takes listed shapes, and defaults of optional inputs", function()
    local pkg <close> = assert(ane.package(FOLDER .. "shapes.mlpackage"))
    assert.same({ 2.5, 3.5, 4.5, 5.5, 6.5 }, flat(assert(pkg:predict { x = { { 1, 2, 3, 4, 5 } } }).y))
    assert.same({ 3, 4, 5, 6 }, flat(assert(pkg:predict { x = { { 1 }, { 2 }, { 3 }, { 4 } }, bias = { 2 } }).y))
    local out, message, code = pkg:predict { x = core.tensor { 1, 2 }, bias = { 2 } }
    assert.same({ nil, "input x is fp32[1, 2], which is none of its 3 shapes", "shape" }, { out, message, code })
    out, message, code = pkg:predict { bias = { 2 } }
    assert.same({ nil, "input x is missing", "invalid" }, { out, message, code })
  end)

  it("takes integers only where it declares them", function()
    local pkg <close> = assert(ane.package(FOLDER .. "flow.mlpackage"))
    local function n(v)
      local out, message, code = pkg:predict { x = { 1, 2, 3 }, least = { 5 }, n = { v } }
      return { out and flat(out.turns), message, code }
    end
    assert.same({ { 0 } }, n(0.0))
    assert.same({ nil, "input n: element 0 is 0.5, no int32", "invalid" }, n(0.5))
    assert.same({ nil, "input n: element 0 is 2.14748e+09, no int32", "invalid" }, n(1 << 31))
  end)
end)

describe("a Core ML program that cannot run", function()
  local folder
  setup(function() folder = mlpackage.folder() end)
  teardown(function() tree.remove(folder) end)
  local n = 0

  -- What predict says of the tiny package after change(t).
  local function told(change)
    n = n + 1
    local pkg <close> = assert(ane.package(mlpackage.write(("%s/%d.mlpackage"):format(folder, n), mlpackage.tiny(change))))
    local out, message, code = pkg:predict { x = { 1, 2, 3, 4 } }
    assert.is_nil(out)
    return message:match "%.mlpackage: (.*)$" or message, code
  end
  local vector = mlpackage.tensor("fp16", { 4 })
  local function op(...)
    local made = mlpackage.op(...)
    return function(t) t.ops[3] = made end
  end

  it("is told by its operation", function()
    assert.same({ "function main: op fft (y): the op is not known", "unsupported" },
      { told(op("fft", { { "x", { "x" } } }, { { "y", vector } })) })
    assert.same({ "function main: op mul (y): parameter z is not known", "unsupported" },
      { told(op("mul", { { "x", { "x" } }, { "y", { "w" } }, { "z", { "w" } } }, { { "y", vector } })) })
    assert.same({ "node y (mul): the input y is missing", "invalid" }, { told(op("mul", { { "x", { "x" } } }, { { "y", vector } })) })
    assert.same({ "function main: op mul (y): s cannot be used here", "unsupported" },
      { told(op("mul", { { "x", { "x" } }, { "y", { "s" } } }, { { "y", vector } })) })
    assert.same({ "function main: op read_state (y): parameter input is not a state", "format" },
      { told(op("read_state", { { "input", { "x" } } }, { { "y", vector } })) })
    assert.same({ "function main: op concat (y): parameter values is missing", "format" },
      { told(op("concat", { { "axis", { "n" } } }, { { "y", vector } })) })
  end)

  it("has one of the operations that docs/coreml.md lists, or is wrong", function()
    local unknown, listed = {}, {}
    for name in assert(io.lines(FOLDER .. "operations.txt")) do -- of coremltools 9
      if name ~= "const" and told(op(name, {}, { { "y", vector } })):match "op is not known$" then unknown[#unknown + 1] = name end
    end
    local list = assert(tree.read("docs/coreml.md"):match "These operations of coremltools 9 do not run: (.-)%.")
    for name in list:gmatch "`([%w_]+)`" do listed[#listed + 1] = name end
    assert.same(unknown, listed)
  end)

  it("is told by shapes that no memory holds", function()
    local rows, mask = mlpackage.tensor("fp16", { 1, 1 << 32, 0 }), mlpackage.tensor("fp16", { 1, 1 })
    local message, code = told(function(t)
      t.ops[3] = mlpackage.const("rows", rows, mlpackage.value(rows, 7, ""))
      t.ops[4] = mlpackage.const("mask", mask, mlpackage.value(mask, 7, "\0\0"))
      t.ops[5] = mlpackage.op("scaled_dot_product_attention",
        { { "query", { "rows" } }, { "key", { "rows" } }, { "value", { "rows" } }, { "attn_mask", { "mask" } } }, { { "a", rows } })
      t.ops[6] = mlpackage.op("mul", { { "x", { "x" } }, { "y", { "w" } } }, { { "y", vector } })
      t.outputs = { "a" }
      t.description[3] = { 10, mlpackage.feature("a", 65552, { 1, 1 << 32, 0 }) }
    end)
    assert.same({ "function main: node a (scaled_dot_product_attention): a tensor of shape [1, 4294967296, 4294967296] has too many " ..
      "elements", "range" }, { message, code })
  end)

  it("is told by indices that can be negative", function()
    local bits, codes = mlpackage.tensor(37, { 4 }), mlpackage.tensor("int4", { 4 })
    local lut = mlpackage.tensor("fp16", { 1, 16, 1 })
    local message, code = told(function(t)
      t.ops[3] = mlpackage.const("bits", bits, mlpackage.value(bits, 7, "\15"))
      t.ops[4] = mlpackage.const("codes", codes, mlpackage.value(codes, 7, "\255\255"))
      t.ops[5] = mlpackage.const("lut", lut, mlpackage.value(lut, 7, ("\0\60"):rep(16)))
      t.ops[6] = mlpackage.op("constexpr_lut_to_sparse",
        { { "indices_mask", { "bits" } }, { "indices_nonzero_data", { "codes" } }, { "lut", { "lut" } } },
        { { "m", bits }, { "d", vector } })
      t.ops[7] = mlpackage.op("mul", { { "x", { "x" } }, { "y", { "d" } } }, { { "y", vector } })
    end)
    assert.same({ "function main: op constexpr_lut_to_sparse (m): indices of type int4", "unsupported" }, { message, code })
  end)

  it("is told where a result is not what it declares", function()
    local message, code = told(function(t)
      t.ops[3] = mlpackage.op("reduce_sum", { { "x", { "x" } } }, { { "y", vector } })
    end)
    assert.same({ "node y (reduce_sum): the result is fp32[], but is declared as fp16[4]", "shape" }, { message, code })
  end)
end)

-- Bytes of the models are changed at random: whatever a package then says, it is an answer or an error.
describe("Core ML packages with changed bytes", function()
  it("run or are refused", function()
    local folder = mlpackage.folder()
    math.randomseed(20)
    local opened, ran = 0, 0
    for _, name in ipairs { "attn_state_slice/model", "ops_const18/model", "ops_move/model", "flow", "functions", "set/layer_01" } do
      local from, to = ("%s%s.mlpackage"):format(FOLDER, name), folder .. "/p.mlpackage"
      assert(os.execute(("rm -rf '%s' && cp -r '%s' '%s'"):format(to, from, to)))
      local bytes = mlpackage.read(from, "model")
      for _ = 1, 150 do
        local at = math.random(#bytes)
        while bytes:byte(at) > 32 and bytes:byte(at) < 127 do at = math.random(#bytes) end -- names only make unknown operations
        local changed = bytes:sub(1, at - 1) .. string.char(bytes:byte(at) ~ 1 << math.random(0, 7)) .. bytes:sub(at + 1)
        local file <close> = assert(io.open(to .. mlpackage.files.model, "wb"))
        file:write(changed)
        file:close()
        local pkg <close> = ane.package(to, { threads = 1 })
        for _, f in ipairs(pkg and pkg:info().functions or {}) do
          opened = opened + 1
          local inputs, fits = {}, true
          for _, i in ipairs(f.inputs) do
            local shape, count = {}, 1
            for d, v in ipairs(i.default or i.shape) do
              shape[d] = v == -1 and 1 or v
              count = count * shape[d]
            end
            fits = fits and count < 1e6 and #shape <= 5
            if fits then inputs[i.name] = core.tensor(shape) end
          end
          local out, message = false, "not run"
          if fits then out, message = pkg:predict(inputs, nil, { ["function"] = f.name }) end
          if out then ran = ran + 1 else assert.is_string(message) end
        end
      end
    end
    tree.remove(folder)
    assert.is_true(opened > 30 and ran > 10, ("%d opened, %d ran"):format(opened, ran))
  end)
end)
