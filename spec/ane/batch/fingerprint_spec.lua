-- The fingerprint by which a batch tells models apart: it depends on every byte of the files, and on nothing that runs write beside them.
local fingerprint = require "ane.batch.fingerprint"
local tree = require "support.tree"
local ane = require "ane"

local folder
before_each(function() folder = tree.folder() end)
after_each(function() tree.remove(folder) end)

local function write(name, text) return tree.write(folder, name, text) end

-- A file of zeros, with bytes of 1 from `at` on.
local function weights(name, size, at, count)
  local file <close> = assert(io.open(folder .. "/" .. name, "wb"))
  if at then
    file:seek("set", at)
    file:write(("\1"):rep(count))
  end
  file:seek("set", size - 1)
  file:write "\0"
  return folder .. "/" .. name
end

describe("the fingerprint of a model", function()
  local MB = 1 << 20

  it("differs for files of the same size whose weights differ", function()
    local size = 80 * MB + 12345
    local seen = { [fingerprint.of(weights("m.gguf", size))] = true }
    for _, change in ipairs { { 0, 1 }, { 12 * MB, 1 }, { 17 * MB, MB }, { 50 * MB + 7, MB }, { size - 2, 1 } } do
      local other = fingerprint.of(weights("m.gguf", size, change[1], change[2]))
      assert.is_nil(seen[other], change[1])
      seen[other] = true
    end
  end)

  it("covers each byte of a small file, whatever its size", function()
    for _, size in ipairs { 2, 4095, MB, 16 * MB - 1, 16 * MB, 16 * MB + 1, 16 * MB + 4097 } do
      local plain = fingerprint.of(weights("m.gguf", size))
      assert.not_equal(plain, fingerprint.of(weights("m.gguf", size + 1)))
      assert.not_equal(plain, fingerprint.of(weights("m.gguf", size, size - 2, 1)), size)
    end
  end)

  it("covers the other parts of a split file, weights beside an ONNX file, and folders in a folder", function()
    local first = write("m-00001-of-00002.gguf", "a")
    write("m-00002-of-00002.gguf", "b")
    local one = fingerprint.of(first)
    write("m-00002-of-00002.gguf", "c")
    assert.not_equal(one, fingerprint.of(first))

    local graph = write("model.onnx", "a")
    write("model.onnx.data", "b")
    one = fingerprint.of(graph)
    write("model.onnx.data", "c")
    assert.not_equal(one, fingerprint.of(graph))

    assert(tree.run(("mkdir '%s/part.mlpackage'"):format(folder)))
    write("part.mlpackage/weight.bin", "a")
    one = fingerprint.of(folder)
    write("part.mlpackage/weight.bin", "b")
    assert.not_equal(one, fingerprint.of(folder))
  end)

  it("does not cover what runs write into the model's folder", function()
    write("config.json", "{}")
    local input, output = write("rows", "a"), folder .. "/answers"
    local one = fingerprint.of(folder, { input, output })
    write("rows", "other")
    write("answers", "b")
    for _, name in ipairs { "out.jsonl", "out.jsonl.journal", "x.part", "x.journal", "slurm-1.out", "README.md", ".lock" } do
      write(name, "x")
    end
    assert.equal(one, fingerprint.of(folder, { input, output }))
    write("config.json", "[]")
    assert.not_equal(one, fingerprint.of(folder, { input, output }))
  end)

  it("is an error if a part is missing", function()
    local ok, raised = pcall(fingerprint.of, write("m-00001-of-00002.gguf", "a"))
    assert.is_false(ok)
    assert.equal("io", raised.code)
    assert.matches("m%-00002%-of%-00002", raised.message)
  end)
end)

it("a batch resumes in the folder of its model, and notices other weights there", function()
  assert(tree.run(("cp -r spec/fixtures/hf/bert '%s/model' && chmod -R u+w '%s/model'"):format(folder, folder)))
  local path = folder .. "/model"
  write("model/rows", '{"text":"Once"}\n')
  local function run(resume)
    local model <close> = assert(ane.load(path, { threads = 1 }))
    return ane.batch(model, { input = path .. "/rows", output = path .. "/answers", resume = resume })
  end
  assert(run(false))
  assert.equal(1, assert(run(true)).resumed)
  local file <close> = assert(io.open(path .. "/model.safetensors", "r+b"))
  file:seek("end", -8)
  file:write(("\60"):rep(4))
  file:close()
  local summary, message, code = run(true)
  assert.is_nil(summary)
  assert.equal("invalid", code)
  assert.matches("the model's file is", message)
end)
