local core = require "ane.core"
local model_of = require "ane.model"
local overlay = require "ane.quantise.overlay"
local tiny = require "support.tiny"

-- The numbers of a tensor cannot be read.
local function assert_unset(source, name)
  assert.is_false(source:is_set(name))
  local bytes, message, code = source:read(name)
  assert.is_nil(bytes)
  assert.equal(("%s: tensor %s is not computed yet"):format(source:path(), name), message)
  assert.equal("invalid", code)
end

describe("a source whose matrices are computed for each use", function()
  local MATRIX, VECTOR = "blk.0.attn_q.weight", "blk.0.attn_norm.weight"

  local function edits(source)
    local list = {}
    for _, name in ipairs { MATRIX, VECTOR } do
      local shape = source:tensor(name).shape
      local twos = core.tensor({ shape[#shape] }):fill(2):tostring()
      list[#list + 1] = { name = name, changes = { { columns = twos } } }
    end
    return list
  end

  it("holds a matrix between fill and drop, and vectors always", function()
    local base <close> = assert(core.open(tiny.path()))
    local want <close> = assert(core.merged(base, edits(base)))
    local source <close> = overlay.computed(base, edits(base))
    assert.equal(want:read(VECTOR), source:read(VECTOR))
    assert_unset(source, MATRIX)
    for _ = 1, 2 do
      overlay.fill(source, { MATRIX, VECTOR, "blk.0.attn_k.weight", "none" })
      assert.is_true(source:is_set(MATRIX))
      assert.is_true(want:read(MATRIX) == source:read(MATRIX))
      overlay.drop(source, { MATRIX, VECTOR, "none" })
      assert.equal(want:read(VECTOR), source:read(VECTOR))
    end
    assert_unset(source, MATRIX)
    local stored = base:read(MATRIX)
    overlay.fill(base, { MATRIX })
    overlay.drop(base, { MATRIX })
    assert.is_true(base:read(MATRIX) == stored)
  end)

  it("is shared by the sources derived from it", function()
    local base <close> = assert(core.open(tiny.path()))
    local want <close> = assert(core.merged(base, edits(base)))
    local source <close> = overlay.computed(base, edits(base))
    local derived <close> = assert(core.merged(source, { { name = "again", from = MATRIX, alias = true } }))
    local twice <close> = assert(core.merged(derived, {}))
    for _ = 1, 2 do
      for _, s in ipairs { derived, twice } do
        assert_unset(s, MATRIX)
        assert_unset(s, "again")
      end
      overlay.fill(source, { MATRIX })
      for _, s in ipairs { derived, twice } do
        assert.is_true(s:is_set(MATRIX) and s:is_set "again")
        assert.is_true(want:read(MATRIX) == s:read(MATRIX) and want:read(MATRIX) == s:read "again")
      end
      overlay.drop(source, { MATRIX })
    end
  end)

  it("is that of a model that is opened to be quantised, which has no program", function()
    local model <close> = assert(model_of.unplanned(tiny.path(), { transform = "rotate" }))
    local loaded <close> = assert(model_of.load(tiny.path(), { transform = "rotate" }))
    local source, want = model_of.bundle(model).source, model_of.bundle(loaded).source
    assert.is_nil(model_of.bundle(model).program)
    assert.equal(loaded.context, model.context)
    local name = "blk.0.ffn_up.weight"
    assert_unset(source, name)
    overlay.fill(source, { name })
    assert.is_true(want:read(name) == source:read(name))
  end)
end)
