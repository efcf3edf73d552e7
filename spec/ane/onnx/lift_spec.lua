-- The layout of lifted values: atoms of tokens and channels; attributes that are counts.
local lift = require "ane.onnx.lift"

local function dims(...)
  local out = {}
  for i, list in ipairs { ... } do
    out[i] = {}
    for k, a in ipairs(list) do out[i][k] = lift.atom(table.unpack(a)) end
  end
  return out
end

local S = { "s", lift.TOKENS }

describe("a lifted value", function()
  it("has the sizes of its dimensions", function()
    local d = dims({}, { S }, { { "c", 4, 8 }, { "c", 8 } })
    assert.same({ 1, lift.TOKENS, 32 }, { lift.dim_size(d[1]), lift.dim_size(d[2]), lift.dim_size(d[3]) })
    assert.equal(3, #lift.atoms(d))
  end)

  it("is columns if tokens come before all channels in order", function()
    local e = { channels = 32 }
    assert.is_true(lift.is_columns(lift.columns(e)))
    assert.is_true(lift.is_columns { e = e, dims = dims({ S }, { { "c", 4, 8 }, { "c", 8 } }) })
    assert.is_false(lift.is_columns { e = e, dims = dims({ S }, { { "c", 8 }, { "c", 4, 8 } }) })
    assert.is_false(lift.is_columns { e = e, dims = dims({ S }, { { "c", 16 } }) })
    assert.is_false(lift.is_columns { e = e, dims = dims({ { "c", 32 } }, { S }) })
  end)

  it("has inner channels if they are dense", function()
    local e = { channels = 32 }
    assert.equal(32, lift.inner(lift.columns(e)))
    assert.equal(8, lift.inner { e = e, dims = dims({ S }, { { "c", 4, 8 } }, { { "c", 8 } }) })
    assert.equal(1, lift.inner { e = e, dims = dims({ S }, {}) })
    assert.is_nil(lift.inner { e = e, dims = dims({ S }, { { "c", 4, 8 } }) })
  end)

  it("has the layout of another if all atoms agree, except those of size 1", function()
    assert.is_true(lift.same_dims(dims({ S }, { { "c", 8 } }), dims({ S, { "c", 1 } }, { { "c", 8 } })))
    assert.is_false(lift.same_dims(dims({ S }, { { "c", 8 } }), dims({ S }, { { "c", 8, 2 } })))
    assert.is_false(lift.same_dims(dims({ S }), dims({ S }, {})))
  end)
end)

describe("an attribute that counts", function()
  local function whole(v)
    return pcall(lift.whole, { name = "gqa", op = "GroupQueryAttention", attrs = { kv_num_heads = v } }, "kv_num_heads")
  end

  it("is a whole number up to a ceiling", function()
    assert.same({ true, 8 }, { whole(8) })
    for _, v in ipairs { 0, -1, 2.5, 2147483648, math.maxinteger, "8" } do
      local ok, raised = whole(v)
      assert.is_false(ok)
      assert.matches("node gqa %(GroupQueryAttention%) has kv_num_heads .*, but must have a whole number from 1 to 1048576", raised.message)
    end
    assert.is_false((whole(nil)))
  end)
end)
