--- The settings in the journal of a batch: all that the answers depend on, except the rows.
-- Needs ane.core, ane.batch.fingerprint, ane.batch.output, ane.model, ane.model.weights and ane.util.digest.
-- Usage: `local settings = settings_of.run(model, opts, "jsonl", { "in.jsonl", "out.jsonl" })`

local core = require "ane.core"
local digest = require "ane.util.digest"
local fingerprint = require "ane.batch.fingerprint"
local models = require "ane.model"
local outputs = require "ane.batch.output"
local weights = require "ane.model.weights"

local M = {}

-- Options of a batch that answers depend on.
local ANSWER = { "task", "body", "temperature", "threshold", "window", "pseudonyms", "key", "shard", "max_row" }

-- Options of load that answers depend on, besides those that the facts about a model have.
local LOAD = { "weights", "transform", "precision", "backend", "soft_experts" }

-- The facts about a model that its answers depend on. own: paths that are not files of the model.
local function facts_of(model, own)
  local info = model:info()
  local out = {
    file = info.path and fingerprint.of(info.path, own), context = info.context, activations = info.activations, kv = info.kv,
    engine = info.engine, adapters = {},
  }
  for i, entry in ipairs(info.adapters or {}) do
    out.adapters[i] = { file = fingerprint.of(entry.path), scale = entry.scale, merged = entry.merged }
  end
  return out
end

-- Adds the options that a model was loaded with. Type and importance decide the values of a weight, which its stored bytes do not.
local function add_load(out, loaded)
  for _, name in ipairs(LOAD) do out[name] = loaded[name] or nil end
  for i, rule in ipairs(weights.rules(loaded.mixed)) do
    out.mixed = out.mixed or {}
    out.mixed[i] = ("%s=%s"):format(rule[1], rule[2])
  end
  out.importance = digest.of_importance(loaded.importance and weights.importance(loaded.importance))
  if type(loaded.recipe) == "string" then out.recipe = fingerprint.of(loaded.recipe) end
end

--- The settings of a run.
-- @param opts of ane.batch, checked
-- @param form of the rows
-- @param own paths that are not files of the model, such as the input and the output
-- @return table, for ane.util.journal
-- @raise a failure of ane.util.failure if a file of the model cannot be read
function M.run(model, opts, form, own)
  local options = { form = form }
  for _, name in ipairs(ANSWER) do options[name] = opts[name] end
  if opts.key then options.key = core.sha256(opts.key) end -- the secret itself is not written
  add_load(options, models.options(model))
  return { ane_batch = outputs.VERSION, model = facts_of(model, own), options = options }
end

return M
