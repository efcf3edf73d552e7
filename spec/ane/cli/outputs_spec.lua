-- Outputs that are an input of the same command.
local command = require "support.command"
local core = require "ane.core"
local tiny = require "support.tiny"
local tree = require "support.tree"

describe("an output of a command", function()
  local folder
  before_each(function() folder = tree.folder() end)
  after_each(function() tree.remove(folder) end)

  -- A copy of a file; returns its path.
  local function copy(from, name)
    local path = folder .. "/" .. (name or "model.gguf")
    assert(core.write_file(path, assert(core.read_file(from))))
    return path
  end

  local function refused(path, args)
    local before = assert(core.read_file(path))
    local code, _, err = command.run(args)
    assert.equal(1, code)
    assert.matches("name another file for the output", err)
    assert.matches(path, err, 1, true)
    assert.equal(before, core.read_file(path))
    return err
  end

  local function text(name, content)
    local path = folder .. "/" .. name
    assert(core.write_file(path, content))
    return path
  end

  it("is not the model", function()
    local model = copy(tiny.path())
    assert(os.execute(("ln -s %s %s/link.gguf"):format(model, folder)))
    local rows = text("rows.jsonl", '{"prompt": "Once", "max_tokens": 1}\n')
    refused(model, { "batch", model, rows, "-o", model })
    refused(folder .. "/link.gguf", { "batch", model, rows, "-o", folder .. "/link.gguf" })
    refused(model, { "plan", model, "--svg", model })
    refused(model, { "plan", model, "--dot", model })
    refused(model, { "quantise", model, model, "--weights", "q8_0" })
    refused(model, { "run", model, "-p", "Once", "-n", "1", "--prompt-cache", model })
  end)

  it("is not the calibration text, with samples or without", function()
    local from = text("text", ("Once upon a time. "):rep(20))
    for _, calibrate in ipairs { from, from .. "+samples:20" } do
      refused(from, { "quantise", tiny.path(), from, "--weights", "q4_k", "--calibrate", calibrate, "--no-progress" })
    end
  end)

  it("is not a file of a model folder, but may be beside them", function()
    local source, bert = "spec/fixtures/hf/bert", folder .. "/bert"
    assert(os.execute(("cp -rL %s %s"):format(source, bert)))
    local rows = text("rows.jsonl", '{"input": [1, 2]}\n')
    refused(bert .. "/config.json", { "batch", bert, rows, "-o", bert .. "/config.json" })
    refused(bert .. "/config.json", { "quantise", bert, bert .. "/config.json", "--weights", "q8_0" })
    refused(bert .. "/model.safetensors", { "plan", bert, "--svg", bert .. "/model.safetensors" })
    text("bert/plan.svg", "old")
    assert.equal(0, (command.run { "plan", bert, "--svg", bert .. "/plan.svg" }))
  end)

  it("is not -, unless it can be written to standard output", function()
    local said = "must be the path of a file or folder, but is -: it appears as a whole, and is never standard output\n"
    for option, args in pairs {
      OUT = { "quantise", tiny.path(), "-", "--weights", "q8_0" }, ["--svg"] = { "plan", tiny.path(), "--svg", "-" },
      ["--prompt-cache"] = { "run", tiny.path(), "-p", "Once", "-n", "1", "--prompt-cache", "-" },
    } do
      local code, out, err = command.run(args)
      assert.same({ 2, "", ("ane %s: %s %s"):format(args[1], option, said) }, { code, out, err })
    end
    assert.equal(2, (command.run { "export", tiny.path(), "-" }))
    assert.is_nil(core.path_kind "-")
  end)

  it("is not another output", function()
    local path = folder .. "/plan"
    local code, _, err = command.run { "plan", tiny.path(), "--svg", path, "--dot", path }
    assert.same({ 2, ("ane plan: --dot and --svg must be two files, but are both %s\n"):format(path) }, { code, err })
    assert.is_nil(core.path_kind(path))
  end)

  it("is not another input", function()
    local model = copy(tiny.path())
    local rows, body = text("rows.jsonl", '{"prompt": "Once", "max_tokens": 1}\n'), text("body.json", '{"max_tokens": 1}')
    local sample = text("sample.txt", ("Once upon a time "):rep(40))
    refused(rows, { "batch", model, rows, "-o", rows })
    refused(body, { "batch", model, rows, "-o", body, "--body", "@" .. body })
    refused(sample, { "quantise", model, sample, "--weights", "iq4_nl", "--calibrate", sample })
  end)

  it("is not a shard that a batch joins, and the shard is not called the model", function()
    local one, two = text("1", "a"), text("2", "b")
    for _, path in ipairs { one, two } do
      local err = refused(path, { "batch", "--merge", one, two, "-o", path })
      assert.equal(("ane batch: %s: is the input %s, and would be overwritten; name another file for the output\n"):format(path, path), err)
    end
  end)
end)
