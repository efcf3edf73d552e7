local chat = require "ane.generate.chat"
local command = require "support.command"
local conversations = require "ane.cli.conversations"
local core = require "ane.core"
local tiny = require "support.tiny"
local tree = require "support.tree"

-- Two conversations as lines and as Lua values.
local FIRST = { { role = "user", content = "Hi there" }, { role = "assistant", content = "Hello, what can I do?" } }
local SECOND = { { role = "system", content = "Be brief." }, { role = "user", content = "Why is the sky blue?" },
  { role = "assistant", content = "Short waves scatter more than long ones." } }
local LINES = [=[
[{"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "Hello, what can I do?"}]

]=] .. '{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue?"}, '
  .. '{"role": "assistant", "content": "Short waves scatter more than long ones."}]}\n'

local folder

local function path(name) return folder .. "/" .. name end

local function file(name, text)
  assert(core.write_file(path(name), text))
  return path(name)
end

before_each(function() folder = tree.folder() end)
after_each(function() tree.remove(folder) end)

-- Ids of conversations: the rendered texts, encoded with their control tokens.
local function wanted(tokenizer)
  local lists = {}
  for i, messages in ipairs { FIRST, SECOND } do
    local text = assert(chat.render(tokenizer, messages, { add_generation_prompt = false }))
    lists[i] = assert(tokenizer:encode(text, { special = true, bos = false, eos = false }))
  end
  return lists
end

describe("conversations for calibration", function()
  it("go through the chat template, line by line", function()
    local model <close> = tiny.load()
    local want = wanted(model.tokenizer)
    assert.same(want, conversations.encode(model.tokenizer, "chats.jsonl", LINES))
    assert.same(want, conversations.encode(model.tokenizer, "chats.jsonl", (LINES:gsub("\n", "\r\n"))))
    assert.is_true(conversations.is_name "a/chats.jsonl")
    assert.is_false(conversations.is_name "chats.json")
  end)

  it("are refused with file and line", function()
    local model <close> = tiny.load()
    local function refused(text) return select(2, conversations.encode(model.tokenizer, "c.jsonl", text)) end
    assert.matches("^c%.jsonl:2: ", refused '[{"role": "user", "content": "Hi"}]\n[{"role":')
    assert.equal('c.jsonl:1: must be a list of messages, or an object with such a list as "messages"', refused '{"text": "Hi"}')
    assert.matches("^c%.jsonl:1: .*messages", refused "[[]]")
    assert.equal("c.jsonl: has no conversation, but must have one in each line", refused "\n \n")
    assert.same({ nil, "c.jsonl:1: the model has no tokenizer, so no chat template: give token ids", "unsupported" },
      { conversations.encode(nil, "c.jsonl", '[{"role": "user", "content": "Hi"}]') })
  end)

  it("guide ane quantise as their ids do in Lua", function()
    local chats, out, other = file("chats.jsonl", LINES), path "a.gguf", path "b.gguf"
    local model <close> = tiny.load()
    assert(model:quantise(other, { weights = "q4_0", method = "gptq", calibrate = wanted(model.tokenizer) }))
    command.json { "quantise", tiny.path(), out, "--weights", "q4_0", "--method", "gptq", "--calibrate", chats }
    assert.is_true(assert(core.read_file(other)) == assert(core.read_file(out)))
    local plain = path "c.gguf"
    command.json { "quantise", tiny.path(), plain, "--weights", "q4_k", "--fallback", "q4_1", "--calibrate", chats }
    local code, _, err = command.run { "quantise", tiny.path(), plain, "--weights", "q4_0", "--method", "gptq", "--calibrate",
      file("bad.jsonl", "no JSON\n") }
    assert.equal(1, code)
    assert.matches("^ane quantise: .*bad%.jsonl:1: ", err)
  end)

  it("may begin with the byte order mark of UTF-8, but must not be UTF-16", function()
    local out, other = path "a.gguf", path "b.gguf"
    local function quantise(name, text, to)
      return command.run { "quantise", tiny.path(), to, "--weights", "q4_0", "--method", "gptq", "--calibrate", file(name, text) }
    end
    assert.equal(0, (quantise("plain.jsonl", LINES, out)))
    assert.equal(0, (quantise("marked.jsonl", "\xEF\xBB\xBF" .. LINES, other)))
    assert.is_true(assert(core.read_file(other)) == assert(core.read_file(out)))
    for _, mark in ipairs { "\xFF\xFE", "\xFE\xFF" } do
      local code, _, err = quantise("wide.txt", mark .. ("a\0"):rep(200), other)
      assert.equal(1, code)
      assert.equal("ane quantise: " .. path "wide.txt" .. ": is UTF-16, as its byte order mark says, but must be UTF-8\n", err)
    end
    local code, _, err = quantise("empty.txt", "\xEF\xBB\xBF", other)
    assert.same({ 1, "ane quantise: " .. path "empty.txt" .. ": is empty\n" }, { code, err })
    code, _, err = quantise("binary", "ab\0cd", other)
    assert.same({ 1, "ane quantise: " .. path "binary" .. ": is no text: byte 3 is zero\n" }, { code, err })
    code, _, err = quantise("chats.json", LINES, other)
    assert.equal(0, code)
    assert.matches("^ane quantise: .*/chats%.json is read as plain text; chats are the lines of a %.jsonl file\n", err)
  end)
end)
