--- Replies that may call tools: free text until a call begins, then a text of the grammar of calls. Splits a reply into text and calls.
-- Needs ane.generate.constrain and ane.tools.reader. A plan is what ane.tools.plan gives.
-- Usage: `local c = assert(calling.constraint(plan, nil, tokenizer, ends)); local view = calling.view(plan, tokenizer, true)`

local constrain = require "ane.generate.constrain"
local reader = require "ane.tools.reader"

local M = {}

-- Returns the control tokens that the calls of a form are written with.
local function controls_of(form, tokenizer)
  local list = { form.first, form.call, form.last, form.quote or "", form.channels or "" }
  table.move(form.others or {}, 1, #(form.others or {}), #list + 1, list)
  table.move(form.triggers, 1, #form.triggers, #list + 1, list)
  local found, seen = {}, {}
  for _, text in ipairs(list) do
    for _, id in ipairs(tokenizer:encode(text, { special = true, bos = false, eos = false }) or {}) do
      if tokenizer:token_type(id) == "control" and not seen[id] then found[#found + 1] = tokenizer:piece(id) end
      seen[id] = true
    end
  end
  table.sort(found)
  return found
end

-- ---- Which tokens may come -----------------------------------------------------------------------------------------------

local Lazy = {}
Lazy.__index = Lazy
Lazy.__name = "ane.constraint"

-- Returns whether a reply is past its beginning: a trigger that counts only there can no longer come.
local function is_past(self, text)
  local begun = text:match "^%s*(.*)"
  if begun == "" then return false end
  for _, form in ipairs { self.form, self.form.bare } do
    for _, trigger in ipairs(form.at_start and form.triggers or {}) do
      if trigger:sub(1, #begun) == begun then return false end
    end
  end
  return true
end

-- Returns where a call begins in the text, which is the reply so far or its tail; nil if none begins.
local function find_trigger(self, text)
  local first
  for _, form in ipairs { self.form, self.form.bare } do
    for _, trigger in ipairs(form.triggers) do
      local at
      if not form.at_start then
        at = text:find(trigger, 1, true)
      elseif not self.passed then
        at = text:match("^%s*()" .. trigger:gsub("%p", "%%%0"))
      end
      if at and (not first or at < first) then first = at end
    end
  end
  return first
end

--- Takes a chosen token if it is allowed. Any token is, until the text begins a call.
-- @return whether it is allowed; or nil, message, code
function Lazy:accept(id)
  if self.calling then return self.inner:accept(id) end
  if self.inner.ends[id] then return true end
  local text = self.tail .. (self.inner:spell(id) or "")
  local at = find_trigger(self, text)
  if at then
    local accepted, message, code = self.inner.matcher:push(text:sub(at), true)
    if accepted == nil then return nil, message, code end
    if not accepted then
      self.banned[id] = true
      return false
    end
    self.calling = true
  end
  self.banned = {}
  self.passed = self.passed or is_past(self, text)
  self.tail = text:sub(-self.longest)
  return true
end

--- Bans tokens that are not allowed. In free text these are the tokens that would begin a call that matches no tool.
-- @return true; or nil, message, code
function Lazy:mask(logits)
  if self.calling then return self.inner:mask(logits) end
  for id in pairs(self.banned) do logits:set(id + 1, -math.huge) end
  return true
end

--- Returns the tokens that are allowed in a call, as for ane.generate.constrain; false in free text, which needs no mask.
function Lazy:allowed(n)
  return self.calling and self.inner:allowed(n)
end

function Lazy:complete() return not self.calling or self.inner:complete() end

function Lazy:finished() return self.calling and self.inner:finished() end

function Lazy:next_forced() return self.calling and self.inner:next_forced() or nil end

-- A reply that is either calls or a text of another grammar.
local Either = {}
Either.__index = Either
Either.__name = "ane.constraint"

--- Takes a token in each alternative that allows it.
function Either:accept(id)
  local left = {}
  for _, one in ipairs(self.open) do
    local accepted, message, code = one:accept(id)
    if accepted == nil then return nil, message, code end
    if accepted then left[#left + 1] = one end
  end
  if #left == 0 then return false end
  self.open = left
  return true
end

function Either:mask(logits)
  if #self.open == 1 then return self.open[1]:mask(logits) end
  local kept, first = {}, self.open[1]
  for i = 2, #self.open do
    local one = self.open[i]
    local ids, message, code = one.matcher:allowed(one.tree)
    if not ids then return nil, message, code end
    if one.matcher:accepts() then
      for id in pairs(one.ends) do ids[#ids + 1] = id end
    end
    for _, id in ipairs(ids) do kept[id] = logits:get(id + 1) end
  end
  local n, message, code = first.matcher:mask(first.tree, logits, first.ends)
  if not n then return nil, message, code end
  for id, value in pairs(kept) do logits:set(id + 1, value) end
  return true
end

--- Returns the tokens that are allowed; false while several alternatives allow the text.
function Either:allowed(n)
  return #self.open == 1 and self.open[1]:allowed(n)
end

function Either:complete()
  for _, one in ipairs(self.open) do
    if one:complete() then return true end
  end
  return false
end

function Either:finished()
  for _, one in ipairs(self.open) do
    if not one:finished() then return false end
  end
  return true
end

function Either:next_forced() return #self.open == 1 and self.open[1]:next_forced() or nil end

--- Makes the constraint of a reply.
-- @param plan of ane.tools
-- @param grammar of the replies without calls, or nil
-- @param tokenizer, ends as for ane.generate.constrain
-- @return a constraint; or nil, message, code
function M.constraint(plan, grammar, tokenizer, ends)
  local inner, message, code = constrain.start(plan.grammar, tokenizer, ends, controls_of(plan.form, tokenizer))
  if not inner then return nil, message, code end
  if plan.required then return inner end
  if grammar then
    local other
    other, message, code = constrain.start(grammar, tokenizer, ends)
    if not other then return nil, message, code end
    return setmetatable({ open = { inner, other } }, Either)
  end
  local longest = 0
  for _, form in ipairs { plan.form, plan.form.bare } do
    for _, trigger in ipairs(form.triggers) do longest = math.max(longest, #trigger) end
  end
  return setmetatable({ inner = inner, form = plan.form, tail = "", longest = longest, banned = {} }, Lazy)
end

-- ---- Texts and calls of a reply ----------------------------------------------------------------------------------------

local View = {}
View.__index = View

--- Returns the text of a token, including the control tokens that calls are written with.
function View:push(id)
  if self.skip_special and not self.controls[id] and self.tokenizer:token_type(id) == "control" then return "" end
  return self.decoder:push(id)
end

function View:flush() return self.decoder:flush() end

local Split = {}
Split.__index = Split

-- Reports the deltas; a callback may yield.
local function tell(self, deltas)
  if not self.plan.on_tool_call then return end
  for _, delta in ipairs(deltas) do self.plan.on_tool_call(delta) end
end

--- Takes text of the reply.
-- @return the text outside calls, up to what may still become a stop string; the stop string that was found
function Split:push(text)
  local said, deltas = self.reader:push(text)
  tell(self, deltas)
  return self.watch:push(said)
end

-- Stop strings count outside of calls only, so they have no effect on the text of a call in which the reply ends.
function Split:flush()
  local text, of_call = self.reader:finish()
  local said, found = self.watch:push(text)
  if found then return said end
  return said .. self.watch:flush() .. of_call
end

--- Adds the calls to the result at the end of a reply. tool_calls lists the complete calls; what is known of an incomplete last one is
-- tool_call_cut. A reply that ended by itself after calls has stop = "tool_calls".
function M.settle(r, result)
  r:finish() -- after a stop string, the text that follows it is dropped
  if result.stop ~= "stop" then result.tool_call_cut = r.cut end
  if #r.calls == 0 then return end
  result.tool_calls = r.calls
  if not r.cut and (result.stop == "eos" or result.stop == "grammar") then result.stop = "tool_calls" end
end

--- Returns how a reply with tools is read.
-- @param plan of ane.tools
-- @param tokenizer of the model
-- @param opts skip_special
-- @param watch of ane.generate.stops, for the text outside calls
-- @return decoder, watch: they replace those of other replies; the reader
function M.view(plan, tokenizer, opts, watch)
  local controls = {}
  for _, piece in ipairs(controls_of(plan.form, tokenizer)) do controls[tokenizer:id(piece)] = true end
  local view = setmetatable({
    tokenizer = tokenizer, controls = controls, skip_special = opts.skip_special, decoder = tokenizer:stream { skip_special = false },
  }, View)
  local r = reader.new(plan.form, { within = plan.required, at_start = opts.grammar ~= nil, schemas = plan.schemas, seed = plan.seed })
  return view, setmetatable({ plan = plan, reader = r, watch = watch }, Split), r
end

return M
