--- POST /classify and /redact, for token classifiers.
-- Needs ane.core and ane.serve.errors, fields. Each text is one call of the model, and other requests wait for it.

local core = require "ane.core"
local errors = require "ane.serve.errors"
local fields = require "ane.serve.fields"

local M = {}

local CLASSIFY = {
  model = { type = "string" },
  input = { type = "string", required = true },
  threshold = { type = "number", min = 0, max = 1 },
}

local REDACT = fields.merge(CLASSIFY, { pseudonyms = { type = "boolean", default = false } })

-- Spans for JSON: offsets are bytes from 0, the end excluded.
local function spans_of(spans)
  local list = core.json_array()
  for i, span in ipairs(spans) do
    list[i] = {
      label = span.label, start = span.start - 1, ["end"] = span.stop, text = span.text, score = span.score, replacement = span.replacement,
    }
  end
  return list
end

--- POST /classify: {"spans": [{"label", "start", "end", "text", "score"}]}
function M.classify(server, call, body)
  local values = fields.check(CLASSIFY, body)
  server:check_model(values.model)
  local spans, message, code = server.model:classify(values.input, { threshold = values.threshold })
  if not spans then error(errors.of(message, code, "input"), 0) end
  call:json(200, { model = server.id, spans = spans_of(spans) })
end

--- POST /redact: {"text", "spans"}
function M.redact(server, call, body)
  local values = fields.check(REDACT, body)
  server:check_model(values.model)
  local opts = { threshold = values.threshold, pseudonyms = values.pseudonyms or nil }
  local text, spans, code = server.model:redact(values.input, opts)
  if not text then error(errors.of(spans, code, "input"), 0) end
  call:json(200, { model = server.id, text = text, spans = spans_of(spans) })
end

return M
