--- Chat templates: Jinja2 as Hugging Face transformers runs it, in plain Lua and LPeg.
-- The environment is jinja2's ImmutableSandboxedEnvironment with trim_blocks, lstrip_blocks and loopcontrols, plus tojson as
-- json.dumps(ensure_ascii=False), raise_exception, strftime_now and generation blocks. A template sees its variables and the
-- functions of ane.jinja.globals, nothing of the host. Each render has a budget of steps, depth and bytes (ane.jinja.limits).
-- Codes of faults: syntax, unsupported (a part of Jinja2 that is left out), limit (the budget), template (raise_exception),
-- undefined, type, value, security, runtime (as in Python), internal (a defect of this engine). ane.generate.chat maps them to the codes
-- of the public API.
-- Needs LPeg and the modules of ane.jinja. Usage:
--
--     local jinja = require "ane.jinja"
--     local template = assert(jinja.compile(source, { name = "chat template" }))
--     local text = assert(template:render({ messages = { { role = "user", content = "hi" } }, add_generation_prompt = true }))

local clock = require "ane.jinja.clock"
local convert = require "ane.jinja.convert"
local eval = require "ane.jinja.eval"
local globals = require "ane.jinja.globals"
local grammar = require "ane.jinja.grammar"
local json = require "ane.jinja.json"
local limits = require "ane.jinja.limits"
local parser = require "ane.jinja.parser"
local text = require "ane.jinja.text"
local value = require "ane.jinja.value"

local M = {}

-- Is a caught value what Ctrl-C raises?
local function is_interrupt(caught) return type(caught) == "string" and caught:find "interrupted!$" ~= nil end

--- None of Python, null of JSON.
M.null = value.NONE

--- What is wrong with a text for a template, which takes UTF-8: utf8_fault(text, name of the text); nil: nothing.
M.utf8_fault = text.fault

--- The longest source that compile() accepts, in bytes. The largest chat templates have some 40 KB. This limit bounds the
-- time and memory of compile(), which has no budget.
M.MAX_SOURCE = 256 << 10

--- JSON as template variables, with the order of keys: the value, or nil and a message.
M.decode = json.decode

--- The text of a member of a JSON object that decode() accepts; nil if it has no such member.
M.member = json.member

--- A plain Lua value as a template value: sequences become lists, other tables dicts with sorted keys (or in the order of
-- `__order`, a list of keys in the metatable). name: of the value in messages, default "value".
-- Returns the value, or nil, message, code.
function M.from_lua(v, name)
  local ok, result = pcall(convert.from_lua, v, name)
  if ok then return result end
  if is_interrupt(result) then error(result, 0) end
  return nil, result.message or tostring(result), result.code or "internal"
end

--- A dict in a given order, for use in variables: `jinja.dict { { "role", "user" }, { "content", "hi" } }`.
M.dict = convert.dict

--- A list, for the empty one: `jinja.list {}`.
M.list = convert.list

local function check_options(options, known, name)
  if options == nil then return {} end
  if type(options) ~= "table" then error(("%s: a table expected, got %s"):format(name, type(options)), 3) end
  for key, v in pairs(options) do
    if not known[key] then error(("%s: unknown option '%s'"):format(name, tostring(key)), 3) end
    if type(v) ~= known[key] then error(("%s.%s: a %s expected, got %s"):format(name, key, known[key], type(v)), 3) end
  end
  return options
end

-- nil, message, code of a fault that pcall caught. The message of raise_exception stays as the template wrote it.
-- @param at the byte of the source where the fault happened, if the fault does not name it
-- @param item the tracked item of that time as "messages[2]", or nil
-- @return nil, message, code, and the place of raise_exception as "NAME:LINE:COLUMN"
-- @raise an interrupt, as it was caught
local function failure(name, source, caught, at, item)
  if is_interrupt(caught) then error(caught, 0) end
  if type(caught) ~= "table" or not caught.code then
    local code = tostring(caught):find("stack overflow", 1, true) and "limit" or "internal"
    caught = { code = code, message = code == "limit" and "nested too deeply" or tostring(caught) }
  end
  at = caught.at or at
  local place = at and ("%s:%d:%d"):format(name, grammar.position(source, at)) or name
  if caught.code == "template" then return nil, caught.message, caught.code, place end
  local message = item and item .. ": " .. caught.message or caught.message
  return nil, ("%s: %s"):format(place, message), caught.code
end

local Template = {}
Template.__index = Template
Template.__name = "ane.jinja.template"

--- Compiles a template.
-- @param source its text, UTF-8
-- @param options name (string, default "template"), for error messages
-- @return the template; or nil, "NAME:LINE:COLUMN: what is wrong", and a code: syntax, unsupported or limit
function M.compile(source, options)
  if type(source) ~= "string" then error(("compile: source: a string expected, got %s"):format(type(source)), 2) end
  local name = check_options(options, { name = "string" }, "options").name or "template"
  if #source > M.MAX_SOURCE then return nil, ("%s: longer than %d bytes"):format(name, M.MAX_SOURCE), "limit" end
  local fault = M.utf8_fault(source, name)
  if fault then return nil, fault, "syntax" end
  local normal = grammar.normalise(source)
  local ok, run = pcall(function() return eval.template(parser.parse(normal)) end)
  if not ok then return failure(name, normal, run) end
  return setmetatable({ name = name, source = normal, run = run }, Template)
end

local LIMITS = { steps = "number", depth = "number", output = "number", memory = "number" }

local function read_now(now)
  if now == nil then return clock.now() end
  local t, message = clock.parse(now)
  if not t then limits.fail("value", "%s", message) end
  return t
end

local function variables(vars)
  local v = convert.from_lua(vars == nil and value.new_dict(nil) or vars, "vars")
  if value.kind(v) == "list" and #v == 0 then return {} end
  if value.kind(v) ~= "dict" then limits.fail("type", "vars: a table of names expected, got a %s", value.typename(v)) end
  return v.map
end

-- The position of each table in a list, by the table.
local function positions(list)
  local out = {}
  for i, item in ipairs(list) do
    if type(item) == "table" then out[item] = i end
  end
  return out
end

--- Renders the template.
-- @param vars a table of template variables, or a dict from decode(); it does not change
-- @param options now ("2026-03-07T14:05:09", the time of strftime_now; default: the time of the host), limits (steps, depth,
-- output, memory: see ane.jinja.limits), track (the name of a list among vars: a fault names the item that a loop was at)
-- @return the text; or nil, message, code, item, place. The message begins "NAME:LINE:COLUMN: ", and "track[i]: " where an item is
-- known; with the code "template" it is the message of raise_exception as the template wrote it. item is "track[i]" or nil;
-- place, with the code "template", is "NAME:LINE:COLUMN" of raise_exception
function Template:render(vars, options)
  options = check_options(options, { now = "string", limits = "table", track = "string" }, "options")
  local rt = limits.new(check_options(options.limits, LIMITS, "limits"))
  local ok, result = pcall(function()
    local found, builtin = variables(vars), globals.new(read_now(options.now))
    local tracked = options.track and found[options.track]
    if tracked and value.kind(tracked) == "list" then rt.positions = positions(tracked) end
    rt.resolve = function(name)
      local v = found[name]
      if v == nil then return builtin[name] end
      return v
    end
    self.run(rt)
    return table.concat(rt.out, "", 1, rt.out.n)
  end)
  if ok then return result end
  local item = rt.position and ("%s[%d]"):format(options.track, rt.position) or nil
  local nothing, message, code, place = failure(self.name, self.source, result, rt.at, item)
  return nothing, message, code, item, place
end

return M
