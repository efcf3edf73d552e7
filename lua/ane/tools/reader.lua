--- Reads the calls of tools in a reply, piece by piece. Needs ane.core, ane.tools.channels, literals and tagged,
-- and ane.util.marks.
-- Usage: `local r = reader.new(form); local text, deltas = r:push(piece); ... r:finish(); r.calls`

local channels = require "ane.tools.channels"
local core = require "ane.core"
local literals = require "ane.tools.literals"
local marks = require "ane.util.marks"
local tagged = require "ane.tools.tagged"

local M = {}

local Reader = {}
Reader.__index = Reader

local NAME = "^[%w_.-]*"

-- The parts of a call: list of texts and {slot}.
local function parts_of(call)
  local list, at = {}, 1
  for text, slot, stop in call:gmatch "(.-){(%l+)}()" do
    if text ~= "" then list[#list + 1] = text end
    list[#list + 1] = { slot }
    at = stop
  end
  if at <= #call then list[#list + 1] = call:sub(at) end
  return list
end

--- The parts of a form's call, and how calls begin.
-- @return list of literals and {"name" | "id" | "arguments"}, the first of them after the beginning; list of beginnings, up to the
-- name of the tool
function M.layout(form)
  local parts = parts_of(form.call)
  local heads = { type(parts[1]) == "string" and table.remove(parts, 1) or "" }
  for _, other in ipairs(form.others or {}) do heads[#heads + 1] = other end
  return parts, heads
end

local ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
local made = 0

--- An id for a call: nine letters and digits, as Mistral's templates require.
function M.fresh_id()
  made = made + 1
  local _, low, high = core.random(os.time() ~ math.floor(core.clock() * 1e9), made)
  local bits, id = (high << 32 | low) & math.maxinteger, {}
  for i = 1, 9 do
    local at = bits % #ALPHABET + 1
    id[i] = ALPHABET:sub(at, at)
    bits = bits // #ALPHABET
  end
  return table.concat(id)
end

--- A reader.
-- @param form of ane.tools.forms
-- @param opts within: the reply starts inside a call; at_start: calls may begin only at the start; schemas: of the arguments, by the
-- name of the tool
function M.new(form, opts)
  local ways = {}
  for i, way in ipairs { form, form.bare } do
    local parts, heads = M.layout(way)
    local starts, nexts = {}, {}
    for k, head in ipairs(heads) do
      starts[k] = way.first .. head
      if way.between then nexts[k] = way.between .. head end
    end
    if way.arguments == "python" then nexts[#nexts + 1] = "," end -- blanks after it are optional (STATES.name)
    ways[i] = { form = way, parts = parts, starts = starts, nexts = nexts }
  end
  return setmetatable({
    ways = ways, calls = {}, buffer = "", at_start = opts and opts.at_start, schemas = opts and opts.schemas or {},
    says = form.says, channels = form.channels and channels.new(), state = opts and opts.within and "start" or "text", begun = false,
  }, Reader)
end

-- Length of the longest text of a list with which the buffer begins. 0: none; nil: more input is needed to decide.
local function begin(buffer, list)
  local longest, open = 0, false
  for _, text in ipairs(list) do
    if buffer:sub(1, #text) == text then
      longest = math.max(longest, #text)
    elseif #buffer < #text and text:sub(1, #buffer) == buffer then
      open = true
    end
  end
  if open and longest == 0 then return nil end
  return longest
end

-- Position of a trigger that counts only at the start; else the number of bytes to hold back.
local function trigger_at_start(self, triggers)
  if self.begun then return nil, 0 end
  local blank = #self.buffer:match "^%s*"
  local n = begin(self.buffer:sub(blank + 1), triggers)
  if n == nil then return nil, #self.buffer end
  return n > 0 and blank + 1 or nil, 0
end

-- Position of a trigger in the buffer; else the number of bytes at its end that may begin one.
local function trigger_anywhere(self, triggers)
  local first, _, held = marks.find(self.buffer, triggers)
  return first, held
end

-- The first trigger of all kinds; else the number of bytes at the buffer's end to hold back.
local function find_trigger(self)
  local first, held = nil, 0
  for _, way in ipairs(self.ways) do
    local find = (self.at_start or way.form.at_start) and trigger_at_start or trigger_anywhere
    local at, kept = find(self, way.form.triggers)
    if at and (not first or at < first) then first = at end
    held = math.max(held, kept)
  end
  return first, held
end

local function advance(self, n) self.buffer = self.buffer:sub(n + 1) end

local function delta(self, fields)
  fields.index = #self.calls
  self.deltas[#self.deltas + 1] = fields
end

-- The handler of each state. It consumes the buffer and returns true if the state changed.
local STATES = {}

function STATES.text(self)
  if self.says then -- before the first text
    local n = begin(self.buffer, { self.says })
    if n == nil then return false end
    if n > 0 then advance(self, n) end
    if n > 0 or #self.buffer > 0 then self.says = nil end
    if n > 0 then self.begun = true end
  end
  local at, held = find_trigger(self)
  if at then
    self.out[#self.out + 1] = self.buffer:sub(1, at - 1)
    advance(self, at - 1)
    self.state = "start"
    return true
  end
  local text = self.buffer:sub(1, #self.buffer - held)
  if text:find "%S" then self.begun = true end
  self.out[#self.out + 1] = text
  advance(self, #text)
end

-- Begins a call. The buffer holds the first n bytes of its beginning.
local function start(self, n)
  advance(self, n)
  self.at, self.state = 1, "part"
  self.calls[#self.calls + 1] = { id = M.fresh_id(), type = "function", ["function"] = { name = "", arguments = "" } }
  self.complete = false
  return true
end

-- Does a call begin with the name of the tool, if it begins as `way` says?
local function starts_bare(way) return way.starts[1] == "" end

function STATES.start(self)
  local open, chosen, length = self.buffer == "", nil, 0
  for _, way in ipairs(self.ways) do
    local n = begin(self.buffer, way.starts)
    open = open or n == nil
    if n and (n > length or not chosen and starts_bare(way)) then chosen, length = way, n end
  end
  if open and length == 0 then return false end
  if chosen then
    self.form, self.parts, self.nexts = chosen.form, chosen.parts, chosen.nexts
    return start(self, length)
  end
  self.state = "broken"
  return true
end

function STATES.part(self)
  local part = self.parts[self.at]
  if not part then
    self.complete, self.state = true, "behind"
    return true
  end
  if type(part) == "string" then
    local n = begin(self.buffer, { part })
    if n == nil then return false end
    if n == 0 then self.state = "broken" else
      advance(self, n)
      self.at = self.at + 1
    end
    return true
  end
  return STATES[part[1]](self)
end

function STATES.name(self)
  if self.form.arguments == "python" then advance(self, #self.buffer:match "^%s*") end
  local name = self.buffer:match(NAME)
  if #name == #self.buffer then return false end
  advance(self, #name)
  self.calls[#self.calls]["function"].name = name
  self.at = self.at + 1
  local follows = self.parts[self.at + 1]
  if not (type(follows) == "table" and follows[1] == "id") then
    delta(self, { id = self.calls[#self.calls].id, name = name })
  end
  return true
end

function STATES.id(self)
  local id = self.buffer:match(NAME)
  if #id < self.form.id_length then return false end
  id = id:sub(1, self.form.id_length)
  advance(self, #id)
  local call = self.calls[#self.calls]
  if call["function"].arguments == "" then -- else it was reported already
    call.id = id
    delta(self, { id = id, name = call["function"].name })
  end
  self.at = self.at + 1
  return true
end

-- Arguments that are not JSON, at the beginning of the buffer.
-- @return their length; nil: they are incomplete; their JSON text; nil: they cannot be read
local function arguments_of(self, name)
  local form = self.form
  if form.arguments == "tagged" then
    local n = tagged.last_of(self.buffer, form, self.parts[self.at + 1])
    if n == nil then return nil end
    return n or 0, n and tagged.to_json(self.buffer:sub(1, n), form, self.schemas[name]) or nil
  end
  local n = literals.last_of(self.buffer, form)
  return n, n and literals.to_json(self.buffer:sub(1, n), form)
end

function STATES.arguments(self)
  if self.buffer == "" then return false end
  local call = self.calls[#self.calls]["function"]
  local text, done
  if self.form.arguments == "json" then
    self.scan = self.scan or literals.json_scan()
    local n
    n, done = self.scan(self.buffer)
    text = self.buffer:sub(1, n)
    advance(self, n)
  else
    local n
    n, text = arguments_of(self, call.name)
    if n == nil then return false end
    if not text then
      self.state = "broken"
      return true
    end
    advance(self, n)
    done = true
  end
  call.arguments = call.arguments .. text
  if text ~= "" then delta(self, { arguments = text }) end
  if done then self.at, self.scan = self.at + 1, nil end
  return done
end

-- After a call: another one, the end of the calls, or text.
function STATES.behind(self)
  if self.buffer == "" then return false end
  local list = table.move(self.nexts, 1, #self.nexts, 1, {})
  if self.form.last ~= "" then list[#list + 1] = self.form.last end
  local n = begin(self.buffer, list)
  if n == nil then return false end
  if n == #self.form.last and n > 0 and self.buffer:sub(1, n) == self.form.last then
    advance(self, n)
    self.state, self.begun = "text", true
    return true
  end
  if n == 0 then
    self.state, self.begun = "text", true
    return true
  end
  return start(self, n)
end

-- Keeps the buffer as text of the reply, because it turned out to be no call. A call that had begun is dropped.
function STATES.broken(self)
  self.out[#self.out + 1] = self.buffer
  if self.complete == false then self.calls[#self.calls], self.complete = nil, nil end
  self.buffer = ""
end

--- Takes more of the reply.
-- @param text whole characters
-- @return the text outside the calls; list of deltas: {index =, id =, name =} when a call begins, then {index =, arguments =}
-- with the next part of its arguments (JSON); index counts from 1
function Reader:push(text)
  self.buffer = self.buffer .. text
  self.out, self.deltas = {}, {}
  while STATES[self.state](self) do end
  local said = table.concat(self.out)
  return self.channels and self.channels:push(said) or said, self.deltas
end

--- Returns whether the reader is inside a call.
function Reader:within() return self.state ~= "text" end

--- Ends the reply: releases the text that was held back.
-- @return text; whether the last call is whole (nil: there is none)
function Reader:finish()
  local text = self.buffer
  self.buffer = ""
  if self.state ~= "text" and self.state ~= "start" and self.state ~= "broken" then text = "" end
  if self.channels then
    local said = self.channels:push(text)
    local rest = self.channels:finish()
    text = said .. (#self.calls > 0 and not self.channels.seen and "" or rest)
  end
  return text, self.complete
end

return M
