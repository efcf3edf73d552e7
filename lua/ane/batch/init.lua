--- Runs a corpus through a model: reads rows from a file, folder or pipe, and writes one line of JSON per row.
-- Needs ane.core, ane.batch.worker, input, output, ranks, rows, settings, ane.classify.redact, ane.pool, ane.util.failure, journal and
-- schema.
-- Usage: `local summary = assert(ane.batch(model, { input = "in.jsonl", output = "out.jsonl", resume = true }))`
--
-- Memory does not depend on the number of rows. A row's answer depends on the model, the options and the row only, not on the rows that
-- are computed beside it. So a run that was killed and resumed gives the same lines as an uninterrupted one.

local core = require "ane.core"
local workers = require "ane.batch.worker"
local failures = require "ane.util.failure"
local inputs = require "ane.batch.input"
local journal = require "ane.util.journal"
local outputs = require "ane.batch.output"
local ranks = require "ane.batch.ranks"
local pool = require "ane.pool"
local redact = require "ane.classify.redact"
local rows = require "ane.batch.rows"
local schema = require "ane.util.schema"
local settings_of = require "ane.batch.settings"

local M = {}

-- Parses "2/8" as {2, 8}; nil if the text is not a shard.
local function shard_of(text)
  local i, n = tostring(text):match "^(%d+)/(%d+)$"
  i, n = math.tointeger(tonumber(i)), math.tointeger(tonumber(n))
  if not i or n < 1 or i < 1 or i > n then return nil end
  return { i, n }
end

--- Options.
--   input: path of a file of lines, a text file or a folder; "-": standard input; or a function that returns one line (or table) per
--     call, and nil at the end
--   output: path of a file; "-": standard output; or a function that is called with each line
--   form: "jsonl": each line is a JSON object; "lines": each line is a text; "files": each file is a text. Default: files for a folder
--     and for .txt, .text, .md, else jsonl
--   task: of plain rows: chat, completion, score, embed, rerank, classify, redact; default: from the model and the row's fields
--   body: defaults of fields: { max_tokens = 64, response_format = ... }
--   ordered: write lines in the order of the rows
--   resume: continue an earlier run; restart: begin again and discard what an earlier run has written
--   shard: "2/8": rows 2, 10, 18, ...
--   max_errors: end the run when more rows than this have failed
--   max_row: maximum bytes of a row; larger rows fail
--   sessions, step_tokens, memory: of the pool (ane.pool); prefix_memory: of the pool, default a sixteenth of the weights' bytes
--   temperature: default of requests in OpenAI's form (1, as in that API; plain rows are greedy)
--   mpi: this process is a rank of an MPI program (the optional module ane.mpi). Rank 0 reads and writes, and all ranks compute. Each
--     rank makes the same call. MPI is finalised when the call returns
--   rank_timeout: seconds after which a silent rank counts as dead (default 300)
--   threshold, window, pseudonyms, key: of classify and redact
--   progress: function(state), called when a row ends: rows, errors, resumed, tokens, seconds, done, total (of the input: bytes or files;
--     total may be nil)
M.rules = {
  input = { type = { "path", "callable" } },
  output = { type = { "path", "callable" } },
  form = { type = "string", choices = { "jsonl", "lines", "files" } },
  task = { type = "string", choices = { "chat", "completion", "score", "embed", "rerank", "classify", "redact" } },
  body = { type = "table" },
  ordered = { type = "boolean", default = false },
  resume = { type = "boolean", default = false },
  restart = { type = "boolean", default = false },
  shard = { type = "string", check = function(text)
    if not shard_of(text) then return ("must be I/N with I of 1 to N, but is %s"):format(schema.shown(text)) end
  end },
  max_errors = { type = "integer", min = 0 },
  max_row = { type = "integer", min = 64, max = 1 << 30, default = 16 << 20 },
  sessions = pool.rules.sessions, step_tokens = pool.rules.step_tokens, memory = pool.rules.memory,
  prefix_memory = pool.rules.prefix_memory,
  temperature = { type = "number", min = 0, max = 2, default = 1 },
  threshold = redact.rules.threshold, window = redact.rules.window, pseudonyms = redact.rules.pseudonyms, key = redact.rules.key,
  mpi = { type = "boolean", default = false },
  rank_timeout = { type = "number", min = 1, default = 300 },
  progress = { type = "callable" },
}

-- ---- Checks ------------------------------------------------------------------------------------------------------------------

local function is_file(path) return type(path) == "string" and path ~= "-" end

-- Is the output a regular file, or may it become one? Only then can a run be resumed.
local function is_resumable(output)
  return is_file(output) and core.path_kind(output) ~= "other"
end

--- Checks input and output before a model is loaded.
-- @param opts checked
-- @return true; or nil, message, code
function M.check(opts)
  local input, output = opts.input, opts.output
  if opts.resume and opts.restart then return nil, "option resume cannot be combined with option restart", "invalid" end
  if opts.resume and not is_resumable(output) then return nil, "option resume needs an output file", "invalid" end
  if is_file(input) and not core.path_kind(input) then return nil, ("%s: no such file or folder"):format(input), "io" end
  if not is_file(output) then return true end
  if core.path_kind(output) == "folder" then return nil, ("%s: must be a file, but is a folder"):format(output), "io" end
  for _, path in pairs(outputs.names(output)) do
    if is_file(input) and core.same_file(input, path) then
      return nil, ("%s: is the input, and would be overwritten as the output %s"):format(input, output), "invalid"
    end
  end
  return true
end

-- The kinds of models whose rows an option has an effect on.
local TEXT, LABELS = { "text", "models that generate text" }, { "labels", "token classifiers" }
local ONLY = {
  sessions = TEXT, step_tokens = TEXT, memory = TEXT, prefix_memory = TEXT, temperature = TEXT,
  threshold = LABELS, window = LABELS, pseudonyms = LABELS, key = LABELS,
}

-- Refuses options that have no effect with a model, and a task that it does not do.
-- @param given the options as they were given, without defaults
-- @param kind of the model
-- @return true; or nil, message, code
local function check_kind(given, model, kind)
  for name, only in pairs(ONLY) do
    if given[name] and only[1] ~= kind then
      return nil, ("option %s is for %s, not for %s"):format(name, only[2], tostring(model)), "invalid"
    end
  end
  if given.task and not workers.does(model, rows.kinds[given.task]) then
    return nil, ("%s does not support the task %s"):format(tostring(model), given.task), "unsupported"
  end
  return true
end

-- ---- Running -----------------------------------------------------------------------------------------------------------------

local Run = {}
Run.__index = Run

-- Writes the line of a row. A failed write ends the run.
local function write(self, row, line, flags, tokens)
  local ok, message, code = self.output:put(row, line, flags)
  if not ok then
    self.failed = self.failed or { message, code }
    return
  end
  self.tokens, self.rows, self.errors = self.tokens + tokens, self.rows + 1, self.errors + (flags & journal.ERROR)
  self:report()
end

-- Raises again an interrupt (Ctrl-C) that a pcall below, such as that of a chat template, has caught. The row in progress is then not
-- answered, and a resumed run computes it.
local function check_interrupts(self)
  if core.interrupts() ~= self.interrupts then error("interrupted!", 0) end
end

-- Passes the line of an answer to on_line, which writes it or sends it to rank 0.
local function answered(self, row, asked, status, body)
  check_interrupts(self)
  local usage = status == 200 and type(body.usage) == "table" and body.usage
  local tokens = usage and usage.total_tokens or 0
  self.on_line(row, rows.answer(row, asked, status, body), status ~= 200 and journal.ERROR or 0, tokens)
end

function Run:report()
  local f = self.opts.progress
  if not f then return end
  f {
    rows = self.rows, errors = self.errors, resumed = self.resumed, tokens = self.tokens, seconds = core.clock() - self.started,
    done = self.input.done, total = self.input.total,
  }
end

-- Does a row belong to this run's shard?
local function is_mine(self, number)
  local shard = self.shard
  return not shard or (number - 1) % shard[2] == shard[1] - 1
end

local function begin(self, row)
  local asked = {}
  local ok, raised = pcall(rows.read, asked, row, self.reading)
  if ok then return self.worker:begin(row, asked) end
  local failure = workers.failure(raised)
  answered(self, row, asked, failure.status, failure:object())
end

-- Rows that rank 0 begins itself before it polls the other ranks.
local LOCAL_ROWS = 8

-- Assigns a row to another rank with room, or begins it in this process.
local function dispatch(self, row)
  if self.ranks and self.ranks:has_room() then return self.ranks:assign(row) end
  self.local_rows = self.local_rows + 1
  begin(self, row)
end

-- Receives the lines of other ranks, and dispatches the rows of dead ranks again. stepped: this process has computed something.
local function poll_ranks(self, stepped)
  local team = self.ranks
  if not team then return end
  local ok, message, code = team:poll(not stepped and team.active > 0 and 0.02 or 0)
  if not ok then self.failed = self.failed or { message, code } end
  while #team.requeued > 0 and (team:has_room() or self.worker.active < self.room) do dispatch(self, table.remove(team.requeued)) end
end

-- Dispatches a row of the input, unless it is blank, already done, or of another shard.
local function accept(self, row)
  self.last = row.number
  if not is_mine(self, row.number) then return end
  if self.reading.form ~= "files" and not row.fault and not row.text:find "%S" then
    local ok, message, code = self.output:remove(row)
    if not ok then self.failed = { message, code } end
    return
  end
  row.key = journal.hash(("%d %s %s\n%s"):format(row.number, row.id or "", row.fault or "", row.text))
  local flags = self.output:known(row.number, row.key)
  if flags then
    self.rows, self.resumed, self.errors = self.rows + 1, self.resumed + 1, self.errors + (flags & journal.ERROR)
    return
  end
  self.count = self.count + 1
  row.position = self.count
  dispatch(self, row)
end

-- Is there room for a row, in this process or another rank?
local function has_room(self)
  if self.output:full() then return false end
  return self.worker.active < self.room or self.ranks and self.ranks:has_room()
end

-- Number of rows in progress.
local function active(self) return self.worker.active + (self.ranks and self.ranks.active or 0) end

-- Begins rows while there is room. Returns true; false if the input has no row yet; nil at its end or after a failure.
local function fill(self)
  local limit = self.ranks and self.local_rows + LOCAL_ROWS or math.huge -- then the other ranks are polled
  while has_room(self) and self.local_rows < limit do
    if self.failed or self:too_many() then return nil end
    local row, message, code = self.input:next(active(self) == 0)
    if row == nil then
      if message then self.failed = { message, code } end
      return nil
    end
    if row == false and active(self) > 0 then return false end
    if row then accept(self, row) end
  end
  return true
end

function Run:too_many() return self.opts.max_errors ~= nil and self.errors > self.opts.max_errors end

-- Computes until the input has ended and all rows are answered.
local function compute(self)
  local more = true
  while more ~= nil or active(self) > 0 or self.ranks and #self.ranks.requeued > 0 do
    if more ~= nil then more = fill(self) end
    if self.failed or self:too_many() then return end
    local stepped = self.worker:step()
    if not stepped then self.worker:flush() end
    check_interrupts(self)
    poll_ranks(self, stepped or more)
  end
end

-- The summary. ok: all rows have a line, and at most max_errors of them failed.
local function summary(self)
  local out = {
    ok = not self:too_many(), rows = self.rows, errors = self.errors, resumed = self.resumed, tokens = self.tokens,
    seconds = core.clock() - self.started,
  }
  if not out.ok then
    out.message = ("%d %s failed, option max_errors is %d"):format(self.errors, self.errors == 1 and "row" or "rows", self.opts.max_errors)
  end
  return out
end

-- A stream to an open file. Each line is flushed: a reader sees it at once, and a full disk is an error of the run.
local function lines_to(file, name, ordered, close)
  return outputs.stream(function(line)
    local ok, message = file:write(line)
    if ok then ok, message = file:flush() end
    return ok, message and name .. message
  end, ordered, close)
end

local function open_output(opts, settings)
  local output = opts.output
  if type(output) ~= "string" then
    return outputs.stream(function(line)
      output(line)
      return true
    end, opts.ordered)
  end
  if output == "-" then return lines_to(io.stdout, "", opts.ordered) end
  if is_resumable(output) then return outputs.file(output, settings, opts) end
  local file, message = io.open(output, "wb")
  if not file then return nil, message, "io" end
  return lines_to(file, output .. ": ", opts.ordered, function() file:close() end)
end

local function run(self, opts)
  compute(self)
  if self.failed then return nil, self.failed[1], self.failed[2] end
  local ok, message, code
  if self:too_many() then
    ok, message, code = self.output:release()
    if not ok then return nil, message, code end
    return summary(self)
  end
  ok, message, code = self.output:finish(self.last)
  if not ok then return nil, message, code end
  if opts.progress then self:report() end
  return summary(self)
end

-- ---- Ranks -------------------------------------------------------------------------------------------------------------------

-- Sets the rank of this process. Without MPI it is rank 0, the only one.
local function join(self, opts)
  self.rank = 0
  if not opts.mpi then return true end
  local found, mpi = pcall(require, "ane.mpi")
  if not found then return nil, "the module ane.mpi is not built: make mpi", "unsupported" end
  local rank, size, code, host = mpi.init()
  if not rank then return nil, size, code end
  self.mpi, self.rank, self.host = mpi, rank, host
  if rank > 0 then ranks.hello(mpi, host) else self.team = ranks.new(mpi, size, host, opts.rank_timeout) end
  return true
end

-- Starts the other ranks. Rank 0 computes rows too.
local function start_ranks(self, settings)
  if not self.mpi then return end
  local room = self.worker.kind == "text" and self.opts.sessions + self.opts.sessions // 4 or 128
  self.room = math.min(self.room, room)
  self.team:begin(room, core.json_encode(settings, { sort = true }), self.on_line)
  self.ranks = self.team
end

-- Runs a rank other than 0. Its summary counts the rows that it has answered.
local function run_rank(self, settings)
  self.on_line = function(row, line, flags, tokens)
    self.rows, self.errors, self.tokens = self.rows + 1, self.errors + (flags & journal.ERROR), self.tokens + tokens
    ranks.send_line(self.mpi, row, line, flags, tokens)
  end
  local ok, message, code = ranks.work(self.mpi, self.worker, function(row) begin(self, row) end, {
    host = self.host, timeout = self.opts.rank_timeout, settings = core.json_encode(settings, { sort = true }),
  })
  if not ok then return nil, message, code end
  return summary(self)
end

--- Runs a batch.
-- @param model a loaded model
-- @param opts see M.rules
-- @param level of error() for misuse
-- @return summary: ok, rows, errors, resumed, tokens, seconds; or nil, message, code. ok is false if more than max_errors rows failed: then
-- message says so, and the output is kept for `resume`
function M.run(model, opts, level)
  local given = opts
  opts = schema.check(M.rules, opts, "batch", (level or 1) + 1)
  if opts.input == nil or opts.output == nil then error("batch: options input and output are needed", (level or 1) + 1) end
  local self = setmetatable({
    opts = opts, started = core.clock(), rows = 0, errors = 0, resumed = 0, tokens = 0, count = 0, last = 0, local_rows = 0,
    interrupts = core.interrupts(), on_line = nil,
  }, Run)
  local _ <close> = setmetatable({}, { __close = function(_, raised)
    self:close()
    if raised then collectgarbage() end -- closes files that were open when the error was raised, which releases their locks
  end })
  local ok, message, code = join(self, opts)
  if ok and self.rank == 0 then ok, message, code = M.check(opts) end
  if not ok then return nil, message, code end
  ok, message, code = check_kind(given, model, workers.kind(model))
  if not ok then return nil, message, code end
  local form = opts.form or inputs.form(opts.input)
  local worker
  worker, message, code = workers.new(model, opts, function(...) answered(self, ...) end)
  if not worker then return nil, message, code end
  self.worker, self.shard = worker, opts.shard and shard_of(opts.shard)
  self.room = worker.kind == "text" and 2 * opts.sessions or 1024
  self.reading = {
    form = form, task = opts.task, kind = worker.kind, body = opts.body or {}, context = model.context, task_kinds = rows.kinds,
    does = function(need) return workers.does(model, need) end,
  }
  local own = {}
  if is_file(opts.output) then
    for _, path in pairs(outputs.names(opts.output)) do own[#own + 1] = path end
  end
  local foreign = { table.unpack(own) }
  if is_file(opts.input) then foreign[#foreign + 1] = opts.input end
  local settings
  settings, message, code = failures.catch(settings_of.run, model, opts, form, foreign)
  if not settings then return nil, message, code end
  if self.rank > 0 then return run_rank(self, settings) end
  self.on_line = function(...) write(self, ...) end
  self.input, message, code = inputs.open { path = opts.input, form = form, most = opts.max_row, own = own }
  if not self.input then return nil, message, code end
  self.output, message, code = open_output(opts, settings)
  if not self.output then return nil, message, code end
  start_ranks(self, settings)
  local result
  result, message, code = run(self, opts)
  return result, message, code
end

function Run:close()
  if self.team then self.team:close() end
  if self.worker then self.worker:close() end
  if self.input then self.input:close() end
  if self.output then self.output:close() end
end

return M
