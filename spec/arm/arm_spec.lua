-- The ARM kernels, and the whole module with them, under an ARM Lua run by qemu (scripts/arm64). A choice of the specs, with
-- fewer cases of products and attention (ANE_SHORT); `make arm` runs any spec whole.
local tree = require "support.tree"

local build_status

-- Builds once; skips where this machine lacks something, in the script's words.
local function need_build()
  if not build_status then
    local ok, text = tree.run "scripts/arm64 build"
    build_status = { ok = ok, text = text }
  end
  if build_status.ok then return end
  local what = build_status.text:match "arm64: ([^\n]*)\n*$"
  if what then pending(what) end
  error(build_status.text, 0)
end

-- Runs specs on a CPU that qemu knows; every one must pass, and there must be some.
local function passes(cpu, arguments)
  need_build()
  local ok, text = tree.run(("ANE_SHORT=1 CPU=%s scripts/arm64 spec %s"):format(cpu, arguments))
  local passed, failed = text:match "(%d+) passed, (%d+) failed"
  assert(ok and failed == "0" and tonumber(passed) > 0, text)
end

describe("on ARM", function()
  it("the levels are those that the machine has", function()
    need_build()
    local code = [[package.path = "lua/?.lua;" .. package.path; package.cpath = "build/arm64/?.so;" .. package.cpath
      local core, isa = require "ane.core", require "ane.util.isa"
      print(table.concat(core.isa_list(), " "), core.isa_best(), isa.choose())]]
    for cpu, want in pairs {
      ["cortex-a72"] = "ref neon\tneon\tneon",
      ["neoverse-n1"] = "ref neon dotprod\tdotprod\tdotprod",
      max = "ref neon dotprod i8mm\ti8mm\ti8mm",
      ["max ANE_ISA=neon"] = "ref neon dotprod i8mm\ti8mm\tneon",
      ["cortex-a72 ANE_ISA=i8mm"] = "ref neon\tneon\tnil\tANE_ISA=i8mm: no such level on this machine; there are ref, neon\tinvalid",
      ["max ANE_ISA=avx2"] = "ref neon dotprod i8mm\ti8mm\tnil\tANE_ISA=avx2: no such level on this machine; "
        .. "there are ref, neon, dotprod, i8mm\tinvalid",
    } do
      local ok, text = tree.run(("CPU=%s scripts/arm64 lua -e '%s'"):format(cpu, code))
      assert.is_true(ok, text)
      assert.equal(want .. "\n", text)
    end
  end)

  it("matrix products have the bits of ref at every level", function()
    -- Floats unpack these as the 8-bit products do; `make arm` runs them too.
    passes("max", "'--filter-out=q[45]_[01k] and fp32' '--filter-out=by formula' spec/csrc/kernels/matmul_spec.lua")
  end)

  it("attention has the bits of ref", function()
    passes("cortex-a72", "'--filter=attention neon:' '--filter=cache' spec/csrc/kernels/attention_spec.lua")
  end)

  it("norms, rope and elementwise functions have the bits of ref", function()
    for _, name in ipairs { "norm", "rope", "elementwise" } do
      passes("cortex-a72", "spec/csrc/kernels/" .. name .. "_spec.lua")
    end
  end)

  it("logits have the same bits at every level and for any number of threads", function()
    passes("max", "'--filter=on every level' '--filter=4 threads: llama%-kquants' spec/csrc/exec/bits_spec.lua")
  end)

  it("the pruned head finds what the whole head gives", function()
    passes("max", "'--filter=llama%-mixed' spec/csrc/exec/pruned_head_spec.lua")
  end)

  it("models give golden logits and tokens, sessions and generation work", function()
    passes("max", "'--filter=llama%-kquants' spec/models/golden_spec.lua")
    for _, name in ipairs { "model/model", "generate/session", "generate/generate", "util/isa" } do
      passes("max", "spec/ane/" .. name .. "_spec.lua")
    end
  end)
end)
