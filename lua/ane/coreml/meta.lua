--- runtime_meta.json of a package set. It is read and checked completely before a package is opened.
-- Needs ane.core, ane.util.failure, ane.util.keys and ane.util.paths.
-- Usage: `local set, text = meta.read("out/", context)`; raises {message, code}
--
-- runtime_meta.json is an object with these keys (others are allowed):
--   format_version      1
--   kind                "causal", "token_classifier", "embedding" or "reranker"
--   model_family, model_name, d_model, n_layers, vocab_size, max_seq_len (positions of the states, or the tokens of a call
--                       where there are none), n_heads, n_kv_heads, d_head, weights: facts, shown by info
--   embed_bin           file of fp16 rows [vocab_size, d_embed]; embed_scale: a factor for them, default 1; absent where a
--                       package has an input of role ids
--   d_embed             columns of embed_bin, default d_model. More: rows of several embeddings, one after the other (Gemma 3n and 4)
--   labels, reach       of token classifiers: names; tokens on each side that a label depends on
--   pooling             of embedding models: see ane.coreml.pooling
--   n_scores, score     of rerankers: numbers of the result; activation of the score, Identity or Sigmoid
--   both_sides          of embedding models and rerankers: attention sees later tokens, too
--   eos_ids, bos_id     tokenizer: file of the tokenizer where it is not the folder itself
--   ropes               list of {inv_freq = list, magnitude}; with long_freq and original these are used instead, for all
--                       positions, once the sequence is longer than `original`
--   packages            in the order of calls, each {path, kind, bytes (of all its files), sha256, inputs, outputs, states}
--     kind = "layers"   start, end: layers, both included; part, parts: of one layer, from 0, one after the other
--     kind = "experts"  start, end: the layer; experts = [from, to), of a mixture
--     kind = "head"     vocab_start, vocab_end: rows [start, end) (of a token classifier: of the labels)
--     kind = "whole"    everything
--     inputs            {name, role, ...}, role one of hidden, edge (edge: name of the value), position, rope_cos, rope_sin
--                       (rope: number from 0), mask (window, ahead), ids, types (of tokens)
--     outputs           {name, role, ...}: hidden, edge (edge), logits, argmax, max; instead of logits: labels (of a token
--                       classifier), last_hidden_state (of an embedding model), scores (of a reranker, at each token)
--     states            {name, shape, role}: keys, values, columns (a ring of a convolution) or recurrent (Mamba-2, delta rule)
--     functions         where a package has several, which share weights and states: {name, context (positions that attention sees:
--                       masks have so many keys), inputs, outputs, states}; those above are the default one's. A call takes in
--                       each package the function for its tokens that sees the fewest positions
--   profiles            other sets of packages that do the same, each {fixed_t, max_seq_len, packages}: with option context those
--                       with the smallest max_seq_len that holds it are opened
--   recipe              how a recipe was asked for the graph (ane.coreml.export.recipe); with it the set may run by that recipe
--   files               {path = {bytes, sha256}} of all files but this one; with option verify they are hashed
-- A hidden or edge input that no earlier package outputs is the embedding.

local core = require "ane.core"
local failure = require "ane.util.failure"
local keys = require "ane.util.keys"
local paths = require "ane.util.paths"

local M = {}

--- Name of the file.
M.NAME = "runtime_meta.json"

--- Roles of results, which the engine treats as logits.
M.results = { labels = true, last_hidden_state = true, scores = true }

local refuse = failure.raise

local KINDS = { layers = true, experts = true, head = true, whole = true }
local INPUTS = { hidden = true, edge = true, position = true, rope_cos = true, rope_sin = true, mask = true, ids = true,
  types = true }
local OUTPUTS = { hidden = true, edge = true, logits = true, argmax = true, max = true, labels = true, last_hidden_state = true,
  scores = true }
local MODELS = { causal = true, token_classifier = true, embedding = true, reranker = true }

--- v as an integer of at least `low`, or nil.
function M.whole(v, low)
  local n = type(v) == "number" and math.tointeger(v)
  return n and n >= low and n <= 1 << 40 and n or nil
end

local whole = M.whole

-- Raises unless `value` is a key of `set`.
local function one_of(set, value, where)
  if set[value] then return end
  refuse("format", "%s must be one of %s, but is %s", where, table.concat(keys(set), ", "), tostring(value))
end

-- An integer of at least `low` under a key; raises otherwise.
local function integer(t, key, low, where)
  return whole(t[key], low) or refuse("format", "%s: %s must be a whole number of at least %d, but is %s", where, key, low,
    tostring(t[key]))
end

local function list(t, key, where, may)
  if t[key] == nil and may then return {} end
  if type(t[key]) ~= "table" then refuse("format", "%s: %s must be a list, but is %s", where, key, tostring(t[key])) end
  return t[key]
end

-- A path inside the folder: relative, without parts that lead out of it.
function M.inside(path, where)
  if not paths.is_inside(path) then refuse("format", "%s: path %q leaves the folder", where, tostring(path)) end
  return path
end

local function read_port(port, roles, where)
  if type(port) ~= "table" or type(port.name) ~= "string" then refuse("format", "%s has no name", where) end
  one_of(roles, port.role, ("%s (%s): role"):format(where, port.name))
  return port
end

-- Inputs, outputs and states of each function. A package with one function is its own list.
local function read_function(f, where)
  for k, port in ipairs(list(f, "inputs", where)) do read_port(port, INPUTS, ("%s: input %d"):format(where, k)) end
  for k, port in ipairs(list(f, "outputs", where)) do read_port(port, OUTPUTS, ("%s: output %d"):format(where, k)) end
  f.states = list(f, "states", where, true)
  for k, state in ipairs(f.states) do
    if type(state) ~= "table" or type(state.name) ~= "string" then refuse("format", "%s: state %d has no name", where, k) end
  end
end

local function read_functions(p, where)
  if p.functions == nil then
    p.functions = { { inputs = p.inputs, outputs = p.outputs, states = p.states } }
    return
  end
  if #list(p, "functions", where) == 0 then refuse("format", "%s: functions is empty", where) end
  for k, f in ipairs(p.functions) do
    if type(f) ~= "table" or type(f.name) ~= "string" then refuse("format", "%s: function %d has no name", where, k) end
    if f.context ~= nil then f.context = integer(f, "context", 1, ("%s: function %s"):format(where, f.name)) end
    read_function(f, ("%s: function %s"):format(where, f.name))
  end
end

local function read_package(p, where)
  if type(p) ~= "table" then refuse("format", "%s must be an object, but is %s", where, tostring(p)) end
  M.inside(p.path, where)
  where = ("%s (%s)"):format(where, p.path)
  one_of(KINDS, p.kind, where .. ": kind")
  if p.kind == "layers" or p.kind == "experts" then
    p.start, p["end"] = integer(p, "start", 0, where), integer(p, "end", 0, where)
    if p["end"] < p.start then refuse("format", "%s: end is before start", where) end
  end
  if p.kind == "layers" and p.parts ~= nil then
    p.part, p.parts = integer(p, "part", 0, where), integer(p, "parts", 1, where)
    if p.part >= p.parts then refuse("format", "%s: part must be below parts (%d), but is %d", where, p.parts, p.part) end
    if p.start ~= p["end"] then
      refuse("format", "%s: a part of a layer must have equal start and end, but has %d and %d", where, p.start, p["end"])
    end
  end
  if p.kind == "experts" then
    local e = list(p, "experts", where)
    if not whole(e[1], 0) or not whole(e[2], 1) or e[2] <= e[1] then
      refuse("format", "%s: experts must be two numbers, the second above the first", where)
    end
  end
  if p.kind == "head" and integer(p, "vocab_end", 1, where) <= integer(p, "vocab_start", 0, where) then
    refuse("format", "%s: vocab_end must be above vocab_start", where)
  end
  integer(p, "bytes", 1, where)
  read_function(p, where)
  read_functions(p, where)
end

-- Checks that the ranges of the packages cover [0, total) once, in order. `to` is not included.
local function check_cover(what, ranges, total)
  local at = 0
  for _, r in ipairs(ranges) do
    if r.from > at then refuse("format", "%s: %s %d to %d are in no package", r.path, what, at, r.from - 1) end
    if r.from < at then refuse("format", "%s: %s %d to %d are in two packages", r.path, what, r.from, math.min(at, r.to) - 1) end
    at = r.to
  end
  if total and at < total then refuse("format", "%s %d to %d are in no package", what, at, total - 1) end
  if total and at > total then refuse("format", "%s %d to %d are beyond the model's %d", what, total, at - 1, total) end
end

-- Adds the layers of a package. A layer in several parts is added with its last part. before: the part that came last, if the
-- layer has more.
local function add_layers(layers, p, before)
  if before and (p.parts ~= before.parts or p.start ~= before.start or p.part ~= before.part + 1) then
    refuse("format", "%s: must hold part %d of layer %d, which the package before it begins", p.path, before.part + 1, before.start)
  end
  if not p.parts then
    layers[#layers + 1] = { from = p.start, to = p["end"] + 1, path = p.path }
    return nil
  end
  if not before and p.part ~= 0 then refuse("format", "%s: part %d of layer %d must follow part 0", p.path, p.part, p.start) end
  if p.part == 0 then layers[#layers + 1] = { from = p.start, to = p.start + 1, path = p.path } end
  return p.part + 1 < p.parts and p or nil
end

local function check_ranges(meta, rows)
  local layers, head, experts, order, whole_set, unfinished = {}, {}, {}, {}, false, nil
  for _, p in ipairs(meta.packages) do
    if unfinished and p.kind ~= "layers" then
      refuse("format", "%s: must follow part %d of layer %d", p.path, unfinished.part + 1, unfinished.start)
    end
    if p.kind == "layers" then unfinished = add_layers(layers, p, unfinished)
    elseif p.kind == "head" then head[#head + 1] = { from = p.vocab_start, to = p.vocab_end, path = p.path }
    elseif p.kind == "experts" then
      local key = ("%d %s"):format(p.start, tostring(p.mixture or 0))
      if not experts[key] then experts[key], order[#order + 1] = {}, key end
      table.insert(experts[key], { from = p.experts[1], to = p.experts[2], path = p.path })
    else whole_set = true end
  end
  if unfinished then refuse("format", "part %d of layer %d is in no package", unfinished.part + 1, unfinished.start) end
  if whole_set and #meta.packages > 1 then
    refuse("format", "a package of kind whole must be the only one, but there are %d packages", #meta.packages)
  end
  if whole_set then return end
  check_cover("layers", layers, meta.n_layers)
  -- of an embedding model the last layer may give the result
  if meta.kind ~= "embedding" or #head > 0 then check_cover("rows", head, rows) end
  for _, key in ipairs(order) do check_cover("experts", experts[key], whole(meta.n_experts, 1)) end
end

local function read_ropes(meta)
  for i, rope in ipairs(list(meta, "ropes", "ropes", true)) do
    local where = ("ropes[%d]"):format(i)
    if type(rope) ~= "table" then refuse("format", "%s must be an object, but is %s", where, tostring(rope)) end
    for k, f in ipairs(list(rope, "inv_freq", where)) do
      if type(f) ~= "number" or f ~= f then refuse("format", "%s: inv_freq %d is not a number", where, k) end
    end
    if rope.long_freq ~= nil then
      if #list(rope, "long_freq", where) ~= #rope.inv_freq then refuse("format", "%s: long_freq and inv_freq differ in length", where) end
      for k, f in ipairs(rope.long_freq) do
        if type(f) ~= "number" or f ~= f then refuse("format", "%s: long_freq %d is not a number", where, k) end
      end
      rope.original = integer(rope, "original", 1, where)
    end
    if rope.magnitude ~= nil and type(rope.magnitude) ~= "number" then refuse("format", "%s: magnitude is not a number", where) end
  end
end

-- Sets most_context, the positions of the profile that holds most.
local function read_profiles(meta)
  meta.most_context = meta.max_seq_len
  for i, profile in ipairs(list(meta, "profiles", "the set", true)) do
    local where = ("profiles[%d]"):format(i)
    if type(profile) ~= "table" then refuse("format", "%s must be an object, but is %s", where, tostring(profile)) end
    if profile.max_seq_len ~= nil then profile.max_seq_len = integer(profile, "max_seq_len", 1, where) end
    for k, p in ipairs(list(profile, "packages", where)) do read_package(p, ("%s.packages[%d]"):format(where, k)) end
    if #profile.packages > 0 then meta.most_context = math.max(meta.most_context, profile.max_seq_len or 0) end
  end
end

-- The packages of the profile with the smallest context that holds the requested one; among equal ones the last. Sets profile, its
-- number; nil if no profile was chosen.
local function choose_profile(meta, context)
  local best, number
  for i, profile in ipairs(context and meta.profiles or {}) do
    local held = profile.max_seq_len
    if held and held >= context and #profile.packages > 0 and (not best or held <= best.max_seq_len) then best, number = profile, i end
  end
  if best then meta.packages, meta.max_seq_len, meta.profile = best.packages, best.max_seq_len, number end
end

-- Numbers of the result for a token.
local function rows_of(meta)
  if meta.kind == "embedding" then return meta.d_model end
  if meta.kind == "reranker" then return integer(meta, "n_scores", 1, "the model") end
  if meta.kind ~= "token_classifier" then return meta.vocab_size end
  for i, label in ipairs(list(meta, "labels", "the model")) do
    if type(label) ~= "string" then refuse("format", "labels[%d] must be a string, but is %s", i, tostring(label)) end
  end
  return #meta.labels
end

--- Reads runtime_meta.json and checks its numbers, names and ranges.
-- @param folder with a trailing slash
-- @param context the requested number of positions, or nil; it selects the profile
-- @return the object, with the fields rows (of the head), n_layers, packages, ...; its text
-- @raise {message, code}
function M.read(folder, context)
  local text, message, code = core.read_file(folder .. M.NAME)
  if not text then refuse(code, "%s", message) end
  local meta, fault = core.json_decode(text)
  if type(meta) ~= "table" then refuse("format", "%s", fault or "holds no object") end
  if meta.format_version ~= 1 then refuse("unsupported", "format_version must be 1, but is %s", tostring(meta.format_version)) end
  one_of(MODELS, meta.kind, "kind")
  for _, key in ipairs { "d_model", "vocab_size", "max_seq_len" } do meta[key] = integer(meta, key, 1, "the model") end
  meta.n_layers = integer(meta, "n_layers", 0, "the model")
  meta.d_embed = meta.d_embed == nil and meta.d_model or integer(meta, "d_embed", 1, "the model")
  local rows = rows_of(meta)
  if #list(meta, "packages", "the set") == 0 then refuse("format", "packages is empty") end
  for i, p in ipairs(meta.packages) do read_package(p, ("packages[%d]"):format(i)) end
  read_profiles(meta)
  choose_profile(meta, context)
  check_ranges(meta, rows)
  read_ropes(meta)
  meta.rows = rows
  return meta, text
end

return M
