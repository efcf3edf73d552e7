-- Every option of every command that takes a value, with hostile ones. The model is left out: no command runs, so what is said comes from
-- the parser, or from the check of the value.
local cli = require "ane.cli"
local command = require "support.command"

-- How the help names values that are numbers, and paths.
local NUMBERS, PATHS = {}, { FILE = true, OUT = true }
for name in ("N C K X P S T B R G US MB BYTES SIZE"):gmatch "%S+" do NUMBERS[name] = true end

local VALUES = { "", "x", "nan", "1,,x", "-1" } -- the empty text first

-- These need no model.
local RUN_WITHOUT = { grammar = true, info = true, repl = true }

-- The options of a command with a value: list of {short or long name, name of the value}.
local function options_of(name)
  local _, help = command.run { name, "--help" }
  local usage, list = help:match "^(.-)\n\n":gsub("%s+", " "), {}
  for option, value in usage:gmatch "[%[%(| ](%-%-?%l[%w-]*) ([%u{][^%]%)|]*)" do list[#list + 1] = { option, value } end
  return list
end

-- What is wrong with the answer to a value; nil: nothing.
local function fault_of(kind, value, code, out, err)
  if code ~= 2 or out ~= "" then return ("ends with %d and says %s"):format(code, out .. err) end
  if not err:find "^ane %l+: [^\n]+\n$" then return "says not one line: " .. err end
  if err:find "attempt to" or err:find "traceback" or err:find "bad argument" or err:find "%.lua:%d" then return "says " .. err end
  local named = err:find("--", 1, true) and not err:find "missing argument"
  if NUMBERS[kind] and not tonumber(value) and not named then return "is no number, but gives: " .. err end
  if PATHS[kind] and value == "" and not named then return "is no path, but gives: " .. err end
end

describe("values of options", function()
  it("are refused with one line that names the option", function()
    local seen, faults = {}, {}
    for _, name in ipairs(cli.commands) do
      for _, option in ipairs(RUN_WITHOUT[name] and {} or options_of(name)) do
        local key = option[1] .. " " .. option[2]
        for _, value in ipairs(seen[key] and not PATHS[option[2]] and {} or VALUES) do
          local fault = fault_of(option[2], value, command.run { name, option[1], value })
          if fault then faults[#faults + 1] = ("%s %s %q %s"):format(name, key, value, fault) end
          if seen[key] then break end -- the empty text only
        end
        seen[key] = true
      end
    end
    assert.equal("", table.concat(faults, "\n"))
  end)
end)
