--- The text of a reply that consists of messages in channels, as gpt-oss writes it: <|channel|>analysis<|message|>...<|end|>. The channel
-- analysis, in which the model reasons, is left out. Needs ane.util.marks.
-- Usage: `local c = channels.new(); io.write(c:push(piece)); ... io.write(c:finish())`

local marks = require "ane.util.marks"

local M = {}

local Channels = {}
Channels.__index = Channels

-- What ends a message or begins the next one.
local ENDS = { "<|end|>", "<|start|>", "<|channel|>", "<|return|>", "<|call|>" }

-- A channel that is not shown.
local HIDDEN = "analysis"

--- A reader of a reply. The prompt ends before the header of the first message.
function M.new() return setmetatable({ buffer = "", inside = false, seen = false, shown = false }, Channels) end

-- Skips a header. Returns false if it is incomplete.
local function header(self)
  local first, last = self.buffer:find("<|message|>", 1, true)
  if not first then return false end
  -- The text of the last header counts: what stands before it is of a message that has ended.
  local channel = self.buffer:sub(1, first - 1):match ".*<|channel|>%s*(%w+)"
  self.shown, self.inside, self.seen = channel ~= HIDDEN, true, true
  self.buffer = self.buffer:sub(last + 1)
  return true
end

--- Takes more of the reply.
-- @return the text to show
function Channels:push(text)
  self.buffer = self.buffer .. text
  local out = {}
  while true do
    if not self.inside and not header(self) then break end
    local first, _, held = marks.find(self.buffer, ENDS)
    local length = first and first - 1 or #self.buffer - held
    if self.shown then out[#out + 1] = self.buffer:sub(1, length) end
    self.buffer = self.buffer:sub(length + 1)
    if not first then break end
    self.inside = false
  end
  return table.concat(out)
end

--- Ends the reply.
-- @return the rest of the text; of a reply without any channel, all of it
function Channels:finish()
  local rest = self.buffer
  self.buffer = ""
  if self.inside then return self.shown and rest or "" end
  return self.seen and "" or rest
end

return M
