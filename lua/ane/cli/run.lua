--- `ane run`: continues a prompt.
-- Needs ane.cli.common, ane.cli.messages, ane.cli.options, ane.cli.prompt_cache, ane.cli.relations, ane.core and ane.model.profile.

local common = require "ane.cli.common"
local core = require "ane.core"
local options = require "ane.cli.options"
local profile = require "ane.model.profile"
local prompt_cache = require "ane.cli.prompt_cache"
local relations = require "ane.cli.relations"

local M = {}

M.summary = "Continue a prompt, a list of token ids or a list of messages."
M.ranks = true
M.needs = { { "logprobs", "json" } }
M.excludes = { { "profile", "json" }, { "special", "ids" } }

function M.options(parser)
  options.model(parser)
  parser:mutex(
    parser:option("-p --prompt", "Text to continue; - is standard input, which is also the default. The last newline of a file or of "
      .. "standard input is dropped. If given several times, the prompts are computed together."):count "*":argname "TEXT",
    options.add(parser, "-f --file", "Text file to continue.", options.path):argname "FILE",
    options.add(parser, "--prompts", "File with a prompt in each line; - is standard input. The prompts are computed together.",
      options.path):argname "FILE",
    options.add(parser, "--ids", "Token ids to continue: 1,2,3.", options.ids):argname "IDS",
    options.add(parser, "--messages", "JSON file with a list of messages, for the chat template; - is standard input.",
      options.path):argname "FILE")
  parser:option("-s --system", "System message. The prompt is then a user message, and both go through the chat template.")
    :argname "TEXT"
  options.max_tokens(parser)
  parser:flag("--ignore-eos", "Continue after end tokens.")
  parser:flag("--special", "Read the spellings of control tokens in the prompt as those tokens.")
  options.add(parser, "--logprobs", "With --json: write the log probabilities of each token and of the N best tokens.", options.natural)
    :argname "N"
  options.sampling(parser)
  prompt_cache.option(parser)
  parser:flag("--timings --stats", "Show speed on standard error.")
  parser:flag("--profile", "Show the time of each block on standard error, with GB/s and GOPS.")
  options.json(parser)
end

-- ---- The prompt ----------------------------------------------------------------------------------------------------------

local function read_text(path)
  local text, message, code = common.read_text(path)
  if not text then return nil, message, code end
  if text == "" then
    return options.wrong("%s is empty: give one of --prompt, --file, --ids, --messages", common.name_of(path))
  end
  return text
end

-- The messages of a JSON file, and the options that come with them.
local function read_messages(path)
  local text, message, code = common.read(path)
  if not text then return nil, message, code end
  local value
  value, message = require("ane.cli.messages").decode(text)
  if not value then return nil, common.name_of(path) .. ": " .. message end
  return value.messages, { tools = value.tools_text, documents = value.documents, template_vars = value.template_vars }
end

-- The prompt as model:generate takes it, and the options that come with it; or nil, message, code.
local function prompt_of(args)
  if args.messages or args.ids then
    if args.system then return options.wrong "--system needs --prompt, --file or standard input" end
    if args.ids then return args.ids, {} end
    return read_messages(args.messages)
  end
  local text, message, code = args.prompt[1], nil, nil
  if not text and not args.file and core.isatty(0) then
    return options.wrong "give one of --prompt, --file, --ids, --messages, or a text on standard input"
  end
  if not text or text == "-" then text, message, code = read_text(args.file or "-") end
  if not text then return nil, message, code end
  if not args.system then return text, {} end
  local from = args.prompt[1] and args.prompt[1] ~= "-" and "--prompt" or common.name_of(args.file or "-")
  message = common.utf8_fault(args.system, "--system") or common.utf8_fault(text, from)
  if message then return options.wrong("%s", message) end
  return { { role = "system", content = args.system }, { role = "user", content = text } }, {}
end

-- ---- The reply -----------------------------------------------------------------------------------------------------------

local function fields_of(result)
  local out = {
    prompt_ids = common.list(result.prompt_ids), ids = common.list(result.ids), text = result.text or core.null,
    stop = result.stop, timings = result.timings, seed = result.seed, stop_string = result.stop_string,
  }
  if result.logprobs then out.logprobs = common.list(result.logprobs) end
  if result.tool_calls then out.tool_calls = common.list(result.tool_calls) end
  return out
end

-- ---- Several prompts -----------------------------------------------------------------------------------------------------

-- The prompts with "-" replaced by standard input; or nil, message, code.
local function with_input(prompts)
  local list, used = {}, false
  for i, text in ipairs(prompts) do
    if text == "-" then
      if used then return options.wrong "standard input is one prompt: give --prompt - once" end
      local message, code
      text, message, code = read_text "-"
      if not text then return nil, message, code end
      used = true
    end
    list[i] = text
  end
  return list
end

-- The list of prompts; nil if there is one, or none; or nil, message, code.
local function prompts_of(args)
  if args.prompts then
    local text, message, code = common.read(args.prompts)
    if not text then return nil, message, code end
    local list = {}
    for line in text:gmatch "[^\r\n]+" do list[#list + 1] = line end
    if #list == 0 then return options.wrong("%s has no line with a prompt", common.name_of(args.prompts)) end
    return list
  end
  if #args.prompt > 1 then return with_input(args.prompt) end
end

-- Writes the replies of several prompts as text.
local function write_many(args, model, replies, failed)
  local cut, last = 0, nil
  for i, result in ipairs(replies) do
    local fault = failed and failed[i]
    local text = fault and "(" .. fault[1] .. ")" or result.text or table.concat(result.ids, " ")
    io.stdout:write(("-- %d of %d\n"):format(i, #replies), text, "\n")
    if not fault and result.stop == "context" then cut, last = cut + 1, result end
  end
  io.stdout:flush() -- before what standard error says
  if last then common.check_cut(args, last, model, ("%d of %d replies are"):format(cut, #replies)) end
end

-- The message about the prompts that failed; nil if none did.
local function failure_of(failed, count)
  local n, first = 0, nil
  for i in pairs(failed or {}) do n, first = n + 1, math.min(first or i, i) end
  return first and ("%d of %d prompts failed: %d: %s"):format(n, count, first, failed[first][1])
end

-- Continues all prompts in a pool. Each reply is the one that its prompt has alone. The command fails if one of them fails.
local function run_many(args, prompts)
  for _, name in ipairs { "profile", "prompt_cache", "timings" } do
    if args[name] then return options.wrong("%s cannot be combined with several prompts", relations.spelling(name)) end
  end
  local model <close>, message = common.load(args)
  if not model then return nil, message end
  local opts = options.generation(args)
  opts.ignore_eos, opts.special, opts.logprobs, opts.details = args.ignore_eos, args.special, args.logprobs, true
  if args.system then
    for i, text in ipairs(prompts) do prompts[i] = { { role = "system", content = args.system }, { role = "user", content = text } } end
  end
  local replies, failed = model:generate_many(prompts, opts)
  if not replies then return nil, failed end
  if args.json then
    local out = {}
    for i, result in ipairs(replies) do
      local fault = failed and failed[i]
      out[i] = fault and { error = fault[1], code = fault[2] } or fields_of(result)
    end
    common.print_json { replies = common.list(out) }
  else
    write_many(args, model, replies, failed)
  end
  local fault = failure_of(failed, #replies)
  if fault then return nil, fault end
  return true
end

-- ---- One prompt ----------------------------------------------------------------------------------------------------------

-- Profiles the prefill and the decoding apart. Returns a function that shows both tables.
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
  for _, call in ipairs(pieces.result.tool_calls or {}) do
    io.stdout:write(call["function"].name, " ", call["function"].arguments, "\n")
  end
  io.stdout:flush() -- before what standard error says
  common.check_cut(args, pieces.result, model)
  if args.timings then io.stderr:write("[", common.speed(pieces.result.timings, pieces.result.stop), "]\n") end
  if show_profile then show_profile() end
  return true
end

local function reply(model, prompt, opts, args)
  if not args.json then return stream(model, prompt, opts, args) end
  opts.details = true
  local result, message = model:generate(prompt, opts)
  if not result then return nil, message end
  return common.print_json(fields_of(result))
end

function M.run(args)
  if not (args.mpi or core.path_kind(args.model)) then -- fails before the command waits for a prompt on standard input
    local model <close>, missing = common.load(args)
    if not model then return nil, missing end
  end
  local prompts, more, code = prompts_of(args)
  if more then return nil, more, code end
  if prompts then return run_many(args, prompts) end
  local prompt
  prompt, more, code = prompt_of(args)
  if not prompt then return nil, more, code end
  local model <close>, message = common.load(args)
  if not model then return nil, message end
  local opts = options.generation(args)
  for key, value in pairs(more) do opts[key] = value end
  if args.profile then
    local ok
    ok, message = profile.start(model)
    if not ok then return nil, message end
  end
  opts.progress, opts.ignore_eos, opts.special, opts.logprobs = common.progress(args), args.ignore_eos, args.special, args.logprobs
  local session
  session, message = prompt_cache.open(args, model)
  if session == nil then return nil, message end
  opts.session = session or nil
  local ok
  ok, message = reply(model, prompt, opts, args)
  if not ok and args.messages and message:find "^messages" then message = ("%s: %s"):format(common.name_of(args.messages), message) end
  if ok then ok, message = prompt_cache.save(args, session) end
  return ok, message
end

return M
