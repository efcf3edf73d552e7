--- `ane rerank`: a score for each line of standard input.
-- Needs ane.cli.common, ane.cli.options and ane.embed.rerank.

local common = require "ane.cli.common"
local options = require "ane.cli.options"
local rerank = require "ane.embed.rerank"

local M = {}

M.summary = "Score each line of standard input as an answer to a query."
M.excludes = { { "ids", "instruction", "max_length", "special" } }

function M.options(parser)
  options.model(parser)
  options.add(parser, "-q --query", "The query.", rerank.rules.instruction):argname "TEXT"
  options.add(parser, "--instruction", "Task description, for models that take an instruction.", rerank.rules.instruction)
    :argname "TEXT"
  options.add(parser, "--ids", "Score these token ids, which hold query and document: 1,2,3. May be given several times.",
    options.ids):count "*":argname "IDS"
  options.add(parser, "--max-length", "Truncate each pair to N tokens.", rerank.rules.max_length):argname "N"
  parser:flag("--raw", "Show scores before sigmoid or softmax.")
  parser:flag("--special", "Read the spellings of control tokens in the texts as those tokens.")
  options.json(parser)
end

-- Scores as a JSON array, of arrays if a document has several.
local function listed(scores)
  local out = {}
  for i, score in ipairs(scores) do out[i] = type(score) == "table" and common.list(score) or score end
  return common.list(out)
end

function M.run(args)
  local ids = args.ids and #args.ids > 0 and args.ids
  if not ids and not args.query then return options.wrong "give --query or --ids" end
  if ids and args.query then return options.wrong "--ids cannot be combined with --query: the ids contain the query" end
  local model <close>, message = common.load(args, nil, nil, rerank.prepare)
  if not model then return nil, message end
  local documents = ids
  if not documents then
    documents, message = common.lines()
    if not documents then return nil, message end
  end
  local opts = { instruction = args.instruction, max_length = args.max_length, raw = args.raw, special = args.special,
    details = true }
  local result
  result, message = model:rerank(args.query, documents, opts)
  if not result then return nil, message end
  if result.truncated > 0 then
    local most = 0
    for _, n in ipairs(result.tokens) do most = math.max(most, n) end
    common.remark(args, "%d of %d pairs were truncated to %d tokens", result.truncated, #result.tokens, most)
  end
  if args.json then
    return common.print_json { scores = listed(result.scores), tokens = common.list(result.tokens), truncated = result.truncated }
  end
  for place = 1, #documents do
    local i = result.order and result.order[place] or place
    for _, score in ipairs(result.order and { result.scores[i] } or result.scores[i]) do io.stdout:write(("%10.4f"):format(score)) end
    io.stdout:write("  ", ids and table.concat(documents[i], ",") or documents[i], "\n")
  end
  return true
end

return M
