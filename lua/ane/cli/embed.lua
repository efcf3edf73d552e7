--- `ane embed`: a vector for each line of standard input.
-- Needs ane.cli.common, ane.cli.options and ane.embed.

local common = require "ane.cli.common"
local embed = require "ane.embed"
local options = require "ane.cli.options"

local M = {}

M.summary = "Compute an embedding of each line of standard input."
M.excludes = { { "ids", "prompt", "prefix", "max_length", "special" } }

function M.options(parser)
  options.model(parser)
  options.add(parser, "--ids", "Embed these token ids instead of texts: 1,2,3. May be given several times.", options.ids):count "*"
    :argname "IDS"
  options.add(parser, "--prompt", "Put the model's prompt of this name before each text.", embed.rules.prompt):argname "NAME"
  options.add(parser, "--prefix", "Put this text before each text.", embed.rules.prefix):argname "TEXT"
  options.add(parser, "--dims", "Keep the first N numbers of each vector.", embed.rules.dims):argname "N"
  options.add(parser, "--max-length", "Truncate each text to N tokens.", embed.rules.max_length):argname "N"
  parser:flag("--no-normalise", "Do not normalise vectors to length 1.")
  parser:flag("--special", "Read the spellings of control tokens in the texts as those tokens.")
  options.json(parser)
end

local function show(result)
  for i = 1, result.embeddings:shape()[1] do
    local row = result.embeddings[i]:totable()
    for k, x in ipairs(row) do row[k] = ("%.6g"):format(x) end
    io.stdout:write(table.concat(row, " "), "\n")
  end
  return true
end

function M.run(args)
  local model <close>, message = common.load(args, nil, nil, embed.prepare)
  if not model then return nil, message end
  local input = args.ids[1] and args.ids
  if not input then
    input, message = common.lines()
    if not input then return nil, message end
  end
  local result
  result, message = model:embed(input, {
    prompt = args.prompt, prefix = args.prefix, dims = args.dims, max_length = args.max_length,
    normalise = not args.no_normalise and nil, special = args.special, details = true,
  })
  if not result then return nil, message end
  if result.truncated > 0 then
    local most = 0
    for _, n in ipairs(result.tokens) do most = math.max(most, n) end
    common.remark(args, "%d of %d texts were truncated to %d tokens", result.truncated, #result.tokens, most)
  end
  if not args.json then return show(result) end
  local rows = {}
  for i = 1, result.embeddings:shape()[1] do rows[i] = common.list(result.embeddings[i]:totable()) end
  return common.print_json { embeddings = common.list(rows), dim = result.dim, tokens = common.list(result.tokens),
    truncated = result.truncated }
end

return M
