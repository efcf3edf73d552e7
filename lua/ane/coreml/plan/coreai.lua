--- Rules for a model as one Core AI asset, or as a set of them: what Apple and others published of the Neural Engine under
-- macOS and iOS 27.
-- Needs nothing. Usage: `local rules = coreai.judge({ bytes = 4e8, context = 512, ... })`
--
-- Every rule names its source. None was tried here: nothing was compiled for or run on a Neural Engine.

local M = {}

local function always() return true end
local function has(scheme) return function(f) return f.weights:find(scheme, 1, true) == 1 end end

-- Rules of the runner's contract, which a set and a model without text do not follow.
local function runner(test) return function(f) return not f.sharded and not f.encoder and test(f) end end

local function lacks(scheme) return function(f) return not has(scheme)(f) end end

local RULES = "apple/coreai-models:neural_engine_rules.md"
local RUNNER = "apple/coreai-models: runner of language models"

--- id, verdict ("engine", "risk", "cpu"), text, source, test(facts)
M.rules = {
  { "static", "engine", "every shape is static: one function for each number of tokens and context", RULES, always },
  { "rank", "engine", "no tensor has more than 5 dimensions", RULES, always },
  { "types", "engine", "activations are fp16, weights fp16 or int8 or tables; norms are computed in fp32 between casts", RULES,
    function(f) return lacks "int4" (f) and lacks "uint4" (f) end },
  { "conv", "engine", "projections are 1x1 convolutions, not linear layers", RULES, always },
  { "mask", "engine", "masks are finite (-40000; in a set, those of the host), never minus infinity", RULES, always },
  { "last-axis", "risk", "activations are [1, C, T, 1]: Apple's rules require a last axis of 32 or more", RULES, always },
  { "heads", "risk", "attention is computed for all heads in one product; Apple's rules require one product per head", RULES,
    function(f) return f.attention end },
  { "layout", "risk", "states have no interleaved layout (channels by 8), which Apple's own exports ask for", RUNNER, runner(always) },
  { "chunk", "risk",
    "a call of more than 64 tokens: the runner has functions for 8, 16 and 64", RUNNER, runner(function(f) return f.tokens > 64 end) },
  { "context-width", "risk",
    "the context is below kv heads x head dim: the runner takes the largest dimension of key_cache as the context", RUNNER,
    runner(function(f) return f.kv > f.context end) },
  { "context-step", "risk",
    "a context is not a multiple of the tokens of a call: the runner begins calls at multiples of them, and the last one would "
      .. "write beyond the states", RUNNER, runner(function(f) return f.ragged end) },
  { "own-host", "risk", "Apple's runner takes one asset: a program of your own calls the assets of a set in order, as runtime_meta.json "
    .. "says", RUNNER, function(f) return f.sharded end },
  { "encoder", "risk", "Apple's runner takes language models only: a program of your own calls the functions of this model", RUNNER,
    function(f) return f.encoder and not f.sharded end },
  { "states", "risk", "Apple's runner makes key_cache and value_cache: states of convolutions and recurrent layers, or of layers that "
    .. "differ in width, need a program of your own", RUNNER, runner(function(f) return f.own_states end) },
  { "embeddings", "risk", "the rows of several embeddings are one row of embedding_table, which no known asset of Apple's has", RUNNER,
    runner(function(f) return (f.embeddings or 1) > 1 end) },
  { "recurrent", "risk", "no document mentions recurrent layers: here a chunk of tokens is products of matrices, exp and softplus, and "
    .. "the state is fp16", "none", function(f) return f.recurrent end },
  { "experts", "risk", "every expert runs for every token, and no source says where the choice of the best ones runs", "none",
    function(f) return f.experts end },
  { "lookup", "risk", "no source says where rows of a table are looked up by number (embedding, token types)", "none", always },
  { "dimension", "risk", "a dimension above 65,536 is over the engine's limit by a device log; the table and out_logits have a row for "
    .. "each token of the vocabulary", "FluidInference/FluidAudio#121, of Core ML", runner(function(f) return f.rows > 65536 end) },
  { "background", "risk",
    "iOS 27 restricts the engine for apps in the background", "reported of iOS 27, by no document that can be named", always },
  { "int4-block", "risk", "linear int4 compiled without a warning to an asset for the GPU only; tables (lut4) compiled for the engine",
    "apple/coreai-models#55, #205", has "int4" },
  { "uint4-block", "risk", "linear 4 bits with an offset: not tested; linear int4 compiled without a warning to an asset for the GPU only",
    "apple/coreai-models#55, #205", has "uint4" },
  { "lut4", "risk", "4-bit tables compiled for the engine in reports; not tried here", "apple/coreai-models#205", has "lut4" },
  { "static-corrupt", "risk",
    "one report has a static export with wrong results, although the eager model was exact", "apple/coreai-models#257", always },
  { "size-1gb", "risk",
    "more than 1 GB of weights in one asset: Core ML's compiler failed at that size; --target coreai-sharded "
      .. "makes several assets, --target coreml packages", "laws 4, of Core ML",
    function(f) return f.bytes > 1e9 end },
  { "size-2gb", "cpu",
    "more than 2 GB in one asset: beyond what iOS loads; --target coreai-sharded makes several assets",
    "reported of iOS, by no document that can be named", function(f) return f.bytes > 2e9 end },
}

local WORSE = { engine = 1, risk = 2, cpu = 3 }

--- What is known against a scheme of weights on the Neural Engine: {text, source}; nil: nothing.
function M.risk_of(scheme)
  for _, r in ipairs(M.rules) do
    if (r[1] == "int4-block" or r[1] == "uint4-block") and r[5] { weights = scheme } then return { text = r[3], source = r[4] } end
  end
end

--- The rules that hold, the worst verdicts first.
-- @param facts bytes (weights and embedding; of a set, of its largest asset), sharded (true: a set), encoder (true: a model that takes
-- whole sequences), context (the smallest), kv (channels of the widest state of keys), own_states, attention, recurrent, experts (true:
-- the model has some), embeddings (their number), rows (of the head), tokens (maximum of a call), ragged (true: a context is not a multiple
-- of the tokens of a call), weights (scheme)
-- @return list of {id, verdict, text, source}
function M.judge(facts)
  local list = {}
  for at, r in ipairs(M.rules) do
    if r[5](facts) then list[#list + 1] = { id = r[1], verdict = r[2], text = r[3], source = r[4], at = at } end
  end
  table.sort(list, function(a, b)
    if a.verdict ~= b.verdict then return WORSE[a.verdict] > WORSE[b.verdict] end
    return a.at < b.at
  end)
  for _, r in ipairs(list) do r.at = nil end
  return list
end

-- Channels of the widest state of keys and values; whether there are states that Apple's runner does not make.
local function states_of(plan)
  local widest, own, first = 0, false, nil
  for _, p in ipairs(plan.packages) do
    for _, s in ipairs(p.states) do
      local n, grows = 1, false
      for _, d in ipairs(s.shape) do
        if d == "context" then grows = true else n = n * d end
      end
      first = first or grows and n or nil
      own = own or not grows or n ~= first
      if grows then widest = math.max(widest, n) end
    end
  end
  return widest, own
end

-- The operations of a plan, as a set of names.
local function ops_of(plan)
  local ops = {}
  for _, p in ipairs(plan.packages) do
    for _, n in ipairs(p.nodes) do ops[n.op] = true end
  end
  return ops
end

--- Is the context, or a smaller one of opts.tiers, no multiple of the tokens of a call that fits into it?
function M.ragged(context, opts)
  local contexts = { context }
  for _, tier in ipairs(opts.tiers or {}) do contexts[#contexts + 1] = tier end
  for _, c in ipairs(contexts) do
    for _, t in ipairs(opts.fixed_t or { 8, 16, 64 }) do
      if t <= c and c % t ~= 0 then return true end
    end
  end
  return false
end

--- The facts of a plan of ane.coreml.plan.
function M.facts(plan, opts)
  local kv, own_states = states_of(plan)
  local ops, tokens = ops_of(plan), 0
  for _, t in ipairs(opts.fixed_t or { 64 }) do tokens = math.max(tokens, t) end
  return {
    bytes = opts.assets and plan.largest or plan.bytes + plan.embed_bytes, sharded = opts.assets, encoder = plan.kind ~= "causal",
    context = math.min(plan.context, table.unpack(opts.tiers or {})), kv = kv, own_states = own_states,
    attention = ops.attention or false, recurrent = ops.ssm_scan or ops.delta_rule or false, experts = ops.experts or false,
    embeddings = plan.embeddings, rows = plan.rows, tokens = math.min(tokens, plan.context), ragged = M.ragged(plan.context, opts),
    weights = opts.weights,
  }
end

return M
