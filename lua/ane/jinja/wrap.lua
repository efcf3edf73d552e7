--- Line breaking as in Python's textwrap, for the wordwrap filter.
-- Needs ane.jinja.limits and text. White space at line ends is dropped; tabs are kept. A chunk is a run of characters that
-- stays on one line if it can: { first, last } are its positions in the table of characters, `blank` marks white space.
-- The cost is linear in the length of the line, whatever the width.
-- Usage: `wrap.lines(rt, "a long line", 6, true, true) --> { "a long", "line" }`

local limits = require "ane.jinja.limits"
local text = require "ane.jinja.text"

local M = {}

local TEXT_SPACE = { ["\t"] = true, ["\n"] = true, ["\v"] = true, ["\f"] = true, ["\r"] = true, [" "] = true }

local function is_letter(c)
  return c ~= nil and text.class.word(c) and not text.class.decimal(c)
end

-- May a line end after the hyphen at i? Yes between words of at least two letters ("so-called", not "e-mail"), and before a
-- dash.
local function breaks_after(chars, i, first, last)
  if i == first or i >= last then return false end
  if chars[i + 1] == "-" then return false end
  local before = is_letter(chars[i - 1]) and (is_letter(chars[i - 2]) or chars[i - 2] == "-" and is_letter(chars[i - 3]))
  local after = is_letter(chars[i + 1]) and (is_letter(chars[i + 2]) or chars[i + 2] == "-" and is_letter(chars[i + 3]))
  return before and after
end

local DASH_FRIEND = { ["!"] = true, ['"'] = true, ["'"] = true, ["&"] = true, ["."] = true, [","] = true, ["?"] = true }

-- The length of the dash at i, a run of at least two hyphens between words and a chunk of its own; or nil.
local function dash_at(chars, i, last)
  local before = chars[i - 1]
  if chars[i] ~= "-" or not before or not (text.class.word(before) or DASH_FRIEND[before]) then return nil end
  local n = 1
  while chars[i + n] == "-" and i + n <= last do n = n + 1 end
  local after = chars[i + n]
  if n < 2 or not after or i + n > last then return nil end
  return text.class.word(after) and n or nil
end

local function split_word(chars, first, last, hyphens, add)
  local from, i = first, first
  while i <= last do
    local dash = hyphens and i > first and dash_at(chars, i, last)
    if dash then
      if i > from then add(from, i - 1) end
      add(i, i + dash - 1)
      from = i + dash
      i = from
    else
      if hyphens and chars[i] == "-" and breaks_after(chars, i, from, last) then
        add(from, i)
        from = i + 1
      end
      i = i + 1
    end
  end
  if from <= last then add(from, last) end
end

local function chunks_of(rt, chars, hyphens)
  local out, n = {}, #chars
  local function add(from, to, blank)
    limits.tick(rt)
    limits.make(rt, 2 * limits.OBJECT)
    out[#out + 1] = { first = from, last = to, blank = blank }
  end
  local i = 1
  while i <= n do
    local blank, j = TEXT_SPACE[chars[i]] == true, i
    while j < n and (TEXT_SPACE[chars[j + 1]] == true) == blank do j = j + 1 end
    if blank then add(i, j, true) else split_word(chars, i, j, hyphens, add) end
    i = j + 1
  end
  return out
end

-- Where to cut a chunk from `first` on that has more than `room` characters: the position after the last hyphen within the
-- room, if something other than hyphens stands before that hyphen, else the end of the room.
local function cut_of(chars, first, room, hyphens)
  if not hyphens then return first + room end
  local hyphen = first + room - 1
  while hyphen > first and chars[hyphen] ~= "-" do hyphen = hyphen - 1 end
  for i = first, hyphen - 1 do
    if chars[i] ~= "-" then return hyphen + 1 end
  end
  return first + room
end

local function length(chunk)
  return chunk.last - chunk.first + 1
end

--- The lines of one line of text; width in characters.
function M.lines(rt, line, width, break_long_words, hyphens)
  limits.walk(rt, 3 * #line)
  limits.spare(rt, #line * limits.ITEM)
  local chars, out, i = text.characters(line), {}, 1
  local chunks = chunks_of(rt, chars, hyphens)
  while chunks[i] do
    limits.tick(rt)
    if chunks[i].blank and #out > 0 then i = i + 1 end
    -- The new line is characters from..to; last_blank is the first character of its last chunk if that is white space.
    local size, from, to, last_blank = 0, chunks[i] and chunks[i].first, nil, nil
    while chunks[i] and size + length(chunks[i]) <= width do
      local chunk = chunks[i]
      size, to, last_blank = size + length(chunk), chunk.last, chunk.blank and chunk.first
      i = i + 1
    end
    local chunk = chunks[i]
    if chunk and length(chunk) > width then
      if break_long_words then
        -- Without room this takes no characters, and like textwrap keeps the white space before it.
        chunk.first = cut_of(chars, chunk.first, width - size, hyphens)
        to, last_blank = chunk.first - 1, nil
      elseif not to then
        to, last_blank = chunk.last, chunk.blank and chunk.first
        i = i + 1
      end
    end
    if last_blank then to = last_blank - 1 end
    if to and to >= from then
      local s = table.concat(chars, "", from, to)
      limits.make(rt, #s + limits.OBJECT)
      out[#out + 1] = s
    end
  end
  return out
end

return M
