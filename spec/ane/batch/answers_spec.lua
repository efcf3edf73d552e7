-- The fields of plain answers are those that docs/batch.md lists.
local ane = require "ane"
local filter = require "support.filter"
local tiny = require "support.tiny"
local tree = require "support.tree"

-- The words in backquotes in the last column of a task's row.
local function listed(task)
  local cell = tree.read "docs/batch.md":match("\n| `" .. task .. "` |[^\n]*| ([^\n|]*) |\n")
  local fields = {}
  for name in cell:gmatch "`([^`]+)`" do fields[name] = true end
  return fields
end

-- The fields of the answers to rows, besides the id.
local function written(model, rows)
  local fields, i = {}, 0
  assert(ane.batch(model, {
    input = function()
      i = i + 1
      return rows[i]
    end,
    output = function(line)
      for name in pairs(assert(require("ane.core").json_decode(line))) do fields[name] = true end
    end,
  }))
  fields.line = nil
  return fields
end

describe("the fields of answers", function()
  local hi = { { role = "user", content = "Hi" } }
  local forced = { messages = hi, tool_choice = "required", max_tokens = 90, tools = {
    { type = "function", ["function"] = { name = "f", parameters = { type = "object", additionalProperties = false } } },
  } }
  for task, case in pairs {
    chat = { tiny.load, {
      { messages = hi, max_tokens = 1, logprobs = true }, { messages = hi, max_tokens = 1, n = 2 }, forced,
    } },
    completion = { tiny.load, { { prompt = "Once", max_tokens = 1, logprobs = 1 }, { prompt = "Once", max_tokens = 1, n = 2 } } },
    score = { tiny.load, { { task = "score", text = "Once" }, { task = "score", text = "Once", logprobs = true } } },
    embed = { "spec/fixtures/hf/bert", { { text = "a" }, { input = { "a", "b" } } } },
    rerank = { "spec/fixtures/hf/cross_encoder", { { query = "a", documents = { "b" } } } },
    classify = { filter.load, { { task = "classify", text = "Hello, I am Ada." } } },
    redact = { filter.load, { { text = "Hello, I am Ada." } } },
  } do
    it("of the task " .. task .. " are in docs/batch.md", function()
      local load, rows = table.unpack(case)
      local model <close> = type(load) == "string" and assert(ane.load(load)) or load()
      assert.same(listed(task), written(model, rows))
    end)
  end
end)
