--- Rebuilds an ONNX graph by a recipe.
-- Needs ane.core, ane.recipe, ane.util.failure and the modules beside it. The recipe that the configuration names is tried first,
-- then all others. Names decide nothing; ane.onnx.match compares the graphs.
-- Usage: `local found, reason = rebuild.find(source, roles, facts)`

local core = require "ane.core"
local failure = require "ane.util.failure"
local graph = require "ane.onnx.graph"
local lift = require "ane.onnx.lift"
local match = require "ane.onnx.match"
local recipe = require "ane.recipe"
local roles = require "ane.onnx.roles"
local segments = require "ane.onnx.segments"

local M = {}

-- Segments in the form that the core takes.
local function pieces(weight)
  local list = {}
  for i, s in ipairs(weight) do
    local p = { from = s.from, step = s.step, n = s.n }
    for key, value in pairs(s.piece) do p[key] = value end
    list[i] = p
  end
  return list
end

-- The weights of a model under the names that recipes ask for. fused: the weight ffn_up has the rows of gate, then those of up.
-- @return list for core.onnx_weights, name -> segments
local function named(model, fused)
  local list, by_name = {}, {}
  local function add(name, w, shape)
    list[#list + 1] = { name = name, shape = shape, pieces = pieces(w) }
    by_name[name] = w
  end
  for name, weight in pairs(model.weights) do
    local layer, role = name:match "^(layers%.%d+%.)(.*)$"
    local called = name
    if fused and role == "ffn_gate" or fused and role == "ffn_up" or not fused and role == "ffn_gate_up" then called = nil end
    if role == "ffn_gate_up" and fused then called = layer .. "ffn_up" end
    if called then
      add(called .. (role == "exp_probs_b" and "" or ".weight"), weight.w, weight.shape)
      if weight.b then
        add(called .. ".bias", weight.b, { segments.count(weight.b) })
      end
    end
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list, by_name
end

-- Raises a failure that says nothing about the graph: a lack of memory, or a file that cannot be read.
-- @return nil and the reason why a recipe does not cover the graph
local function uncovered(reason, code)
  if code == "memory" or code == "io" then failure.raise(code, "%s", reason) end
  return nil, reason
end

-- Tries one recipe with one naming. @return {source, config} with only the weights that it takes; or nil, reason
local function try(source, r, model, facts, lifted, fused)
  local list, by_name = named(model, fused)
  local all, message, code = core.onnx_weights(source, list)
  if not all then return uncovered(message, code) end
  local cfg = roles.config(model, facts)
  for name in pairs(by_name) do cfg.tensors[name] = true end
  local used
  local made, reason
  made, reason, code = recipe.build(r, cfg, all, function(b, result)
    used = b.used
    local same, why = match.same(b, result, lifted, by_name)
    if same then return true end
    return nil, why, "unsupported"
  end)
  all:close()
  if not made then return uncovered(reason, code) end
  made:close()
  local wanted = {}
  for _, entry in ipairs(list) do
    if used[entry.name] then wanted[#wanted + 1] = entry end
  end
  local weights, why
  weights, why, code = core.onnx_weights(source, wanted)
  if not weights then return uncovered(why, code) end
  return { source = weights, config = roles.config(model, facts), recipe = r }
end

-- Recipes in the order in which they are tried: the given one, the named one, then all others.
local function candidates(facts, given)
  if given then return { given } end
  local list, seen = {}, {}
  local function add(r)
    if r and not seen[r] then
      seen[r] = true
      list[#list + 1] = r
    end
  end
  local own, message, code = recipe.find(facts.architecture)
  if not own then uncovered(message, code) end
  add(own)
  for _, name in ipairs(recipe.known()) do add((recipe.find(name))) end
  return list
end

-- Refuses what the graph engine refuses: an attribute or input that it does not know may change the result.
local function check_known(source, logits)
  local part <close> = assert(core.onnx_part(source, { logits }, {}))
  local known, message = core.interp_check(part)
  if not known then graph.refuse(nil, "%s", message) end
end

local function find(source, names, facts, given)
  local g = graph.new(source, names)
  check_known(source, g.outputs[names.logits])
  local lifting = lift.new(g)
  lifting.context, lifting.head_dim = facts.context_length, facts.head_dim or 1
  local ok, result = pcall(function()
    local logits = lifting:columns(g.outputs[names.logits])
    return { logits = logits, model = roles.find(logits) }
  end)
  g:close()
  if not ok then error(result, 0) end
  local first
  for _, r in ipairs(candidates(facts, given)) do
    for _, fused in ipairs { false, true } do
      local found, reason = try(source, r, result.model, facts, result.logits.e, fused)
      if found then return found end
      first = first or reason
    end
  end
  return nil, first
end

--- Finds a recipe that computes the same as a graph.
-- @param source an open ONNX source
-- @param names roles of inputs and outputs (ane.onnx)
-- @param facts architecture, folder, context_length, head_dim, bos_id, eos_ids, from the files beside the graph
-- @param given a recipe, or nil
-- @return {source, config, recipe}; or nil and why no recipe covers the graph
function M.find(source, names, facts, given)
  local ok, found, reason = pcall(find, source, names, facts, given)
  if ok then return found, reason end
  if type(found) == "table" and found.uncovered then return nil, found.message end
  if type(found) ~= "string" then error(found, 0) end
  if failure.code(found) == "memory" then failure.raise("memory", "%s: out of memory", facts.folder) end
  -- the graph engine reports a graph whose ops lack required inputs
  return nil, "the graph is not understood: " .. found:gsub("^[^\n]-%.lua:%d+: ", ""):gsub("\n.*", "")
end

return M
