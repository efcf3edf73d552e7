--- Compares a model with a golden: logits, greedy tokens, and the values of each layer.
-- Needs ane.evaluate.check.hints, places and report, ane.core, golden, model, schema and trace.
-- Usage: `print(assert(ane.check(model, "golden.json")))`

local core = require "ane.core"
local golden = require "ane.evaluate.golden"
local hints = require "ane.evaluate.check.hints"
local places = require "ane.evaluate.check.places"
local report = require "ane.evaluate.check.report"
local schema = require "ane.util.schema"
local trace = require "ane.model.trace"

local M = {}

local RULES = {
  prompt = { type = "string" },
  hints = { type = "boolean", default = true },
}

-- Limits. fp32 activations: largest |d| / (1 + |golden|), the noise of another order of sums. int8 activations: cosine.
local SCALED, COSINE, COSINE_QUANTISED = 2e-3, 0.998, 0.997

local PLAIN = { fp32 = true, fp16 = true, bf16 = true, fp64 = true }

local function is_quantised(bundle)
  if bundle.options and (bundle.options.weights or "file") ~= "file" then return true end
  for _, t in ipairs(bundle.source:tensors()) do
    if not PLAIN[t.dtype] then return true end
  end
  return false
end

local function limits_of(bundle)
  if bundle.program:info().activations == "fp32" then return { scaled = SCALED } end
  return { cosine = is_quantised(bundle) and COSINE_QUANTISED or COSINE }
end

-- GGUF files of llama permute the rows of q and k; the model is the same.
local function is_permuted(ours, want, limits)
  local d = ours:sort():compare(want:sort())
  return limits.scaled and d.max_scaled <= limits.scaled or limits.cosine and d.cosine >= limits.cosine or false
end

-- A row of the report: the distance of `ours` from `want`, or the shapes if they differ.
local function compare(name, value, prompt, ours, want, limits)
  local row = { name = name, value = value, prompt = prompt, ours = ours, golden = want }
  local a, b = ours:shape(), want:shape()
  if #a ~= #b or a[1] ~= b[1] or a[2] ~= b[2] then
    row.shapes = ("ours is %s, the golden's %s"):format(table.concat(a, " x "), table.concat(b, " x "))
    row.max_abs, row.max_scaled, row.rms, row.cosine, row.argmax_agree, row.ok = math.huge, math.huge, math.huge, 0, 0, false
    return row
  end
  for key, v in pairs(ours:compare(want)) do row[key] = v end
  row.ok = limits.scaled and row.max_scaled <= limits.scaled or limits.cosine and row.cosine >= limits.cosine or false
  return row
end

-- Logits of the last n positions, [n, V].
local function logits_of(model, ids, n)
  local session <close>, message, code = model:session { context = #ids }
  if not session then return nil, message, code end
  local rows, ok = {}
  ok, message, code = session:feed(ids, { want = "all", each = function(s, first, count)
    for i = math.max(1, #ids - n - first + 2), count do rows[#rows + 1] = s:logits(i):tostring() end
  end })
  if not ok then return nil, message, code end
  return core.tensor({ #rows, #rows[1] // 4 }, table.concat(rows))
end

local function same(a, b)
  for i = 1, math.max(#a, #b) do
    if a[i] ~= b[i] then return false, i end
  end
  return true
end

-- One prompt's outputs: {prompt, logits = row, greedy_equal, greedy_differs = index of the first differing token}.
local function check_outputs(model, g, prompt, limits)
  local out = { prompt = prompt.name, tokens = #prompt.ids }
  local want = g:tensor(prompt.name .. ".logits")
  if want then
    local ours, message, code = logits_of(model, prompt.ids, math.min(want:shape()[1], #prompt.ids))
    if not ours then return nil, message, code end
    out.logits = compare("logits", "logits", prompt.name, ours, want, limits)
  end
  if prompt.greedy then
    local result, message, code = model:generate(prompt.ids, { max_tokens = #prompt.greedy, ignore_eos = true, details = true })
    if not result then return nil, message, code end
    out.greedy_equal, out.greedy_differs = same(result.ids, prompt.greedy)
  end
  return out
end

-- Compares all tensors of a prompt: those of the residual stream, and values that the golden has by name.
local function check_values(bundle, g, prompt, limits, kv)
  local prefix, wanted, order = prompt.name .. ".", {}, {}
  for _, name in ipairs(g:names()) do
    if name:sub(1, #prefix) == prefix and name ~= prefix .. "logits" then wanted[name:sub(#prefix + 1)] = name end
  end
  if not next(wanted) then return {} end
  local program, message, code = trace.program(bundle)
  if not program then return nil, message, code end
  local values = program:values()
  local by_value = {}
  for place, value in pairs(places.find(values, bundle.config)) do by_value[value] = place end
  local rows, names = {}, {}
  for _, value in ipairs(values) do
    local place = by_value[value.name]
    if place and wanted[place] or wanted[value.name] then
      names[#names + 1] = value.name
      if wanted[value.name] then order[#order + 1] = { value.name, value.name } end
      if place and wanted[place] then order[#order + 1] = { place, value.name } end
    end
  end
  if #names == 0 then return {} end
  local ours
  ours, message, code = trace.run(program, prompt.ids, names, kv)
  if not ours then return nil, message, code end
  for i, pair in ipairs(order) do
    rows[i] = compare(pair[1], pair[2], prompt.name, ours[pair[2]], g:tensor(wanted[pair[1]]), limits)
  end
  return rows
end

-- The row with the larger error, of two rows of one name.
local function worse(a, b)
  if not a or a.ok ~= b.ok then return (not a or a.ok) and b or a end
  return b.max_scaled > a.max_scaled and b or a
end

-- Rows of all prompts, in layers (names hidden.*) and blocks, each name once.
local function check_layers(bundle, g, limits, kv)
  local layers, blocks, at = {}, {}, {}
  for _, prompt in ipairs(g.prompts) do
    local rows, message, code = check_values(bundle, g, prompt, limits, kv)
    if not rows then return nil, message, code end
    for _, row in ipairs(rows) do
      local list = row.name:find "^hidden%." and layers or blocks
      if list == blocks and not row.ok and not row.shapes and is_permuted(row.ours, row.golden, limits) then
        row.permuted, row.ok = true, true
      end
      at[row.name] = at[row.name] or #list + 1
      list[at[row.name]] = worse(list[at[row.name]], row)
    end
  end
  return layers, blocks
end

local function first_bad(rows)
  for _, row in ipairs(rows) do
    if not row.ok then return row end
  end
end

-- The logits of all prompts together; nil if the golden has none.
local function sum_up(outputs)
  local all = { max_abs = 0, max_scaled = 0, rms = 0, cosine = 1, argmax_agree = 0, ok = true }
  local tokens, square, greedy = 0, 0, nil
  for _, out in ipairs(outputs) do
    local row = out.logits
    if row then
      tokens, square = tokens + out.tokens, square + row.rms ^ 2 * out.tokens
      all.max_abs, all.max_scaled = math.max(all.max_abs, row.max_abs), math.max(all.max_scaled, row.max_scaled)
      all.cosine = row.cosine == row.cosine and math.min(all.cosine, row.cosine) or row.cosine
      all.argmax_agree, all.ok = all.argmax_agree + row.argmax_agree * out.tokens, all.ok and row.ok
    end
    if out.greedy_equal ~= nil then greedy = greedy ~= false and out.greedy_equal end
  end
  all.rms, all.argmax_agree = math.sqrt(square / math.max(tokens, 1)), all.argmax_agree / math.max(tokens, 1)
  return tokens > 0 and all or nil, greedy
end

--- Compares a model with a golden.
-- @param model a loaded model; activations = "fp32" is the reference that goldens are made for
-- @param path golden.json (see ane.evaluate.golden), or the folder that holds it
-- @param opts prompt (name of the only prompt to use), hints (default true: where a value drifts, known mistakes are tried one by
-- one on rebuilt models)
-- @param level of errors for misuse, as error()'s
-- @return report, whose tostring is a table for people: ok; layers = list of {name, value (ours), prompt (the one with
-- the largest error), max_abs, max_scaled = largest |d| / (1 + |golden|), rms, cosine, ok}; blocks = the same for values that the
-- golden has by name (permuted: the same numbers in another order);
-- logits = {max_abs, max_scaled, rms, cosine, argmax_agree (0 .. 1), ok}, outputs = the same by prompt; greedy_equal (nil:
-- the golden has no tokens); first = the first row that drifts, first_block; hints = list of {text, kind, certain};
-- limits = {scaled} or {cosine}; or nil, message, code
function M.check(model, path, opts, level)
  level = (level or 1) + 1
  schema.argument({ type = "path" }, path, "check: golden", level)
  opts = schema.check(RULES, opts, "check", level)
  local bundle = require("ane.model").bundle(model, level)
  local g <close>, message, code = golden.open(path, opts.prompt)
  if not g then return nil, message, code end
  local limits = limits_of(bundle)
  local self = { model = model.path, golden = g.path, limits = limits, outputs = {}, hints = {} }
  self.activations = bundle.program:info().activations
  for i, prompt in ipairs(g.prompts) do
    self.outputs[i], message, code = check_outputs(model, g, prompt, limits)
    if not self.outputs[i] then return nil, ("%s, prompt %s: %s"):format(g.path, prompt.name, message), code end
  end
  self.logits, self.greedy_equal = sum_up(self.outputs)
  self.layers, self.blocks, code = check_layers(bundle, g, limits, model.kv)
  if not self.layers then return nil, self.blocks, code end
  self.first, self.first_block = first_bad(self.layers), first_bad(self.blocks)
  local greedy_ok = self.greedy_equal ~= false or limits.cosine ~= nil
  self.ok = not self.first and not self.first_block and greedy_ok and (not self.logits or self.logits.ok)
  if not self.ok and opts.hints then self.hints = hints.find(self, bundle, g, model.kv) end
  return report.wrap(self)
end

return M
