--- Conversations: renders messages to a prompt with the model's own chat template, and keeps the conversation in an object.
-- Needs ane.core (JSON), ane.generate, ane.generate.messages, ane.generate.stream, ane.jinja, ane.util.failure,
-- ane.util.keys, ane.util.list, ane.util.methods, ane.util.nested and ane.util.schema. A model without a template is an error; no other
-- template is substituted.
-- Usage: `local chat = model:chat {system = "Be brief."}; print(chat:say "Who are you?")`

local core = require "ane.core"
local failure = require "ane.util.failure"
local generate = require "ane.generate"
local keys = require "ane.util.keys"
local list_of = require "ane.util.list"
local messages_of = require "ane.generate.messages"
local methods = require "ane.util.methods"
local nested = require "ane.util.nested"
local schema = require "ane.util.schema"
local stream = require "ane.generate.stream"
local tools = require "ane.tools"

local M = {}

--- Options of the template, as ane.util.schema takes them, with those of ane.tools.
--   documents: list of documents, as transformers' apply_chat_template takes them
--   template: name of one of the model's templates; default "tool_use" where tools are given and it exists, else "default"
--   template_vars: more variables for the template, such as {enable_thinking = false}
--   special_in_messages: control tokens spelled in the messages are those tokens (as transformers does), not text
M.rules = schema.merge(tools.rules, {
  documents = { type = "table" },
  template = { type = "string" },
  template_vars = { type = "table" },
  special_in_messages = { type = "boolean", default = false },
})

-- Returns the source of the template that the options select.
local function choose(tokenizer, opts)
  if not tokenizer then return nil, "the model has no tokenizer, so no chat template: give token ids", "unsupported" end
  local templates = tokenizer.chat_templates or {}
  if next(templates) == nil then
    return nil, "the model has no chat template: give a text prompt, written as the model was trained", "unsupported"
  end
  local name = opts.template
  if not name then
    name = tools.offered(opts) and templates.tool_use and "tool_use" or "default"
  end
  local source = templates[name]
  if not source then
    return nil, ("the model has no chat template %s: choose %s"):format(schema.shown(name), table.concat(keys(templates), ", ")), "notfound"
  end
  return source, name
end

-- Compiled templates by source. The sources belong to tokenizers, which may be collected.
local compiled = setmetatable({}, { __mode = "v" })

-- Turns a fault of ane.jinja into nil, message, code. The public API has the code "unsupported" for parts of Jinja2 that the interpreter
-- does not have, and "template" for all other faults.
local function template_fault(message, code, item)
  if code == "template" then message = "chat template: " .. (item and item .. ": " or "") .. message end
  return nil, message, code == "unsupported" and code or "template"
end

local function compile(source)
  local template = compiled[source]
  if template then return template end
  local message, code
  template, message, code = require("ane.jinja").compile(source, { name = "chat template" })
  if not template then return template_fault(message, code) end
  compiled[source] = template
  return template
end

local SPECIAL = { "bos", "eos", "unk", "pad" }

-- A value with template nulls in place of JSON's.
local function with_nulls(v, null, depth)
  if v == core.null then return null end
  if type(v) ~= "table" or v == null or depth > 64 then return v end
  local mt = getmetatable(v)
  if type(mt) == "table" and mt.kind then return v end -- a value of ane.jinja
  local copy = setmetatable({}, type(mt) == "table" and mt or nil)
  for key, item in pairs(v) do copy[key] = with_nulls(item, null, depth + 1) end
  return copy
end

-- Returns the variables that transformers passes: messages, tools, documents, add_generation_prompt, and the model's control tokens.
local function variables(tokenizer, messages, opts, prompt)
  local null = require("ane.jinja").null
  local vars = {
    messages = with_nulls(messages, null, 0), tools = opts.tool_choice ~= "none" and tools.for_template(opts.tools) or null,
    documents = with_nulls(opts.documents, null, 0) or null, add_generation_prompt = prompt,
  }
  for _, name in ipairs(SPECIAL) do
    local id = tokenizer[name]
    if id then vars[name .. "_token"] = tokenizer:token(id) end
  end
  for name, value in pairs(opts.template_vars or {}) do vars[name] = with_nulls(value, null, 0) end
  return vars
end

-- Checks that messages and options can be copied and have the right types. Returns true; or nil, message, code.
local function check_values(messages, opts)
  local fault = messages_of.fault(messages)
  for _, name in ipairs { "documents", "tools", "template_vars" } do
    local wrong = not fault and nested.fault(opts[name])
    if wrong then fault = ("option %s %s"):format(name, wrong) end
  end
  if not fault and tools.offered(opts) then
    local list, message, code = tools.check(opts.tools)
    if not list then return nil, message, code end
  end
  if not fault and opts.documents then
    local wrong = list_of.fault(opts.documents)
    if wrong then fault = "option documents " .. wrong end
  end
  if fault then return nil, fault, "invalid" end
  return true
end

-- The variables of messages in the form that the template takes; or nil, message, code. Faults of ane.jinja are raised.
local function filled(tokenizer, messages, opts, source)
  local message, code
  messages, message, code = tools.messages(messages, source)
  if not messages then return nil, message, code end
  if tools.offered(opts) then messages = tools.inject(messages, opts.tools, source) end
  return variables(tokenizer, messages, opts, opts.add_generation_prompt ~= false)
end

--- Puts messages through the model's template.
-- @param tokenizer of the model
-- @param messages list of {role =, content =, ...}
-- @param opts see rules; add_generation_prompt = false leaves the reply's opening out
-- @return the text, the template's name; or nil, message, code. A fault of the template has the code "template" and names line,
-- column and, where it is known, the message: "chat template:3:14: messages[2]: ...". A message that no template can take, such
-- as one with a function in it, has the code "invalid"
function M.render(tokenizer, messages, opts)
  opts = opts or {}
  local source, name, code = choose(tokenizer, opts)
  if not source then return nil, name, code end
  local template, message
  template, message, code = check_values(messages, opts)
  if not template then return nil, message, code end
  template, message, code = compile(source)
  if not template then return nil, message, code end
  local vars
  vars, message, code = failure.catch(filled, tokenizer, messages, opts, source)
  if not vars then return nil, message, code == "unsupported" and code or "invalid" end
  vars, message = require("ane.jinja").from_lua(vars, "chat")
  if not vars then return nil, (message:gsub("^chat%.", "")), "invalid" end
  local text, item
  text, message, code, item = template:render(vars, { track = "messages" })
  if not text then return template_fault(message, code, item) end
  return text, name
end

-- Control tokens spelled in the users' messages must stay text. Marks replace them until the template has been rendered, so that
-- they differ from the template's own control tokens. A mark is a number between Unicode noncharacters, which no text contains.
local OPEN, CLOSE = utf8.char(0xFDD0), utf8.char(0xFDD1)

-- Replaces each control token that the text spells with a mark, and appends the spellings to found.
local function mask_text(tokenizer, text, found)
  local ids, ends = tokenizer:_spans(text)
  local parts, at = {}, 1
  for i, id in ipairs(ids or {}) do
    local kind = tokenizer:token_type(id)
    if kind == "control" or kind == "unknown" then
      local first, last = ends[2 * i - 1], ends[2 * i]
      local word = text:sub(first, last)
      if word ~= "" and word == tokenizer:piece(id) then
        found[#found + 1] = word
        parts[#parts + 1] = text:sub(at, first - 1) .. OPEN .. #found .. CLOSE
        at = last + 1
      end
    end
  end
  if at == 1 then return text end
  return table.concat(parts) .. text:sub(at)
end

-- A copy of a value in which the words are masked, wherever a text is a value (keys stay). Values of ane.jinja have a kind
-- in their metatable; a dict of it is {keys, map}.
local function mask(tokenizer, value, found)
  if type(value) == "string" then return mask_text(tokenizer, value, found) end
  if type(value) ~= "table" then return value end
  local mt = getmetatable(value)
  local kind = type(mt) == "table" and mt.kind
  if kind == "dict" then return setmetatable({ keys = value.keys, map = mask(tokenizer, value.map, found) }, mt) end
  if kind and kind ~= "list" then return value end
  local copy = setmetatable({}, type(mt) == "table" and mt or nil)
  for key, item in pairs(value) do copy[key] = mask(tokenizer, item, found) end
  return copy
end

-- Returns the ids of a rendered text, with its marks replaced by the plain text they stand for.
local function encode_masked(tokenizer, text, found)
  local ids = {}
  local function add(part, special)
    if part == "" then return true end
    local more, message, code = tokenizer:encode(part, { special = special, bos = false, eos = false })
    if not more then return nil, message, code end
    table.move(more, 1, #more, #ids + 1, ids)
    return true
  end
  local at = 1
  while true do
    local first, last, number = text:find(OPEN .. "(%d+)" .. CLOSE, at)
    local ok, message, code = add(text:sub(at, (first or 0) - 1), true)
    if ok and first then ok, message, code = add(found[tonumber(number)] or "", false) end
    if not ok then return nil, message, code end
    if not first then return ids end
    at = last + 1
  end
end

M.offers_tools = tools.offered

--- Returns what a reply to messages needs to call tools: see ane.tools.plan.
function M.calls(tokenizer, opts)
  if not tools.offered(opts) then return tools.plan("", opts) end
  local source, message, code = choose(tokenizer, opts)
  if not source then return nil, message, code end
  return tools.plan(source, opts)
end

--- Messages to token ids. Control tokens that the messages spell stay text, unless opts.special_in_messages.
-- @return ids; or nil, message, code
function M.encode(tokenizer, messages, opts)
  opts = opts or {}
  local ok, fault, word = check_values(messages, opts)
  if not ok then return nil, fault, word end
  local found = {}
  if tokenizer and not opts.special_in_messages then
    messages = mask(tokenizer, messages, found)
    local masked = { documents = mask(tokenizer, opts.documents, found), tools = mask(tokenizer, opts.tools, found) }
    opts = setmetatable(masked, { __index = opts })
  end
  local text, message, code = M.render(tokenizer, messages, opts)
  if not text then return nil, message, code end
  if #found > 0 then return encode_masked(tokenizer, text, found) end
  return tokenizer:encode(text, { special = true, bos = false, eos = false })
end

-- ---- The conversation ------------------------------------------------------------------------------------------------

--- Options of a conversation, in addition to those of generate and of the template.
--   overflow: what happens if the messages do not fit the context: "error" (default) refuses, "drop" removes the oldest turns.
--     Leading system messages and the last turn stay. The rest is reduced to three quarters of the context, so that turns are not
--     dropped again at every reply. `dropped` in the result counts the removed messages
M.say_rules = schema.merge(generate.rules, M.rules, {
  overflow = { type = "string", choices = { "error", "drop" }, default = "error" },
})
local RULES = schema.merge(M.say_rules, {
  adapters = { type = { "table", "string" } }, -- as model:session takes them
  system = { type = "string" },
  messages = { type = "list" },
  restore = { type = "path" },
})
local SAY = M.say_rules

local Chat = {}
Chat.__index = Chat
Chat.__name = "ane.chat"

-- The messages of a file that Chat:save wrote, and a session with its state.
local function restored(model, path, adapters)
  local session, message, code = model:session { adapters = adapters }
  if not session then return nil, message, code end
  local ok, note
  ok, note, code = session:restore(path)
  local saved = ok and core.json_decode(note or "")
  if not ok or type(saved) ~= "table" or type(saved.messages) ~= "table" then
    session:close()
    if not ok then return nil, note, code end
    return nil, path .. " has a session without a conversation", "format"
  end
  return session, setmetatable(saved.messages, nil)
end

--- Makes a conversation with a model; `model:chat(opts)` does this.
-- @param model an ane.model
-- @param opts system: text of a first message; messages: a conversation to go on with; restore: path of a file that save wrote;
-- adapters: as model:session takes them; all else as defaults of say
-- @param level for misuse, as error()'s
-- @param adapters_rule of ane.util.schema for adapters
-- @return a chat with messages (a list, free to be read and changed), last (details of the last reply), session (from the first
-- reply on); or nil, message, code
function M.new(model, opts, level, adapters_rule)
  opts = schema.check(RULES, opts, "chat", level + 1)
  if opts.adapters ~= nil then schema.argument(adapters_rule, opts.adapters, "chat: option adapters", level + 1) end
  if opts.restore and (opts.messages or opts.system) then
    error("chat: option restore brings the messages: give no messages and no system", level + 1)
  end
  local ok, message, code = choose(model.tokenizer, opts)
  if ok and tools.offered(opts) then ok, message, code = tools.check(opts.tools) end
  if not ok then return nil, message, code end
  local session, messages
  if opts.restore then
    session, messages, code = restored(model, opts.restore, opts.adapters)
    if not session then return nil, messages, code end
  else
    messages = table.move(opts.messages or {}, 1, #(opts.messages or {}), 1, {})
    local fault = messages_of.fault(messages)
    if fault then return nil, "option " .. fault, "invalid" end
  end
  if opts.system then table.insert(messages, 1, { role = "system", content = opts.system }) end
  local adapters = opts.adapters
  opts.system, opts.messages, opts.restore, opts.adapters = nil, nil, nil, nil
  return setmetatable({ model = model, messages = messages, session = session, _defaults = opts, _adapters = adapters }, Chat)
end

-- The options of one reply: those given, and the conversation's for the others. level: of the method's caller, as error()'s.
local function options(self, opts, what, level)
  local out = {}
  for key, value in pairs(self._defaults) do out[key] = value end
  for key, value in pairs(schema.check(SAY, opts, what, level + 1, true)) do out[key] = value end
  return out
end

local function add(messages, said)
  if said == nil then return 0 end
  if type(said) == "string" then said = { role = "user", content = said } end
  if type(said) ~= "table" then error("chat: what is said must be a text, a message or a list of messages, but is a " .. type(said), 4) end
  local list = said[1] and said or { said }
  for i, message in ipairs(list) do
    if type(message) ~= "table" or message.role == nil then error(("chat: message %d has no role"):format(i), 4) end
  end
  table.move(list, 1, #list, #messages + 1, messages)
  return #list
end

-- Returns a reply as templates take it: invalid UTF-8 becomes U+FFFD.
local function as_utf8(text)
  local _, bad = utf8.len(text)
  while bad do
    text = text:sub(1, bad - 1) .. "\u{FFFD}" .. text:sub(bad + 1)
    _, bad = utf8.len(text, bad + 3)
  end
  return text
end

-- ---- The end of the context ---------------------------------------------------------------------------------------------

-- Returns the number of leading system messages.
local function leading(messages)
  local n = 0
  while messages[n + 1] and messages[n + 1].role == "system" do n = n + 1 end
  return n
end

-- Returns the index of the first user message at or after `at`, or nil.
local function next_user(messages, at)
  for i = at, #messages do
    if messages[i].role == "user" then return i end
  end
end

-- Removes the oldest turn: from the first non-system message up to the next user message.
-- @return the removed messages; nil if only one turn is left
local function drop_turn(messages)
  local first = leading(messages) + 1
  local following = next_user(messages, first + 1)
  if not following then return nil end
  local gone = table.move(messages, first, following - 1, 1, {})
  for _ = 1, #gone do table.remove(messages, first) end
  return gone
end

-- Puts removed messages back where drop_turn took them from.
local function put_back(messages, gone)
  local first = leading(messages) + 1
  for i, message in ipairs(gone) do table.insert(messages, first + i - 1, message) end
end

-- Builds the prompt of the messages and fits it to the context as the option overflow says.
-- @return ids, list of the dropped messages; or nil, message, code: then none was dropped
local function prompt(self, opts)
  local messages, tokenizer, context = self.messages, self.model.tokenizer, self.session.context
  local room = context // 4
  local ids, message, code = M.encode(tokenizer, messages, opts)
  if not ids then return nil, message, code end
  local least, dropped = math.min(opts.max_tokens or room, room), {}
  if opts.overflow == "drop" and #ids + least > context then
    while ids and #ids + room > context do
      local gone = drop_turn(messages)
      if not gone then break end
      table.move(gone, 1, #gone, #dropped + 1, dropped)
      ids, message, code = M.encode(tokenizer, messages, opts)
    end
  end
  if ids and #ids <= context then return ids, dropped end
  if ids then
    local what = opts.overflow == "drop" and "its last turn alone does not fit: shorten it, or load the model with a larger context" or
      'remove messages, begin a new chat, load the model with a larger context, or set overflow = "drop", which forgets the oldest turns'
    message, code = ("the conversation has %d tokens, but the context has room for %d: %s"):format(#ids, context, what), "range"
  end
  put_back(messages, dropped)
  return nil, message, code
end

-- ---- Replies ------------------------------------------------------------------------------------------------------------

-- Starts a reply to a message. On failure the messages stay as they were.
local function reply(self, said, opts, what)
  if self._closed then error("chat is closed", 3) end
  if self.model.closed then error("model is closed", 3) end
  if self._replying then error("chat: the previous reply is not complete; close its stream first", 3) end
  if self.session and self.session._replying then error("chat: its session computes another reply; close that stream first", 3) end
  opts = options(self, opts, what, 3)
  local messages = self.messages
  if type(messages) ~= "table" then error("chat: messages must be a list, but is " .. schema.shown(messages), 3) end
  local fits, why, word = generate.check_ids(opts, self.model.vocab)
  if not fits then return nil, why, word end
  local added = add(messages, said)
  local run, ids, dropped, message, code
  if not self.session then self.session, message, code = self.model:session { adapters = self._adapters } end
  if self.session then
    ids, dropped, code = prompt(self, opts)
    message = dropped
  end
  if ids then
    opts.calls, message, code = M.calls(self.model.tokenizer, opts)
    if not message then run, message, code = generate.start(self.session, self.model.tokenizer, ids, opts) end
    if not run then put_back(messages, dropped) end
  end
  if not run then
    for _ = 1, added do table.remove(messages) end
    return nil, message, code
  end
  run.result.timings.load_s = self.model.load_s
  run.result.dropped = #dropped > 0 and #dropped or nil
  self._replying, self.session._replying = true, run
  return stream.new(run, function(pieces)
    self._replying, self.session._replying = false, nil
    self.last = pieces.result
    if not self.session.closed then self.session:unstop() end
    local text = as_utf8(pieces.result.text or "")
    if pieces.result.stop == "closed" and (text == "" or what == "say") then -- say returns nothing of a reply that failed
      for _ = 1, added do table.remove(messages) end
      put_back(messages, dropped)
      pieces.result.dropped = nil
    else
      messages[#messages + 1] = { role = "assistant", content = text, tool_calls = pieces.result.tool_calls }
    end
  end, self.model._streams)
end

--- Sends a message and returns the whole reply. Both are then in `messages`.
-- @param said the user's text, a message, a list of messages, or nil to continue from the messages as they are
-- @param opts any option of generate and of the template
-- @return the text, list of the tool calls (nil if there are none); or nil, message, code
function Chat:say(said, opts)
  local pieces <close>, message, code = reply(self, said, opts, "say")
  if not pieces then return nil, message, code end
  local result
  result, message, code = pieces:finish()
  if not result then return nil, message, code end
  if not result.tool_calls then return result.text end
  return result.text, result.tool_calls
end

--- As say, but piece by piece: `for piece in chat:stream "Hi" do io.write(piece) end`.
-- @return an iterator as model:stream gives; or nil, message, code
function Chat:stream(said, opts)
  local pieces, message, code = reply(self, said, opts, "stream")
  if not pieces then return nil, message, code end
  return pieces, nil, nil, pieces
end

--- Returns the prompt of the next reply as text.
-- @return the text; or nil, message, code
function Chat:render(opts)
  if self._closed then error("chat is closed", 2) end
  local text, message, code = M.render(self.model.tokenizer, self.messages, options(self, opts, "render", 2))
  if not text then return nil, message, code end
  return text
end

-- The JSON text of the messages; or nil, message, code.
local function text_of(messages)
  local fault = messages_of.fault(messages)
  if fault then return nil, fault, "invalid" end
  local ok, text, message, code = pcall(core.json_encode, { messages = messages })
  if ok then return text, message, code end
  return nil, "messages have no JSON form: " .. text, failure.code(text, "invalid")
end

--- Writes the messages and the session of the conversation to a file. `model:chat {restore = path}` then continues without
-- recomputing anything. Options are not saved.
-- @return true; or nil, message, code
function Chat:save(path)
  schema.argument({ type = "path" }, path, "save: path", 2)
  if self._closed then error("chat is closed", 2) end
  if self._replying then error("chat: the previous reply is not complete; close its stream first", 2) end
  if self.model.closed then error("model is closed", 2) end
  local ok, message, code
  local text
  text, message, code = text_of(self.messages)
  if not text then return nil, message, code end
  if not self.session then self.session, message, code = self.model:session { adapters = self._adapters } end
  if not self.session then return nil, message, code end
  ok, message, code = self.session:save(path, text)
  return ok, message, code
end

--- Frees the conversation's session. Closing twice is fine.
function Chat:close()
  self._closed = true
  if self.session then self.session:close() end
end

Chat.__close = Chat.close
methods.guard(Chat, Chat, "chat")

function Chat:__tostring()
  return ("chat (%d messages)"):format(#self.messages)
end

return M
