--- Options that several commands share, and how their values are checked.
-- Needs ane.generate, ane.model, ane.model.importance, ane.model.weights and ane.util.schema; ane.cli.common for --calibrate. A value is
-- checked by the rule of the Lua option of the same name, so the command and the API accept the same values.
-- Usage: `options.add(parser, "-n --max-tokens", "Maximum tokens.", generate.rules.max_tokens):argname "N"; options.model(parser)`

local generate = require "ane.generate"
local model = require "ane.model"
local schema = require "ane.util.schema"
local weights = require "ane.model.weights"

local M = {}

--- Rules of ane.util.schema: for numbers, and for paths.
M.natural = { type = "integer", min = 0 }
M.positive = { type = "integer", min = 1 }
M.path = { type = "path" }

--- Rule of --calibrate: FILE, samples:N or FILE+samples:N.
M.calibration = { type = "path", check = function(text) return require("ane.cli.common").samples_fault(text) end }

--- Adds an option with one argument.
-- @param flags as argparse takes them: "-n --max-tokens"; messages name the last one
-- @param check a rule of ane.util.schema; or function(text) -> value; or nil, what is wrong
-- @return the option, for argname, default or count
function M.add(parser, flags, help, check)
  local name = flags:match "%S+$"
  return parser:option(flags, help):convert(function(text)
    if type(check) == "function" then
      local value, fault = check(text)
      if value ~= nil then return value end
      return nil, ("%s: %s"):format(name, fault)
    end
    local value, fault = schema.parse(check, text)
    if value ~= nil then return value end
    return nil, name .. " " .. fault
  end)
end

--- Adds an argument that is the path of a file or folder.
-- @return the argument, for args
function M.file(parser, name, help)
  return parser:argument(name, help):convert(function(text)
    local path, fault = schema.parse(M.path, text)
    if path then return path end
    return nil, ("the argument %s %s"):format(name, fault)
  end)
end

--- Returns what `run` of a command returns for wrong usage. The exit code is then 2.
-- @param format as string.format takes it, with its arguments
-- @return nil, message, "usage"
function M.wrong(format, ...)
  return nil, format:format(...), "usage"
end

-- ---- Checks --------------------------------------------------------------------------------------------------------------

--- For add: reads "1,2,3" as a list of integers of at least `low`. what: name of such an integer, for messages.
function M.integers(what, low)
  return function(text)
    local list = {}
    if ("," .. text .. ","):find ",%s*," and text:find "%S" then return nil, ("'%s' has a comma without a %s"):format(text, what) end
    for part in text:gmatch "[^,%s]+" do
      local n = math.tointeger(tonumber(part))
      if not n or n < low then return nil, ("'%s' is not a %s"):format(part, what) end
      list[#list + 1] = n
    end
    if #list == 0 then return nil, ("no %s given"):format(what) end
    return list
  end
end

--- For add: "1,2,3" as a list of token ids, or of counts.
M.ids, M.counts = M.integers("token id", 0), M.integers("number of 1 or more", 1)

--- For add: accepts a text that is not empty.
function M.text(text)
  if text == "" then return nil, "the text is empty" end
  return text
end

--- For add: reads "attn_v=q6_k" as {pattern, name}.
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

--- For add: reads "DIR=0.5" or "DIR" as {path, scale}.
function M.adapter(text)
  local path, scale = text:match "^(.+)=([^=/]*)$"
  if not path then return text ~= "" and { path = text, scale = 1 } or nil, "the path is empty" end
  local number = tonumber(scale)
  if not number then return nil, ("the scale of '%s' is '%s', which is not a number"):format(path, scale) end
  return { path = path, scale = number }
end

-- ---- Options that several commands have ----------------------------------------------------------------------------------

local MIXED = "Another type for weights whose names in the file or in GGUF files contain PATTERN (* matches any characters, ? any "
  .. "single one). "
  .. "May be given several times; the last match counts."

--- --mixed: PATTERN=TYPE.
-- @param flags "--mixed" or "--mixed-b"
-- @param fault function(type) -> what is wrong with it, or nil
function M.mixed(parser, flags, fault)
  M.add(parser, flags, MIXED, M.rule(fault)):count "*":argname "PATTERN=TYPE"
end

--- --threads
function M.threads(parser)
  M.add(parser, "-t --threads", "Number of threads; default: the number of physical cores.", model.rules.threads):argname "N"
end

--- --activations
function M.activations(parser)
  parser:option("--activations", "Type of activations in matrix products: int8 (default, fast) or fp32 (the "
    .. "reference)."):choices(model.rules.activations.choices)
end

--- --recipe
function M.recipe(parser)
  M.add(parser, "--recipe", "Lua file that describes an architecture.", M.path):argname "FILE"
end

--- --no-progress
function M.progress(parser)
  parser:flag("--no-progress", "Show no progress bar.")
end

--- --json
function M.json(parser)
  parser:flag("--json", "Write one JSON object.")
end

--- --adapter, --merge
-- @param merges true: the command merges them in any case
-- @param also what --merge does without --adapter, or nil
function M.adapters(parser, merges, also)
  local help = "LoRA adapter: a PEFT folder or a GGUF file, with a scale (default 1). May be given several times."
  M.add(parser, "--adapter", merges and help .. " It is merged into the weights." or help, M.adapter):count "*":argname "DIR[=SCALE]"
  if not merges then
    parser:flag("--merge", (also and "With --adapter: merge" or "Merge") .. " the adapters into the weights. The weights become fp32 if "
      .. "--weights names no type." .. (also and " Without --adapter: " .. also or ""))
  end
end

--- --tokens, of --calibrate
function M.tokens(parser)
  M.add(parser, "--tokens", "Maximum tokens of --calibrate that are read; default 32768 with --method gptq, else 2048. With more tokens, "
    .. "the weights lose less, and the command takes longer.", require("ane.model.importance").rules.tokens):argname "N"
end

--- --inputs of gptq.
function M.inputs(parser)
  parser:option("--inputs", "For --method gptq: the inputs for which a weight is rounded. rounded (default): its inputs when all weights "
    .. "before it are rounded; the rounding also compensates half of the difference between these inputs and those in the source model. "
    .. "source: its inputs in the source model.")
    :choices { "rounded", "source" }:argname "WHICH"
end

--- --tune of gptq.
-- @param condition of the weights, with which auto tunes
function M.tune(parser, condition)
  parser:option("--tune", "For --method gptq: whether the norm weights are tuned after the rounding, which brings the perplexity closer to "
    .. "the source's. All operations of the model must have gradients. norms: tune them on the text of --calibrate. auto (default): tune "
    .. "them if " .. condition .. ", the text has at least 4096 tokens, and the model has at most 3 billion weights. none: do not tune "
    .. "them.")
    :choices { "auto", "norms", "none" }:argname "WHAT"
end

--- --transform
-- @param help beginning of the help text
-- @param chooses true: auto is a choice too; ane.cli.transforms replaces it by another one
function M.transform(parser, help, chooses)
  local choices = table.move(weights.transforms, 1, #weights.transforms, 1, {})
  if chooses then table.insert(choices, 1, "auto") end
  parser:option("--transform", help .. (chooses and " none" or " none (default)") .. "; rotate: rotations that do not change the "
    .. "results of the model and spread the outliers of its weights. A tied head becomes a separate matrix."
    .. (chooses and " auto (default): rotate with --method gptq and a scheme other than uint4-block, if the model's blocks allow it "
    .. "and its weights are rotated one by one or take at most 4 GiB in fp32; else none." or "")):choices(choices):argname "HOW"
end

--- The model and the options of loading it.
-- @param optional true: the model may be left out
-- @param merge what --merge does without --adapter, or nil
-- @return the flag --sandbox
function M.model(parser, optional, merge)
  local rules = model.rules
  parser:argument("model", "GGUF file, Hugging Face folder, ONNX bundle or package set."):args(optional and "?" or 1)
  M.threads(parser)
  M.add(parser, "-c --context", "Maximum tokens of a session; default: the smallest of the model's own limit, 4096 (32768 for "
    .. "embedding models and rerankers), and what fits in half of the free memory.",
    rules.context):argname "C"
  M.add(parser, "--weights", "Weights in memory: file (as stored, default), int8, int8-channel, int8-block, int4-block, uint4-block, "
    .. "lut4, fp16, q8_0, ...",
    rules.weights):argname "W"
  M.mixed(parser, "--mixed", weights.fault)
  M.add(parser, "--calibrate", "Calibration text for int4-block, uint4-block and lut4. The model first runs on it with its stored "
    .. "weights, to measure the importance of the columns.", M.calibration):argname "FILE"
  M.activations(parser)
  parser:option("--kv", "Type of cached keys and values; default: int16 (fp16 for models that do not generate), or fp32 with "
    .. "fp32 activations."):choices(rules.kv.choices)
  M.add(parser, "--head", "How greedy decoding reads an 8-bit LM head: full, pruned (skips rows that cannot win; same result) or "
    .. "auto (default: pruned if the head has 48 MB or more).", rules.head):argname "H"
  parser:option("--engine", "How an ONNX model or a package set runs: by a recipe, or op by op (graph); default: recipe if one matches, "
    .. "else graph."):choices(rules.engine.choices)
  M.recipe(parser)
  M.adapters(parser, false, merge)
  M.add(parser, "--run-memory", "Maximum memory for the states and values of an ONNX model or a package set that runs op by op: 2G, "
    .. "512M; default: half of the free memory.", rules.run_memory):argname "SIZE"
  parser:flag("--verify", "Check the hashes of all files of a package set before it is opened. By default only sizes are checked.")
  local sandbox = parser:flag("--sandbox", "Restrict the process: it opens only the model and the files named in the command, starts no "
    .. "program and uses no network. After the load it cannot open the model again. A hub model is downloaded before the restriction. "
    .. "Needs Linux with Landlock.")
  M.progress(parser)
  return sandbox
end

--- Options of sampling, named as in Lua with dashes.
function M.sampling(parser)
  local rules = generate.rules
  M.add(parser, "--temperature", "Temperature of sampling, 0 or more. At 0 (default) the best token is taken, and --top-k, --top-p, "
    .. "--min-p and --seed have no effect.", rules.temperature):argname "X"
  M.add(parser, "--top-k", "Sample only from the K best tokens.", rules.top_k):argname "K"
  M.add(parser, "--top-p", "Sample only from the fewest best tokens whose probabilities add up to at least P.", rules.top_p):argname "P"
  M.add(parser, "--min-p", "Sample only from tokens with at least P times the probability of the best token.", rules.min_p):argname "P"
  M.add(parser, "--repeat-penalty", "Penalty on tokens that occurred recently; 1 (default) means none.", rules.repeat_penalty):argname "X"
  M.add(parser, "--seed", "Random seed. The same seed gives the same text.", rules.seed):argname "S"
  M.add(parser, "--stop", "End the reply before this text. May be given several times.", M.text):count "*":argname "TEXT"
  parser:flag("--speculate", "Check several drafted tokens in one call if that is faster. The reply stays the same.")
  M.add(parser, "--speculate-corpus", "Text file from which tokens are drafted. Implies --speculate.", M.path):argname "FILE"
  M.add(parser, "--stop-ngram", "End the reply when the same N tokens occur for the third time.", M.positive):argname "N"
end

--- --max-tokens
function M.max_tokens(parser)
  M.add(parser, "-n --max-tokens", "Maximum tokens of a reply; default: until an end token or the end of the context.",
    generate.rules.max_tokens):argname "N"
end

local SAMPLING = { "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "stop_ngram", "max_tokens" }

--- The options of generate that were given.
function M.generation(args)
  local opts = {}
  for _, name in ipairs(SAMPLING) do opts[name] = args[name] end
  if args.stop and #args.stop > 0 then opts.stop = args.stop end
  if args.speculate or args.speculate_corpus then opts.speculate = { corpus = args.speculate_corpus } end
  return opts
end

return M
