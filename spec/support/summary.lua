--- What busted prints: each failure and each skipped spec with its reason, at the end one line "N passed, N failed".
-- If specs are skipped, their number follows. Usage: `busted -o spec/support/summary.lua`

local base = require "busted.outputHandlers.base"
local temporary = require "support.temporary"

local function text_of(message)
  if type(message) == "string" then return message end
  return message ~= nil and require("pl.pretty").write(message) or "no message"
end

local function place(item)
  local trace = item.trace or item.element.trace
  return trace and trace.short_src and ("%s:%d: "):format(trace.short_src, trace.currentline or 0) or ""
end

local function indented(text)
  return "  " .. text:gsub("\n+$", ""):gsub("\n", "\n  ")
end

return function()
  local handler = base()
  local busted = require "busted"

  local function print_failures(list, word)
    for _, item in ipairs(list) do
      io.write(word, ": ", place(item), item.name or "?", "\n", indented(text_of(item.message)), "\n")
      local traceback = item.isError and item.trace and item.trace.traceback
      if traceback then io.write(indented(traceback), "\n") end
    end
  end

  -- Many specs that are skipped for one reason are one line.
  local function print_pendings()
    local reasons, order = {}, {}
    for _, item in ipairs(handler.pendings) do
      local reason = text_of(item.message or "not written yet"):gsub("^%S+:%d+: ", "")
      if not reasons[reason] then
        reasons[reason] = {}
        order[#order + 1] = reason
      end
      table.insert(reasons[reason], item.name)
    end
    for _, reason in ipairs(order) do
      local names = reasons[reason]
      local more = #names > 1 and (" and %d more"):format(#names - 1) or ""
      io.write("skipped: ", names[1], more, ": ", reason, "\n")
    end
  end

  busted.subscribe({ "suite", "end" }, function()
    print_failures(handler.failures, "FAILED")
    print_failures(handler.errors, "ERROR")
    print_pendings()
    temporary.remove()
    local skipped = handler.pendingsCount > 0 and (", %d skipped"):format(handler.pendingsCount) or ""
    io.write(("%d passed, %d failed%s\n"):format(handler.successesCount, handler.failuresCount + handler.errorsCount, skipped))
    io.flush()
    return nil, true
  end)

  return handler
end
