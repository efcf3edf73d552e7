-- A loop in which a model calls two tools: a calculator, and a search in the files of a folder.
-- Usage: lua5.4 examples/agent.lua MODEL FOLDER "What is 17 * 23?" ["the next thing" ...]

if #arg < 3 then
  io.stderr:write "usage: lua5.4 examples/agent.lua MODEL FOLDER QUESTION ...\n"
  os.exit(2)
end

local ane = require "ane"

local folder = arg[2]
local ROUNDS, LINES = 2, 5 -- maximum rounds of calls per question; maximum lines that a search gives

local tools = {}

-- Accepts only numbers, + - * / % ^ and brackets.
function tools.calculate(given)
  if given.expression:find "[^%d%s%.%+%-%*/%%%^()]" then return "only numbers, + - * / % ^ and brackets are known" end
  local chunk = load("return " .. given.expression, "=expression", "t", {})
  local ok, value = pcall(chunk or error)
  return ok and tostring(value) or "this is not an expression"
end

-- Lines of the folder's files that contain a text.
function tools.search(given)
  local found, wanted = {}, given.text:lower()
  local names <close> = assert(io.popen(("find '%s' -type f"):format(folder:gsub("'", "'\\''"))))
  for path in names:lines() do
    local file <close> = assert(io.open(path, "rb"))
    for line in file:lines() do
      if #found < LINES and utf8.len(line) and line:lower():find(wanted, 1, true) then found[#found + 1] = path .. ": " .. line end
    end
  end
  return #found > 0 and table.concat(found, "\n") or "nothing is found"
end

local function text(description) return { type = "string", description = description, minLength = 1, maxLength = 100 } end

local function describe(name, what, argument, of)
  local parameters = { type = "object", properties = { [argument] = text(of) }, required = { argument } }
  return { type = "function", ["function"] = { name = name, description = what, parameters = parameters } }
end

local model <close> = assert(ane.load(arg[1], { progress = true }))
local chat <close> = assert(model:chat {
  tools = {
    describe("calculate", "Evaluates an arithmetic expression", "expression", "such as (1 + 2) * 3"),
    describe("search", "Finds lines in the user's files", "text", "a word that the line holds"),
  },
  system = "Use the tools for sums and for what the user's files say. Answer in one sentence.", max_tokens = 120,
  parallel_tool_calls = false, overflow = "drop",
})

for i = 3, #arg do
  io.write("> ", arg[i], "\n")
  local said, calls = assert(chat:say(arg[i]))
  for round = 1, ROUNDS do
    if not calls then break end
    local results = {}
    for k, call in ipairs(calls) do
      local f = call["function"]
      local result = tools[f.name](assert(ane.tools.arguments(call)))
      io.write("  ", f.name, " ", f.arguments, " -> ", result, "\n")
      results[k] = { role = "tool", tool_call_id = call.id, name = f.name, content = result }
    end
    said, calls = assert(chat:say(results, { tool_choice = round == ROUNDS and "none" or "auto" }))
  end
  io.write(said, "\n")
end
