--- Calls of tools: descriptions in OpenAI's form, the family's form of calls, the grammar of a reply that may hold calls, and what was
-- called. generate, stream, chat and pools use it for their options `tools`, `tool_choice`, `parallel_tool_calls` and `tool_form`; a
-- program needs it only for texts that came from elsewhere.
-- Needs ane.core, ane.util.exact, failure, list, nested and schema, ane.grammar.objects, ane.tools.forms, calls, literals, reader;
-- ane.jinja when messages are prepared.
-- Usage: `local text, calls = require("ane.tools").parse(reply, {form = "hermes"}); print(calls[1]["function"].name)`

local calls = require "ane.tools.calls"
local core = require "ane.core"
local exact = require "ane.util.exact"
local failure = require "ane.util.failure"
local forms = require "ane.tools.forms"
local literals = require "ane.tools.literals"
local list_of = require "ane.util.list"
local nested = require "ane.util.nested"
local objects = require "ane.grammar.objects"
local reader = require "ane.tools.reader"
local schema_of = require "ane.util.schema"

local M = {}

-- Schemas and arguments keep their numbers as they are given.
local EXACT = { exact = true }

--- Options, as ane.util.schema takes them.
--   tools: list of {type = "function", ["function"] = {name, description, parameters = JSON Schema}}, or of what stands under "function";
--     or the list as JSON text, which keeps the order of keys for the template
--   tool_choice: "auto" (default: text or calls), "none" (the template sees no tools), "required" (calls), or a tool's name, also as
--     {type = "function", ["function"] = {name =}}: one call of that tool
--   parallel_tool_calls: false: at most one call
--   tool_form: name of a form (ane.tools.forms), for templates whose form is not known
--   on_tool_call: function(delta), called when a call begins: {index =, id =, name =}, and with each part of its arguments: {index =,
--     arguments =}; index counts from 1
--   call_seed: of the ids of calls, for batches, whose answers are the same in each run
M.rules = {
  tools = { type = { "table", "string" } },
  tool_choice = { type = { "string", "table" } },
  parallel_tool_calls = { type = "boolean", default = true },
  tool_form = { type = "string", choices = forms.names() },
  on_tool_call = { type = "callable" },
  call_seed = { type = "integer", internal = true },
}

-- Values of ane.jinja have a kind in their metatable; a dict is {keys, map}.
local function kind_of(v)
  local mt = getmetatable(v)
  return type(mt) == "table" and mt.kind or nil
end

-- Converts a value of ane.jinja to a plain one. Plain values stay.
local function plain(v)
  if type(v) ~= "table" then return v end
  local kind = kind_of(v)
  if kind == "none" then return core.null end
  local mt = getmetatable(v)
  local copy = setmetatable({}, not kind and type(mt) == "table" and mt or nil)
  for key, item in pairs(kind == "dict" and v.map or v) do copy[key] = plain(item) end
  return kind == "dict" and next(copy) == nil and core.json_decode "{}" or copy
end

local function is_object(v) return type(v) == "table" and getmetatable(v) ~= getmetatable(core.json_decode "[]") end

-- The description of a tool: {name, schema}; or nil, message, code.
local function described(tool, i)
  local function wrong(what) return nil, ("tools: entry %d %s"):format(i, what), "invalid" end
  if type(tool) ~= "table" then return wrong("must be a table, but is " .. schema_of.shown(tool)) end
  if tool.type ~= nil and tool.type ~= "function" and tool["function"] == nil and tool.parameters == nil then
    return nil, ('tools: entry %d has the type %s: only "function" is known'):format(i, schema_of.shown(tool.type)), "unsupported"
  end
  local f = tool["function"] or tool
  if not is_object(f) then return wrong "has no table under \"function\"" end
  if type(f.name) ~= "string" then return wrong "has no name" end
  if not f.name:match "^[%w_.-]+$" or #f.name > 64 then
    local what = "tools: the name of a tool must be 1 .. 64 letters, digits, _, - and ., but is %s"
    return nil, what:format(schema_of.shown(f.name)), "invalid"
  end
  local schema, message, code = calls.schema_of(f.parameters)
  if not schema then return nil, ("tools: %s: %s"):format(f.name, message), code end
  return { name = f.name, schema = schema }
end

--- Checks descriptions of tools.
-- @param list see rules
-- @return list of {name, schema}; or nil, message, code ("invalid", "unsupported", "format" for JSON text)
function M.check(list)
  local message, code
  if type(list) == "string" then
    list, message, code = core.json_decode(list, EXACT)
    if list == nil then return nil, "tools: " .. message, code end
    if type(list) ~= "table" then return nil, "tools: must be a list", "invalid" end
  end
  message = nested.fault(list)
  if message then return nil, "tools: the list " .. message, "invalid" end
  list = plain(list)
  local out, seen = {}, {}
  message = list_of.fault(list)
  if message then return nil, "tools: " .. message:gsub("a list", "a list of tools", 1), "invalid" end
  for i, tool in ipairs(list) do
    out[i], message, code = described(tool, i)
    if not out[i] then return nil, message, code end
    if seen[out[i].name] then return nil, ("tools: two tools have the name %s"):format(out[i].name), "invalid" end
    seen[out[i].name] = true
  end
  return out
end

-- The choice as "auto", "none", "required" or {name =}; or nil, message, code.
local function choice_of(choice, tools)
  choice = choice or "auto"
  if choice == "auto" or choice == "none" or choice == "required" then return choice end
  local name = choice
  if type(choice) == "table" then
    local f = choice["function"]
    if f == nil then f = choice end
    name = type(f) == "table" and f.name or nil
  end
  local names = {}
  for i, tool in ipairs(tools) do
    if tool.name == name then return { name = name, tool = tool } end
    names[i] = tool.name
  end
  return nil, ('tool_choice must be "auto", "none", "required" or one of the tools (%s), is %s'):format(
    table.concat(names, ", "), type(name) == "string" and schema_of.shown(name) or "a table without a name"), "invalid"
end

--- Returns whether options offer tools to a template: there are some, and the choice is not "none".
function M.offered(opts)
  if not opts.tools or opts.tool_choice == "none" then return false end
  if type(opts.tools) == "string" then return not opts.tools:match "^%s*%[%s*%]%s*$" end
  return next(opts.tools) ~= nil
end

-- Grammars by their tools. They are kept because a grammar caches what it learns of a vocabulary, which speeds up the next reply. That
-- cache is limited, so a grammar is made again after some replies, or if it fails.
local KEPT, REUSED = 16, 500
local grammars, order = {}, {}

local function works(grammar)
  local matcher = grammar:matcher()
  local finished = matcher and matcher:finished()
  if matcher then matcher:close() end
  return finished ~= nil
end

-- The grammar of calls; or nil, message, code.
local function grammar_of(form, tools, many)
  local key = core.json_encode({ form.name, form.first, tools, many }, { sort = true, exact = true })
  local known = grammars[key]
  if known and known.uses < REUSED and works(known.grammar) then
    known.uses = known.uses + 1
    return known.grammar
  end
  local made, message, code = calls.grammar(form, tools, { many = many })
  if not made then return nil, message, code end
  if not known then
    order[#order + 1] = key
    if #order > KEPT then grammars[table.remove(order, 1)] = nil end
  end
  grammars[key] = { grammar = made, uses = 1 }
  return made
end

-- The form for tools that were checked.
local function with_names(form, list)
  local names = {}
  for i, tool in ipairs(list) do names[i] = tool.name end
  return forms.with_names(form, names)
end

local function schemas_of(list)
  local schemas = {}
  for _, tool in ipairs(list) do schemas[tool.name] = tool.schema end
  return schemas
end

--- Form and grammar of a reply that may call tools.
-- @param template the text of the model's chat template
-- @param opts see rules
-- @return {form, grammar (of the calls), required (the reply holds only calls), many, schemas (of the arguments, by name), seed (of ids)};
-- nil if no tools are offered; or nil, message, code
function M.plan(template, opts)
  if not M.offered(opts) then
    local choice = opts.tool_choice
    if choice == nil or choice == "auto" or choice == "none" then return nil end
    return nil, "option tool_choice needs tools: without them it must be \"auto\" or \"none\"", "invalid"
  end
  local tools, message, code = M.check(opts.tools)
  if not tools then return nil, message, code end
  local form, choice
  if opts.tool_form then form = forms.named(opts.tool_form) else form, message, code = forms.of(template) end
  if not form then return nil, message, code end
  choice, message, code = choice_of(opts.tool_choice, tools)
  if not choice then return nil, message, code end
  form = with_names(form, tools)
  local one = type(choice) == "table"
  local many = form.between ~= nil and not one and opts.parallel_tool_calls ~= false
  local grammar
  grammar, message, code = grammar_of(form, one and { choice.tool } or tools, many)
  if not grammar then return nil, message, code end
  return {
    form = form, grammar = grammar, required = choice ~= "auto", many = many, on_tool_call = opts.on_tool_call, schemas = schemas_of(tools),
    seed = opts.call_seed,
  }
end

local PARSE = {
  form = { type = "string" },
  template = { type = "string" },
  tools = M.rules.tools,
}

--- Parses the calls in a whole reply.
-- @param text with control tokens spelled
-- @param opts form: name of a form, or template: a chat template's text; tools: what could be called, for forms whose arguments have
-- no quotation marks, or whose calls begin with the name
-- @return the text outside the calls, with that of calls that are incomplete or malformed; list of calls as in messages: {id, type =
-- "function", ["function"] = {name, arguments}}, where arguments is the JSON text of an object; or nil, message, code
function M.parse(text, opts)
  schema_of.argument({ type = "string" }, text, "parse: text", 2)
  opts = schema_of.check(PARSE, opts, "parse", 2)
  local form, message, code
  if not opts.form and not opts.template then return nil, "parse: the options need form or template", "invalid" end
  if opts.form then form = forms.named(opts.form) else form, message, code = forms.of(opts.template) end
  if not form then
    message = message or ("form must be one of %s, but is %s"):format(table.concat(forms.names(), ", "), schema_of.shown(opts.form))
    return nil, message, code or "invalid"
  end
  local list
  if opts.tools then
    list, message, code = M.check(opts.tools)
    if list then message, code = calls.malformed(list) end
    if message then return nil, message, code end
  elseif form.tools then
    return nil, ("calls of the form %s cannot be told from text without the option tools"):format(form.name), "invalid"
  end
  local r = reader.new(with_names(form, list or {}), { schemas = schemas_of(list or {}) })
  local said = r:push(text)
  local rest, of_call = r:finish()
  return said .. rest .. of_call, r.calls
end

--- The arguments of a call as a table.
-- @param call as in result.tool_calls
-- @return a table (ane.null is JSON's null); or nil, message, code
function M.arguments(call)
  local f = type(call) == "table" and call["function"]
  local text = type(f) == "table" and f.arguments
  if type(text) ~= "string" then
    error("arguments: the call must be a table as in result.tool_calls, with a text as arguments of its function", 2)
  end
  local value, message, code = core.json_decode(text)
  if type(value) == "table" then return value end
  if value ~= nil then message, code = "arguments: the text must be a JSON object, but is " .. schema_of.shown(text), "format" end
  return nil, message, code
end

-- ---- Messages ------------------------------------------------------------------------------------------------------------

local function get(t, key)
  if kind_of(t) == "dict" then return t.map[key] end
  return t[key]
end

-- A copy of a table or dict with other values for some keys.
local function with(t, changes)
  local dict = kind_of(t) == "dict"
  local map, keys = {}, dict and table.move(t.keys, 1, #t.keys, 1, {}) or nil
  for key, value in pairs(dict and t.map or t) do map[key] = value end
  for key, value in pairs(changes) do
    if dict and map[key] == nil then keys[#keys + 1] = key end
    map[key] = value
  end
  return setmetatable(dict and { keys = keys, map = map } or map, getmetatable(t))
end

-- Keys in the order usual in the training data of models. Others follow by name.
local ORDER = {}
for i, key in ipairs { "id", "type", "function", "name", "description", "parameters", "arguments", "properties", "required" } do
  ORDER[key] = i
end

local function before(a, b)
  local x, y = ORDER[a] or math.huge, ORDER[b] or math.huge
  if x ~= y then return x < y end
  return tostring(a) < tostring(b)
end

-- A plain value with its keys in that order, for templates that print it. Values of ane.jinja are ordered already.
local function ordered(v, depth)
  depth = depth or 0
  if v == core.null then return require("ane.jinja").null end
  if type(v) ~= "table" or kind_of(v) or depth > 64 then return v end
  if exact.text(v) then return exact.number(v) end
  if #v > 0 or next(v) == nil then
    local list = {}
    for i, item in ipairs(v) do list[i] = ordered(item, depth + 1) end
    return setmetatable(list, getmetatable(v))
  end
  local keys, pairs_of = {}, {}
  for key in pairs(v) do keys[#keys + 1] = key end
  table.sort(keys, before)
  for i, key in ipairs(keys) do pairs_of[i] = { key, ordered(v[key], depth + 1) } end
  return require("ane.jinja").dict(pairs_of)
end

-- A call in the form that templates take: its arguments are a value, in the order of the text, or JSON text where the form asks for
-- it.
local function call_for_template(call, form)
  local f = get(call, "function")
  local text = type(f) == "table" and get(f, "arguments")
  if form.texts then
    if type(text) ~= "table" then return ordered(call) end
    return ordered(with(call, { ["function"] = with(f, { arguments = core.json_encode(plain(text), EXACT) }) }))
  end
  if type(text) ~= "string" then return ordered(call) end
  local value = require("ane.jinja").decode(text ~= "" and text or "{}")
  if value == nil then return ordered(call) end
  return ordered(with(call, { ["function"] = with(f, { arguments = value }) }))
end

-- Writes calls of an earlier turn in the family's form; nil, message if they cannot be written.
local function written(list, form)
  local parts = {}
  for i, call in ipairs(list) do
    local f = call["function"] or call
    if type(f) ~= "table" or type(f.name) ~= "string" then return nil, ("tool_calls[%d] has no function with a name"):format(i) end
    local id = call.id ~= core.null and call.id or ""
    if math.type(id) then id = tostring(id) end
    if type(id) ~= "string" then return nil, ("tool_calls[%d]: id must be a string"):format(i) end
    local arguments, message = literals.from_json(f.arguments or "{}", form)
    if not arguments then return nil, ("call of %s: %s"):format(tostring(f.name), message) end
    local fields = { name = f.name, id = id, arguments = arguments }
    parts[i] = form.call:gsub("{(%l+)}", fields)
  end
  return form.first .. table.concat(parts, form.between) .. form.last
end

-- The calls of a message; nil if it has none.
local function calls_of(message)
  local list = type(message) == "table" and get(message, "tool_calls")
  return type(list) == "table" and list[1] and list or nil
end

-- The first entry of a list of calls that is no table; nil: there is none.
local function odd_call(list)
  for i, call in ipairs(list) do
    if type(call) ~= "table" or kind_of(call) == "none" then
      return ("tool_calls[%d] must be a table, but is %s"):format(i, type(call) == "table" and "null" or schema_of.shown(call))
    end
  end
end

-- Roles whose messages are nothing but their content.
local SAYS = { user = true, system = true, developer = true }

-- Does the message lack the field that its role needs? Templates print nothing for a missing field, so a misspelt key would go unnoticed.
local function is_silent(message)
  if type(message) ~= "table" or not SAYS[get(message, "role")] then return false end
  local content = get(message, "content")
  return not content or content == core.null or (type(content) ~= "string" and content == require("ane.jinja").null)
end

--- Converts messages for the family's template. Arguments in JSON text become values, and a missing content of a message with calls
-- becomes empty. Calls that the template does not write are added to the content.
-- @param messages list
-- @param template its text
-- @return a list; or nil, message, code
function M.messages(messages, template)
  local form, out
  for i, message in ipairs(messages) do
    local list = calls_of(message)
    if not list and is_silent(message) then return nil, ("messages[%d] has no content"):format(i), "invalid" end
    local odd = list and odd_call(list)
    if odd then return nil, ("messages[%d]: %s"):format(i, odd), "invalid" end
    if list then
      out = out or table.move(messages, 1, #messages, 1, setmetatable({}, getmetatable(messages)))
      form = form or forms.of(template) or {}
      local content = get(message, "content")
      if type(content) ~= "string" then content = "" end
      if form.writes and not template:find("tool_calls", 1, true) then
        local text, fault = written(plain(list), form)
        if not text then return nil, ("messages[%d]: %s"):format(i, fault), "invalid" end
        out[i] = { role = get(message, "role"), content = content .. text }
      else
        local calls_too = setmetatable({}, getmetatable(list))
        for k, call in ipairs(list) do calls_too[k] = call_for_template(call, form) end
        if form.empty == "none" and content == "" then content = require("ane.jinja").null end
        out[i] = with(message, { content = content, tool_calls = calls_too })
      end
    end
  end
  return out or messages
end

--- The tools as a template variable: in the order of their JSON text if there is one, else in that of ORDER.
-- @raise a failure of ane.util.failure if ane.jinja cannot read the text, which may be nested too deeply for it
function M.for_template(list)
  local jinja = require "ane.jinja"
  if type(list) == "string" then
    local value, message = jinja.decode(list)
    if value == nil then failure.raise("invalid", "tools: %s", message) end
    return value
  end
  if type(list) ~= "table" or kind_of(list) then return list end
  return ordered(objects.with(list, function() return jinja.dict {} end))
end

-- Tools and their form in words, for models whose template does not write tools.
local function in_words(functions, form)
  local parts = { "## Tools\nYou have access to the following tools:\n" }
  for _, f in ipairs(functions) do
    parts[#parts + 1] = ("\n### %s\nDescription: %s\n\nParameters: %s\n"):format(f.name, f.description or "",
      core.json_encode(f.parameters or {}, EXACT))
  end
  local call = form.call:gsub("{(%l+)}", { name = "tool_name", arguments = "arguments as JSON" })
  parts[#parts + 1] = ("\nTo call tools, write exactly this, with as many calls as needed:\n%s%s%s"):format(form.first, call, form.last)
  return table.concat(parts)
end

-- Has a template the variable `tools`?
local function takes_tools(template) return template:find "%f[%w_]tools%f[^%w_]" ~= nil end

--- Puts the tools into the system message, if the template reads them there or does not write tools.
-- @return messages, true if they were put there
function M.inject(messages, list, template)
  local form = forms.of(template)
  if not form or not form.inject or form.inject == "text" and takes_tools(template) then return messages, false end
  local functions = {}
  for i, tool in ipairs(type(list) == "string" and core.json_decode(list, EXACT) or plain(list)) do
    functions[i] = tool["function"] or tool
  end
  local out = table.move(messages, 1, #messages, 1, setmetatable({}, getmetatable(messages)))
  local system = out[1] and get(out[1], "role") == "system"
  if not system then table.insert(out, 1, { role = "system", content = "" }) end
  if form.inject == "text" then
    local content = get(out[1], "content")
    local said = type(content) == "string" and content ~= "" and content .. "\n\n" or ""
    out[1] = with(out[1], { content = said .. in_words(functions, form) })
  else
    out[1] = with(out[1], { tools = core.json_encode(functions, EXACT) })
  end
  return out, true
end

return M
