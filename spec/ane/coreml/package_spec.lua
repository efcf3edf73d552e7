local ane = require "ane"
local command = require "support.command"

local PATH = "spec/fixtures/mlpackage/attn_state_rangedim/model.mlpackage"

describe("ane.package", function()
  it("gives what the package holds", function()
    local pkg <close> = assert(ane.package(PATH))
    assert.equal(9, pkg:info().version)
    assert.equal(241, pkg:info().functions[1].n_ops)
    assert.matches("\n    %%var_16: int32 = const%(%)", pkg:dump())
    assert.same({ "\255\255\255\255", "int32", {} }, { pkg:value "var_16" })
  end)

  it("fails as the rest of the module does", function()
    local pkg, message, code = ane.package "spec/none.mlpackage"
    assert.same({ nil, "spec/none.mlpackage/Manifest.json: No such file or directory", "io" }, { pkg, message, code })
  end)

  it("prints as a summary", function()
    local pkg = assert(ane.package(PATH))
    local text = tostring(pkg)
    for _, line in ipairs {
      PATH .. ": ML Program, specification version 9, 6 weights of 18560 bytes",
      "function main: CoreML8, 241 operations",
      "  input  x: fp16[1, 32, 1..4, 1]",
      "  state  layers_0_k_state: fp16[1, 2, 16, 8]",
      "  output hidden: fp16[1, 32, ?, 1]",
    } do
      assert.truthy(("\n" .. text .. "\n"):find("\n" .. line .. "\n", 1, true), line)
    end
    assert.matches("\n  ops    const 141, mul 17, slice_by_index 15, transpose 11, add 10, ", text)
    local values <close> = assert(ane.package "spec/fixtures/mlpackage/values.mlpackage")
    text = tostring(values)
    assert.truthy(text:find("\n  input  ids: int32[0..]\n  input  scale: fp32[], optional\n", 1, true))
    assert.truthy(text:find("\n  input  ids: int32[2, 2] or [1, 16] or [4, 0]\n", 1, true))
    pkg:close()
    assert.equal("package (closed)", tostring(pkg))
  end)
end)

describe("ane info", function()
  it("shows a package", function()
    local code, out = command.run { "info", PATH }
    local pkg <close> = assert(ane.package(PATH))
    assert.same({ 0, tostring(pkg) .. "\n" }, { code, out })
    local info = command.json { "info", PATH }
    assert.equal(241, info.functions[1].n_ops)
    assert.same({ 1, 4 }, setmetatable(info.functions[1].inputs[1].range[3], nil))
  end)

  it("says what is wrong with one", function()
    local code, out, err = command.run { "info", "spec/fixtures/mlpackage/values.mlpackage/Data" }
    assert.same({ 1, "" }, { code, out })
    assert.matches("Data", err)
  end)
end)
