--- Applies a grammar to a reply: which tokens are allowed, which are forced, and whether the reply is complete.
-- Needs ane.core. The trie of a vocabulary is built once per tokenizer.
-- Usage: `local c = assert(constrain.start(grammar, tokenizer, ends)); if c:accept(id) then ... end`

local core = require "ane.core"

local M = {}

local Constraint = {}
Constraint.__index = Constraint
Constraint.__name = "ane.constraint"

local trees = setmetatable({}, { __mode = "k" })

-- Returns the trie of a tokenizer's vocabulary. Of the control tokens it contains only those that `spelled` lists.
local function tree_of(tokenizer, spelled)
  local raw, key = tokenizer._raw, table.concat(spelled, "\0")
  trees[raw] = trees[raw] or {}
  if not trees[raw][key] then
    local tree, message, code = core.token_tree(raw, spelled)
    if not tree then return nil, message, code end
    trees[raw][key] = tree
  end
  return trees[raw][key]
end

--- Begins a reply.
-- @param grammar of ane.grammar
-- @param tokenizer whose tokens the reply consists of
-- @param ends set of the ids that end a reply: they are allowed only where the grammar accepts the text as complete
-- @param spelled list of control tokens that count as the text which spells them; default: none
-- @return a constraint; or nil, message, code
function M.start(grammar, tokenizer, ends, spelled)
  spelled = spelled or {}
  local tree, message, code = tree_of(tokenizer, spelled)
  if not tree then return nil, message, code end
  local matcher
  matcher, message, code = grammar:matcher()
  if not matcher then return nil, message, code end
  local controls = {}
  for _, piece in ipairs(spelled) do controls[tokenizer:id(piece)] = piece end
  return setmetatable({
    matcher = matcher, tree = tree, tokenizer = tokenizer, ends = ends, controls = controls, forced = {},
  }, Constraint)
end

--- Returns the text of a token, or nil if the token is never allowed in a reply.
function Constraint:spell(id)
  if self.controls[id] then return self.controls[id] end
  local kind = self.tokenizer:token_type(id)
  if kind ~= "normal" and kind ~= "user" and kind ~= "byte" then return nil end
  local bytes = self.tokenizer:token(id)
  return bytes ~= "" and bytes or nil
end

--- Accepts a chosen token if it is allowed.
-- @return whether it is allowed; or nil, message, code
function Constraint:accept(id)
  if self.ends[id] then return self.matcher:accepts() end
  local bytes = self:spell(id)
  return bytes ~= nil and self.matcher:push(bytes, true)
end

--- Bans the tokens that are not allowed: sets their logits to minus infinity.
-- @return true; or nil, message, code, also if no token is allowed
function Constraint:mask(logits)
  local n, message, code = self.matcher:mask(self.tree, logits, self.ends)
  if not n then return nil, message, code end
  if n == 0 and not (next(self.ends) and self.matcher:accepts()) then
    return nil, "option grammar: the text so far is not complete, and no token of the vocabulary can continue it", "unsupported"
  end
  return true
end

--- Returns the tokens that are allowed, for the search of the best one.
-- @param n ids of the mask
-- @return a mask, valid until the next call; false: search without one; nil, message, code
function Constraint:allowed(n)
  self._mask = self._mask or core.mask(n)
  local count, message, code = self.matcher:allow(self.tree, self._mask, self.ends)
  if not count then return nil, message, code end
  return count > 0 and self._mask
end

--- Returns whether the text is complete.
function Constraint:complete() return self.matcher:accepts() end

--- Returns whether the text is complete and nothing may follow it.
function Constraint:finished() return self.matcher:finished() end

--- Takes the next token that the grammar forces, without a run of the model. The last token of a forced text is left out,
-- because the text after it may belong to the same token.
-- @return id or nil
function Constraint:next_forced()
  if #self.forced == 0 then
    local text = self.matcher:forced()
    if not text or #text < 2 then return nil end
    local ids = self.tokenizer:encode(text, { bos = false, eos = false, special = next(self.controls) ~= nil })
    if not ids or #ids < 2 then return nil end
    for i = #ids - 1, 1, -1 do self.forced[#self.forced + 1] = ids[i] end
  end
  local id = table.remove(self.forced)
  if self:accept(id) then return id end
  self.forced = {}
  return nil
end

return M
