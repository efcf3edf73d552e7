--- A mock model that replies with a script, for specs of the code around a model.
-- Token ids are the bytes of texts; 256 ends a reply; ids from 257 on may stand for words.
-- Usage: `local session = scripted.session("abc", {context = 100}); local tokenizer = scripted.tokenizer()`

local core = require "ane.core"

local M = {}

--- The id that ends a reply.
M.EOS = 256

local VOCAB = 300

--- Ids of a text.
function M.ids(text) return { text:byte(1, -1) } end

-- ---- Tokenizer --------------------------------------------------------------------------------------------------------

local Tokenizer, Stream = {}, {}
Tokenizer.__index, Stream.__index = Tokenizer, Stream

--- A tokenizer of bytes.
-- @param words list of texts, for the ids from 257 on
function M.tokenizer(words)
  return setmetatable({ eos = M.EOS, eos_ids = { M.EOS }, chat_templates = {}, words = words or {} }, Tokenizer)
end

function Tokenizer:token(id)
  if id == M.EOS then return "" end
  return id > M.EOS and (self.words[id - M.EOS] or "?") or string.char(id)
end

function Tokenizer:stream()
  return setmetatable({ tokenizer = self, held = "" }, Stream)
end

-- Holds back the bytes of a character that is not complete.
function Stream:push(id)
  local text = self.held .. self.tokenizer:token(id)
  local _, bad = utf8.len(text)
  self.held = bad and #text - bad < 3 and text:sub(bad) or ""
  return text:sub(1, #text - #self.held)
end

function Stream:flush()
  local text = self.held
  self.held = ""
  return text
end

-- ---- Session ----------------------------------------------------------------------------------------------------------

local Session = {}
Session.__index = Session

--- A session whose best token, n tokens after the prompt, is the n-th id of the script; after the script it is EOS.
-- `fed` lists the feeds: {n = tokens, want =}; with `fail` set to a message, feeds fail.
-- @param script a text or a list of ids
-- @param opts context; prompt = length of the prompt (else the length of the first feed)
function M.session(script, opts)
  return setmetatable({
    script = type(script) == "string" and M.ids(script) or script, length = 0, ids = {}, fed = {},
    context = opts and opts.context or 1000, prompt = opts and opts.prompt,
  }, Session)
end

function Session:feed(ids, opts)
  ids = type(ids) == "table" and ids or { ids }
  if self.stopped then
    self.stopped, self.stopping = nil, nil
    return nil, "stopped", "stopped"
  end
  if self.fail then return nil, self.fail, "memory" end
  table.move(ids, 1, #ids, #self.ids + 1, self.ids)
  self.length = #self.ids
  self.prompt = self.prompt or self.length
  self.row_count = #ids
  table.insert(self.fed, { n = #ids, want = opts.want })
  if opts.progress then opts.progress("prefill", #ids, #ids) end
  return true
end

function Session:argmax(row)
  assert(self.row_count, "no rows after a rewind")
  local behind = row and row > 0 and self.row_count - row or 0
  return self.script[self.length - behind - self.prompt + 1] or M.EOS, 10.0
end

function Session:logits(row)
  local t = core.tensor { VOCAB }
  t:set(self:argmax(row) + 1, 10)
  return t
end

function Session:recall()
  if self.row_count then return true end
  local last = self.ids[self.length]
  self:rewind(self.length - 1)
  return self:feed(last, { want = "last" })
end

function Session:rewind(n)
  self.ids = table.move(self.ids, 1, n, 1, {})
  self.length, self.row_count = n, nil
  return true
end

function Session:stop() self.stopped, self.stopping = true, true end

return M
