local core = require "ane.core"
local isa = require "ane.util.isa"

describe("the kernel level", function()
  local getenv = os.getenv
  local function with_env(value, fn)
    os.getenv = function(name) return name == "ANE_ISA" and value or nil end -- luacheck: ignore
    local results = table.pack(pcall(fn))
    os.getenv = getenv -- luacheck: ignore
    return table.unpack(results, 1, results.n)
  end

  it("is the option, else the environment's, else the best", function()
    assert.same({ true, core.isa_best() }, { with_env(nil, isa.choose) })
    assert.same({ true, core.isa_best() }, { with_env("", isa.choose) })
    assert.same({ true, "ref" }, { with_env("ref", isa.choose) })
    assert.same({ true, "ref" }, { with_env("nonsense", function() return isa.choose "ref" end) })
  end)

  it("is an error where it is not known or not there, with those that are", function()
    local _, level, message, code = with_env("mmx", isa.choose)
    assert.is_nil(level)
    assert.matches("^ANE_ISA=mmx: .*ref", message)
    assert.equal("invalid", code)
  end)
end)
