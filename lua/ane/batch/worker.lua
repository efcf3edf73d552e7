--- Answers the rows of a batch with the endpoints of ane.serve. A worker has a model and a pool and stands in for the server.
-- Needs ane.batch.score, ane.classify.redact, ane.serve.chat, completions, errors, fields, job, labels, responses, served, vectors and
-- ane.util.failure.
-- Usage: `local worker = workers.new(model, opts, on_answer); worker:begin(row, asked); while worker:step() do end`
--
-- An answer depends on the row only: ids and seeds come from the row's key, and it contains neither times nor counts of shared prefixes.
-- Embedding, classification and redaction rows are computed in groups, generated text in the pool, and other rows one by one.

local errors = require "ane.serve.errors"
local failures = require "ane.util.failure"
local fields = require "ane.serve.fields"
local jobs = require "ane.serve.job"
local labels = require "ane.serve.labels"
local redact = require "ane.classify.redact"
local score = require "ane.batch.score"
local served = require "ane.serve.served"
local vectors = require "ane.serve.vectors"

local M = {}

local Worker = {}
Worker.__index = Worker

-- A group is computed when it has this many rows or bytes.
local GROUP, GROUP_BYTES = 64, 1 << 20

-- Default of prefix_memory: the bytes of the weights divided by PREFIX_SHARE, and at least PREFIXES bytes.
local PREFIXES, PREFIX_SHARE = 32 << 20, 16

--- The kind of a model, and whether it does what a task needs: see ane.serve.served.
M.kind, M.does = served.kind, served.does

-- ---- Calls -------------------------------------------------------------------------------------------------------------------

-- The call that an endpoint answers: an ane.serve.call without a client.
local Call = {}
Call.__index = Call

-- Removes the fields that depend on scheduling.
local function without_scheduling(value)
  local usage = value.usage
  if type(usage) == "table" then usage.prompt_tokens_details, usage.input_tokens_details = nil, nil end
  return value
end

local function deliver(self, status, value)
  self.worker.active = self.worker.active - 1
  self.worker.on_answer(self.row, self.asked, status, without_scheduling(value))
end

-- Ends a call. An answer that an endpoint gives before begin() returns is kept and delivered after that, so that an error of on_answer
-- does not count as an error of the row.
local function end_call(self, status, value)
  if self.done then return end
  self.done = true
  if self.beginning then self.answer = { status, value } else deliver(self, status, value) end
end

function Call:json(status, value) end_call(self, status, value) end
function Call:fail(failure) end_call(self, failure.status, failure:object()) end
function Call.gone() return false end
function Call.drop() end

-- ---- The interface of endpoints --------------------------------------------------------------------------------------------------------

--- Makes a worker.
-- @param model a loaded one
-- @param opts sessions, step_tokens, memory, prefix_memory (of the pool), temperature (default of requests), threshold, window,
-- pseudonyms, key (of classify and redact)
-- @param on_answer function(row, asked, status, body), called once for each row, in any order
-- @return a worker; or nil, message, code
function M.new(model, opts, on_answer)
  local kind = M.kind(model)
  local pool, message, code
  if kind == "text" then
    local prefixes = opts.prefix_memory or math.max(PREFIXES, model:info().weight_bytes // PREFIX_SHARE)
    pool, message, code = model:pool {
      sessions = opts.sessions, step_tokens = opts.step_tokens, memory = opts.memory, prefix_memory = prefixes,
    }
    if not pool then return nil, message, code end
  end
  return setmetatable({
    model = model, pool = pool, kind = kind, id = served.name(model), opts = {}, own = opts, on_answer = on_answer,
    defaults = { temperature = opts.temperature }, jobs = {}, group = {}, group_bytes = 0, active = 0,
  }, Worker)
end

-- Ids of one row differ by their prefixes, and from the second one of a prefix on by a number.
function Worker:new_id(prefix)
  local row = self.row
  row.ids = row.ids or {}
  local n = (row.ids[prefix] or 0) + 1
  row.ids[prefix] = n
  return ("%s%016x%s"):format(prefix, row.key, n > 1 and n or "")
end

--- Accepts any name: batch files name the models of the service that they were written for.
function Worker.check_model() end

--- Returns 0: an answer does not depend on the time.
function Worker.now() return 0 end

--- Logs nothing: the row's answer says that it failed.
function Worker.complain() end

--- Answers a call at once: rows do not wait for one another.
function Worker.work(_, call, work) call:json(200, work(function() end)) end

-- Adds the replies of a row to the pool.
function Worker:generate(call, asked, form)
  for i, one in ipairs(asked) do
    if not one.opts.seed then one.opts.seed = (call.row.key >> 1) + i - 1 end
    if one.opts.tools then one.opts.call_seed = call.row.key + i end
  end
  local job = jobs.new(self, call, asked, form, false)
  self.jobs[#self.jobs + 1] = job
  return job
end

-- ---- Groups ------------------------------------------------------------------------------------------------------------------

-- Answers each entry of a group with the result of `finish(entry, i)`. A failure that it raises becomes the entry's answer.
local function each(group, finish)
  for i, entry in ipairs(group) do
    local ok, value = pcall(finish, entry, i)
    if ok then entry.call:json(200, value) else entry.call:fail(M.failure(value)) end
  end
end

--- The failure of a raised value. An interrupt (Ctrl-C) is raised again.
function M.failure(raised)
  if errors.is(raised) then return raised end
  if failures.is_interrupt(raised) then error(raised, 0) end
  return errors.new(500, (tostring(raised):gsub("^%S+%.lua:%d+: ", "")))
end

-- Classifies the texts of a group, which have the same options, in one call.
local function answer_labels(self, group)
  local texts = {}
  for i, entry in ipairs(group) do texts[i] = entry.values.input end
  local opts = { threshold = group[1].values.threshold or self.own.threshold, window = self.own.window }
  local spans, failed = self.model:classify_many(texts, opts)
  each(group, function(entry, i)
    if failed and failed[i] then error(errors.of(failed[i][1], failed[i][2], "input"), 0) end
    local out = { model = self.id }
    if entry.task == "redact" then
      local pseudonyms = entry.values.pseudonyms
      if pseudonyms == nil then pseudonyms = self.own.pseudonyms end
      out.text = redact.apply(texts[i], spans[i], { pseudonyms = pseudonyms, key = self.own.key })
    end
    out.spans = labels.spans_of(spans[i])
    return out
  end)
end

-- Embeds the inputs of a group, which have the same options, in one call. If that fails, embeds each row by itself.
local function answer_embeddings(self, group)
  local all, first = {}, {}
  for i, entry in ipairs(group) do
    first[i] = #all + 1
    table.move(entry.inputs, 1, #entry.inputs, #all + 1, all)
  end
  first[#group + 1] = #all + 1
  local ok, result = pcall(self.model.embed, self.model, all, group[1].opts)
  each(group, function(entry, i)
    if ok and result then return vectors.embeddings_answer(self, entry.values, result, first[i], first[i + 1] - 1) end
    local own, message, code = self.model:embed(entry.inputs, entry.opts)
    if not own then error(vectors.failure(message, code), 0) end
    return vectors.embeddings_answer(self, entry.values, own)
  end)
end

local COMPUTE = { embed = answer_embeddings, classify = answer_labels, redact = answer_labels }

--- Computes the waiting rows, grouped by their options.
function Worker:flush()
  local groups, order = {}, {}
  for _, entry in ipairs(self.group) do
    if not groups[entry.like] then
      groups[entry.like] = {}
      order[#order + 1] = entry.like
    end
    table.insert(groups[entry.like], entry)
  end
  self.group, self.group_bytes = {}, 0
  for _, like in ipairs(order) do
    local group = groups[like]
    COMPUTE[group[1].task](self, group)
  end
end

local function size_of(inputs)
  local size = 0
  for _, one in ipairs(inputs) do size = size + #one end
  return size
end

-- Adds a row to the waiting rows. like: rows with the same value are computed together.
local function enqueue(self, entry, like, size)
  entry.like = like
  self.group[#self.group + 1] = entry
  self.group_bytes = self.group_bytes + size
end

-- ---- Tasks -------------------------------------------------------------------------------------------------------------------

local function of_labels(rules)
  return function(self, call, body)
    local values = fields.check(rules, body)
    enqueue(self, { call = call, task = call.asked.task, values = values }, ("labels %s"):format(values.threshold), #values.input)
  end
end

local TASKS = {
  chat = function(...) return require("ane.serve.chat").handle(...) end,
  completion = function(...) return require("ane.serve.completions").handle(...) end,
  responses = function(...) return require("ane.serve.responses").handle(...) end,
  rerank = vectors.rerank,
  classify = of_labels(labels.classify_rules),
  redact = of_labels(labels.redact_rules),
  score = score.handle,
  embed = function(self, call, body)
    local values, inputs, opts = vectors.read_embeddings(self, body)
    local like = ("embed %s %s"):format(opts.dims, opts.prompt)
    enqueue(self, { call = call, task = "embed", values = values, inputs = inputs, opts = opts }, like, size_of(inputs))
  end,
}

--- Begins a row. It is answered by this call, by flush() or by a later step().
-- @param asked the request, of ane.batch.rows
function Worker:begin(row, asked)
  local call = setmetatable({ worker = self, row = row, asked = asked, beginning = true }, Call)
  self.row, self.active = row, self.active + 1
  local ok, raised = pcall(TASKS[asked.task], self, call, asked.body)
  call.beginning = nil
  if call.answer then deliver(call, table.unpack(call.answer)) end
  if not ok then call:fail(M.failure(raised)) end
  if #self.group >= GROUP or self.group_bytes >= GROUP_BYTES then self:flush() end
end

--- Computes one step of the pool and answers the rows that have ended.
-- @return false if the pool has no row in progress
function Worker:step()
  if #self.jobs == 0 then return false end
  self.pool:step()
  local kept = {}
  for _, job in ipairs(self.jobs) do
    self.row = job.call.row
    if not job:advance() then kept[#kept + 1] = job end
  end
  self.jobs = kept
  return true
end

function Worker:close()
  if self.scorer then self.scorer:close() end
  if self.pool then self.pool:close() end
  self.pool, self.scorer = nil, nil
end

return M
