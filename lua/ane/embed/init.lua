--- Embeddings: texts as vectors, and the similarity of vectors.
-- Needs ane.embed.batch, ane.embed.encode, ane.embed.modules, ane.embed.steps, ane.core, ane.model, ane.util.keys and ane.util.schema.
-- Usage: `local v = assert(model:embed("a text")); local list = assert(model:embed({"a", "b"}, {prompt = "query"}))`

local batch = require "ane.embed.batch"
local core = require "ane.core"
local encode = require "ane.embed.encode"
local keys = require "ane.util.keys"
local modules = require "ane.embed.modules"
local schema = require "ane.util.schema"
local steps = require "ane.embed.steps"

local M = {}

--- Options of embed.
-- A list of ids is a whole sequence as the model takes it, with its special tokens and the model's default prompt, if it has one.
-- prompt and prefix are refused with ids, and ids of more than max_length are an error.
--   prompt: name of one of the model's prompts, which is put before each text; default: the model's
--   prefix: a text that is put before each text instead
--   dims: keep only the first numbers of a vector (Matryoshka embeddings); default: the model's (truncate_dim)
--   normalise: true or false: vectors of length 1; default: the model's
--   max_length: texts are truncated to this number of tokens; default: the model's. A longer text than the model was loaded for
--   (option context) is an error
--   special: true: control tokens spelled in a text are read as those tokens; default false
--   details: the result is a table with embeddings (tensor [texts, dims]), dim, tokens (of each text) and truncated (number of texts)
--   progress: function("embed", done, total), called after each run with the number of texts that are done; it may yield
M.rules = {
  prompt = { type = "string" },
  prefix = { type = "string" },
  dims = { type = "integer", min = 1 },
  normalise = { type = "boolean" },
  max_length = { type = "integer", min = 1 },
  special = { type = "boolean", default = false },
  details = { type = "boolean", default = false },
  progress = { type = "callable" },
}

-- The settings of a model's embeddings, read once.
local function modules_of(model, bundle)
  if bundle.config.kind ~= "embedding" then
    local what = bundle.config.kind == "reranker" and "it scores pairs of texts (rerank)" or "it has no pooling"
    return nil, ("%s gives no embeddings: %s"):format(tostring(model), what), "unsupported"
  end
  if not bundle.modules then
    local message, code
    bundle.modules, message, code = modules.read(bundle)
    if not bundle.modules then return nil, message, code end
  end
  return bundle.modules
end

--- Reads all files of a model that embed reads. Later calls open none.
-- @return what they say; or nil, message, code
function M.prepare(model) return modules_of(model, require("ane.model").bundle(model, 2)) end

-- The names of the prompts, for a message.
local function names(prompts)
  local list = keys(prompts)
  return #list > 0 and "its prompts are " .. table.concat(list, ", ") or "it has none (option prefix gives one as text)"
end

-- The text that is put before each text; nil: none.
local function prefix_of(made, opts)
  if opts.prefix then return opts.prefix end
  local name = opts.prompt or made.default_prompt
  if not name then return nil end
  local text = made.prompts[name]
  if not text then
    local shown = #name > 80 and name:sub(1, 80) .. "..." or name
    return nil, ("the model has no prompt '%s'; %s"):format(shown, names(made.prompts)), "invalid"
  end
  return text
end

-- Number of prefix tokens that pooling leaves out.
local function prompt_tokens(bundle, made, prefix)
  if made.include_prompt or not prefix then return 0 end
  local tokenizer = bundle.tokenizer
  if not tokenizer then return 0 end
  local ids, message, code = tokenizer:sequence(prefix)
  if not ids then return nil, message, code end
  local last = ids[#ids]
  return #ids - (last and tokenizer:token_type(last) == "control" and 1 or 0)
end

local function joined(list)
  if #list == 1 then return list[1] end
  local all = {}
  for _, v in ipairs(list) do table.move(v:totable(), 1, #v, #all + 1, all) end
  return core.tensor({ #all }, all)
end

-- The embedding of a sequence, from the rows in its session; nil, its width, if that is less than the option dims.
local function vector_of(made, session, from, opts)
  local parts = {}
  for i, how in ipairs(made.poolings) do parts[i] = session:pooled(how, from) end
  local v = joined(parts)
  for _, step in ipairs(made.steps) do v = steps.apply(step, v) end
  if not opts.dims and made.truncate and made.truncate < #v then -- after all modules, as sentence-transformers does it
    if made.normalise and opts.normalise ~= false then v = steps.normalised(v) end
    v = v:slice(1, 1, made.truncate)
    return opts.normalise and steps.normalised(v) or v
  end
  if opts.dims and opts.dims > #v then return nil, #v end
  if opts.dims and opts.dims < #v then v = v:slice(1, 1, opts.dims) end
  local normalise = opts.normalise
  if normalise == nil then normalise = made.normalise end
  return normalise and steps.normalised(v) or v
end

-- Do the poolings need only the last row?
local function rows_needed(made)
  for _, how in ipairs(made.poolings) do
    if how ~= "last" then return "all" end
  end
  return "last"
end

local function run(model, bundle, made, sequences, from, opts)
  local tell = opts.progress and function(done) opts.progress("embed", done, #sequences) end
  local runs <close> = batch.new(model, bundle, tell)
  local want, vectors, broken, width = rows_needed(made), {}, nil, nil
  local ok, message, code = runs:each(sequences, want, function(i, session)
    local first = want == "last" and 1 or math.min(from, #sequences[i].ids - 1) + 1
    vectors[i], width = vector_of(made, session, first, opts)
    if vectors[i] and not steps.is_finite(vectors[i]) then broken = math.min(broken or i, i) end
  end)
  if not ok then return nil, message, code end
  local wide = "option dims must be at most %d, the width of the model's vectors, but is %d"
  if width then return nil, wide:format(width, opts.dims), "range" end
  if broken then return nil, ("entry %d: the model gives numbers that are not finite"):format(broken), "invalid" end
  return vectors
end

local function stacked(vectors)
  local raw = {}
  for i, v in ipairs(vectors) do raw[i] = v:tostring() end
  return core.tensor({ #vectors, vectors[1] and #vectors[1] or 0 }, table.concat(raw))
end

--- Embeddings. See Model:embed.
function M.embed(model, input, opts, level)
  opts = schema.check(M.rules, opts, "embed", level + 1)
  local bundle = require("ane.model").bundle(model, level + 1)
  local made, message, code = modules_of(model, bundle)
  if not made then return nil, message, code end
  local prefix, from, sequences, single
  prefix, message, code = prefix_of(made, opts)
  if code then return nil, message, code end
  from, message, code = prompt_tokens(bundle, made, prefix)
  if not from then return nil, message, code end
  local most = encode.length(bundle, opts.max_length, made.max_length)
  sequences, single, code = encode.inputs(bundle, input, { prefix = prefix, special = opts.special, max_length = most, asked = opts },
    "embed: the input", level + 1)
  if not sequences then return nil, single, code end
  if #sequences == 0 then return nil, "no texts are given", "range" end
  local vectors
  vectors, message, code = run(model, bundle, made, sequences, from, opts)
  if not vectors then return nil, message, code end
  if single and not opts.details then return vectors[1] end
  local all = stacked(vectors)
  if not opts.details then return all end
  local tokens, truncated = {}, 0
  for i, s in ipairs(sequences) do
    tokens[i] = #s.ids
    if s.truncated then truncated = truncated + 1 end
  end
  return { embeddings = all, dim = #vectors[1], tokens = tokens, truncated = truncated }
end

-- ---- Similarity ------------------------------------------------------------------------------------------------------------

local MEASURES = {
  cosine = function(a, b)
    local lengths = math.sqrt(a:dot(a) * b:dot(b))
    return lengths > 0 and a:dot(b) / lengths or 0.0
  end,
  dot = function(a, b) return a:dot(b) end,
  euclidean = function(a, b)
    local d = a - b
    return -math.sqrt(d:dot(d))
  end,
  manhattan = function(a, b)
    local sum = 0.0
    for _, x in ipairs((a - b):totable()) do sum = sum + math.abs(x) end
    return -sum
  end,
}

local function shape_text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

-- Vectors of an argument: a text, a list of texts, or a result of embed. Returns the rows as a list, and whether it was a single
-- one.
local function vectors_of(model, x, opts, level)
  local message, code
  if type(x) == "string" or type(x) == "table" then
    x, message, code = M.embed(model, x, opts, level + 1)
    if not x then return nil, message, code end
  end
  if type(x) ~= "userdata" or not x.shape then error("similarity: must be texts or embeddings, but is " .. schema.shown(x), level + 1) end
  local shape = x:shape()
  if #shape < 1 or #shape > 2 or #x == 0 then
    error(("similarity: embeddings must be a tensor [dims] or [n, dims], but are %s"):format(shape_text(shape)), level + 1)
  end
  if not steps.is_finite(x) then error("similarity: embeddings must hold finite numbers only", level + 1) end
  if #shape == 1 then return { x }, true end
  local rows = {}
  for i = 1, shape[1] do rows[i] = x[i] end
  return rows, false
end

local SIMILARITY = schema.merge(M.rules)
SIMILARITY.details = nil -- the result has none

--- The similarity of texts or embeddings. See Model:similarity.
function M.similarity(model, a, b, opts, level)
  opts = schema.check(SIMILARITY, opts, "similarity", level + 1)
  local bundle = require("ane.model").bundle(model, level + 1)
  local made, message, code = modules_of(model, bundle)
  if not made then return nil, message, code end
  local measure = MEASURES[made.similarity or "cosine"]
  if not measure then return nil, ("similarity_fn_name '%s' is not known"):format(made.similarity), "unsupported" end
  local rows, columns, one, other
  rows, one, code = vectors_of(model, a, opts, level + 1)
  if not rows then return nil, one, code end
  columns, other, code = vectors_of(model, b, opts, level + 1)
  if not columns then return nil, other, code end
  if #rows[1] ~= #columns[1] then
    error(("similarity: the vectors must have the same length, but have %d and %d numbers"):format(#rows[1], #columns[1]), level + 1)
  end
  if one and other then return measure(rows[1], columns[1]) end
  local list = {}
  for _, r in ipairs(rows) do
    for _, c in ipairs(columns) do list[#list + 1] = measure(r, c) end
  end
  return core.tensor({ #rows, #columns }, list)
end

return M
