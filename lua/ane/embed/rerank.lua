--- Scores of documents for a query: cross-encoders, and language models that answer yes or no.
-- Needs ane.core, ane.embed.batch, ane.embed.encode, ane.embed.modules, ane.embed.steps, ane.model,
-- ane.tokenizer.fields and ane.util.schema.
-- Usage: `local scores, order = model:rerank("a question", {"a passage", "another"}); print(scores[order[1]])`
--
-- A cross-encoder reads query and document as one pair and scores the first token, or the mean of all; a decoder with a classifier scores
-- the last one. A single score goes through a sigmoid unless the files name another activation (sentence-transformers). Several labels
-- give a list of scores. Qwen3-Reranker reads a fixed template. Its score is the softmax of the logits of "yes" and "no" after it.

local batch = require "ane.embed.batch"
local core = require "ane.core"
local encode = require "ane.embed.encode"
local fields = require "ane.tokenizer.fields"
local modules = require "ane.embed.modules"
local schema = require "ane.util.schema"
local steps = require "ane.embed.steps"

local M = {}

--- Options of rerank.
--   instruction: what the query asks for, for models whose template contains an instruction; refused for others, and with token ids
--   max_length: pairs are truncated to this number of tokens; default: the model's. Token ids are not: longer ones are refused
--   special: true: control tokens spelled in the texts are read as those tokens; default false
--   raw: true: scores before the activation; default false
--   details: the result is a table with scores, order (indices of the documents, best first; nil if a document has several scores),
--     tokens (of each pair) and truncated (number of pairs)
--   progress: function("rerank", done, total), called after each run with the number of documents that are done; it may yield
M.rules = {
  instruction = { type = "string" },
  max_length = { type = "integer", min = 1 },
  special = { type = "boolean", default = false },
  raw = { type = "boolean", default = false },
  details = { type = "boolean", default = false },
  progress = { type = "callable" },
}

local function sigmoid(x) return 1 / (1 + math.exp(-x)) end

-- ---- Cross-encoders --------------------------------------------------------------------------------------------------------

-- The activation that the files of a folder name: config_sentence_transformers.json before config.json; nil: none.
local function named_activation(cfg)
  local file = "config_sentence_transformers.json"
  local config = cfg.folder and fields.read_json(cfg.folder .. "/" .. file, file)
  local name = config and fields.get(config, "activation_fn", "string", file, fields.NONE)
  if name then return name end
  local more = cfg.meta("sentence_transformers", "object")
  return more and more.activation_fn or cfg.meta "sbert_ce_default_activation_function"
end

--- The name of the activation of the scores, as torch.nn has it. Package sets keep it as cfg.score.
-- @return name; or nil, message, code
function M.activation_name(cfg)
  local name = cfg.score
  if cfg.format == "hf" and not name then
    local message, code
    name, message, code = fields.try(named_activation, cfg)
    if code then return nil, message, code end
  end
  if name == nil or name == core.null then return (cfg.n_scores or 1) == 1 and "Sigmoid" or "Identity" end
  local known = steps.class_of(tostring(name))
  local what = "activation %s of the scores is not known; known are %s"
  if steps.ACTIVATIONS[known] == nil then return nil, what:format(tostring(name), steps.activation_names()), "unsupported" end
  return known
end

local function pair(bundle, query, document, opts)
  local ids, types, truncated = bundle.tokenizer:pair(query, document, { special = opts.special, max_length = opts.max_length })
  if not ids then return nil, types, truncated end
  return { ids = ids, types = types, truncated = truncated }
end

-- The scores of a session before the activation: those of a row, or of the steps that follow the mean.
-- @return function(session, row) -> tensor [labels]; or nil, message, code
local function labels_of(bundle)
  if not bundle.config.classifier then return function(session, row) return session:logits(row) end end
  local list, message, code = modules.classifier(bundle)
  if not list then return nil, message, code end
  return function(session)
    local v = session:pooled("mean", 1)
    for _, step in ipairs(list) do v = steps.apply(step, v) end
    return v
  end
end

-- A classifier of pairs. Its score is a number, or a list of numbers if it has several labels.
local function cross_encoder(bundle)
  local scores, message, code = labels_of(bundle)
  if not scores then return nil, message, code end
  local name
  name, message, code = M.activation_name(bundle.config)
  if not name then return nil, message, code end
  local f = steps.ACTIVATIONS[name]
  local function score(session, raw, row)
    local list = scores(session, row):totable()
    if f and not raw then
      for i, x in ipairs(list) do list[i] = f(x) end
    end
    return #list == 1 and list[1] or list
  end
  local cfg = bundle.config
  if not cfg.score_at_end then return { sequence = pair, want = "all", score = score } end
  return { sequence = pair, want = cfg.both_sides and "all" or "last", score = score, at_end = true, pad = cfg.pad_id }
end

-- ---- Language models that answer yes or no -----------------------------------------------------------------------------------

local INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
local PREFIX = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
  .. "Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"
local SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
local BODY = "<Instruct>: %s\n<Query>: %s\n<Document>: %s"

local function joined(a, b, c)
  local ids = table.move(a, 1, #a, 1, {})
  table.move(b, 1, #b, #ids + 1, ids)
  return table.move(c, 1, #c, #ids + 1, ids)
end

-- The template of Qwen3-Reranker. The text between prefix and suffix is truncated.
local function template(bundle, query, document, opts)
  local function ids_of(text, special) return bundle.tokenizer:encode(text, { special = special, bos = false, eos = false }) end
  local prefix, suffix = ids_of(PREFIX, true), ids_of(SUFFIX, true)
  local body, message, code = ids_of(BODY:format(opts.instruction or INSTRUCTION, query, document), opts.special)
  if not (prefix and suffix and body) then return nil, message, code end
  local room = opts.max_length - #prefix - #suffix
  local what = "option max_length is %d, but the template alone has %d tokens"
  if room < 1 then return nil, what:format(opts.max_length, #prefix + #suffix), "range" end
  local truncated = #body > room
  if truncated then body = table.move(body, 1, room, 1, {}) end
  return { ids = joined(prefix, body, suffix), truncated = truncated }
end

-- The first probability of a softmax of two logits.
local function of_two(yes, no) return sigmoid(yes - no) end

local function single_id(tokenizer, word)
  local ids = tokenizer:encode(word, { bos = false, eos = false })
  return ids and #ids == 1 and ids[1] or nil
end

local function answers(bundle)
  local tokenizer, message, code = encode.tokenizer(bundle)
  if not tokenizer then return nil, message, code end
  local yes, no = single_id(tokenizer, "yes"), single_id(tokenizer, "no")
  if not (yes and no and tokenizer:id "<|im_start|>") then return nil, "the model is not a reranker that is known here", "unsupported" end
  return {
    sequence = template, want = "last",
    score = function(session, raw)
      local row = session:logits(1)
      local a, b = row[yes + 1], row[no + 1]
      return raw and a - b or of_two(a, b)
    end,
  }
end

-- A reranker of llama.cpp, whose head has only the rows of "yes" and "no".
local function two_rows(bundle)
  if bundle.program:vocab() ~= 2 then
    return nil, ("the head has %d rows, but must have those of yes and no"):format(bundle.program:vocab()), "unsupported"
  end
  return {
    sequence = template, want = "last",
    score = function(session, raw)
      local row = session:logits(1):totable()
      return raw and row[1] - row[2] or of_two(row[1], row[2])
    end,
  }
end

-- The scoring function of a model.
local function scorer(model, bundle)
  local cfg = bundle.config
  if cfg.kind == "reranker" and (cfg.both_sides or cfg.format == "hf") then return cross_encoder(bundle) end
  if cfg.kind == "reranker" then return two_rows(bundle) end
  if cfg.kind == nil and cfg.architecture == "qwen3" then return answers(bundle) end
  return nil, ("%s is not a reranker"):format(tostring(model)), "unsupported"
end

-- ---- Reranking -------------------------------------------------------------------------------------------------------------

-- The scores of a decoder are those of the last token that is not padding (transformers); sets `row` of each sequence. If tokens do
-- not see later ones, the tokens after it are left out.
local function find_rows(sequences, how)
  for _, s in ipairs(how.at_end and sequences or {}) do
    local n = #s.ids
    s.count = n
    while n > 1 and s.ids[n] == how.pad do n = n - 1 end
    if how.want == "all" then s.row = n elseif n < #s.ids then s.ids, s.types = table.move(s.ids, 1, n, 1, {}), nil end
  end
  return sequences
end

-- Sequences of the documents: pairs of texts if there is a query, else ids as the model takes them.
local function sequences_of(bundle, how, query, documents, opts, level)
  if query == nil then
    for i, document in ipairs(documents) do
      if type(document) ~= "table" then
        error(("rerank: without a query, document %d is a %s, not a list of token ids"):format(i, type(document)), level + 1)
      end
    end
    local list, single, code = encode.inputs(bundle, documents, { asked = opts.asked }, "rerank: the documents", level + 1)
    return list, single, code
  end
  local tokenizer, message, code = encode.tokenizer(bundle)
  if not tokenizer then return nil, message, code end
  local out = {}
  for i, document in ipairs(documents) do
    if type(document) ~= "string" then error(("rerank: document %d is a %s, not a text"):format(i, type(document)), level + 1) end
    out[i], message, code = how.sequence(bundle, query, document, opts)
    local fits = out[i] ~= nil
    if fits then fits, message, code = encode.fits(bundle, #out[i].ids) end
    if not fits then return nil, ("document %d: %s"):format(i, message), code end
  end
  return out
end

-- The maximum tokens of a pair if the caller gives no length: for cross-encoders what their files say.
-- @return number or nil; or nil, message, code
local function length_of(bundle)
  local cfg = bundle.config
  if cfg.format ~= "hf" or not cfg.folder or cfg.kind ~= "reranker" then return nil end
  return fields.try(modules.length, cfg.folder)
end

-- Indices of the documents, the best first; nil if each has several scores.
local function best_first(scores)
  if type(scores[1]) == "table" then return nil end
  local order = {}
  for i = 1, #scores do order[i] = i end
  table.sort(order, function(a, b)
    if scores[a] ~= scores[b] then return scores[a] > scores[b] end
    return a < b
  end)
  return order
end

-- The first document whose score is not a finite number; nil: none.
local function first_broken(scores)
  for i, score in ipairs(scores) do
    for _, x in ipairs(type(score) == "table" and score or { score }) do
      local finite = math.abs(x) < math.huge
      if not finite then return i end
    end
  end
end

-- The result with details.
local function detailed(scores, sequences)
  local out = { scores = scores, order = best_first(scores), tokens = {}, truncated = 0 }
  for i, s in ipairs(sequences) do
    out.tokens[i] = s.count or #s.ids
    if s.truncated then out.truncated = out.truncated + 1 end
  end
  return out
end

-- How a model scores pairs, and the maximum tokens of a pair (length_of). Its files are read once.
-- @return {how, most}; or nil, message, code
local function settings_of(model, bundle)
  if not bundle.rerank then
    local how, message, code = fields.try(scorer, model, bundle)
    if not how then return nil, message, code end
    local most
    most, message, code = length_of(bundle)
    if code then return nil, message, code end
    bundle.rerank = { how = how, most = most }
  end
  return bundle.rerank
end

-- What is wrong with the option instruction; nil: nothing.
local function instruction_fault(model, how, query, opts)
  if not opts.instruction then return nil end
  if how.sequence ~= template then
    return ("option instruction has no effect: %s reads query and document alone"):format(tostring(model))
  end
  return query == nil and "option instruction cannot be combined with token ids, which are whole sequences" or nil
end

--- Reads all files of a model that rerank reads. Later calls open none.
-- @return what they say; or nil, message, code
function M.prepare(model) return settings_of(model, require("ane.model").bundle(model, 2)) end

--- Scores documents. See Model:rerank.
function M.rerank(model, query, documents, opts, level)
  opts = schema.check(M.rules, opts, "rerank", level + 1)
  if query ~= nil then schema.argument({ type = "string" }, query, "rerank: the query", level + 1) end
  schema.argument({ type = "list" }, documents, "rerank: the documents", level + 1)
  local bundle = require("ane.model").bundle(model, level + 1)
  local made, message, code = settings_of(model, bundle)
  if not made then return nil, message, code end
  local how = made.how
  local fault = instruction_fault(model, how, query, opts)
  if fault then return nil, fault, "invalid" end
  opts.asked = { max_length = opts.max_length }
  opts.max_length = encode.length(bundle, opts.max_length, made.most)
  local sequences
  sequences, message, code = sequences_of(bundle, how, query, documents, opts, level + 1)
  if not sequences then return nil, message, code end
  local tell = opts.progress and function(done) opts.progress("rerank", done, #sequences) end
  local runs <close>, scores = batch.new(model, bundle, tell), {}
  local ok
  ok, message, code = runs:each(find_rows(sequences, how), how.want, function(i, session)
    scores[i] = how.score(session, opts.raw, sequences[i].row or 1)
  end)
  if not ok then return nil, message, code end
  local broken = first_broken(scores)
  if broken then return nil, ("document %d: the model gives a score that is not finite"):format(broken), "invalid" end
  if opts.details then return detailed(scores, sequences) end
  return scores, best_first(scores)
end

return M
