--- The orders of rank 0 to the other ranks of a pipeline: encoding and decoding.
-- Needs nothing. Usage: `team:tell("C", orders.run(groups)); local groups = orders.read_run(text)`
--
-- An order is a letter and its fields. I: report memory and speed (1: measure the speed); M: load a model (JSON); O: open a session;
-- R: run; Z: rewind; P: part; F: fork; S: save; L: restore; D: close a session; Q: close the model; T: measure a link.
-- Other messages: A, values for the next stage; N, hidden states of the output rows for the parts of the head; V, rows for rank 0; K, a
-- reply.

local M = {}

local WANTS = { "none", "last", "all", "argmax" }
local NUMBER_OF = {}
for i, want in ipairs(WANTS) do NUMBER_OF[want] = i end

--- Formats (string.pack) of the orders with fixed fields. The number of the session is the first field, if there is one.
M.fields = {
  O = "<I8I8s4", Z = "<I8I8", P = "<I8I8", F = "<I8I8", S = "<I8s4", L = "<I8I8s4s4", D = "<I8", Q = "", M = "<s4", I = "B", T = "<I4",
}

--- An order with fixed fields.
function M.pack(letter, ...) return letter .. M.fields[letter]:pack(...) end

--- The letter and the fields of such an order.
function M.unpack(text)
  local letter = text:sub(1, 1)
  return letter, M.fields[letter]:unpack(text, 2)
end

-- ---- Runs --------------------------------------------------------------------------------------------------------------------

-- Minimum and maximum tokens of a piece of a long feed. Longer pieces take no less time per token.
local PIECE, LONG_PIECE = 64, 128

--- Maximum tokens of a group. The scratch memory of a rank has room for as many. Programs with divided rows are as fast with it as with
-- 512, or faster, because what the ranks exchange then stays in their caches.
M.GROUP = 256

--- Tokens of a piece of one prompt. A prompt is fed in runs of at most 512 tokens, so its pieces have the minimum.
M.PIECE = PIECE

-- The number of pieces that a long run should have. On n stages, a run of g groups takes (g + n - 1) / g of the time that it would take
-- if all stages were busy from the start. With g = 8 n the difference is at most 1/8.
local function groups_wanted(stages) return 8 * stages end

-- Appends an item to a list in pieces of at most `size` tokens. Each piece has the item's `upto`.
local function pieces_of(item, size, list)
  local ids, upto = item.ids, item.upto
  for first = 1, #ids, size do
    local last = math.min(first + size - 1, #ids)
    local want = item.want == "last" and last < #ids and "none" or item.want
    list[#list + 1] = { id = item.id, ids = table.move(ids, first, last, 1, {}), upto = upto, want = want }
  end
end

--- Divides a run into groups. A group passes from stage to stage while earlier stages compute the groups after it.
-- @param items list of {id (of the session), ids, want, upto (length of the session at the end of its feed)}
-- @param stages number of them
-- @param whole true: items are not divided (models whose tokens see later ones)
-- @param together true: other runs follow immediately and keep the stages busy, so short feeds share a group, which reads the weights
-- once for all of them
-- @return list of lists of {id, ids, upto, want}
function M.groups(items, stages, whole, together)
  local tokens = 0
  for _, item in ipairs(items) do tokens = tokens + #item.ids end
  local size = math.min(math.max(math.ceil(tokens / groups_wanted(stages)), #items > 1 and 1 or PIECE), LONG_PIECE)
  local pieces = {}
  for _, item in ipairs(items) do
    if not whole and #item.ids > math.max(size, PIECE) then
      pieces_of(item, math.max(size, PIECE), pieces)
    else
      pieces[#pieces + 1] = item
    end
  end
  -- Pieces of one session are in different groups. A group of several pieces has at most `share` tokens. `share` is at least `size`,
  -- because each group reads all weights.
  local share = size
  if #items > 1 then share = math.max(size, math.ceil(tokens / math.min(stages, #items))) end
  if together then share = math.max(share, PIECE) end
  share = math.min(share, M.GROUP)
  local groups, count, seen = { {} }, 0, {}
  for _, piece in ipairs(pieces) do
    if count > 0 and (count + #piece.ids > share or seen[piece.id]) then
      groups[#groups + 1], count, seen = {}, 0, {}
    end
    table.insert(groups[#groups], piece)
    count, seen[piece.id] = count + #piece.ids, true
  end
  return groups
end

--- Returns whether a group has output rows.
function M.has_rows(group)
  for _, item in ipairs(group) do
    if item.want ~= "none" then return true end
  end
  return false
end

--- The order of a run.
function M.run(groups)
  local out = { ("<I4"):pack(#groups) }
  for _, group in ipairs(groups) do
    out[#out + 1] = ("<I4"):pack(#group)
    for _, item in ipairs(group) do
      local n = #item.ids
      out[#out + 1] = ("<I8BI8I4"):pack(item.id, NUMBER_OF[item.want], item.upto, n)
      for i = 1, n, 200 do
        local last = math.min(i + 199, n)
        out[#out + 1] = ("<" .. ("i4"):rep(last - i + 1)):pack(table.unpack(item.ids, i, last))
      end
    end
  end
  return "R" .. table.concat(out)
end

--- The groups of such an order.
function M.read_run(text)
  local groups, count, at = {}, ("<I4"):unpack(text, 2)
  for g = 1, count do
    local n
    groups[g], n, at = {}, ("<I4"):unpack(text, at)
    for i = 1, n do
      local item, want, tokens = { ids = {} }
      item.id, want, item.upto, tokens, at = ("<I8BI8I4"):unpack(text, at)
      item.want = WANTS[want]
      for j = 1, tokens do item.ids[j], at = ("<i4"):unpack(text, at) end
      groups[g][i] = item
    end
  end
  return groups
end

-- ---- Rows ----------------------------------------------------------------------------------------------------------------------

--- The output rows of a group, in order.
-- @return list of booleans (true: the logits are wanted; false: only the best id); list of the sessions' numbers
function M.wanted(group)
  local keeps, ids = {}, {}
  for _, item in ipairs(group) do
    local n = item.want == "none" and 0 or item.want == "last" and 1 or #item.ids
    for _ = 1, n do keeps[#keeps + 1], ids[#ids + 1] = item.want ~= "argmax", item.id end
  end
  return keeps, ids
end

--- The rows that a group has left in the sessions of the last stage.
-- @param group of a run
-- @param session function(id) -> session of the core
-- @return list of {id, value, logits (bytes; nil: they are not wanted)}
function M.rows_of(group, session)
  local list = {}
  for _, item in ipairs(group) do
    local s = session(item.id)
    for i = 1, item.want == "none" and 0 or s:rows() do
      local id, value = s:argmax(i)
      list[#list + 1] = { id = id, value = value, logits = item.want ~= "argmax" and s:logits(i):tostring() or nil }
    end
  end
  return list
end

--- Such rows as bytes.
function M.rows(list)
  local out = {}
  for _, row in ipairs(list) do out[#out + 1] = ("<i4fs4"):pack(row.id, row.value, row.logits or "") end
  return table.concat(out)
end

--- The rows that bytes hold.
function M.read_rows(text)
  local list, at = {}, 1
  while at <= #text do
    local row = {}
    row.id, row.value, row.logits, at = ("<i4fs4"):unpack(text, at)
    if row.logits == "" then row.logits = nil end
    list[#list + 1] = row
  end
  return list
end

return M
