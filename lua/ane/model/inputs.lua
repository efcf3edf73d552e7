--- Texts for calibration that a model must first make: its own samples, and chats through its template.
-- Needs ane.model.windows, ane.util.nested and ane.util.schema; and ane.model.samples and ane.generate.chat if they are asked for.
-- Usage:
--   local input, message, code = inputs.resolve(model, {samples = 8192})

local nested = require "ane.util.nested"
local schema = require "ane.util.schema"
local windows = require "ane.model.windows"

local M = {}

--- Most samples, in tokens; more take days.
M.MOST_SAMPLES = 1 << 20

local function draw(model, count, progress, most)
  if math.type(count) ~= "integer" or count < 1 or count > M.MOST_SAMPLES then
    return nil, ("samples must be an integer, 1 .. %d, but is %s"):format(M.MOST_SAMPLES, schema.shown(count)), "invalid"
  end
  return require("ane.model.samples").draw(model, math.max(2, math.min(count, most or count)), progress)
end

-- A chat is a list of messages, or a table with `messages`.
local function encode(model, chats)
  local fault = nested.fault(chats)
  if fault then return nil, "the list of chats " .. fault, "invalid" end
  if type(chats) ~= "table" or #chats == 0 then return nil, "chats must be a list of conversations, at least one", "invalid" end
  local lists = {}
  for i, one in ipairs(chats) do
    local own = type(one) == "table" and (one.messages and one or { messages = one }) or {}
    if type(own.messages) ~= "table" or #own.messages == 0 then
      return nil, ("chat %d must be a list of messages, or a table that has one as messages"):format(i), "invalid"
    end
    local ids, message, code = require("ane.generate.chat").encode(model.tokenizer, own.messages, {
      tools = own.tools, documents = own.documents, template_vars = own.template_vars, add_generation_prompt = false,
    })
    if not ids then return nil, ("chat %d: %s"):format(i, message), code end
    lists[i] = ids
  end
  return lists
end

-- Tokens of a piece of text, when pieces alternate with samples.
local PIECE = 512

--- Alternates between texts and samples: the kind with fewer tokens so far comes next. A reader that stops at some number of tokens
-- has read both.
-- @param input a text, a list of ids, or a list of those
-- @param samples list of lists of ids
-- @return list of lists of ids; or nil, message, code
function M.mix(model, input, samples)
  local pieces, message, code = windows.split(model, input, PIECE)
  if not pieces then return nil, message, code end
  local sides, out = { { list = pieces, at = 1, n = 0 }, { list = samples, at = 1, n = 0 } }, {}
  while true do
    local a, b = sides[1], sides[2]
    local side = (not b.list[b.at] or (a.list[a.at] and a.n <= b.n)) and a or b
    local ids = side.list[side.at]
    if not ids then return out end
    out[#out + 1], side.at, side.n = ids, side.at + 1, side.n + #ids
  end
end

-- Most samples beside a short text.
local MOST_BESIDE = 16384

--- The number of tokens that a model should write to complete an input of few tokens. A model that is rounded for a short text alone
-- loses more on other texts (bench/results/quantising.md, "Samples beside a short text").
-- @param input a text, a list of ids, or a list of those
-- @param wanted tokens that are read
-- @return the number, 0: none; or nil, message, code
function M.missing_samples(model, input, wanted)
  local pieces, message, code = windows.split(model, input, PIECE, wanted)
  if not pieces then return nil, message, code end
  local count = 0
  for _, ids in ipairs(pieces) do count = count + #ids end
  local missing = math.min(wanted - count, MOST_BESIDE)
  return missing >= PIECE and missing or 0
end

--- Turns an input for calibration into texts and ids.
-- @param model a generative model; it must stay open
-- @param input a text, a list of ids, or a list of those: returned as it is; {samples = N}: texts of N tokens that the model writes
-- itself (ane.model.samples); {chats = list}: conversations, each a list of messages or {messages, tools, documents, template_vars};
-- samples beside texts or chats alternate with them
-- @param progress function(stage, done, total), or nil
-- @param most tokens that are read: no more samples are drawn; nil: as many as are asked for
-- @return a text, a list of ids, or a list of those; or nil, message, code
function M.resolve(model, input, progress, most)
  if input == "" then return nil, "the text is empty", "invalid" end
  if type(input) ~= "table" or (input.samples == nil and input.chats == nil) then return input end
  if input.chats ~= nil and #input > 0 then return nil, "texts cannot be combined with chats", "invalid" end
  local own, message, code
  if input.chats ~= nil then
    own, message, code = encode(model, input.chats)
    if not own or input.samples == nil then return own, message, code end
  elseif #input > 0 then
    own = table.move(input, 1, #input, 1, {}) -- without samples
    if math.type(own[1]) == "integer" then own = { own } end
  end
  local lists
  lists, message, code = draw(model, input.samples, progress, most)
  if not lists or not own then return lists, message, code end
  return M.mix(model, own, lists)
end

return M
