--- `ane classify`: labels of tokens, or spans in the text on standard input.
-- Needs ane.classify, ane.cli.common and ane.cli.options.

local classify = require "ane.classify"
local common = require "ane.cli.common"
local options = require "ane.cli.options"

local M = {}

M.summary = "Find labelled spans in the text on standard input, or label token ids."

function M.options(parser)
  options.model(parser)
  options.add(parser, "--ids", "Label these token ids instead of a text: 1,2,3.", options.ids):argname "IDS"
  options.add(parser, "--threshold", "Leave out spans with a lower score.", classify.rules.threshold):argname "P"
  options.add(parser, "--window", "Maximum tokens of one run.", classify.rules.window):argname "N"
  options.json(parser)
end

local function lists(tensor)
  local rows = {}
  for t = 1, tensor:shape()[1] do rows[t] = common.list(tensor[t]:totable()) end
  return common.list(rows)
end

-- Labels of ids: of each token by itself, of the best legal path, and the spans of that.
local function label_ids(model, args, opts)
  opts.details = true
  local result, message = model:classify(args.ids, opts)
  if not result then return nil, message end
  if args.json then
    return common.print_json {
      ids = common.list(args.ids), labels = common.list(result.labels), path = common.list(result.path),
      spans = common.list(result.spans), logits = lists(result.logits),
    }
  end
  for t, label in ipairs(result.labels) do io.stdout:write(("%8d  %-24s %s\n"):format(args.ids[t], label, result.path[t])) end
  return true
end

function M.run(args)
  local model <close>, message = common.load(args)
  if not model then return nil, message end
  local opts = { threshold = args.threshold, window = args.window }
  if args.ids then return label_ids(model, args, opts) end
  local text, spans
  text, message = common.read "-"
  if not text then return nil, message end
  spans, message = model:classify(text, opts)
  if not spans then return nil, message end
  if args.json then return common.print_json { spans = common.list(spans) } end
  for _, span in ipairs(spans) do
    io.stdout:write(("%8d-%-8d %-20s %.3f  %s\n"):format(span.start, span.stop, span.label, span.score, common.quote(span.text)))
  end
  return true
end

return M
