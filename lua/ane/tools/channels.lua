--- The text of a reply that consists of messages in channels, as gpt-oss writes it: <|channel|>analysis<|message|>...<|end|>. The channel
-- analysis, in which the model reasons, and the headers of messages are left out. Needs ane.util.marks.
-- Usage: `local c = channels.new(); io.write(c:push(piece)); ... io.write(c:finish())`

local marks = require "ane.util.marks"

local M = {}

local Channels = {}
Channels.__index = Channels

-- What ends a message or begins the next one.
local ENDS = { "<|end|>", "<|start|>", "<|channel|>", "<|return|>", "<|call|>" }

-- What ends a header.
local HEADER_ENDS = { "<|message|>" }

-- A channel that is not shown.
local HIDDEN = "analysis"

--- A reader of a reply. The prompt ends before the header of the first message.
function M.new() return setmetatable({ held = "", header = {}, inside = false, seen = false, shown = false }, Channels) end

-- Begins the message whose header has been read.
local function open(self)
  -- The text of the last header counts: what stands before it is of a message that has ended.
  local channel = table.concat(self.header):match ".*<|channel|>%s*(%w+)"
  self.header, self.shown, self.inside, self.seen = {}, channel ~= HIDDEN, true, true
end

--- Takes more of the reply.
-- @return the text to show
function Channels:push(text)
  text = self.held .. text
  local ends, headers = marks.search(text, ENDS), marks.search(text, HEADER_ENDS)
  local out, at = {}, 1
  while true do
    local first, mark, held = (self.inside and ends or headers)(at)
    local stop = first or #text - held + 1
    local to = self.inside and (self.shown and out or nil) or self.header
    if to then to[#to + 1] = text:sub(at, stop - 1) end
    at = stop
    if not first then break end
    if self.inside then self.inside = false else
      at = at + #mark
      open(self)
    end
  end
  self.held = text:sub(at)
  return table.concat(out)
end

--- Shows a text of the current message as it is.
-- @return the text, after that which was held back
function Channels:show(text)
  if self.inside and self.shown then text = self.held .. text end
  self.held, self.header, self.inside, self.seen, self.shown = "", {}, true, true, true
  return text
end

--- Ends the reply.
-- @return the rest of the text; of a reply without any channel, all of it
function Channels:finish()
  local rest = table.concat(self.header) .. self.held
  self.held, self.header = "", {}
  if self.inside then return self.shown and rest or "" end
  return self.seen and "" or rest
end

return M
