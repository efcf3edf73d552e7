-- A real model calls a tool, through its own template.
local ane = require "ane"
local core = require "ane.core"

local NAME = "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"

local function find()
  for _, folder in ipairs { os.getenv "ANE_MODEL_CACHE" or false, "models-cache" } do
    local path = folder and folder .. "/" .. NAME
    if path and core.path_kind(path) == "file" then return path end
  end
end

local TOOLS = {
  { type = "function", ["function"] = { name = "get_weather", description = "Tells the weather of a city", parameters = { type = "object",
    properties = { city = { type = "string" }, days = { type = "integer", minimum = 1, maximum = 9 } }, required = { "city" } } } },
  { type = "function", ["function"] = { name = "calculate", description = "Evaluates an arithmetic expression", parameters = {
    type = "object", properties = { expression = { type = "string" } }, required = { "expression" } } } },
}

describe("a real model with tools", function()
  it("calls the one that is asked for, as its schema says", function()
    local path = find()
    if not path then return pending(NAME .. " is neither in $ANE_MODEL_CACHE nor in models-cache") end
    local model <close> = assert(ane.load(path, { context = 1024 }))
    local told = {}
    local chat <close> = assert(model:chat { tools = TOOLS, max_tokens = 80, parallel_tool_calls = false,
      on_tool_call = function(delta) told[#told + 1] = delta end })
    local text, calls = assert(chat:say "What is the weather in Rome?")
    assert.same({ "", "get_weather", "tool_calls" }, { text, calls[1]["function"].name, chat.last.stop })
    assert.matches("Rom", ane.tools.arguments(calls[1]).city)
    assert.equal("get_weather", told[1].name)
    local again = assert(model:generate({ { role = "user", content = "What is 12 * 7?" } },
      { tools = TOOLS, tool_choice = "calculate", max_tokens = 80, details = true }))
    assert.matches("12 ?%* ?7", ane.tools.arguments(again.tool_calls[1]).expression)
    local plain = assert(model:generate({ { role = "user", content = "Write one sentence about cats." } },
      { tools = TOOLS, max_tokens = 40, details = true }))
    assert.is_nil(plain.tool_calls)
    assert.matches("%a", plain.text)
  end)
end)
