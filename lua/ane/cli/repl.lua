--- `ane repl`: a Lua prompt with `ane`, and with `model` if one was given.
-- Needs ane.cli, ane.cli.common, ane.cli.inspect, ane.cli.line, ane.cli.options and ane.core.

local common = require "ane.cli.common"
local core = require "ane.core"
local inspect = require "ane.cli.inspect"
local line = require "ane.cli.line"
local options = require "ane.cli.options"

local M = {}

M.summary = "Open a Lua prompt with `ane` and, if a model is given, `model`."
M.ranks = true

function M.options(parser)
  options.model(parser, true)
  parser:option("-e --execute", "Run this Lua code first. Without a terminal, run only this code."):count "*":argname "CODE"
end

--- Compiles a line: an expression (with or without a leading "="), or statements.
-- @return a function; or nil, message, whether more lines could complete it
function M.compile(text, env)
  local expression = text:gsub("^%s*=", "")
  local chunk = load("return " .. expression, "=repl", "t", env)
  if chunk then return chunk end
  local message
  chunk, message = load(text, "=repl", "t", env)
  if chunk then return chunk end
  return nil, message, message:match "<eof>'?$" ~= nil
end

--- Runs compiled code and prints what it gives; errors are printed, too.
-- @param out, err files
function M.evaluate(chunk, out, err)
  local results = table.pack(core.interruptible(chunk))
  if not results[1] then
    local message = results[2]
    if require("ane.cli").interrupted(message) then message = "interrupted" end
    err:write(type(message) == "string" and message or inspect.text(message), "\n")
    return false
  end
  local texts = {}
  for i = 2, results.n do texts[i - 1] = inspect.text(results[i]) end
  if #texts > 0 then out:write(table.concat(texts, "\t"), "\n") end
  return true
end

-- The names that a value answers to: fields, and those of its metatable's index.
local function names_in(value, found)
  local mt = getmetatable(value)
  if type(value) == "table" then
    for key in next, value do
      if type(key) == "string" and not key:match "^_" then found[key] = true end
    end
  end
  if type(mt) ~= "table" then return end
  local index = rawget(mt, "__names") or rawget(mt, "__index")
  if type(index) == "table" and index ~= value then names_in(index, found) end
end

--- Words that continue one: "model.to" gives "model.tokenizer".
function M.complete(word, env)
  local path, mark, start = word:match "^(.-)([.:]?)([%w_]*)$"
  local value = env
  for name in path:gmatch "[^.:]+" do
    local ok, inner = pcall(function() return value[name] end)
    if not ok or inner == nil then return {} end
    value = inner
  end
  local found = {}
  names_in(value, found)
  if value == env then names_in(_G, found) end
  local words = {}
  for name in pairs(found) do
    if name:sub(1, #start) == start then words[#words + 1] = path .. mark .. name end
  end
  table.sort(words)
  return words
end

-- Reads until the text compiles, or is wrong in a way that more lines cannot mend.
-- @return a function; false if there is none; nil at the end of input
local function read_chunk(reader, env, err)
  local text = reader "> "
  if not text then return text end
  while true do
    local chunk, message, more = M.compile(text, env)
    if chunk then return chunk end
    local next_line = more and reader "... "
    if more and next_line == false then return false end
    if not next_line then
      err:write(message, "\n")
      return false
    end
    text = text .. "\n" .. next_line
  end
end

local function execute(codes, env)
  for _, code in ipairs(codes) do
    local chunk, message = M.compile(code, env)
    if not chunk then return nil, message end
    if not M.evaluate(chunk, io.stdout, io.stderr) then return nil, "the code of --execute failed" end
  end
  return true
end

-- Lua's print, but a failed write raises.
local function print_checked(...)
  local words = table.pack(...)
  for i = 1, words.n do words[i] = tostring(words[i]) end
  io.stdout:write(table.concat(words, "\t"), "\n")
  io.stdout:flush()
end

local function load_model(args)
  if args.model then return common.load(args) end
end

function M.run(args)
  local env = setmetatable({ ane = require "ane", print = print_checked }, { __index = _G })
  local model <close>, message = load_model(args)
  if message then return nil, message end
  env.model = model
  local terminal = core.isatty(0)
  local ok, failed = execute(args.execute, env)
  if not ok then return nil, failed end
  if #args.execute > 0 and not terminal then return true end
  if terminal then
    io.stdout:write("ane ", env.ane._VERSION, ", ", _VERSION, "; Ctrl-D ends", model and "; " .. tostring(model) or "", "\n")
  end
  local reader = line.reader { history = "repl", terminal = terminal, complete = function(word) return M.complete(word, env) end }
  while true do
    local chunk = read_chunk(reader, env, io.stderr)
    if chunk == nil then return true end
    if chunk then M.evaluate(chunk, io.stdout, io.stderr) end
  end
end

return M
