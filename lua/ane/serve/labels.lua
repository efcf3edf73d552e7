--- POST /classify and /redact, for token classifiers.
-- Needs ane.core and ane.serve.errors, fields. A text is computed in several turns of the server, one window of the model in each.

local core = require "ane.core"
local errors = require "ane.serve.errors"
local fields = require "ane.serve.fields"

local M = {}

--- The fields of POST /classify.
M.classify_rules = {
  model = { type = "string" },
  input = { type = "string", required = true },
  threshold = { type = "number", min = 0, max = 1 },
}

--- The fields of POST /redact.
M.redact_rules = fields.merge(M.classify_rules, { pseudonyms = { type = "boolean" } })

--- Spans for JSON: offsets are bytes from 0, the end excluded.
function M.spans_of(spans)
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
  local values = fields.check(M.classify_rules, body)
  server:check_model(values.model)
  server:work(call, function(pause)
    local spans, message, code = server.model:classify(values.input, { threshold = values.threshold, progress = pause })
    if not spans then error(errors.of(message, code, "input"), 0) end
    return { model = server.id, spans = M.spans_of(spans) }
  end)
end

--- POST /redact: {"text", "spans"}
function M.redact(server, call, body)
  local values = fields.check(M.redact_rules, body)
  server:check_model(values.model)
  server:work(call, function(pause)
    local opts = { threshold = values.threshold, pseudonyms = values.pseudonyms, progress = pause }
    local text, spans, code = server.model:redact(values.input, opts)
    if not text then error(errors.of(spans, code, "input"), 0) end
    return { model = server.id, text = text, spans = M.spans_of(spans) }
  end)
end

return M
