--- `ane run`: continues a prompt.
-- Needs ane.cli.common, ane.core, ane.model.profile and ane.jinja (JSON that keeps the order of keys, as templates see it).

local common = require "ane.cli.common"
local core = require "ane.core"
local profile = require "ane.model.profile"

local M = {}

M.summary = "Continue a prompt, a list of token ids or a list of messages."

function M.options(parser)
  common.model_options(parser)
  parser:mutex(
    parser:option("-p --prompt", "Text to continue."):argname "TEXT",
    parser:option("--ids", "Token ids to continue: 1,2,3."):convert(common.ids):argname "IDS",
    parser:option("--messages", "JSON file with a list of messages, for the chat template."):argname "FILE")
  parser:option("-n --max-tokens", "Most tokens of the reply."):convert(common.natural):argname "N"
  parser:flag("--ignore-eos", "Go on behind end tokens.")
  parser:flag("--special", "Control tokens spelled in the prompt are those tokens.")
  parser:option("--logprobs", "With --json: log probabilities of each token and the N best."):convert(common.natural):argname "N"
  common.sampling_options(parser)
  parser:flag("--timings --stats", "Show speed on standard error.")
  parser:flag("--profile", "Show on standard error where the time went, block by block, with GB/s and GOPS.")
  parser:flag("--json", "Write one JSON object.")
end

-- The prompt as model:generate takes it, and the options that come with it.
local function prompt_of(args)
  if args.prompt then return args.prompt, {} end
  if args.ids then return args.ids, {} end
  if not args.messages then return nil, "give one of --prompt, --ids, --messages" end
  local text, message = common.read(args.messages)
  if not text then return nil, message end
  local value
  value, message = require("ane.cli.messages").decode(text)
  if not value then return nil, args.messages .. ": " .. message end
  return value.messages, { tools = value.tools, documents = value.documents, template_vars = value.template_vars }
end

local function print_result(result)
  local out = {
    prompt_ids = common.list(result.prompt_ids), ids = common.list(result.ids), text = result.text or core.null,
    stop = result.stop, timings = result.timings, seed = result.seed, stop_string = result.stop_string,
  }
  if result.logprobs then out.logprobs = common.list(result.logprobs) end
  return common.print_json(out)
end

-- Counts the prefill apart from decoding: gives a function that shows both tables.
local function profiled(model, opts)
  local bar, prefill = opts.progress, nil
  function opts.progress(what, done, total)
    if bar then bar(what, done, total) end
    if done == total then prefill = assert(profile.take(model)) end
  end
  return function()
    if prefill then io.stderr:write("prefill\n", profile.text(prefill), "decode\n", profile.text(assert(profile.take(model)))) end
  end
end

local function stream(model, prompt, opts, args)
  local show_profile = args.profile and profiled(model, opts)
  local pieces <close>, message = model:stream(prompt, opts)
  if not pieces then return nil, message end
  for piece in pieces do
    io.stdout:write(piece, model.tokenizer and "" or " ")
    io.stdout:flush()
  end
  io.stdout:write "\n"
  io.stdout:flush() -- before what standard error says
  if args.timings then io.stderr:write("[", common.speed(pieces.result.timings, pieces.result.stop), "]\n") end
  if show_profile then show_profile() end
  return true
end

function M.run(args)
  local prompt, more = prompt_of(args)
  if not prompt then return nil, more end
  local model <close>, message = common.load(args)
  if not model then return nil, message end
  local opts = common.sampling(args)
  for key, value in pairs(more) do opts[key] = value end
  if args.profile then
    if args.json then return nil, "--profile and --json: choose one" end
    local ok
    ok, message = profile.start(model)
    if not ok then return nil, message end
  end
  opts.max_tokens, opts.ignore_eos, opts.special = args.max_tokens, args.ignore_eos, args.special
  opts.logprobs = args.json and args.logprobs or nil
  if not args.json then return stream(model, prompt, opts, args) end
  opts.details = true
  local result
  result, message = model:generate(prompt, opts)
  if not result then return nil, message end
  return print_result(result)
end

return M
