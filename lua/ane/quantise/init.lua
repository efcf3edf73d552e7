--- Writes a model as GGUF with its weights in other types.
-- Needs ane.core, ane.quantise.types, ane.quantise.compensate, ane.quantise.gguf, ane.quantise.known, ane.quantise.meter,
-- ane.quantise.overlay, ane.quantise.resume, ane.util.digest, ane.util.failure, ane.util.keys, ane.util.schema, ane.util.units and
-- ane.model.weights.
-- Usage: `local report = assert(quantise.run(source, "out.gguf", {weights = "q4_k", mixed = {attn_v = "q6_k"}}))`

local architectures = require "ane.quantise.known"
local compensate = require "ane.quantise.compensate"
local core = require "ane.core"
local digest = require "ane.util.digest"
local failure = require "ane.util.failure"
local schema = require "ane.util.schema"
local types = require "ane.quantise.types"
local held = require "ane.model.weights"
local meters = require "ane.quantise.meter"
local overlay = require "ane.quantise.overlay"
local keys = require "ane.util.keys"
local resume = require "ane.quantise.resume"
local units = require "ane.util.units"

local try = failure.try

local M = {}

local function check_type(name) return types.fault(name) end

local function check_table(name) return types.fault(name, true) end

local function check_mixed(mixed) return held.rules_fault(mixed, types.fault) end

--- Options of run.
--   weights: name of a type (ane.quantise.types), or a scheme of Core ML packages; required. The file stores the values of a scheme in
--     a type that represents them exactly. As in packages, a scheme does not change the embedding
--   mixed: other types for the tensors one of whose names (in the new file, in the source, in GGUF files) matches a pattern:
--     {attn_v = "q6_k"}, or a list of {pattern, type}, of which the last match counts. A pattern matches anywhere in the name; * matches
--     any characters, ? any one
--   fallback: type for tensors whose rows are not whole blocks, itself with blocks below 256; default the nearest type of similar size
--     (column `nearest` of dtype.def; q4_k: q5_0), or fp16 if that does not fit either
--   importance: tensor name (of either file) -> list or tensor with a weight for each column, for the types whose encoders search for
--     scales (q2_k .. q6_k, iq4_nl, iq4_xs, mxfp4); ane.evaluate.calibrate makes it
--   method: "rtn" (default): rounds each number to the nearest; "gptq": later columns compensate the errors of earlier ones
--     (csrc/quant/compensate.h), which needs a calibration
--   calibration: of ane.quantise.moments, for gptq
--   transform: what the tensors of the source went through (ane.model.loader): "none" (default) or "rotate". The table of a rotated
--     embedding is stored in q8_0 where it would stay as it is
--   inputs: of gptq: "rounded" (default): each weight is rounded for the inputs that it gets when those before it are rounded, and
--     compensates how they differ from the source's; the tensors of the file are then in the order of the model. "source": for the
--     inputs that the source gives
--   tune: of gptq: "norms": at the end the norm weights are tuned on the text, where the model's operations have gradients
--     (ane.quantise.tune); "auto" (default): they are if the matrices have at most 5 bits per weight and it takes little
--     time; "none"
--   table: of schemes: type of the embedding's table; default its own, or q8_0 where it is rotated
--   stages: an earlier form of inputs: 1 for "source", more for "rounded"
--   memory: bytes that statistics may use at a time with inputs = "source"; default 2 GiB. With less the text is read several times
--   resume: keep notes beside the file (ane.quantise.resume), and go on from those of an earlier run of the same model and options that
--     was ended; default false
--   recipe: of the model (a table), if its architecture may not be registered; users give it to the model's load
--   threads: default the physical cores
--   progress: function(stage, done, total)
M.rules = {
  weights = { type = "string", check = check_type },
  mixed = { type = "table", check = check_mixed },
  fallback = { type = "string", check = types.fallback_fault },
  importance = { type = "table" },
  method = { type = "string", choices = { "rtn", "gptq" }, default = "rtn" },
  calibration = { type = "table", made_of = "calibrate, tokens" },
  transform = { type = "string", choices = held.transforms, default = "none" },
  inputs = { type = "string", choices = { "rounded", "source" } },
  tune = { type = "string", choices = { "auto", "norms", "none" }, default = "auto" },
  table = { type = "string", check = check_table },
  stages = { type = "integer", min = 1, max = 1024 },
  memory = { type = "integer", min = 1, default = 2 << 30 },
  resume = { type = "boolean", default = false },
  recipe = { type = "table", internal = true },
  threads = { type = "integer", min = 1, max = 1024 },
  progress = { type = "callable" },
}

-- ---- Types of tensors ------------------------------------------------------------------------------------------------

local function columns(t) return t.shape[#t.shape] or 1 end

-- Rows of a source that share parameters of a scheme.
local SCHEME_ROWS = 32

-- Are the rows of a tensor others than those of its source, for which the parameters of a scheme are found?
local function is_cut(t)
  for _, p in ipairs(t.parts) do
    if p.by or p.transposed or (p.first or 1) % SCHEME_ROWS ~= 1 then return true end
  end
  return false
end

-- Sets t.scheme and t.to for a tensor that t.to, a scheme, was asked for.
local function choose_scheme(t, opts)
  local wanted, rows = t.to, 1
  for i = 1, #t.shape - 1 do rows = rows * t.shape[i] end
  if t.plain then
    t.to, t.note = "fp16", t.plain
  elseif t.is_table then
    t.to, t.note = t.dtype, "the table of the embedding stays as it is"
    local own = opts.table or (opts.transform ~= "none" and "q8_0")
    if own then t.to, t.note = types.fit(own, columns(t)), "the table of the embedding" end
  else
    t.scheme, t.to, t.scheme_bytes = core.scheme_of(wanted, rows, columns(t))
    if t.scheme ~= wanted then t.note = ("%s does not fit its shape"):format(wanted) end
    if is_cut(t) then
      t.scheme, t.scheme_bytes, t.note = nil, nil, ("its rows are not those of the source, so it has no numbers of %s"):format(wanted)
    end
  end
end

-- Sets t.to, t.scheme and t.note for a planned tensor.
-- @param gguf_names names in the source -> those of GGUF files
local function choose(t, rules, opts, gguf_names)
  if types.is_data(t.dtype) then
    t.to = t.dtype
  elseif types.stays(t.name, t.shape) then
    t.to = "fp32"
  else
    local name = t.parts[1].name
    t.to = held.ruled(rules, t.name, name, name and gguf_names[name]) or opts.weights
    if types.schemes[t.to] then return choose_scheme(t, opts) end
    if t.plain and types.known[t.to].block > 1 then t.to, t.note = "fp16", t.plain end
    local wanted = t.to
    t.to = types.fit(wanted, columns(t), opts.fallback)
    if t.to ~= wanted then t.note = ("rows of %d are not whole blocks of %s"):format(columns(t), wanted) end
  end
end

-- Names may be those of the new file or of the source. Views of tensors ("name[3,:]") come beside their tensors.
local function check_importance(plan, importance)
  local known = {}
  for _, t in ipairs(plan.tensors) do
    known[t.name] = true
    for _, part in ipairs(t.parts) do known[part.name or ""] = true end
  end
  for name in pairs(importance) do
    if not known[name] and not name:find("[", 1, true) then
      failure.raise("invalid", "option importance: no tensor %s", name)
    end
  end
end

local function choose_all(plan, opts)
  local rules = held.rules(opts.mixed)
  local gguf_names = rules[1] and plan.gguf_names and plan.gguf_names() or {}
  for _, t in ipairs(plan.tensors) do choose(t, rules, opts, gguf_names) end
  for _, rule in ipairs(rules) do
    if not rule.used then
      failure.raise("invalid", "option mixed: no tensor that can change its type matches %q", rule[1])
    end
  end
  check_importance(plan, opts.importance or {})
  return #rules > 0
end

-- If a scheme is requested and the head is the embedding table: makes the head a tensor of its own, since packages hold the
-- table as it is and the head by the scheme.
local function untie(plan, opts)
  local at, head, multiplied
  for i, t in ipairs(plan.tensors) do
    if t.name == plan.table then at = i end
    if t.name == plan.head then head = t end
  end
  local t = plan.tensors[at]
  if not t or not types.schemes[opts.weights] then return end
  t.is_table = true
  if head then return end
  local importance, calibration = opts.importance or {}, opts.calibration
  for _, name in ipairs { plan.table, t.parts[1].name } do
    multiplied = multiplied or importance[name] or (calibration and calibration:input(name))
  end
  if not multiplied then return end
  table.insert(plan.tensors, at + 1, {
    name = plan.head, weight = plan.table, shape = t.shape, dtype = t.dtype, bytes = 0, parts = t.parts, plain = t.plain,
  })
end

-- Is the tensor rounded?
local function is_rounded(t) return t.scheme ~= nil or (t.to ~= t.dtype and types.known[t.to] ~= nil and types.known[t.to].block > 1) end

-- Can a model compute with a part of a tensor as it is written? It is a whole tensor of the source.
local function is_whole(p) return p.name ~= nil and not (p.data or p.first or p.last or p.add or p.by) end

-- The tensors of the source whose numbers change when they are written: list of {name, dtype, value}.
local function replaced(plan)
  local list = {}
  for _, t in ipairs(plan.tensors) do
    local changes = t.scheme or (t.to ~= t.dtype and t.to ~= "fp32")
    for _, p in ipairs(changes and not t.weight and t.parts or {}) do
      if is_whole(p) then list[#list + 1] = { name = p.name, dtype = t.to, value = t.wanted and t.wanted.value } end
    end
  end
  return list
end

-- Sorts the tensors: those without a factor, then the others in the order in which the model computes their inputs.
local function sort_by_inputs(plan, order)
  local rank, place = {}, {}
  for i, input in ipairs(order) do rank[input.value] = rank[input.value] or i end
  for i, t in ipairs(plan.tensors) do place[t] = i end
  local function rank_of(t) return t.wanted and rank[t.wanted.value] or 0 end
  table.sort(plan.tensors, function(a, b)
    if rank_of(a) ~= rank_of(b) then return rank_of(a) < rank_of(b) end
    return place[a] < place[b]
  end)
end

-- The factors of gptq for the tensors of a plan, and a note for each tensor without; nil for another method.
local function factors_of(plan, opts)
  if opts.method ~= "gptq" then return nil end
  local order, calibration = {}, opts.calibration
  for _, t in ipairs(plan.tensors) do
    if is_rounded(t) and not t.parts[1].transposed then
      local note
      t.wanted, note = compensate.wanted(calibration, { t.weight or t.name, t.parts[1].name }, t.scheme or t.to, columns(t),
        t.name == plan.table)
      t.note = t.note or note
    end
  end
  local follows = opts.inputs == "rounded" and calibration:has_stages()
  if follows then sort_by_inputs(plan, calibration.order) end
  for _, t in ipairs(plan.tensors) do order[#order + 1] = t.wanted end
  if not follows then return compensate.new(calibration, order, opts.memory) end
  return compensate.following(calibration, order, replaced(plan), { threads = opts.threads or core.cpu_cores() })
end

-- ---- Resuming --------------------------------------------------------------------------------------------------------

-- All that the numbers of the file depend on.
local function settings_of(source, opts, inputs)
  local rules, calibration = {}, opts.calibration
  for i, rule in ipairs(held.rules(opts.mixed)) do rules[i] = { rule[1], rule[2] } end
  local options = {
    weights = opts.weights, mixed = rules[1] and rules, fallback = opts.fallback, method = opts.method, transform = opts.transform,
    table = opts.table, inputs = inputs, calibrate = calibration and calibration:digest(),
    importance = digest.of_importance(opts.importance),
  }
  for key, value in pairs(calibration and calibration:arithmetic(inputs) or {}) do options[key] = value end
  return {
    model = { tensors = digest.of(overlay.base(source), true) }, options = options,
    run = { graph = calibration and calibration.graph, revision = types.REVISION },
  }
end

-- Is the tensor rounded by an earlier run?
local function is_kept(notes, i, t)
  for p, part in ipairs(t.parts) do
    if not part.data and not notes:has(i, p) then return false end
  end
  return true
end

-- A hash of what the tensors of a plan become and of which rows.
local function digest_of_tensors(plan)
  local list = {}
  for _, t in ipairs(plan.tensors) do
    list[#list + 1] = ("%q %s %s %s %s"):format(t.name, t.dtype, t.to, t.scheme or "", table.concat(t.shape, ","))
    for _, p in ipairs(t.parts) do
      list[#list + 1] = ("%q %s %s %s %s"):format(p.name or core.sha256(p.data), p.first, p.last, p.head, p.add)
      if p.by or p.transposed then list[#list + 1] = ("%s %s"):format(p.by, p.transposed) end
    end
  end
  return core.sha256(table.concat(list, "\n"))
end

-- The notes of a run that may go on later; nil: none are wanted.
local function notes_of(plan, source, out, opts, factors)
  if not opts.resume then return nil end
  local settings = settings_of(source, opts, factors and factors.inputs)
  settings.run.tensors = digest_of_tensors(plan)
  local notes = resume.open(out, settings)
  if not (factors and factors.resume) then return notes end
  local first
  for i, t in ipairs(plan.tensors) do
    if t.wanted and not is_kept(notes, i, t) then first = first or t.wanted end
  end
  factors:resume(notes, first)
  return notes
end

-- ---- Writing ---------------------------------------------------------------------------------------------------------

local function file_type(opts, is_mixed)
  local row = types.row(opts.weights)
  return is_mixed and row.mixed or row.file_type
end

-- QUANTIZATION_VERSION: GGML_QNT_VERSION of ggml.h, the layout of the blocks.
local QUANTIZATION_VERSION = 2

local function write_head(writer, plan, opts, is_mixed)
  try(failure.border(plan.path, function()
    plan.values(function(...) try(writer:set(...)) end, function(source, key) try(writer:copy(source, key)) end)
    return true
  end))
  try(writer:set("general.file_type", "uint32", file_type(opts, is_mixed)))
  try(writer:set("general.quantization_version", "uint32", QUANTIZATION_VERSION))
  for _, t in ipairs(plan.tensors) do t.bytes_after = try(writer:add(t.name, t.to, t.shape)) end
  try(writer:begin())
end

-- Importance of columns as float32 bytes.
local function importance_of(opts, t)
  if t.parts[1].transposed then return nil end -- the numbers are those of other columns
  local values = opts.importance and (opts.importance[t.weight or t.name] or t.parts[1].name and opts.importance[t.parts[1].name])
  if values == nil then return nil end
  if #values ~= columns(t) then
    failure.raise("invalid", "option importance: %s has %d columns, but the option has %d numbers", t.name, columns(t), #values)
  end
  return values:tostring()
end

-- The type and the bytes that a tensor has in the file of the model. In a source that computes changed tensors (ane.quantise.overlay) it
-- is fp32, and a tensor that only this source has takes no bytes of the file.
local function stored(t)
  local part = t.parts[1]
  local base = part.source and overlay.base(part.source)
  if not base or base == part.source then return t.dtype, t.bytes end
  local there = base:tensor(part.name)
  if not there then return t.dtype, 0 end
  return there.dtype, t.bytes * there.bytes // part.source:tensor(part.name).bytes
end

local function report_of(t, sums)
  local from, bytes_before = stored(t)
  local row = {
    name = t.name, shape = t.shape, from = from, to = t.to, scheme = t.scheme, bytes_before = bytes_before,
    bytes_after = t.bytes_after, note = t.note,
  }
  row.scheme_bytes, row.max_abs = t.scheme_bytes, sums.max_abs
  return held.measure(row, sums.count, sums.error, sums.signal)
end

-- Rounds a part of a tensor, and writes it. Returns its errors, and its bytes if they are wanted.
local function send(run, t, part, keep)
  local meter = run.meter
  overlay.fill(part.source, { part.name })
  local got = try(run.writer:send(part.source, part.name, {
    first = part.first, last = part.last, head = part.head, add = part.add, by = part.by, transposed = part.transposed,
    importance = importance_of(run.opts, t), factor = t.wanted and run.factors:of(t.wanted), scheme = t.scheme, keep = keep,
    progress = meter and function(done) meter:written(done) end,
  }))
  overlay.drop(part.source, { part.name })
  return got
end

-- Writes a part of tensor i, which an earlier run may have rounded. Returns its errors, and whether it was kept.
local function write_part(run, i, p)
  local t, notes, factors = run.plan.tensors[i], run.notes, run.factors
  local part = t.parts[p]
  local got = notes and notes:piece(i, p)
  local kept = got ~= nil
  if kept then
    try(run.writer:write(got.bytes))
    if run.meter then run.meter:skipped(#got.bytes) end
  end
  local takes = factors and is_whole(part) and not t.weight and factors:takes(part.name)
  if not kept then
    local notes_it = notes and is_rounded(t) and t.bytes_after <= resume.MOST
    got = send(run, t, part, takes or notes_it or nil)
    if notes_it then notes:add(i, p, got) end
  end
  if takes then factors:put(part.name, got.bytes, part.head) end
  return got, kept
end

-- Writes the parts of tensor i. Returns its row of the report, and whether an earlier run has rounded it.
local function write_tensor(run, i)
  local t = run.plan.tensors[i]
  local sums, is_old = { count = 0, max_abs = 0.0, error = 0.0, signal = 0.0 }, false
  if run.meter then run.meter:begin(t) end
  for p, part in ipairs(t.parts) do
    if part.data then
      try(run.writer:write(part.data))
    else
      local got, kept = write_part(run, i, p)
      sums.count, sums.error, sums.signal = sums.count + got.count, sums.error + got.error, sums.signal + got.signal
      sums.max_abs = math.max(sums.max_abs, got.max_abs)
      is_old = is_old or kept
    end
  end
  local row = report_of(t, sums)
  row.method = t.wanted and not row.exact and "gptq" or nil
  return row, is_old
end

-- Mean bits per weight of the matrices, those of schemes as packages hold them, and their number of weights; without a table of the
-- embedding that nothing is multiplied by, as the head is another tensor. nil, 0: there is no matrix.
local function bits_of(plan)
  local bytes, count, has_head = 0, 0, false
  for _, t in ipairs(plan.tensors) do has_head = has_head or t.name == plan.head end
  for _, t in ipairs(plan.tensors) do
    local is_table = t.is_table or (has_head and t.name == plan.table)
    if not is_table and not types.is_data(t.dtype) and not types.stays(t.name, t.shape) then
      bytes, count = bytes + (t.scheme_bytes or t.bytes_after), count + types.elements(t.shape)
    end
  end
  return count > 0 and 8 * bytes / count or nil, count
end

-- Writes all tensors. Returns their rows, and how many of them an earlier run has rounded.
local function write_tensors(run)
  local rows, kept = {}, 0
  for i in ipairs(run.plan.tensors) do
    local is_old
    rows[i], is_old = write_tensor(run, i)
    if is_old then kept = kept + 1 end
  end
  return rows, kept
end

-- What ane.quantise.tune needs to know of a run.
local function tuning_of(run)
  local opts, bits, count = run.opts, bits_of(run.plan)
  return {
    path = run.writer:path(), calibration = opts.calibration, threads = opts.threads or core.cpu_cores(), progress = opts.progress,
    auto = opts.tune == "auto", count = count, bits = bits or 0,
  }
end

-- Raises if norms are to be tuned and cannot be.
local function check_tuning(run)
  if not run.factors or run.opts.tune ~= "norms" then return end
  local why = require("ane.quantise.tune").fault(tuning_of(run))
  if why then failure.raise("invalid", "option tune: %s", why) end
end

-- Tunes the norm weights of the file, which is complete but not yet renamed to its path. Returns the result, or why there is none.
local function tune_norms(run, rows)
  local result, why = require("ane.quantise.tune").run(tuning_of(run))
  if not result then return nil, why end
  for _, row in ipairs(rows) do
    local bytes = result.weights[row.name]
    if bytes then
      try(run.writer:rewrite(row.name, bytes))
      row.note, row.exact, row.max_abs, row.rms = "tuned", nil, nil, nil -- these were measured before
    end
  end
  return {
    windows = result.windows, before = result.before, after = result.after, changed = next(result.weights) ~= nil,
  }
end

local function has_tensor(plan, name)
  for _, t in ipairs(plan.tensors) do
    if t.name == name then return true end
  end
  return false
end

-- What the caller should know of a file that was written, or nil.
local function warning_of(plan, opts, bytes)
  local list, widest = {}, nil
  for _, t in ipairs(plan.tensors) do
    if t.wanted and (not widest or t.wanted.cols > widest.wanted.cols) then widest = t end
  end
  local tokens = widest and opts.calibration.tokens
  if widest and tokens < widest.wanted.cols then
    list[1] = ("the calibration has %d tokens, fewer than the %d columns of %s: gptq compensates little"):format(tokens,
      widest.wanted.cols, widest.name)
  end
  if architectures.has_no_head(plan.architecture) and has_tensor(plan, "output.weight") then
    list[#list + 1] = ("llama.cpp refuses files of architecture %s with output.weight, a head of its own"):format(plan.architecture)
  end
  if bytes > plan.bytes then
    list[#list + 1] = ("the file has %s, more than the %s of its source"):format(units.bytes(bytes), units.bytes(plan.bytes))
  end
  return list[1] and table.concat(list, "; ") or nil
end

local function write_all(plan, source, out, opts)
  untie(plan, opts)
  local is_mixed = choose_all(plan, opts)
  local factors <close> = factors_of(plan, opts)
  local started = core.clock()
  local writer <close> = try(core.gguf_writer(out, opts.threads or core.cpu_cores()))
  write_head(writer, plan, opts, is_mixed)
  plan.size = writer:size()
  local run = { plan = plan, opts = opts, factors = factors, writer = writer }
  check_tuning(run)
  local notes <close> = notes_of(plan, source, out, opts, factors)
  run.notes = notes
  run.meter = opts.progress and meters.new(plan.tensors, writer:size(), factors, opts.progress)
  local report = {
    path = out, architecture = plan.architecture, note = plan.note, weights = opts.weights, method = opts.method,
    transform = opts.transform, bytes_before = 0, bytes_after = writer:size(), reset = notes and notes.reset,
  }
  report.tensors, report.kept = write_tensors(run)
  for _, row in ipairs(report.tensors) do report.bytes_before = report.bytes_before + (row.bytes_before or 0) end
  report.bits = bits_of(plan)
  if factors and opts.tune ~= "none" then report.tuned, report.untuned = tune_norms(run, report.tensors) end
  try(writer:commit())
  if notes then notes:finish() end
  report.warning = warning_of(plan, opts, report.bytes_after)
  report.passes, report.inputs = factors and factors.passes, factors and factors.inputs
  report.seconds = core.clock() - started
  return report
end

-- The planner of a source's format: a module with plan(source, out, recipe) -> plan; or nil, message, code.
local function planner_of(source)
  local format = source:format()
  if format == "gguf" then return require "ane.quantise.gguf" end
  if format == "safetensors" then return require "ane.quantise.hf" end
  if format == "package set" then
    local what = "%s: Core ML packages and Core AI assets cannot be written as GGUF; name the model from which they were exported"
    return nil, what:format(source:path()), "unsupported"
  end
  local what = "%s: no GGUF is made of %s files, whose weights have blocks of their own; name the GGUF file or the folder they came from"
  return nil, what:format(source:path(), format == "onnx" and "ONNX" or format), "unsupported"
end

-- The plan to write a source to `out`. A fault of the source becomes a message.
-- @param r its recipe; nil: that of its architecture
local function plan_of(source, out, r)
  local planner, message, code = planner_of(source)
  if not planner then return nil, message, code end
  if source:holds(out) then return nil, ("%s: is the model itself; name another file for the output"):format(out), "invalid" end
  local plan
  plan, message, code = failure.border(source:path(), planner.plan, source, out, r)
  if plan then plan.path, plan.bytes = source:path(), source:bytes() end
  return plan, message, code
end

--- The tensors of the file that a source becomes, before types are chosen.
-- @param r its recipe; nil: that of its architecture
-- @return list of {name, shape, dtype, bytes, parts, plain}, as ane.quantise.gguf has them; or nil, message, code
function M.tensors(source, r)
  local planner, message, code = planner_of(source)
  if not planner then return nil, message, code end
  return failure.catch(planner.tensors, source, r)
end

local function size_of(plan, out, opts)
  if opts.resume then resume.check(out) end
  untie(plan, opts)
  local is_mixed = choose_all(plan, opts)
  local writer <close> = try(core.gguf_writer(out, 1))
  write_head(writer, plan, opts, is_mixed)
  return writer:size()
end

--- The bytes of the file that run would write; and whether it can be written there. No file is left.
-- @param source as stored: neither adapters nor transforms change the size
-- @param opts weights, mixed, fallback, importance, resume and recipe, as run takes them
-- @return bytes; or nil, message, code
function M.size(source, out, opts, level)
  opts = schema.check(M.rules, opts, "quantise", (level or 1) + 1)
  local plan, message, code = plan_of(source, out, opts.recipe)
  if not plan then return nil, message, code end
  return failure.catch(size_of, plan, out, opts)
end

--- Keeps other processes from writing `out` while a text is read for a run with resume = true, which then has the lock.
-- @return an object to be closed at the end of the run; or nil, message, code
function M.reserve(out) return failure.catch(resume.reserve, out) end

-- A value of metadata as text that differs for different values.
local function text_of(value)
  if type(value) ~= "table" then return ("%s %d %s"):format(math.type(value) or type(value), #tostring(value), tostring(value)) end
  local parts = {}
  for i, key in ipairs(keys(value)) do parts[i] = text_of(key) .. "=" .. text_of(value[key]) end
  return ("{%s}"):format(table.concat(parts, ","))
end

-- A hash of the metadata that a plan writes.
local function digest_of_values(plan)
  local parts = {}
  try(failure.border(plan.path, function()
    plan.values(function(key, kind, value) parts[#parts + 1] = text_of { key, kind, value } end,
      function(source, key) parts[#parts + 1] = text_of { key, source:meta(key) } end)
    return true
  end))
  return core.sha256(table.concat(parts, "\n"))
end

--- A text that identifies the file that run would write with method gptq: it differs where the bytes may.
-- @param source, out, opts as run takes them
-- @return the text; or nil, message, code
function M.identity(source, out, opts)
  opts = schema.check(M.rules, opts, "quantise", 2)
  local plan, message, code = plan_of(source, out, opts.recipe)
  if not plan then return nil, message, code end
  return failure.catch(function()
    local settings, calibration = settings_of(source, opts, opts.inputs), opts.calibration
    settings.tune = { opts.tune, calibration:digest(calibration.further), calibration:has_stages() }
    settings.values = digest_of_values(plan)
    return core.sha256(core.json_encode(settings, { sort = true }))
  end)
end

-- Checks the arguments of run. Returns the options with their defaults.
local function checked(out, opts, level)
  schema.argument({ type = "path" }, out, "quantise: path", level + 1)
  local given = opts or {}
  opts = schema.check(M.rules, opts, "quantise", level + 1)
  if not opts.weights then error("quantise: option weights is missing: choose " .. table.concat(types.names, ", "), level + 1) end
  for _, name in ipairs { "inputs", "stages", "tune" } do
    if given[name] ~= nil and opts.method ~= "gptq" then error(("quantise: option %s needs method gptq"):format(name), level + 1) end
  end
  return opts
end

--- Writes `out` as a whole or not at all. An existing file is replaced.
-- @param source an open source
-- @param out path of the GGUF file
-- @param opts see rules
-- @param level as error()'s, for wrong options
-- @return the report: path, architecture, weights, bytes_before, bytes_after, bits (mean per weight of the matrices, those of schemes
-- as packages hold them), seconds, note and warning (or nil), tensors = list of {name, shape, from, to, scheme and scheme_bytes (or
-- nil), bytes_before, bytes_after, exact, max_abs, rms, snr_db (nil where exact), note (or nil)}, kept (number of tensors that an
-- earlier run has rounded), reset (why its work was of no use, or nil), tuned = {windows, before and after = {kl (in nats),
-- perplexity (relative to the source's)} of windows that are held out, changed (false: that would not be better)} or untuned (why) of
-- gptq with tune; or nil, message, code
-- @raise if an option is unknown or has a wrong value
function M.run(source, out, opts, level)
  level = level or 1
  opts = checked(out, opts, level + 1)
  opts.inputs = opts.inputs or (opts.stages == 1 and "source" or "rounded")
  if opts.method == "gptq" and not opts.calibration then
    error("quantise: method gptq needs a text: option calibrate", level + 1)
  end
  local plan, message, code = plan_of(source, out, opts.recipe)
  if not plan then return nil, message, code end
  local report
  report, message, code = failure.catch(function()
    opts.importance = opts.importance and held.importance(opts.importance)
    return write_all(plan, source, out, opts)
  end)
  if not report and code == "io" and plan.size and message:find("cannot write", 1, true) then
    message = ("%s; the whole file has %s"):format(message, units.bytes(plan.size))
  end
  return report, message, code
end

-- The options with the recipe and the transform that a model was loaded with.
local function with_model(bundle, opts)
  local transform = (bundle.options or {}).transform
  if not (bundle.recipe or transform) or (opts ~= nil and type(opts) ~= "table") then return opts end
  local own = {}
  for key, value in pairs(opts or {}) do own[key] = value end
  own.recipe, own.transform = bundle.recipe, transform or own.transform
  return own
end

--- Must a model compute on the text as a whole, not layer by layer? It gives the inputs of the source.
-- @param opts inputs, stages
function M.runs_whole(opts) return opts.inputs == "source" or opts.stages == 1 end

-- The model of a bundle with other weights, loaded again; or nil, message, code.
local function transformed(bundle, kind, opts)
  local options = bundle.options
  if not options then return nil, "option transform: no recipe built this model", "unsupported" end
  local model = require "ane.model"
  local whole = M.runs_whole(opts) or opts.method ~= "gptq" and opts.calibrate ~= nil
  local open = whole and model.load or model.unplanned
  return open(bundle.source:path(), {
    transform = kind, recipe = options.recipe, context = options.context, threads = options.threads, activations = options.activations,
    kv = options.kv, adapters = options.adapters, merge = options.merge,
  })
end

-- The options with samples that the model has written, where samples are asked for; or nil, message, code.
local function with_samples(model, opts)
  if type(opts.calibrate) ~= "table" or opts.calibrate.samples == nil then return opts end
  local own = {}
  for key, value in pairs(opts) do own[key] = value end
  local lists, message, code = require("ane.model.inputs").resolve(model, opts.calibrate, opts.progress ~= true and opts.progress or nil)
  if not lists then return nil, message, code end
  own.calibrate = lists
  return own
end

-- Does the option name another transform than that of the model? Raises if the model's own cannot be undone.
local function asks_for_another(options, kind, level)
  local own = options and options.transform or "none"
  if kind == nil or kind == own then return false end
  schema.argument(M.rules.transform, kind, "quantise: option transform", level + 1)
  if own ~= "none" then
    error(("quantise: option transform is %s, but the model was loaded with transform %s"):format(kind, own), level + 1)
  end
  return true
end

-- What run says of the options, the output and their tensors, before a text is read. Raises for wrong ones.
-- @return true; or nil, message, code
local function check(bundle, source, out, opts, level)
  local own = {}
  for key, value in pairs(with_model(bundle, opts)) do own[key] = value end
  own.calibrate, own.tokens = nil, nil
  own = checked(out, own, level + 1)
  local size, message, code = M.size(source, out, own)
  return size and true, message, code
end

-- Writes the weights of a model, and reads the text of gptq with it.
local function write_model(model, bundle, source, out, opts, level)
  local own, calibration, code = require("ane.quantise.moments").from_options(model, with_model(bundle, opts), "quantise",
    level + 1)
  if not own then return nil, calibration, code end
  local _ <close> = calibration
  local report, message
  report, message, code = M.run(source, out, own, level + 1)
  return report, message, code -- no tail call: error levels count this function
end

--- The same for a loaded model, which also reads the text of gptq. With option transform the model is loaded again with it, for this
-- call.
-- @param opts see rules; also calibrate (a text, a list of token ids, or a list of texts and lists: of gptq, else for the importance of
-- columns) and tokens (most of them)
function M.of_model(model, source, out, opts, level)
  level = (level or 1) + 1
  if type(opts) == "table" and opts.recipe ~= nil then
    error("quantise: unknown option \"recipe\"; the model is loaded with it", level)
  end
  local bundle_of = require("ane.model").bundle
  local bundle = bundle_of(model, level)
  local report, message, code
  if type(opts) == "table" and opts.calibrate ~= nil then
    schema.plain(opts, "quantise", level)
    report, message, code = check(bundle, source, out, opts, level)
    if not report then return nil, message, code end
  end
  if type(opts) ~= "table" or not asks_for_another(bundle.options, opts.transform, level) then
    report, message, code = write_model(model, bundle, source, out, opts, level)
    return report, message, code
  end
  opts, message, code = with_samples(model, opts)
  if not opts then return nil, message, code end
  local other
  other, message, code = transformed(bundle, opts.transform, opts)
  if not other then return nil, message, code end
  local _ <close> = other
  bundle = bundle_of(other, level)
  report, message, code = write_model(other, bundle, bundle.source, out, opts, level)
  return report, message, code
end

return M
