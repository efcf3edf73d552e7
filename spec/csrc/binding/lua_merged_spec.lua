-- core.merged: which tensors can be changed.
local core = require "ane.core"
local st = require "support.safetensors_writer"

describe("merged", function()
  it("fails for a tensor that has no decoder, and names it", function()
    local data = string.pack("<i8i8", 1, 2)
    local folder = st.folder { ["model.safetensors"] = { tensors = { { name = "list", dtype = "I64", shape = { 2 }, data = data } } } }
    local source <close> = assert(core.open(folder .. "/model.safetensors"))
    local made, message, code = core.merged(source, { { name = "list", changes = {} } })
    assert.same({ nil, "unsupported" }, { made, code })
    assert.matches("tensor list cannot be changed: it is int64", message)
    st.remove(folder)
  end)

  it("changes some rows alone", function()
    local path = st.folder { ["model.safetensors"] = { tensors = {
      { name = "w", dtype = "F32", shape = { 3, 2 }, data = st.f32 { 1, 2, 3, 4, 5, 6 } } } } }
    local source <close> = assert(core.open(path .. "/model.safetensors"))
    local change = { rank = 1, scale = 2, from = 1, to = 3, a = st.f32 { 1, 10 }, b = st.f32 { 1, -1 } }
    local merged <close> = assert(core.merged(source, { { name = "w", changes = { change } } }))
    assert.equal(st.f32 { 1, 2, 5, 24, 3, -14 }, merged:read "w")
    change.b = st.f32 { 1, -1, 0 }
    assert.error_matches(function() core.merged(source, { { name = "w", changes = { change } } }) end, "b of an edit has 12 bytes")
    st.remove(path)
  end)
end)
