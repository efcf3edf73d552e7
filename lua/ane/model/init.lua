--- A loaded model: generate, stream, chat, session, info, close.
-- Needs ane.model.adapters, ane.generate.chat, core, failure, generate, isa, list, loader, methods, progress, schema, session, shape,
-- stream, units and weights.
-- Usage: `local model = assert(require("ane.model").load("SmolLM2.gguf", {threads = 2})); print(model:generate("The sky is"))`

local adapters = require "ane.model.adapters"
local chat = require "ane.generate.chat"
local core = require "ane.core"
local failure = require "ane.util.failure"
local generate = require "ane.generate"
local isa = require "ane.util.isa"
local list_of = require "ane.util.list"
local methods = require "ane.util.methods"
local progress = require "ane.util.progress"
local schema = require "ane.util.schema"
local session = require "ane.generate.session"
local elements_of = require("ane.util.shape").count
local stream = require "ane.generate.stream"
local units = require "ane.util.units"
local weights = require "ane.model.weights"

local M = {}

local KV = { "fp16", "fp32", "int16", "int8" }

--- Options of load.
--   context: the maximum number of tokens of a session; default: the smallest of the model's own maximum, 4096 (32768 if it
--     embeds or reranks texts), and what fits in half of the free memory
--   threads: default: the number of physical cores
--   weights: "file" (as stored), or another format by name (ane.model.weights): int8, int4-block, lut4, fp16, q8_0, ... A matrix
--     whose rows are not whole blocks of a type is held in the nearest one, as quantise writes it, or as stored if that does not fit
--     either. `warnings` of the model counts them
--   mixed: other formats for the weights whose names match a pattern: {ffn_down = "int8"}, or a list of {pattern, weights}, of
--     which the last match wins. A pattern matches anywhere in the tensor's name in the file, or in its name in GGUF files; *
--     stands for any characters, ? for one
--   importance: tensor name -> list or tensor with a weight for each column, for int4-block, uint4-block and lut4 (ane.model.importance)
--   activations: "int8" (fast) or "fp32" (reference)
--   kv: "int16" (16-bit codes with a scale for each position and head, the default of models that generate), "fp16" (the default
--     of the others), "fp32" (the default with fp32 activations) or "int8"
--   head: how greedy decoding reads an 8-bit LM head: "pruned" skips rows that cannot win and gives the same result, "full" reads
--     every row; "auto" (default) prunes heads of 48 MB or more
--   engine: how an ONNX model or a Core ML package set runs: "graph" (op by op; "packages" means the same), or "recipe" (rebuilt by a
--     recipe, with the stored weights); default: recipe if one matches
--   recipe: a table or the path of a Lua file, for an architecture that ane.models does not have
--   run_memory: for ONNX models and Core ML package sets that run op by op: maximum bytes (or "2G") of the states of all sessions and
--     the values of a run together, without the weights; default: half of the memory that is free when a run first needs more than
--     256 MiB. A call that needs more fails with the code memory
--   precision: for Core ML package sets: "fp32" (default), or "fp16" (results of that type are rounded to it)
--   backend: what runs Core ML package sets: "cpu" (default), or "coreml", on macOS 15 (never run on hardware)
--   verify: true checks the hashes of all files of a Core ML package set before it is opened; by default only their sizes are checked
--   isa: an upper limit for the kernels' level; default: ANE_ISA from the environment, else the best level of the machine
--   soft_experts: true runs all experts of a mixture with masked weights, as a static graph must; false (the default) runs only
--     the chosen ones. The results are equal within rounding
--   adapters: LoRA adapters for all sessions that are not given others: a path, or a list of paths and of {path = ..., scale = ...};
--     see ane.model.adapters
--   ranks: true, or {cut, fp16, tail}: the layers are divided among all ranks of an MPI program; this process is rank 0. See ane.pipeline
--   merge: true merges the adapters into the weights, which become fp32 unless `weights` names another type; without adapters nothing
--     is merged
--   transform: "rotate" folds rotations into the weights, which become fp32 unless `weights` names another type. The model computes
--     the same, and its weights lose less when they are rounded; see ane.quantise.rotate. Default "none"
--   progress: function(stage, done, total), or true for a progress bar on a terminal
M.rules = {
  context = { type = "integer", min = 1, max = 0x7fffffff },
  threads = { type = "integer", min = 1, max = 1024 },
  weights = { type = "string", choices = weights.names, default = "file" },
  mixed = { type = "table", check = function(mixed) return weights.rules_fault(mixed, weights.fault) end },
  importance = { type = "table" },
  activations = { type = "string", choices = { "int8", "fp32" }, default = "int8" },
  kv = { type = "string", choices = KV },
  head = { type = "string", choices = { "auto", "pruned", "full" }, aliases = { search = "pruned" }, default = "auto" },
  engine = { type = "string", choices = { "recipe", "graph" }, aliases = { packages = "graph" } },
  recipe = { type = { "table", "path" }, open = true },
  run_memory = units.bytes_rule,
  precision = { type = "string", choices = { "fp32", "fp16" } },
  backend = { type = "string", choices = { "cpu", "coreml" } },
  verify = { type = "boolean" },
  isa = { type = "string" },
  soft_experts = { type = "boolean" },
  adapters = adapters.paths_rule,
  ranks = { type = { "table", "boolean" } },
  merge = { type = "boolean" },
  transform = { type = "string", choices = weights.transforms, default = "none" },
  progress = { type = { "callable", "boolean" } },
}

local SESSION = {
  adapters = adapters.rule,
  context = { type = "integer", min = 1 },
  kv = { type = "string", choices = KV },
}

local Model = {}

-- Returns the bundle of an open model.
-- @param level of the error, as error()'s, seen from the caller of opened; default: that of the method's caller
local function opened(self, level)
  return self._bundle or error("model is closed", (level or 2) + 1)
end

-- The options with a progress function that ends the work if it closes the model.
local function watched(self, opts, what)
  schema.plain(opts, what, 3)
  local show = type(opts) == "table" and rawget(opts, "progress")
  if not schema.is_callable(show) then return opts end
  local own = {}
  for key, value in pairs(opts) do own[key] = value end
  function own.progress(...)
    show(...)
    if not self._bundle then failure.raise("state", failure.CLOSED) end
  end
  return own
end

-- Opens a model for load() and unplanned(), whose options are checked.
local function open(path, opts)
  local level, message, code = isa.choose(opts.isa)
  if not level then return nil, message, code end
  opts.isa = level
  if opts.ranks then
    local pipeline = require "ane.pipeline"
    opts.threads = opts.threads or pipeline.threads()
  end
  opts.ranks = opts.ranks or nil
  opts.threads = opts.threads or core.cpu_cores()
  if opts.progress == true then opts.progress = progress.bar() end
  opts.progress = opts.progress or nil
  opts.adapters = opts.adapters and adapters.entries(opts.adapters)
  if opts.transform == "none" then opts.transform = nil end
  local started = core.clock()
  local bundle
  local loader = require "ane.model.loader"
  bundle, message, code = loader.load(path, opts)
  if not bundle then return nil, message, code end
  local warnings = weights.unfit(bundle.program and bundle.program:info().matrices)
  local long = loader.context_warning(opts.context, bundle.config.context_length)
  if long then table.insert(warnings, 1, long) end
  local model = M.wrap(bundle, {
    path = path, kv = bundle.kv or opts.kv, load_s = core.clock() - started, warnings = warnings, options = opts,
  })
  if not opts.adapters then return model end
  if opts.merge then
    model._merged = opts.adapters
    return model
  end
  local ok
  ok, message, code = adapters.set_default(model, bundle, opts.adapters)
  if ok then return model end
  model:close()
  return nil, message, code
end

--- Loads a model.
-- @param path a GGUF file, a folder with safetensors and config.json, or a folder with Core ML packages and runtime_meta.json
-- @param opts see rules
-- @return a model; or nil, message, code if the file or the machine cannot be used
-- @raise if an option is unknown or wrong
function M.load(path, opts)
  schema.argument({ type = "path" }, path, "load: path", 2)
  opts = schema.check(M.rules, opts, "load", 2)
  if opts.ranks then
    opts.ranks = schema.check(require("ane.pipeline").rules, opts.ranks == true and {} or opts.ranks, "load: ranks", 2)
  end
  local model, message, code = open(path, opts)
  return model, message, code
end

--- Opens a model to quantise it layer by layer: it encodes texts, and computes nothing. Its transformed weights are computed for each
-- use (ane.quantise.overlay).
-- @param path a GGUF file, or a folder with safetensors and config.json
-- @param opts as load's; adapters must be merged
-- @return a model, of which only tokenizer, context and close() are of use; or nil, message, code
function M.unplanned(path, opts)
  opts = schema.check(M.rules, opts, "load", 2)
  opts.unplanned = true
  local model, message, code = open(path, opts)
  return model, message, code
end

-- Raises, at the level of the method's caller, if a session's context exceeds the model's.
local function check_context(self, context, what, level)
  local most = self._bundle.program:context()
  if context and context > most then
    error(("%s: option context must be 1 .. %d (as the model was loaded), but is %d"):format(what, most, context), level + 1)
  end
end

--- Opens a session: the low-level way to feed tokens and read logits.
-- @param opts context (tokens, up to the model's), kv ("fp16", "fp32", "int16", "int8"), adapters (instead of the model's; see adapter)
-- @return a session; or nil, message, code
function Model:session(opts)
  local bundle = opened(self)
  opts = schema.check(SESSION, opts, "session", 2)
  check_context(self, opts.context, "session", 2)
  local chosen, message, code = adapters.resolve(self, bundle, opts.adapters)
  if chosen == nil then return nil, message, code end
  return session.open(bundle.program, { context = opts.context, kv = opts.kv or self.kv, adapters = chosen }, self._sessions, self._host)
end

--- Loads a LoRA adapter, for the option `adapters` of session, generate and a pool's requests. Its product is added to those of the
-- weights at run time; the weights do not change.
-- @param path a PEFT folder or a GGUF adapter
-- @param opts scale: a factor on everything the adapter adds (default 1; 0 disables it)
-- @return an adapter: path, scale, sha256, rank (the largest), modules (their number), bytes, with(scale), close(); or nil, message,
-- code: "notfound" or "shape" if it was made for another base model
function Model:adapter(path, opts)
  local bundle = opened(self)
  local made, message, code = adapters.load(self, bundle, path, opts, 2)
  return made, message, code
end

-- Borrows the session that generate and stream share. Only one call has it at a time: a concurrent call gets a session of its own, and
-- so does a call with other adapters.
local function borrow(self, wanted)
  local chosen, message, code = adapters.resolve(self, opened(self), wanted)
  if chosen == nil then return nil, message, code end
  local idle = self._idle
  self._idle = nil
  if idle and not idle.closed and idle.adapters_key == (chosen and chosen.key or nil) then return idle end
  if idle then idle:close() end
  return session.open(opened(self).program, { kv = self.kv, adapters = chosen }, self._sessions)
end

local function give_back(self, used)
  if used.closed then return end
  used:unstop()
  if self._idle or not self._bundle then used:close() else self._idle = used end
end

-- Returns the ids of a prompt: a text, a list of ids or a list of messages. Raises at `level`; level 1 is this function.
local function prompt_ids(self, prompt, opts, level)
  local tokenizer = self.tokenizer
  if type(prompt) == "string" then
    if not tokenizer then
      local why = self._bundle.tokenizer_error
      return nil, "the model has no tokenizer: give token ids instead of text" .. (why and " (" .. why .. ")" or ""), "unsupported"
    end
    local lost = tokenizer:_lost(prompt)
    if lost then
      return nil, ("byte %d of the prompt is \\x%02x, which is not UTF-8, and the vocabulary has no token for it"):format(lost,
        prompt:byte(lost)), "format"
    end
    return tokenizer:encode(prompt, { special = opts.special, eos = false }) -- an end token would end the prompt
  end
  if type(prompt) ~= "table" then
    error("the prompt must be a text, a list of token ids or a list of messages, but is " .. list_of.kind(prompt), level)
  end
  if list_of.gives_more(prompt) then error("the prompt " .. list_of.MORE, level) end
  if type(prompt[1]) == "table" then return chat.encode(tokenizer, prompt, opts) end
  local vocab = self._bundle.program:vocab()
  for i = 1, rawlen(prompt) do
    local id = prompt[i]
    if math.type(id) ~= "integer" or id < 0 then
      error(("the prompt's entry %d is %s, not a token id"):format(i, list_of.shown(id)), level)
    end
    if id >= vocab then return nil, ("id %d at place %d is not in 0 .. %d"):format(id, i, vocab - 1), "range" end
  end
  local fault = list_of.stray(prompt)
  if fault then error("the prompt " .. fault, level) end
  return prompt
end

local RULES = schema.merge(generate.rules, chat.rules, {
  session = { type = "table" }, -- of this model: the reply is computed in it
  adapters = adapters.rule, -- for this reply, instead of the model's own
  special = { type = "boolean", default = false }, -- recognise control tokens spelled in the prompt
  details = { type = "boolean", default = false },
})

-- For models that write no text: what they do instead.
local SILENT = {
  token_classifier = "is a token classifier: it labels tokens (classify)",
  embedding = "is an embedding model: it makes vectors of texts (embed)",
  reranker = "is a reranker: it scores texts (rerank)",
}

-- Returns what a reply needs to call tools, nil if no tools are offered; or nil, message, code.
local function calls_of(self, prompt, opts)
  if not chat.offers_tools(opts) then return chat.calls(self.tokenizer, opts) end
  if type(prompt) == "table" and type(prompt[1]) == "table" then return chat.calls(self.tokenizer, opts) end
  return nil, "option tools needs a list of messages as the prompt: the chat template shows the tools to the model", "invalid"
end

-- Returns the ids of a prompt and the checked options of its reply; or nil, message, code. Raises at `level`; level 1 is this function.
local function prepare(self, prompt, opts, what, rules, level)
  opened(self, level)
  opts = schema.check(rules, opts, what, level)
  if opts.session and not session.is_of(opts.session, self._sessions) then
    error(what .. ": option session must be an open session of this model", level)
  end
  if opts.session and opts.adapters then error(what .. ": option adapters cannot be combined with session, which has its own", level) end
  if self._host.unsupported then return nil, self._host.unsupported, "unsupported" end
  local fits, why, word = generate.check_ids(opts, self._bundle.program:vocab())
  if not fits then return nil, why, word end
  opts.eos = opts.eos or self._bundle.eos_ids
  local ids, message, code = prompt_ids(self, prompt, opts, level + 1)
  if ids and (opts.tools or opts.tool_choice) then opts.calls, message, code = calls_of(self, prompt, opts) end
  if not ids or message then return nil, message, code end
  return ids, opts
end

local function start(self, prompt, opts, what)
  local ids, message, code = prepare(self, prompt, opts, what, RULES, 4)
  if not ids then return nil, message, code end
  opts = message
  if opts.session then
    local pieces
    pieces, message, code = session.reply(opts.session, ids, opts, 3)
    if not pieces then return nil, message, code end
    return pieces, opts
  end
  local used
  used, message, code = borrow(self, opts.adapters)
  if not used then return nil, message, code end
  local run
  run, message, code = generate.start(used, self.tokenizer, ids, opts)
  if not run then
    give_back(self, used)
    return nil, message, code
  end
  run.result.timings.load_s = self.load_s
  return stream.new(run, function() give_back(self, used) end, self._streams), opts
end

--- Continues a prompt.
-- @param prompt a text, a list of token ids, or a list of messages (rendered with the model's chat template)
-- @param opts see ane.generate and ane.generate.chat. special = true: control tokens spelled in the text are recognised.
-- session: a session of this model in which the reply is computed. The cached tokens that the prompt begins with are reused, and
-- the session holds prompt and reply afterwards. details = true: the result is a table with text, ids, prompt_ids, stop ("eos",
-- "stop", "length", "context", "repeat", "stopped"), stop_string, seed, logprobs (list of {id, logprob, top}) and timings
-- @return the text (a list of ids if the model has no tokenizer), or the table; or nil, message, code
function Model:generate(prompt, opts)
  local pieces <close>, checked, code = start(self, prompt, opts, "generate")
  if not pieces then return nil, checked, code end
  local result, message
  result, message, code = pieces:finish()
  if not result then return nil, message, code end
  if checked.details then return result end
  return result.text or result.ids
end

--- Continues a prompt piece by piece: `for piece in model:stream("Once") do io.write(piece) end`.
-- Pieces are texts (ids if the model has no tokenizer). The iterator has `result` (as generate returns with details; complete
-- once the loop has ended), stop() and close(); breaking out of the loop closes it. An error during the loop raises.
-- @return an iterator; or nil, message, code
function Model:stream(prompt, opts)
  local pieces, message, code = start(self, prompt, opts, "stream")
  if not pieces then return nil, message, code end
  return pieces, nil, nil, pieces
end

-- Options of a pool's requests, and of many of them.
local POOLED, MANY

--- Makes a pool, which computes many replies at once in shared steps. See ane.pool.
-- @param opts sessions (concurrent replies; default 32), step_tokens (maximum tokens of a step; default 256), memory (of all cached
-- states: "2G"), prefix_memory (of cached prefixes), context and kv (of each session), on_work (called when an idle pool gets work)
-- @param opts_level of errors about opts, for callers inside ane; default 2, the caller
-- @return a pool; or nil, message, code
function Model:pool(opts, opts_level)
  local bundle, pools = opened(self), require "ane.pool"
  opts = schema.check(pools.rules, opts, "pool", opts_level or 2)
  POOLED = POOLED or schema.merge(RULES, pools.request_rules)
  if self._host.unsupported then return nil, self._host.unsupported, "unsupported" end
  check_context(self, opts.context, "pool", opts_level or 2)
  local pool, message, code = pools.new({
    program = bundle.program,
    open = function(o, chosen)
      return session.open(bundle.program, { context = o.context, kv = opts.kv or self.kv, adapters = chosen, prefixes = o.prefixes },
        self._sessions, self._host)
    end,
    prefixes = bundle.program.prefixes and function() return bundle.program:prefixes(opts.kv or self.kv) end,
    prepare = function(prompt, o, level)
      schema.plain(o, "add", level + 1)
      if o and o.session then error("add: option session cannot be used in a pool, which has its own sessions", level) end
      local ids, checked, fault = prepare(self, prompt, o, "add", POOLED, level + 1)
      if not ids then return nil, checked, fault end
      local chosen, why
      chosen, why, fault = adapters.resolve(self, bundle, checked.adapters)
      if chosen == nil then return nil, why, fault end
      checked.adapters = chosen or nil
      return ids, checked
    end,
    start = function(s, ids, o) return generate.start(s, self.tokenizer, ids, o) end,
  }, opts)
  if not pool then return nil, message, code end
  self._pools[pool] = true
  return pool
end

--- Continues many prompts in a pool that computes `sessions` of them at a time. Each reply equals what generate returns for its prompt.
-- @param prompts list of prompts, as generate takes them
-- @param opts the options of a pool's requests, for all prompts; those of the pool but on_work; on_reply: function(i, result), called as
-- each reply ends
-- @return list of what generate returns for each prompt: texts (ids without a tokenizer), or tables with details = true; false for a
-- prompt that failed. If any failed, also a table of {message, code} by their indices. nil, message, code if nothing could start
function Model:generate_many(prompts, opts)
  opened(self)
  schema.argument({ type = "list" }, prompts, "generate_many: prompts", 2)
  local pools, many = require "ane.pool", require "ane.pool.many"
  MANY = MANY or schema.merge(RULES, pools.request_rules, many.rules(pools.rules))
  opts = schema.check(MANY, opts, "generate_many", 2, true)
  local replies, failed, code = many.run(self, prompts, opts)
  return replies, failed, code
end

--- Starts a conversation. See ane.generate.chat.
-- @param opts system (text), tools, messages (a conversation to continue), restore (path of a file that chat:save wrote), overflow
-- ("error", "drop"), any option of generate as a default
-- @return a chat; or nil, message, code
function Model:chat(opts)
  opened(self)
  if self._host.unsupported then return nil, self._host.unsupported, "unsupported" end
  local made, message, code = chat.new(self, opts, 2, adapters.rule)
  return made, message, code -- no tail call: error levels count this function
end

--- Returns the names of all intermediate values, in the order in which they are computed, for trace.
-- @return list of {name, channels}; or nil, message, code
function Model:values()
  return require("ane.model.trace").values(opened(self))
end

--- Returns intermediate values of a run from position 0. The first call plans a second program without fused steps. It needs as
-- much memory for weights as the model; close frees it.
-- @param input a text, a list of token ids or a list of messages
-- @param patterns a glob or a list of globs over the names of values(): "layers.3.*", "*.attn_q"; default: all
-- @return table name -> tensor [tokens, channels]; or nil, message, code ("range": more tokens than one run takes;
-- "notfound": a glob matches no name)
function Model:trace(input, patterns)
  local bundle, trace = opened(self), require "ane.model.trace"
  local globs = trace.globs(patterns, 2)
  local ids, message, code = prompt_ids(self, input, {}, 3)
  if not ids then return nil, message, code end
  return trace.trace(bundle, ids, globs, self.kv)
end

--- Writes the model as GGUF with its weights in another type. See ane.quantise.
-- @param out path of the file; it appears once it is complete
-- @param opts weights (type or scheme), mixed ({pattern = type}), fallback, importance, method ("rtn", "gptq"), calibrate (a text, a list
-- of token ids, a list of texts and lists, {samples = N} or {chats = list}: what gptq reads, else for importance; ane.model.inputs),
-- tokens (maximum), stages, transform, memory, threads, progress
-- @return a report: the new type, error and bytes of each tensor; or nil, message, code
function Model:quantise(out, opts)
  local source = opened(self).source
  local report, message, code = require("ane.quantise").of_model(self, source, out, watched(self, opts, "quantise"), 2)
  return report, message, code -- no tail call: error levels count this function
end

--- Plans the model for the Neural Engine: packages, bytes, predicted residency, and the verdict of each residency rule. See
-- ane.coreml.plan.
-- @param opts weights, mixed, context, chip, target, size_limit, rows, slices, layers, experts, max_t, fixed_t, layout, norm
-- @return a plan, which prints as a table and has dot() and svg(); or nil, message, code
function Model:plan(opts)
  local bundle, planner = opened(self), require "ane.coreml.plan"
  opts = schema.check(planner.rules, opts, "plan", 2)
  local plan, message, code = planner.of(bundle, opts)
  return plan, message, code
end

--- Writes the model as Core ML packages for the Neural Engine, with runtime_meta.json, embed.bin and its tokenizer. See ane.coreml.export.
-- @param out folder; it appears (or is replaced) once it is complete
-- @param opts the options of plan; argmax, importance, method ("rtn", "gptq"), calibrate, tokens, memory (as quantise), threads,
-- progress
-- @return a report: ok, shards, weights, kept, seconds; or nil, message, code
function Model:export(out, opts)
  local bundle, export = opened(self), require "ane.coreml.export"
  local own, calibration, code = require("ane.quantise.moments").from_options(self, watched(self, opts, "export"), "export", 2,
    function(options)
      local fine, fault, word = export.check(bundle, out, options, 4)
      return fine, fault, word -- no tail call: error levels count this function
    end)
  if not own then return nil, calibration, code end
  local _ <close> = calibration
  local report, message
  report, message, code = export.run(bundle, out, own, 2)
  return report, message, code
end

--- Finds the spans that a token classifier labels. Spans begin and end as BIOES allows and never split a character.
-- @param input a text, or a list of token ids
-- @param opts threshold, window, details: see ane.classify
-- @return list of {label, start, stop, text, score (mean probability of its tokens' labels), first, last (tokens, from 1)},
-- with text == input:sub(start, stop). For a list of ids, start, stop and text are absent. With details a table; or nil, message, code
function Model:classify(input, opts)
  opened(self)
  local spans, message, code = require("ane.classify").classify(self, input, opts, 2)
  return spans, message, code -- no tail call: error levels count this function
end

--- Finds the spans of many inputs, several in one run. Each input gets the spans that classify returns.
-- @param inputs list of texts or of lists of ids
-- @param opts as for classify
-- @return list of what classify returns for each input, false for one that failed. If any failed, also a table of {message, code} by
-- their indices. nil, message, code if nothing could start
function Model:classify_many(inputs, opts)
  opened(self)
  local all, failed, code = require("ane.classify").classify_many(self, inputs, opts, 2)
  return all, failed, code -- no tail call: error levels count this function
end

--- Replaces the spans that a token classifier labels with [LABEL], pseudonyms or the result of a function.
-- @param text of any length; see ane.classify.redact for texts that arrive in pieces
-- @param opts pseudonyms, key, replace, threshold, window, segment: see ane.classify.redact
-- @return the new text, list of spans (as classify returns them, each with its replacement); or nil, message, code
function Model:redact(text, opts)
  opened(self)
  local redacted, spans, code = require("ane.classify.redact").redact(self, text, opts, 2)
  return redacted, spans, code
end

--- Computes embeddings of texts with an embedding model.
-- @param input a text, a list of token ids, or a list of texts or of lists of ids
-- @param opts prompt, prefix, dims, normalise, max_length, special, details: see ane.embed
-- @return tensor [dims], for a list [n, dims]; with details a table {embeddings = tensor [n, dims], dim, tokens = list}; or nil,
-- message, code
function Model:embed(input, opts)
  opened(self)
  local vectors, message, code = require("ane.embed").embed(self, input, opts, 2)
  return vectors, message, code -- no tail call: error levels count this function
end

--- Scores documents against a query, with a cross-encoder, a decoder with a classifier or Qwen3-Reranker.
-- @param query a text; or nil if the documents are lists of token ids that already hold query and document as the model takes them
-- @param documents list of texts
-- @param opts instruction, max_length, special, raw, details: see ane.embed.rerank
-- @return list of scores, one per document (lists of scores if the classifier has several labels); list of the documents' indices, best
-- first (nil with several labels); with details one table; or nil, message, code
function Model:rerank(query, documents, opts)
  opened(self)
  local scores, order, code = require("ane.embed.rerank").rerank(self, query, documents, opts, 2)
  return scores, order, code
end

--- Computes the similarity of texts or embeddings, by the measure that the model names (cosine, dot, euclidean, manhattan). Higher
-- means more similar.
-- @param a, b each a text, a list of texts, or a result of embed
-- @param opts the options of embed, for texts
-- @return a number; if a or b is a list, a tensor [#a, #b]; or nil, message, code
function Model:similarity(a, b, opts)
  opened(self)
  local result, message, code = require("ane.embed").similarity(self, a, b, opts, 2)
  return result, message, code
end

--- Ends the replies in progress at their next token or prefill chunk, and all replies of pools, with stop = "stopped".
function Model:stop()
  opened(self)
  for pieces in pairs(self._streams) do pieces:stop() end
  for pool in pairs(self._pools) do pool:_stop_all() end
end

local function by_type(tensors)
  local types, order = {}, {}
  for _, t in ipairs(tensors) do
    local row = types[t.dtype]
    if not row then
      row = { dtype = t.dtype, tensors = 0, elements = 0, bytes = 0 }
      types[t.dtype] = row
      order[#order + 1] = row
    end
    row.tensors, row.elements, row.bytes = row.tensors + 1, row.elements + elements_of(t.shape), row.bytes + t.bytes
  end
  table.sort(order, function(a, b)
    if a.bytes ~= b.bytes then return a.bytes > b.bytes end
    return a.dtype < b.dtype
  end)
  return order
end

--- Describes a source: path, format, bytes, tensors by type.
function M.describe(source)
  local tensors = by_type(source:tensors())
  local parameters = 0
  for _, row in ipairs(tensors) do parameters = parameters + row.elements end
  return { path = source:path(), format = source:format(), bytes = source:bytes(), parameters = parameters, tensors = tensors }
end

-- Groups matrices by their layout in memory and the activation type they are multiplied with.
local function kernels_of(matrices)
  local rows, order = {}, {}
  for _, m in ipairs(matrices or {}) do
    local key = table.concat({ m.form or "?", m.act or "?", m.dtype or "?" }, " ")
    local row = rows[key]
    if not row then
      row = { form = m.form, activations = m.act, dtype = m.dtype, matrices = 0, bytes = 0 }
      rows[key] = row
      order[#order + 1] = row
    end
    row.matrices, row.bytes = row.matrices + 1, row.bytes + m.bytes
  end
  table.sort(order, function(a, b) return a.bytes > b.bytes end)
  return order
end

--- Describes the model and how it runs on this machine.
-- @return table: path, format, bytes, parameters, tensors (by type), architecture, config (hyperparameters), isa, threads,
-- activations, kv, context, vocab, engine ("recipe", "packages", or "graph" (op by op), for which engine_reason says why), kernels
-- (layouts of the weights in use), weight_bytes, scratch_bytes, load_s. format is "package set" or "set of assets" for those; packages
-- then = list of {path, kind, bytes, functions (names, if there are several)}. adapters = list of {path, scale, merged}, as given to load
function Model:info()
  local bundle = opened(self)
  local info = self._described
  if not info then
    info = M.describe(bundle.source)
    self._described = info
  end
  local out = {}
  for key, value in pairs(info) do out[key] = value end
  local program = bundle.program:info()
  out.architecture, out.config = bundle.architecture, {}
  for key, value in pairs(bundle.config) do
    if type(value) ~= "function" then out.config[key] = value end
  end
  out.engine, out.engine_reason, out.packages = bundle.engine or "recipe", bundle.engine_reason, bundle.packages
  if bundle.packages and bundle.packages[1].path:find "%.aimodel$" then out.format = "set of assets" end
  out.isa, out.threads, out.activations, out.kv = program.isa, program.threads, program.activations, self.kv
  out.context, out.vocab = bundle.program:context(), bundle.program:vocab()
  out.adapters = adapters.describe(self)
  out.kernels, out.matrices = kernels_of(program.matrices), program.matrices
  out.ranks = program.ranks
  out.weight_bytes, out.scratch_bytes, out.load_s = program.weight_bytes, program.scratch_bytes, self.load_s
  return out
end

--- Reports the format of each weight in memory and its error, for `weights`, `mixed` and `importance` of load.
-- @return list of {name, rows, cols, from, weights, form, activations, bytes, exact, max_abs, rms, snr_db}: see ane.model.weights
function Model:weights_report()
  return weights.report(opened(self).program:info().matrices)
end

--- Frees the model and closes its pools and sessions. Incomplete replies of a pool end with stop = "closed". Closing twice is allowed;
-- any other use of a closed model, pool or session raises.
function Model:close()
  local bundle = self._bundle
  if not bundle then return end
  self._bundle, self._idle = nil, nil
  local users = {}
  for p in pairs(self._pools) do users[#users + 1] = p end
  for s in pairs(self._sessions) do users[#users + 1] = s end
  for _, user in ipairs(users) do user:close() end
  if bundle.plain then require("ane.model.trace").close(bundle) end
  adapters.close(self)
  if bundle.program then bundle.program:close() end
  if bundle.source and bundle.source.close then bundle.source:close() end
end

-- Properties: context (tokens), vocab, architecture, config, engine ("recipe" | "graph"), engine_reason (why "graph"; or nil),
-- closed. Fields: tokenizer (or nil), path, kv, load_s, warnings (list of load's warnings: a context above the model's own, weights.unfit).
local PROPERTIES = {
  context = function(self)
    local bundle = opened(self)
    return bundle.program and bundle.program:context() or bundle.context
  end,
  vocab = function(self) return opened(self).program:vocab() end,
  architecture = function(self) return opened(self).architecture end,
  config = function(self) return opened(self).config end,
  engine = function(self) return opened(self).engine or "recipe" end,
  engine_reason = function(self) return opened(self).engine_reason end,
  closed = function(self) return self._bundle == nil end,
}

-- __names lists the names for completion.
local meta = { __name = "ane.model", __gc = Model.close, __close = Model.close, __names = Model }
methods.guard(Model, meta, "model")

meta.__index = methods.index(Model, PROPERTIES)

function meta:__tostring()
  if not self._bundle then return "model (closed)" end
  return ("model (%s, %s)"):format(self._bundle.architecture or "?", self.path or "?")
end

--- Returns the bundle of an open model, for modules that need its internals.
-- @raise at `level`, counted from the caller, if the model is closed or the value is not a model
function M.bundle(model, level)
  if getmetatable(model) ~= meta then error("no model given: " .. list_of.kind(model), level + 1) end
  return model._bundle or error("model is closed", level + 1)
end

--- Returns the options that a model was loaded with, defaults included, as load has read them.
function M.options(model) return model._options end

--- Makes a model of a loaded bundle {program, source, tokenizer, architecture, config}.
-- @param facts path, kv, load_s, warnings, options
function M.wrap(bundle, facts)
  local self = setmetatable({
    _bundle = bundle, _options = facts.options or {},
    _sessions = setmetatable({}, { __mode = "k" }), _pools = setmetatable({}, { __mode = "k" }),
    _streams = setmetatable({}, { __mode = "k" }), warnings = facts.warnings or {},
    tokenizer = bundle.tokenizer, path = facts.path, kv = facts.kv or "fp16", load_s = facts.load_s or 0,
  }, meta)
  -- Sessions hold their table, and so the model: it is not collected, which closes them, as long as one of them is held.
  getmetatable(self._sessions).model = self
  local other = SILENT[bundle.config.kind]
  self._host = {
    tokenizer = bundle.tokenizer, eos_ids = bundle.eos_ids, streams = self._streams, load_s = self.load_s,
    unsupported = other and ("%s %s, and writes none"):format(tostring(self), other),
  }
  return self
end

return M
