--- Breaking a line of text as Python's textwrap does, for the wordwrap filter.
-- Needs ane.jinja.limits and text. White space at the ends of lines is dropped, tabs are kept.
-- Usage: `wrap.lines(rt, "a long line", 6, true, true) --> { "a long", "line" }`

local limits = require "ane.jinja.limits"
local text = require "ane.jinja.text"

local M = {}

local TEXT_SPACE = { ["\t"] = true, ["\n"] = true, ["\v"] = true, ["\f"] = true, ["\r"] = true, [" "] = true }

local function is_letter(c)
  return c ~= nil and text.class.word(c) and not text.class.decimal(c)
end

-- May a line end after the hyphen at i? Between words of two letters or more ("so-called", "e-mail" not), and before a dash.
local function breaks_after(chars, i, first, last)
  if i == first or i >= last then return false end
  if chars[i + 1] == "-" then return false end
  local before = is_letter(chars[i - 1]) and (is_letter(chars[i - 2]) or chars[i - 2] == "-" and is_letter(chars[i - 3]))
  local after = is_letter(chars[i + 1]) and (is_letter(chars[i + 2]) or chars[i + 2] == "-" and is_letter(chars[i + 3]))
  return before and after
end

local DASH_FRIEND = { ["!"] = true, ['"'] = true, ["'"] = true, ["&"] = true, ["."] = true, [","] = true, ["?"] = true }

-- A run of two hyphens or more between words is a chunk of its own; its length, or nil.
local function dash_at(chars, i, last)
  local n = 0
  while chars[i + n] == "-" and i + n <= last do n = n + 1 end
  local before, after = chars[i - 1], chars[i + n]
  if n < 2 or not before or not after or i + n > last then return nil end
  if (text.class.word(before) or DASH_FRIEND[before]) and text.class.word(after) then return n end
  return nil
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

-- Chunks that a line may be broken between: { text, length, blank }.
local function chunks_of(line, hyphens)
  local chars, out = text.characters(line), {}
  local function add(from, to, blank)
    out[#out + 1] = { text = table.concat(chars, "", from, to), length = to - from + 1, blank = blank }
  end
  local i = 1
  while i <= #chars do
    local blank, j = TEXT_SPACE[chars[i]] == true, i
    while j < #chars and (TEXT_SPACE[chars[j + 1]] == true) == blank do j = j + 1 end
    if blank then add(i, j, true) else split_word(chars, i, j, hyphens, add) end
    i = j + 1
  end
  return out
end

-- A chunk longer than a line: as much of it as there is room for, after a hyphen if there is one.
local function take_part(chunk, room, hyphens)
  local cut = room
  if hyphens then
    local hyphen = text.slice(chunk.text, 0, room):match("^.*()%-")
    local before = hyphen and chunk.text:sub(1, hyphen - 1)
    if before and before:find("[^-]") then cut = text.length(before) + 1 end
  end
  local part = text.slice(chunk.text, 0, cut)
  chunk.text, chunk.length = chunk.text:sub(#part + 1), chunk.length - cut
  return { text = part, length = cut }
end

--- The lines of one line of text.
function M.lines(rt, line, width, break_long_words, hyphens)
  local chunks, out, i = chunks_of(line, hyphens), {}, 1
  while chunks[i] do
    limits.tick(rt)
    local current, size = {}, 0
    if chunks[i].blank and #out > 0 then i = i + 1 end
    while chunks[i] and size + chunks[i].length <= width do
      current[#current + 1], size = chunks[i], size + chunks[i].length
      i = i + 1
    end
    if chunks[i] and chunks[i].length > width then
      if break_long_words then
        -- With no room left this is an empty part, which keeps textwrap from dropping the white space before it.
        current[#current + 1] = take_part(chunks[i], width - size, hyphens)
      elseif #current == 0 then
        current[1] = chunks[i]
        i = i + 1
      end
    end
    if #current > 0 and current[#current].blank then current[#current] = nil end
    if #current > 0 then
      for k, chunk in ipairs(current) do current[k] = chunk.text end
      out[#out + 1] = table.concat(current)
    end
  end
  return out
end

return M
