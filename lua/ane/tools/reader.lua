--- Reads the calls of tools in a reply, piece by piece. Needs ane.core, ane.tools.channels, literals, scan and tagged,
-- and ane.util.marks.
-- Usage: `local r = reader.new(form); local text, deltas = r:push(piece); ... r:finish(); r.calls`

local channels = require "ane.tools.channels"
local core = require "ane.core"
local literals = require "ane.tools.literals"
local marks = require "ane.util.marks"
local scan = require "ane.tools.scan"
local tagged = require "ane.tools.tagged"

local M = {}

-- Arguments keep their numbers as they are written.
local EXACT = { exact = true }

local Reader = {}
Reader.__index = Reader

local NAME = "^[%w_.-]*()"

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
-- @param seed, number an id of its own for each pair; nil: one that no other call has
function M.fresh_id(seed, number)
  made = made + 1
  local _, low, high = core.random(seed or os.time() ~ math.floor(core.clock() * 1e9), number or made)
  local bits, id = (high << 32 | low) & math.maxinteger, {}
  for i = 1, 9 do
    local at = bits % #ALPHABET + 1
    id[i] = ALPHABET:sub(at, at)
    bits = bits // #ALPHABET
  end
  return table.concat(id)
end

-- A way of writing calls, as the reader uses it.
local function way_of(form)
  local parts, heads = M.layout(form)
  local starts, nexts = {}, {}
  for k, head in ipairs(heads) do
    starts[k] = form.first .. head
    if form.between then nexts[k] = form.between .. head end
  end
  if form.arguments == "python" then nexts[#nexts + 1] = "," end -- blanks after it are optional (STATES.name)
  if form.last ~= "" then nexts[#nexts + 1] = form.last end
  return { form = form, parts = parts, starts = starts, nexts = nexts }
end

--- A reader.
-- @param form of ane.tools.forms
-- @param opts within: the reply starts inside a call; at_start: calls may begin only at the start; schemas: of the arguments, by the
-- name of the tool; seed: of the ids that the reader makes, nil: they differ from those of all others
function M.new(form, opts)
  local ways = { way_of(form), form.bare and way_of(form.bare) }
  return setmetatable({
    ways = ways, calls = {}, begins = 0, buffer = "", at = 1, at_start = opts and opts.at_start, schemas = opts and opts.schemas or {},
    seed = opts and opts.seed,
    says = form.says, channels = form.channels and channels.new(), state = opts and opts.within and "start" or "text", begun = false,
  }, Reader)
end

-- Length of the longest text of a list that begins at byte `at` of the buffer; default: the next one. 0: none; nil: more input is needed.
local function begin(self, list, at)
  local buffer = self.buffer
  at = at or self.at
  local longest, open, rest = 0, false, #buffer - at + 1
  for _, text in ipairs(list) do
    if buffer:sub(at, at + #text - 1) == text then
      longest = math.max(longest, #text)
    elseif rest < #text and text:sub(1, rest) == buffer:sub(at, at + #text - 1) then
      open = true
    end
  end
  if open and longest == 0 then return nil end
  return longest
end

-- Position of a trigger that counts only at the start, and its length; else the number of bytes to hold back.
local function trigger_at_start(self, way)
  if self.begun then return nil, 0 end
  local at = self.buffer:match("^%s*()", self.at)
  local n = begin(self, way.form.triggers, at)
  if n == nil then return nil, #self.buffer - at + 1 end
  return n > 0 and at or nil, n
end

-- Position of a trigger and its length; else the number of bytes at the buffer's end that may begin one.
local function trigger_anywhere(self, way)
  way.search = way.search or marks.search(self.buffer, way.form.triggers)
  local first, mark, held = way.search(self.at)
  return first, first and #mark or held
end

-- The first trigger of all kinds and its length; else the number of bytes at the buffer's end to hold back.
local function find_trigger(self)
  local first, length, held = nil, 0, 0
  for _, way in ipairs(self.ways) do
    local find = (self.at_start or way.form.at_start) and trigger_at_start or trigger_anywhere
    local at, n = find(self, way)
    if at and (not first or at < first) then first, length = at, n end
    if not at then held = math.max(held, n) end
  end
  return first, first and length or held
end

-- Reads the buffer up to byte `stop`, excluded. Returns the text.
local function read(self, stop)
  local text = self.buffer:sub(self.at, stop - 1)
  self.at = stop
  if self.written and text ~= "" then self.written[#self.written + 1] = text end
  return text
end

local function advance(self, n) return read(self, self.at + n) end

-- Adds text outside calls.
local function say(self, text)
  if self.channels and text ~= "" then text = self.channels:push(text) end
  if text ~= "" then self.out[#self.out + 1] = text end
end

local function delta(self, fields)
  fields.index = self.begins
  self.deltas[#self.deltas + 1] = fields
end

-- The handler of each state. It reads the buffer and returns true if the state changed.
local STATES = {}

function STATES.text(self)
  if self.says then -- before the first text
    local n = begin(self, { self.says })
    if n == nil then return false end
    advance(self, n)
    if n > 0 then self.begun = true end
    if n > 0 or self.at <= #self.buffer then self.says = nil end
  end
  local at, n = find_trigger(self)
  local text = read(self, at or #self.buffer - n + 1)
  say(self, text)
  if at then self.state, self.trigger = "start", n elseif text:find "%S" then self.begun = true end
  return at ~= nil
end

-- Begins a call. The buffer holds the first n bytes of its beginning.
local function start(self, n)
  self.written = {} -- the text of the call, as far as it was read
  advance(self, n)
  self.part_at, self.state = 1, "part"
  self.begins = self.begins + 1
  local id = M.fresh_id(self.seed, self.seed and self.begins)
  self.calls[#self.calls + 1] = { id = id, type = "function", ["function"] = { name = "", arguments = "" } }
  return true
end

-- The call that is being read turns out to be none: its text is text of the reply, which goes on.
local function give_up(self)
  local text = table.concat(self.written)
  self.calls[#self.calls] = nil
  self.written, self.scan, self.taken = nil, nil, nil
  if self.channels then text = self.channels:show(text) end
  self.out[#self.out + 1] = text
  self.state, self.begun = "text", true
  return true
end

-- Does a call begin with the name of the tool, if it begins as `way` says?
local function starts_bare(way) return way.starts[1] == "" end

function STATES.start(self)
  local open, chosen, length = self.at > #self.buffer, nil, 0
  for _, way in ipairs(self.ways) do
    local n = begin(self, way.starts)
    open = open or n == nil
    if n and (n > length or not chosen and starts_bare(way)) then chosen, length = way, n end
  end
  if open and length == 0 then return false end
  if chosen then
    self.form, self.parts, self.nexts = chosen.form, chosen.parts, chosen.nexts
    return start(self, length)
  end
  say(self, advance(self, self.trigger or 0)) -- no call begins here
  self.state, self.trigger, self.begun = "text", nil, true
  return true
end

function STATES.part(self)
  local part = self.parts[self.part_at]
  if not part then
    self.state, self.written = "after_call", nil
    return true
  end
  if type(part) ~= "string" then return STATES[part[1]](self) end
  local n = begin(self, { part })
  if n == nil then return false end
  if n == 0 then return give_up(self) end
  advance(self, n)
  self.part_at = self.part_at + 1
  return true
end

-- Reads bytes of the pattern `run`, at most `most` of them, into a list. Returns them all as a text, if another byte follows or there
-- are `most`; else nil.
local function take_run(self, run, most)
  self.taken = self.taken or {}
  local stop = self.buffer:match(run, self.at)
  if most then stop = math.min(stop, self.at + most - (self.taken.n or 0)) end
  self.taken.n = (self.taken.n or 0) + stop - self.at
  self.taken[#self.taken + 1] = read(self, stop)
  if self.at > #self.buffer and self.taken.n ~= most then return nil end
  local text = table.concat(self.taken)
  self.taken = nil
  return text
end

function STATES.name(self)
  if self.form.arguments == "python" and not (self.taken and self.taken.n > 0) then
    read(self, self.buffer:match("^%s*()", self.at))
  end
  local name = take_run(self, NAME)
  if not name then return false end
  if name == "" then return give_up(self) end
  self.calls[#self.calls]["function"].name = name
  self.part_at = self.part_at + 1
  local follows = self.parts[self.part_at + 1]
  if not (type(follows) == "table" and follows[1] == "id") then
    delta(self, { id = self.calls[#self.calls].id, name = name })
  end
  return true
end

function STATES.id(self)
  local id = take_run(self, NAME, self.form.id_length)
  if not id then return false end
  if #id < self.form.id_length then return give_up(self) end
  local call = self.calls[#self.calls]
  if call["function"].arguments == "" then -- else it was reported already
    call.id = id
    delta(self, { id = id, name = call["function"].name })
  end
  self.part_at = self.part_at + 1
  return true
end

-- The arguments that were read, as the JSON text of an object; nil if they are none.
local function arguments_of(self, name)
  local form, json = self.form
  if form.arguments == "tagged" then json = tagged.to_json(self.scan.list, self.schemas[name]) else
    json = table.concat(self.taken)
    if form.arguments ~= "json" then json = literals.to_json(json, form) end
  end
  return json and core.json_decode(json, EXACT) and json or nil
end

function STATES.arguments(self)
  if self.at > #self.buffer then return false end
  local call, is_json = self.calls[#self.calls]["function"], self.form.arguments == "json"
  self.scan, self.taken = self.scan or scan.of(self.form, self.parts[self.part_at + 1]), self.taken or {}
  local stop, done = self.scan:take(self.buffer, self.at)
  local text = read(self, stop)
  if text ~= "" then self.taken[#self.taken + 1] = text end
  if is_json and text ~= "" then delta(self, { arguments = text }) end
  if done == nil then return false end
  local json = done and arguments_of(self, call.name)
  if not json then return give_up(self) end
  call.arguments = json
  if not is_json then delta(self, { arguments = json }) end
  self.part_at, self.scan, self.taken = self.part_at + 1, nil, nil
  return true
end

-- After a call: another one, the end of the calls, or text.
function STATES.after_call(self)
  if self.at > #self.buffer then return false end
  local n = begin(self, self.nexts)
  if n == nil then return false end
  if n > 0 and self.buffer:sub(self.at, self.at + n - 1) ~= self.form.last then return start(self, n) end
  advance(self, n)
  self.state, self.begun = "text", true
  return true
end

--- Takes more of the reply.
-- @param text whole characters
-- @return the text outside the calls; list of deltas: {index =, id =, name =} when a call begins, then {index =, arguments =}
-- with the next part of its arguments (JSON); index counts the calls that began, from 1. Text that turns out to be no call is text
-- outside the calls, from its beginning on
function Reader:push(text)
  self.buffer, self.at = self.buffer:sub(self.at) .. text, 1
  for _, way in ipairs(self.ways) do way.search = nil end
  self.out, self.deltas = {}, {}
  while STATES[self.state](self) do end
  self.buffer, self.at = self.buffer:sub(self.at), 1
  return table.concat(self.out), self.deltas
end

-- Ends a reply within a call, which becomes `cut`. Returns the text of the call.
local function cut_off(self, rest)
  local call = table.remove(self.calls)
  local f = call["function"]
  if self.scan and self.form.arguments == "json" then f.arguments = table.concat(self.taken) end
  self.written[#self.written + 1] = rest
  call.text, self.cut = table.concat(self.written), call
  return call.text
end

--- Ends the reply. If it ended within a call, `cut` has what is known of the call, and its text.
-- @return the text that was held back; the text of the call in which the reply ended, or ""
function Reader:finish()
  local text, of_call = self.buffer, ""
  self.buffer = ""
  if self.written then text, of_call = "", cut_off(self, text) end
  if self.state == "after_call" and self.form.last:sub(1, #text) == text then text = "" end -- the beginning of what ends calls
  if self.channels then
    local said = self.channels:push(text)
    local rest = self.channels:finish()
    text = said .. (self.begins > 0 and not self.channels.seen and "" or rest)
  end
  self.state, self.written = "text", nil
  return text, of_call
end

return M
