--- The fields tools, tool_choice and parallel_tool_calls.
-- Needs ane.serve.fields. ane.tools implements them.

local fields = require "ane.serve.fields"

local M = {}

--- The fields.
M.rules = {
  tools = { list = true },
  tool_choice = { type = { "string", "table" }, wanted = "a string or an object" },
  parallel_tool_calls = { type = "boolean" },
}

-- A tool as chats have it.
local TOOL = {
  type = { type = "string", only = { "function" } },
  ["function"] = {
    object = true, required = true,
    fields = {
      name = { type = "string", required = true }, description = { type = "string" }, parameters = { object = true },
      strict = { type = "boolean" },
    },
  },
}

--- Checks the tools of a chat.
-- @param list of JSON, or nil
-- @return list without what is null, or nil
function M.read(list)
  if not list then return nil end
  local out = {}
  for i, tool in ipairs(list) do
    local at = ("tools[%d]"):format(i - 1)
    if not fields.is_object(tool) then fields.wrong(at, "must be an object") end
    local checked = fields.check(TOOL, tool, at)
    checked.type = "function"
    out[i] = checked
  end
  return out
end

-- The name in {type = "function", ["function"] = {name =}}, or in {type = "function", name =} as the Responses API has it.
local function name_of(choice, at)
  local inner = choice["function"]
  local name = choice.name
  if fields.is_object(inner) then name = inner.name end
  if choice.type ~= "function" or type(name) ~= "string" then
    fields.unsupported(at, "is supported only as {\"type\": \"function\"} with the name of a tool")
  end
  return name
end

local ALLOWED = { mode = { type = "string", choices = { "auto", "required" }, default = "auto" }, tools = { list = true, required = true } }

-- The tools of a choice of the type allowed_tools, and its mode.
local function allowed(choice, tools)
  local at, inner = "tool_choice.allowed_tools", choice.allowed_tools
  if inner == nil then at, inner = "tool_choice", { mode = choice.mode, tools = choice.tools } end
  local values = fields.check(ALLOWED, inner, at)
  local kept, out = {}, {}
  for i, one in ipairs(values.tools) do
    local here = ("%s.tools[%d]"):format(at, i - 1)
    if not fields.is_object(one) then fields.wrong(here, "must be an object") end
    kept[name_of(one, here)] = here
  end
  for _, tool in ipairs(tools) do
    if kept[tool["function"].name] then out[#out + 1], kept[tool["function"].name] = tool, nil end
  end
  local name, here = next(kept)
  if name then fields.wrong(here, "names %q, which is none of the tools", name) end
  if #out == 0 then fields.wrong(at .. ".tools", "is empty") end
  return out, values.mode
end

--- Adds the options of generate for these fields.
-- @param values tools (as read() gives them), tool_choice, parallel_tool_calls
function M.add(opts, values)
  local tools, choice = values.tools, values.tool_choice
  if not tools or #tools == 0 then
    if choice and choice ~= "none" and choice ~= "auto" then fields.wrong("tool_choice", "needs tools") end
    return
  end
  if type(choice) == "table" then
    if choice.type == "allowed_tools" then
      tools, choice = allowed(choice, tools)
    else
      choice = name_of(choice, "tool_choice")
      choice = { type = "function", ["function"] = { name = choice } }
    end
  end
  opts.tools, opts.tool_choice, opts.parallel_tool_calls = tools, choice, values.parallel_tool_calls
end

return M
