--- Cases for Core AI assets of language models: calls of extend that carry the states on, with the executor's logits.
--
--   local case = coreai.case(report, ids, coreai.rows(path, ids, "int8"))   -- for spec/fixtures/aimodel/run.py, as JSON
--   local worst = coreai.run(report.path, case)                             -- the same by our own runner

local ane = require "ane"

local M = {}

--- Logits of the executor: a list for each token.
function M.rows(path, ids, weights)
  local model <close> = assert(ane.load(path, { weights = weights, activations = "fp32" }))
  local session <close> = assert(model:session())
  local rows = {}
  assert(session:feed(ids, { want = "all" }))
  for i = 1, #ids do rows[i] = session:logits(i):totable() end
  return rows
end

local function of(number, output) return { call = number, output = output } end
local function ints(dtype, shape, data) return { dtype = dtype, shape = shape, data = data } end

-- Appends the calls of extend_{context}_{q} that feed `ids` by `step` tokens.
local function feed(calls, ids, rows, context, q, step)
  for pos = 0, math.min(#ids, context) - step, step do
    local list, positions, mask, logits = {}, {}, {}, {}
    for i = 1, q do
      list[i] = i <= step and ids[pos + i] or 0
      positions[i] = math.min(pos + i - 1, context - 1)
    end
    for i = 1, step do table.move(rows[pos + i], 1, #rows[pos + i], #logits + 1, logits) end
    for c = 0, context - 1 do
      for i = 1, q do mask[#mask + 1] = c <= positions[i] and 0 or -40000 end
    end
    calls[#calls + 1] = { ["function"] = "gather_embeddings_" .. q, inputs = {
      in_new_token_ids = ints("int32", { 1, q }, list), embedding_table = of(1, "embedding_table") } }
    calls[#calls + 1] = { ["function"] = ("extend_%d_%d"):format(context, q), state = ("%d %d %d"):format(context, q, step), inputs = {
      transformer_input = of(#calls, "gathered_embeddings"), position_ids = ints("uint16", { 1, q }, positions),
      in_step = ints("int32", { 1 }, { pos }), embedding_table = of(1, "embedding_table"),
      causal_mask = { dtype = "fp16", shape = { 1, context, 1, q }, data = mask } },
      outputs = { out_logits = { data = logits } } }
  end
end

--- A case that feeds ids through every extend of the asset by whole chunks, and through that of the fewest tokens one by one. Logits
-- may differ by 0.03, and by a hundredth of the largest of them.
-- @param report of an export with target "coreai"
-- @param rows of M.rows
-- @param slack the logits may differ by so much more
function M.case(report, ids, rows, slack)
  local calls, largest, least = { { ["function"] = "load_embeddings", inputs = {} } }, 0, nil
  for _, row in ipairs(rows) do
    for _, v in ipairs(row) do largest = math.max(largest, math.abs(v)) end
  end
  for _, f in ipairs(report.functions) do
    local context, q = f.name:match "^extend_(%d+)_(%d+)$"
    context, q = math.tointeger(context), math.tointeger(q)
    if q then feed(calls, ids, rows, context, q, math.min(q, #ids)) end
    if q and (not least or q < least) then
      least = q
      if q > 1 then feed(calls, ids, rows, context, q, 1) end
    end
  end
  return { calls = calls, tolerance = { atol = 0.03 + 0.01 * largest + (slack or 0) } }
end

-- Inputs as Package:predict takes them. given: results of earlier calls
local function resolved(inputs, given)
  local out = {}
  for name, v in pairs(inputs) do out[name] = v.call and given[v.call][v.output] or { shape = v.shape, data = v.data } end
  return out
end

--- Runs a case with our own runner.
-- @return the largest difference
function M.run(path, case)
  local pkg <close> = assert(ane.package(path))
  local states, given, worst = {}, {}, 0
  for i, call in ipairs(case.calls) do
    local name, state = call["function"], nil
    if call.state then
      states[call.state] = states[call.state] or assert(pkg:state(name))
      state = states[call.state]
    end
    given[i] = assert(pkg:predict(resolved(call.inputs, given), state, { ["function"] = name }))
    for output, want in pairs(call.outputs or {}) do
      local got = given[i][output]
      got = got:reshape({ #got }):totable()
      for k, v in ipairs(want.data) do worst = math.max(worst, math.abs(got[k] - v)) end
    end
  end
  for _, state in pairs(states) do state:close() end
  return worst
end

--- Runs a script of spec/fixtures/aimodel, which needs Apple's coreai-core; returns what it wrote.
-- @param python a Python that has it
-- @param words the script's name and its arguments
function M.apple(python, words)
  local pipe = assert(io.popen(("%s spec/fixtures/aimodel/%s 2>&1"):format(python, words)))
  local text = pipe:read "a"
  assert(pipe:close(), text)
  return text
end

return M
