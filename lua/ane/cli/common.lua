--- What several commands share: options, reading input, writing results.
-- Needs ane.core, ane.model.weights and ane.util.schema; ane.model where a model is loaded.
-- Usage: `common.model_options(parser); local model, message = common.load(args)`

local core = require "ane.core"
local schema = require "ane.util.schema"
local weights = require "ane.model.weights"

local M = {}

local function integer(low)
  return function(text)
    local n = math.tointeger(tonumber(text))
    if not n or n < low then return nil, ("'%s' is not an integer of %d or more"):format(text, low) end
    return n
  end
end

M.natural, M.positive = integer(0), integer(1)

--- For argparse: any integer.
M.integer = integer(math.mininteger)

--- For argparse: a number.
function M.number(text)
  local n = tonumber(text)
  if not n then return nil, ("'%s' is not a number"):format(text) end
  return n
end

--- For argparse: "1,2,3" to a list of integers of at least `low`; `what` one of them is called.
function M.integers(what, low)
  return function(text)
    local list = {}
    for part in text:gmatch "[^,%s]+" do
      local n = math.tointeger(tonumber(part))
      if not n or n < low then return nil, ("'%s' is not a %s"):format(part, what) end
      list[#list + 1] = n
    end
    if #list == 0 then return nil, ("no %s given"):format(what) end
    return list
  end
end

--- For argparse: "1,2,3" to a list of token ids, or of counts.
M.ids, M.counts = M.integers("token id", 0), M.integers("number of 1 or more", 1)

--- For argparse: "attn_v=q6_k" to {pattern, name}.
-- @param fault function(name) -> what is wrong with it, or nil
function M.rule(fault)
  return function(text)
    local pattern, name = text:match "^(.+)=([^=]*)$"
    if not pattern then return nil, ("'%s' is not PATTERN=TYPE"):format(text) end
    local wrong = fault(name)
    if wrong then return nil, ("the type for '%s' %s"):format(pattern, wrong) end
    return { pattern, name }
  end
end

-- "search" is the old name of "pruned".
local function head_choice(text)
  local value, message = schema.parse({ type = "string", choices = { "auto", "pruned", "full" }, aliases = { search = "pruned" } }, text)
  return value, message and "--head " .. message
end

--- Options that every command with a model has; optional: the file may be left out.
function M.model_options(parser, optional)
  parser:argument("model", "GGUF file, Hugging Face folder, ONNX bundle or package set."):args(optional and "?" or 1)
  parser:option("-t --threads", "Threads; default the physical cores."):convert(M.positive):argname "N"
  parser:option("-c --context", "Most tokens of a session."):convert(M.positive):argname "C"
  parser:option("--weights", "Weights in memory: file (as stored, default), int8, int8-channel, int4-block, lut4, fp16, q8_0, ...")
    :argname "W"
  parser:option("--mixed", "Another form for weights whose names contain PATTERN (* and ? stand for any characters, any one); "
    .. "may be given several times, the last match counts."):count "*":convert(M.rule(weights.fault)):argname "PATTERN=W"
  parser:option("--calibrate", "Text whose activations guide int4-block and lut4: it is read first, with the weights as stored.")
    :argname "FILE"
  parser:option("--activations", "int8 is fast, fp32 the reference."):choices { "int8", "fp32" }
  parser:option("--kv", "Format of the cached state; default fp16, with fp32 activations fp32."):choices { "fp16", "fp32", "int8" }
  parser:option("--head", "How greedy decoding reads an 8-bit LM head: auto, pruned (skips rows that cannot win; same result) or full; "
    .. "default auto: pruned where the head has 48 MB or more."):convert(head_choice):argname "H"
  parser:option("--engine", "How an ONNX model runs; default recipe where one matches, else graph."):choices { "recipe", "graph" }
  parser:option("--recipe", "Lua file that describes an architecture."):argname "FILE"
  parser:flag("--verify", "Hash all files of a package set before it is opened; else only their sizes are looked at.")
  parser:flag("--no-progress", "No progress bar.")
end

--- Options of sampling, named as in Lua with dashes.
function M.sampling_options(parser)
  parser:option("--temperature", "0 (default) is greedy."):convert(M.number):argname "X"
  parser:option("--top-k", "Keep the K best tokens."):convert(M.natural):argname "K"
  parser:option("--top-p", "Keep the best tokens that hold P of the probability."):convert(M.number):argname "P"
  parser:option("--min-p", "Keep tokens with P times the best one's probability."):convert(M.number):argname "P"
  parser:option("--repeat-penalty", "Divides logits of recent tokens."):convert(M.number):argname "X"
  parser:option("--seed", "Random seed; with it the text is the same each time."):convert(M.integer):argname "S"
  parser:option("--stop", "End before this text (may be given several times)."):count "*":argname "TEXT"
  parser:flag("--speculate", "Check several drafted tokens in one call where that pays; the reply stays the same.")
  parser:option("--speculate-corpus", "Speculate, drafting from this text too."):argname "FILE"
  parser:option("--stop-ngram", "End when the same N tokens came for the third time."):convert(M.positive):argname "N"
end

local SAMPLING = { "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "stop_ngram" }

--- The options of generate that were given.
function M.sampling(args)
  local opts = {}
  for _, name in ipairs(SAMPLING) do opts[name] = args[name] end
  if args.stop and #args.stop > 0 then opts.stop = args.stop end
  if args.speculate or args.speculate_corpus then opts.speculate = { corpus = args.speculate_corpus } end
  opts.progress = M.progress(args)
  return opts
end

--- The progress function: a bar on a terminal, or nothing.
function M.progress(args)
  if args.no_progress or args.json then return function() end end
  return require("ane.util.progress").bar()
end

-- nil for an option that may be given several times and was not.
local function given(list) return list and list[1] and list or nil end

--- What the columns of a model's weights are multiplied by on the text of --calibrate.
-- @return importance (see ane.evaluate.calibrate); or nil, message, code
function M.calibrate(args)
  local text, message, code = M.read(args.calibrate)
  if not text then return nil, message, code end
  local model
  model, message, code = require("ane.model").load(args.model, {
    threads = args.threads, engine = args.engine, recipe = args.recipe, progress = M.progress(args),
  })
  if not model then return nil, message, code end
  local _ <close> = model
  return require("ane.evaluate.calibrate").run(model, text, { progress = M.progress(args) })
end

--- Loads the model of the options.
-- @param extra options of load that win over those given
-- @return a model; or nil, message, code
function M.load(args, extra)
  local importance
  if args.calibrate then
    local message, code
    importance, message, code = M.calibrate(args)
    if not importance then return nil, message, code end
  end
  local opts = {
    threads = args.threads, context = args.context, weights = args.weights, mixed = given(args.mixed),
    importance = importance, activations = args.activations, kv = args.kv, head = args.head, engine = args.engine, recipe = args.recipe,
    progress = M.progress(args), verify = args.verify,
  }
  for key, value in pairs(extra or {}) do opts[key] = value end
  return require("ane.model").load(args.model, opts)
end

--- A whole file, or standard input where path is "-".
-- @return its bytes; or nil, message, code
function M.read(path)
  if path == "-" then return io.stdin:read "a" end
  return core.read_file(path)
end

--- Writes a value as one line of JSON, keys sorted.
function M.print_json(value)
  io.stdout:write(core.json_encode(value, { sort = true }), "\n")
  return true
end

--- A list that is [] in JSON also where it is empty.
function M.list(values)
  return core.json_array(values)
end

M.bytes = require("ane.util.units").bytes

--- A text in quotes, on one line.
function M.quote(text)
  return (("%q"):format(text):gsub("\\\n", "\\n"))
end

--- One line about a reply's speed.
function M.speed(timings, stop)
  local fed = timings.prompt_tokens - timings.cached_tokens
  local function rate(n, s) return s > 0 and n / s or 0 end
  local text = ("prompt %d tokens, %.1f/s; reply %d tokens, %.1f/s; ended by %s"):format(timings.prompt_tokens,
    rate(fed, timings.prefill_s), timings.tokens, rate(timings.tokens, timings.decode_s), stop)
  local head, s = timings.head, timings.speculation
  if head then text = text .. ("; %.0f %% of the head read for %d tokens"):format(100 * head.share, head.searched) end
  if not s then return text end
  return text .. ("; %d of %d drafted tokens right in %d calls, about %.2f x the speed without"):format(s.accepted, s.drafted,
    s.calls, s.speedup)
end

return M
