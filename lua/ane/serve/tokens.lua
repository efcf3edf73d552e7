--- POST /tokenize and /detokenize.
-- Needs ane.core and ane.serve.errors, fields.

local core = require "ane.core"
local errors = require "ane.serve.errors"
local fields = require "ane.serve.fields"

local M = {}

local TOKENIZE = {
  model = { type = "string" },
  content = { type = "string", required = true },
  add_special = { type = "boolean", default = false },
  parse_special = { type = "boolean", default = true },
  with_pieces = { type = "boolean", default = false },
}

local DETOKENIZE = { model = { type = "string" }, tokens = { list = true, required = true } }

local function tokenizer_of(server)
  return server.model.tokenizer or errors.raise(400, "the model has no tokenizer", { code = "unsupported" })
end

--- POST /tokenize: {"tokens": [ids]}, or with with_pieces [{"id", "piece"}]; a piece that is not UTF-8 is a list of bytes.
function M.tokenize(server, call, body)
  local values = fields.check(TOKENIZE, body)
  server:check_model(values.model)
  local tokenizer = tokenizer_of(server)
  local bos
  if not values.add_special then bos = false end
  local ids, message, code = tokenizer:encode(values.content, { special = values.parse_special, bos = bos, eos = false })
  if not ids then error(errors.of(message, code, "content"), 0) end
  local list = core.json_array()
  for i, id in ipairs(ids) do
    local piece = values.with_pieces and (tokenizer:token(id) or "")
    if piece and not utf8.len(piece) then piece = core.json_array { piece:byte(1, -1) } end
    list[i] = piece and { id = id, piece = piece } or id
  end
  call:json(200, { tokens = list })
end

--- POST /detokenize: {"content": text}; broken UTF-8 becomes U+FFFD.
function M.detokenize(server, call, body)
  local values = fields.check(DETOKENIZE, body)
  server:check_model(values.model)
  local tokenizer = tokenizer_of(server)
  for i, id in ipairs(values.tokens) do
    if math.type(id) ~= "integer" or id < 0 or id >= #tokenizer then
      fields.wrong(("tokens[%d]"):format(i - 1), "is not a token id of 0 .. %d", #tokenizer - 1)
    end
  end
  local text, message, code = tokenizer:decode(table.move(values.tokens, 1, #values.tokens, 1, {}), { utf8 = "replace" })
  if not text then error(errors.of(message, code, "tokens"), 0) end
  call:json(200, { content = text })
end

return M
