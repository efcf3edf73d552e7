--- Package and asset sets under test: their runtime_meta.json, and which way they run.
-- Usage: `local sets = require "support.sets"; sets.change_meta(folder, function(meta) meta.recipe = nil end)`

local ane = require "ane"
local assert = require "luassert"
local core = require "ane.core"

local M = {}

M.IDS = { 1, 17, 300, 5, 9, 2, 44, 8, 3 }

-- The layouts in memory of schemes, by the beginnings of their names.
local HELD = { int8 = "q8_0", int4 = "q4_0", uint4 = "q4_1", lut2 = "lut4", lut3 = "lut4", lut4 = "lut4" }

--- The layout in memory of the weights of a set in this scheme.
function M.held(scheme) return HELD[scheme:match "^%a+%d+"] or "fp16" end

--- The ids IDS, within the vocabulary of a model.
function M.ids_of(model)
  local out = {}
  for i, id in ipairs(M.IDS) do out[i] = id % model.vocab end
  return out
end

--- Logits of all positions after these ids.
function M.logits(model)
  local s <close> = model:session()
  assert(s:feed(M.ids_of(model), { want = "all" }))
  return s:logits()
end

--- runtime_meta.json of the set in a folder.
function M.meta(out) return assert(core.json_decode(assert(core.read_file(out .. "/runtime_meta.json")))) end

--- Changes runtime_meta.json in place.
function M.change_meta(out, change)
  local meta = M.meta(out)
  change(meta)
  assert(core.write_file(out .. "/runtime_meta.json", core.json_encode(meta)))
end

--- The set in a folder is run by a recipe, and computes what a source does, but for norms and embeddings, which sets hold in fp16.
function M.runs_like(source, out, name)
  local set <close> = assert(ane.load(out, { activations = "fp32" }))
  assert.same({ "recipe" }, { set.engine, set.engine_reason }, name)
  local d = M.logits(set):compare(M.logits(source))
  assert(d.max_scaled < 0.02 and d.cosine > 0.9999, ("%s: %s, %s"):format(name, d.max_scaled, d.cosine))
end

--- The set in a folder runs op by op for this reason, and is refused where the recipe is asked for.
-- @param reason pattern
function M.goes_op_by_op(out, reason)
  local set <close> = assert(ane.load(out))
  assert.equal("packages", set.engine)
  assert.matches("no recipe computes these packages: .*" .. reason, set.engine_reason)
  local model, message, code = ane.load(out, { engine = "recipe" })
  assert.same({ nil, "unsupported" }, { model, code })
  assert.matches(reason, message)
end

return M
