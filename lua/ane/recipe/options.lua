--- The options of the builder's methods and of the blocks in this folder. An unknown name or a value of a wrong type is an error, since a
-- misspelt option would give a model that computes something else. The builder puts the path of the scope before its message.
-- Needs ane.util.schema. Usage: `opts = options.check("linear", opts)`

local schema = require "ane.util.schema"

local M = {}

local COUNT, INDEX = { type = "integer", min = 1 }, { type = "integer", min = 0 }
local NUMBER, ABOVE, TEXT, FLAG, VALUE = { type = "number" }, { type = "number", above = 0 }, { type = "string" }, { type = "boolean" },
  { type = "any" }
local SCORE = { type = "string", choices = { "softmax", "sigmoid", "softmax_topk" } }
local LAYOUT = { type = "string", choices = { "half", "interleaved" } }

--- Rules of ane.util.schema by function and option. Options that must be given are in REQUIRED.
M.rules = {
  embed = { by = { type = "string", choices = { "positions", "types" } }, from = INDEX, rest = FLAG },
  linear = { bias = FLAG, from = INDEX, to = COUNT, bias_of = TEXT, name = TEXT, rows = COUNT },
  rms_norm = { groups = COUNT, offset = NUMBER, eps = NUMBER, weight = VALUE },
  layer_norm = { eps = NUMBER, bias = FLAG, groups = COUNT },
  rope = { heads = COUNT, layout = LAYOUT },
  attention = {
    heads = COUNT, kv_heads = COUNT, head_dim = COUNT, scale = NUMBER, window = INDEX, ahead = INDEX, softcap = NUMBER, sinks = VALUE,
    sink_scale = NUMBER,
  },
  weight = {
    suffix = TEXT, optional = FLAG, expert = INDEX, index = INDEX, count = COUNT, rows = COUNT, from = INDEX, to = COUNT, step = COUNT,
    transposed = FLAG, matrix = FLAG, flat = FLAG, part = { type = "list", of = INDEX }, table = { type = "boolean", internal = true },
  },
  conv_causal = { weight = VALUE, taps = COUNT, groups = COUNT, bias = VALUE, before = VALUE, name = TEXT },
  ssm_scan = {
    heads = COUNT, width = COUNT, groups = COUNT, n = COUNT, decay = VALUE, d = VALUE, dt_bias = VALUE, log = FLAG, low = NUMBER,
    high = NUMBER,
  },
  delta_rule = {
    heads = COUNT, key_heads = COUNT, n = COUNT, width = COUNT, decay = VALUE, dt_bias = VALUE, log = FLAG, interleaved = FLAG,
  },
  ["attention.gqa"] = {
    fused = FLAG, rope = VALUE, layout = LAYOUT,
    qk_norm = { type = "string", choices = { "before_rope", "after_rope", "layer_norm", "whole" } },
    norm_offset = NUMBER, scale = NUMBER, window = INDEX, softcap = NUMBER, ahead = INDEX, sinks = VALUE, sink_scale = NUMBER,
    out_bias = FLAG, growth = { type = "table" },
  },
  ["attention.sharing"] = {
    kind = TEXT, reuses = FLAG, rope = VALUE, head_dim = COUNT, kv_heads = COUNT, window = INDEX, k_eq_v = FLAG,
  },
  ["ffn.gated"] = { fused = FLAG },
  ["gated_delta.block"] = {
    heads = COUNT, key_heads = COUNT, n = COUNT, width = COUNT, taps = COUNT, log = FLAG, interleaved = FLAG, act = TEXT,
  },
  ["head.encoder"] = { act = TEXT, norm = TEXT, mean = FLAG, bias = FLAG },
  ["head.lm"] = { norm = TEXT, offset = NUMBER, layer_norm = FLAG, scale = NUMBER, softcap = ABOVE },
  ["latent.attention"] = {
    rank = COUNT, q_rank = COUNT, nope = COUNT, rope = COUNT, value = COUNT, scale = NUMBER, layout = LAYOUT, eps = NUMBER,
  },
  ["mamba2.block"] = {
    heads = COUNT, width = COUNT, groups = COUNT, n = COUNT, taps = COUNT, log = FLAG, low = NUMBER, high = NUMBER, plain = FLAG,
    norm_first = FLAG, eps = NUMBER, factors = { type = "list", of = NUMBER }, act = TEXT, bias = FLAG, conv_bias = FLAG, out_bias = FLAG,
  },
  ["moe.route"] = {
    k = COUNT, score = SCORE, bias = VALUE, norm = FLAG,
    norm_eps = NUMBER, scale = NUMBER, factors = VALUE, groups = COUNT, groups_kept = COUNT, group_best = COUNT,
  },
  ["moe.experts"] = { act = TEXT, limit = NUMBER, alpha = NUMBER },
  ["moe.plus_shared"] = {
    count = COUNT, k = COUNT, score = SCORE, norm = FLAG, norm_eps = NUMBER, scale = NUMBER, groups = COUNT, groups_kept = COUNT,
    group_best = COUNT, bias = FLAG, shared = FLAG,
  },
  ["moe.beside_shared"] = { count = COUNT, k = COUNT, norm = FLAG, act = TEXT, inner = COUNT },
  ["moe.weighted"] = { count = COUNT, k = COUNT, norm = FLAG },
  ["moe.list"] = { inner = COUNT, transposed = FLAG, interleaved = FLAG },
  ["shortconv.gated"] = { taps = COUNT },
}

local REQUIRED = {
  rope = { "heads" }, attention = { "heads", "kv_heads", "head_dim", "scale" }, conv_causal = { "weight", "taps" },
  ssm_scan = { "heads", "width", "groups", "n", "decay" }, delta_rule = { "heads", "key_heads", "n", "width", "decay" },
  ["attention.sharing"] = { "kind", "rope" }, ["shortconv.gated"] = { "taps" },
  ["latent.attention"] = { "rank", "nope", "rope", "value", "scale" },
  ["gated_delta.block"] = { "heads", "key_heads", "n", "width", "taps" },
  ["mamba2.block"] = { "heads", "width", "groups", "n", "taps" },
}

-- A copy of the options without the numbers and texts that are false. A recipe may pass such values: `slides and cfg.sliding_window`.
local function present(rules, opts)
  local out = {}
  for key, value in next, opts do
    local kind = rules[key] and rules[key].type
    if value ~= false or kind == nil or kind == "boolean" or kind == "any" then out[key] = value end
  end
  return out
end

--- Checks options. A number or a text that is false counts as absent.
-- @param what key of rules
-- @param opts table or nil
-- @return a table of the options
-- @raise without a position
function M.check(what, opts)
  local rules = M.rules[what]
  schema.plain(opts, what, 0)
  opts = schema.check(rules, present(rules, opts or {}), what, 0, true)
  for _, key in ipairs(REQUIRED[what] or {}) do
    if not opts[key] then error(("%s: option %s is missing"):format(what, key), 0) end
  end
  return opts
end

return M
