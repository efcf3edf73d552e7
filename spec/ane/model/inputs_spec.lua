local ane = require "ane"
local chat = require "ane.generate.chat"
local core = require "ane.core"
local inputs = require "ane.model.inputs"
local samples = require "ane.model.samples"
local tiny = require "support.tiny"

local FIRST = { { role = "user", content = "Hi there" }, { role = "assistant", content = "Hello, what can I do?" } }
local SECOND = { { role = "user", content = "Why is the sky blue?" }, { role = "assistant", content = "Short waves scatter." } }

-- The bytes that a model becomes with an input of calibration.
local function quantised(model, calibrate)
  local out = os.tmpname()
  assert(model:quantise(out, { weights = "q4_0", method = "gptq", calibrate = calibrate }))
  local bytes = assert(core.read_file(out))
  os.remove(out)
  return bytes
end

describe("what calibration reads", function()
  it("is a text or ids as they are", function()
    for _, input in ipairs { "text", { 1, 2 }, { "a", { 3 } } } do assert.equal(input, inputs.resolve(nil, input)) end
  end)

  it("may be samples of the model", function()
    local model <close> = tiny.load()
    local drawn = assert(samples.draw(model, 200))
    assert.same(drawn, inputs.resolve(model, { samples = 200 }))
    assert.equal(quantised(model, drawn), quantised(model, { samples = 200 }))
    local function squares(input) return assert(ane.calibrate(model, input))["output.weight"]:tostring() end
    assert.equal(squares(drawn), squares { samples = 200 })
  end)

  it("may be chats, which go through the template", function()
    local model <close> = tiny.load()
    local lists = {}
    for i, messages in ipairs { FIRST, SECOND } do
      lists[i] = assert(chat.encode(model.tokenizer, messages, { add_generation_prompt = false }))
    end
    assert.same(lists, inputs.resolve(model, { chats = { FIRST, { messages = SECOND } } }))
    assert.equal(quantised(model, lists), quantised(model, { chats = { FIRST, SECOND } }))
    local drawn = inputs.resolve(model, { samples = 40 })
    assert.same(inputs.mix(model, lists, drawn), inputs.resolve(model, { chats = { FIRST, SECOND }, samples = 40 }))
    local options = { tokens = 16, types = { "q4_0" } }
    assert.equal(tostring(ane.sensitivity(model, lists, options)), tostring(ane.sensitivity(model, { chats = { FIRST, SECOND } }, options)))
  end)

  it("is refused with what was wanted", function()
    local model <close> = tiny.load()
    for _, case in ipairs {
      { { samples = 0 }, "samples must be an integer, 1 .. 1048576, but is 0" },
      { { samples = "many" }, 'samples must be an integer, 1 .. 1048576, but is "many"' },
      { { chats = {} }, "chats must be a list of conversations, at least one" },
      { { chats = { FIRST, {} } }, "chat 2 must be a list of messages, or a table that has one as messages" },
      { { chats = { "Hi" } }, "chat 1 must be a list of messages, or a table that has one as messages" },
      { { "a", chats = { FIRST } }, "texts cannot be combined with chats" },
      { "", "the text is empty" },
    } do
      assert.same({ nil, case[2], "invalid" }, { inputs.resolve(model, case[1]) })
      assert.same({ nil, case[2], "invalid" }, { ane.calibrate(model, case[1]) })
    end
  end)
end)
