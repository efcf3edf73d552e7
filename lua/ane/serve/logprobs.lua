--- Log probabilities in OpenAI's forms.
-- Needs ane.core. An entry is of result.logprobs: {id, logprob, top = list of pairs}; the first token of a text has no logprob.
-- Usage: `choice.logprobs = { content = logprobs.chat(tokenizer, entries), refusal = core.null }`

local core = require "ane.core"

local M = {}

-- JSON has no infinity, so the API's smallest number replaces it.
local function finite(x) return x < -9999 and -9999.0 or x end

local function token_of(tokenizer, id, logprob)
  local text = tokenizer:token(id) or ""
  return { token = text, logprob = finite(logprob), bytes = core.json_array { text:byte(1, -1) } }
end

--- The form of chats: a list of {token, logprob, bytes, top_logprobs}.
-- @param first, last indices into the list of entries
function M.chat(tokenizer, entries, first, last)
  local list = core.json_array()
  for i = first or 1, last or #entries do
    local entry = entries[i]
    local one = token_of(tokenizer, entry.id, entry.logprob)
    one.top_logprobs = core.json_array()
    for k, other in ipairs(entry.top or {}) do one.top_logprobs[k] = token_of(tokenizer, other[1], other[2]) end
    list[#list + 1] = one
  end
  return list
end

-- A token as a name in JSON. One that is not UTF-8 is written as OpenAI does, bytes:\xf0\x9f, so that names differ.
local function name_of(text)
  if utf8.len(text) then return text end
  return "bytes:" .. text:gsub(".", function(c) return ("\\x%02x"):format(c:byte()) end)
end

-- The number of characters that a text has in JSON, where U+FFFD replaces invalid UTF-8.
local function characters(text) return utf8.len(text) or utf8.len(core.json_decode(core.json_encode(text))) end

local TextOffset = {}
TextOffset.__index = TextOffset

-- Continues with the tokens of a reply, whose control tokens have no text.
local function begin_reply(self)
  if self.decoder then self.offset = self.offset + characters(self.decoder:flush()) end
  self.decoder = self.tokenizer:stream { skip_special = true }
  self.decoder:push(self.prompt[#self.prompt]) -- as in ane.generate
end

--- A counter of the characters of a completion's text, for the field text_offset.
-- @param prompt ids
-- @param echoed number of the tokens of the prompt that precede those of the reply
function M.text_offset(tokenizer, prompt, echoed)
  local decoder = echoed > 0 and tokenizer:stream() or nil
  return setmetatable({ tokenizer = tokenizer, prompt = prompt, left = echoed, decoder = decoder, offset = 0 }, TextOffset)
end

--- Takes the next token.
-- @return characters of text before it. A token that continues a character has the offset of that character
function TextOffset:take(id)
  if self.left == 0 then begin_reply(self) end
  self.left = self.left - 1
  local offset = self.offset
  self.offset = offset + characters(self.decoder:push(id))
  return offset
end

--- The form of completions: {tokens, token_logprobs, top_logprobs, text_offset}.
-- @param first index of the first entry
-- @param text_offset counter of M.text_offset, which has taken the tokens before that entry
function M.completion(tokenizer, entries, first, text_offset)
  local out = {
    tokens = core.json_array(), token_logprobs = core.json_array(), top_logprobs = core.json_array(), text_offset = core.json_array(),
  }
  for i = first, #entries do
    local entry, n = entries[i], #out.tokens + 1
    out.tokens[n], out.text_offset[n] = name_of(tokenizer:token(entry.id) or ""), text_offset:take(entry.id)
    out.token_logprobs[n] = entry.logprob and finite(entry.logprob) or core.null
    local top = core.json_object()
    for _, other in ipairs(entry.top or {}) do
      top[name_of(tokenizer:token(other[1]) or "")] = finite(other[2])
    end
    -- As in OpenAI's API, the chosen token is among them, also where it is not one of the best.
    if entry.logprob then top[out.tokens[n]] = out.token_logprobs[n] end
    out.top_logprobs[n] = entry.logprob and top or core.null
  end
  return out
end

return M
