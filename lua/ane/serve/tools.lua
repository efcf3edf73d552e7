--- The fields tools, tool_choice and parallel_tool_calls.
-- Needs ane.core, ane.serve.fields. ane.tools implements them.

local fields = require "ane.serve.fields"

local M = {}

--- The fields.
M.rules = {
  tools = { list = true },
  tool_choice = { type = { "string", "table" } },
  parallel_tool_calls = { type = "boolean" },
}

--- Adds the options of generate for these fields.
function M.add(opts, values)
  if not values.tools or #values.tools == 0 then
    if values.tool_choice and values.tool_choice ~= "none" and values.tool_choice ~= "auto" then
      fields.wrong("tool_choice", "needs tools")
    end
    return
  end
  opts.tools, opts.tool_choice, opts.parallel_tool_calls = values.tools, values.tool_choice, values.parallel_tool_calls
end

return M
