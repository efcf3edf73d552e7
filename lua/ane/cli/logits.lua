--- `ane logits`: the best tokens at every position of a list of ids.
-- Needs ane.cli.common and ane.cli.options.

local common = require "ane.cli.common"
local options = require "ane.cli.options"

local M = {}

M.summary = "Show the best tokens and their logits at every position."
M.ranks = true

-- Logits of one feed are in memory at a time. Without --chunk a feed has as many positions as fit in this many bytes.
local MOST_BYTES = 32 << 20

function M.options(parser)
  options.model(parser)
  parser:mutex(
    options.add(parser, "--ids", "Token ids: 1,2,3.", options.ids):argname "IDS",
    parser:option("-p --prompt", "Text instead of ids."):argname "TEXT")
  options.add(parser, "--top", "Number of tokens to show for each position.", options.positive):default "10":argname "N"
  options.add(parser, "--chunk", "Number of ids to feed at a time.", options.positive):argname "C"
  options.json(parser)
end

local function collect(model, ids, top, chunk)
  local session <close>, failed = model:session()
  if not session then return nil, failed end
  local positions = {}
  local ok, message = session:feed(ids, {
    want = "all", chunk = chunk or math.max(1, MOST_BYTES // (4 * model.vocab)),
    each = function(s, _, count)
      for i = 1, count do positions[#positions + 1] = s:topk(top, i) end
    end,
  })
  if not ok then return nil, message end
  return positions
end

local function show(model, ids, positions)
  local function text(id)
    return model.tokenizer and common.quote(model.tokenizer:decode { id }) or ""
  end
  for i, best in ipairs(positions) do
    io.stdout:write(("%d: token %d %s\n"):format(i, ids[i], text(ids[i])))
    for _, pair in ipairs(best) do io.stdout:write(("  %8d %14.6f  %s\n"):format(pair[1], pair[2], text(pair[1]))) end
  end
  return true
end

function M.run(args)
  if not args.ids and not args.prompt then return options.wrong "give --ids or --prompt" end
  local extra = args.ids and not args.context and { context = #args.ids } or nil -- all that will be fed
  local model <close>, message = common.load(args, extra)
  if not model then return nil, message end
  local ids, positions = args.ids
  if not ids then
    if not model.tokenizer then return nil, "the model has no tokenizer: give --ids" end
    ids, message = model.tokenizer:encode(args.prompt)
    if not ids then return nil, message end
    if #ids == 0 then return options.wrong "--prompt has no tokens" end
  end
  positions, message = collect(model, ids, args.top, args.chunk)
  if not positions then return nil, message end
  if not args.json then return show(model, ids, positions) end
  for i, best in ipairs(positions) do
    for k, pair in ipairs(best) do best[k] = common.list(pair) end
    positions[i] = common.list(best)
  end
  return common.print_json { ids = common.list(ids), positions = common.list(positions) }
end

return M
