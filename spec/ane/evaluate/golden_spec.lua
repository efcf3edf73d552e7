local ane = require "ane"
local core = require "ane.core"
local golden = require "ane.evaluate.golden"

-- A NumPy file of version 1, as numpy.save writes it.
local function npy(descr, shape, data, order)
  local head = ("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }"):format(descr, order or "False", shape)
  head = head .. (" "):rep(-(#head + 11) % 64) .. "\n"
  return "\147NUMPY\1\0" .. string.pack("<s2", head) .. data
end

describe("a golden", function()
  it("gives prompts and tensors by name", function()
    local g <close> = assert(golden.open "spec/fixtures/check/gemma")
    assert.same({ "p0", "p1" }, { g.prompts[1].name, g.prompts[2].name })
    assert.same({ 5, 60, 17, 3, 44 }, g.prompts[1].ids)
    assert.equal(8, #g.prompts[1].greedy)
    assert.same({ 5, 80 }, g:tensor("p0.logits"):shape())
    assert.is_nil(g:tensor "p0.none")
    assert.is_true(#g:names() > 20)
    -- the golden's own best token behind the prompt is its first greedy one
    assert.equal(g.prompts[1].greedy[1], (g:tensor("p0.logits")[-1]:argmax()))
  end)

  it("is refused where it is no object", function()
    local path = os.tmpname()
    for _, text in ipairs { "false", "3", '"x"', "[]", "{}", "{" } do
      assert(core.write_file(path, text))
      local g, message, code = golden.open(path)
      assert.same({ nil, "format" }, { g, code }, text)
      assert.matches(path, message, 1, true)
    end
    os.remove(path)
  end)
end)

describe("ane.tensors", function()
  local path

  before_each(function() path = os.tmpname() .. ".npy" end)
  after_each(function() os.remove(path) end)

  local function read(bytes)
    assert(core.write_file(path, bytes))
    return ane.tensors(path)
  end

  it("reads NumPy files", function()
    local t = assert(read(npy("<f4", "(2, 3)", string.pack("<ffffff", 1, 2, 3, 4, 5, 6))))
    assert.same({ 2, 3 }, t:shape())
    assert.same({ 4.0, 5.0, 6.0 }, t[2]:totable())
    assert.same({ 0.5, -2.0 }, assert(read(npy("<f8", "(2,)", string.pack("<dd", 0.5, -2)))):totable())
    assert.same({ 7.0 }, assert(read(npy("<i8", "(1, 1)", string.pack("<i8", 7)))):totable())
    assert.equal(3.0, assert(read(npy("<f4", "()", string.pack("<f", 3)))):get())
  end)

  it("reads safetensors and GGUF files", function()
    local t = assert(ane.tensors "spec/fixtures/check/gemma/golden.safetensors")
    assert.same({ 5, 32 }, t["p0.hidden.0"]:shape())
    assert.same({ 32 }, assert(ane.tensors "spec/fixtures/check/llama.gguf")["output_norm.weight"]:shape())
  end)

  it("says what is wrong with a file", function()
    local cases = {
      { "no NumPy file", "hello" },
      { "no NumPy file", "\147NUMPY\9\0\0\0\0\0\0\0" },
      { "must be little%-endian", npy(">f4", "(1,)", "1234") },
      { "in C order", npy("<f4", "(1,)", "1234", "True") },
      { "3 bytes of data, but the shape needs 4", npy("<f4", "(1,)", "123") },
      { "must be little", "\147NUMPY\1\0\255\255{}" },
    }
    for _, case in ipairs(cases) do
      local t, message = read(case[2])
      assert.is_nil(t)
      assert.matches(case[1], message)
    end
    local t, _, code = ane.tensors "none.npy"
    assert.same({ nil, "io" }, { t, code })
  end)
end)
