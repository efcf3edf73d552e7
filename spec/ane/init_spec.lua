local ane = require "ane"
local core = require "ane.core"

describe("ane", function()
  it("has a version and makes no globals", function()
    assert.equal("0.1.0", ane._VERSION)
    assert.is_nil(rawget(_G, "ane"))
  end)

  it("tells about the machine", function()
    local info = ane.info()
    assert.equal(ane._VERSION, info.version)
    assert.equal("ref", info.isa_list[1])
    assert.is_true(info.cores >= 1)
    assert.is_true(info.memory.resident > 0)
  end)

  it("makes tensors of lists in lists, or of bytes", function()
    assert.same({ 2, 2 }, ane.tensor({ { 1, 2 }, { 3, 4 } }):shape())
    assert.same({ 3 }, ane.tensor({ 1, 2, 3 }):shape())
    assert.same({}, ane.tensor(5):shape())
    assert.same({ 2, 2 }, ane.tensor({ 1, 2, 3, 4 }, { 2, 2 }):shape())
    assert.same({ 1.0, 2.0 }, ane.tensor(string.pack("<ff", 1, 2)):totable())
    assert.equal(4.0, ane.tensor({ { { 1, 2 }, { 3, 4 } } }):get(1, 2, 2))
    assert.error_matches(function() ane.tensor { { 1, 2 }, { 3 } } end, "lists at depth 2 must all have 2 entries")
    assert.error_matches(function() ane.tensor { 1, { 2 } } end, "not a number")
    assert.error_matches(function() ane.tensor({ 1 }, { 2 }) end, "2 values")
  end)

  it("names the argument that is wrong", function()
    assert.error_matches(function() ane.tensor() end, "tensor: values must be a number, a list or a string, but is nil")
    assert.error_matches(function() ane.drafter() end, "drafter: ids must be a table")
    assert.error_matches(function() ane.drafter({}, 3) end, "drafter: corpus must be a table")
    assert.error_matches(function() ane.package() end, "package: path must be a string")
    assert.error_matches(function() ane.package {} end, "package: path must be a string")
    assert.error_matches(function() ane.gate("a.gguf", "b.gguf", "text") end, "no model given: a string")
    assert.error_matches(function() ane.gate(nil, nil, "text") end, "no model given: nil")
    assert.error_matches(function() ane.calibrate(nil, "text") end, "no model given: nil")
  end)

  it("says that a method was called with a dot", function()
    local tiny = require "support.tiny"
    local model <close> = tiny.load()
    local chat <close> = assert(model:chat())
    local session <close> = assert(model:session())
    local pieces <close> = assert(model:stream("Hi", { max_tokens = 1 }))
    local package <close> = assert(ane.package "spec/fixtures/mlpackage/values.mlpackage")
    local tensor, tokenizer = ane.tensor { 1, 2 }, model.tokenizer
    local cases = {
      { "model:generate", function() model.generate "hi" end }, { "model:close", function() model.close() end },
      { "model:info", function() model.info {} end }, { "chat:say", function() chat.say "hi" end },
      { "session:feed", function() session.feed { 1 } end }, { "session:fork", function() session.fork() end },
      { "stream:finish", function() pieces.finish() end }, { "tokenizer:encode", function() tokenizer.encode "hi" end },
      { "package:info", function() package.info() end }, { "tensor:get", function() tensor.get(1) end },
      { "tensor:shape", function() tensor.shape() end }, { "tensor:histogram", function() tensor.histogram {} end },
    }
    for _, case in ipairs(cases) do
      local name = case[1]:match ":(.*)"
      local ok, message = pcall(case[2])
      assert.is_false(ok)
      local what = "^%%S+: %s: called on a?%%s?%%S+ instead of a %s; write %s%%(...%%), with a colon$"
      assert.matches(what:format(name, case[1]:match "^%l+", case[1]), message)
    end
    assert.equal(2.0, tensor:get(2))
    assert.error_matches(function() core.divergence(1, tensor, 0) end, "ane.tensor expected, got number")
  end)
end)
