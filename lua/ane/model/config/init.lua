--- One normalised configuration, whatever the file format calls its keys.
-- Needs ane.model.config.gguf, ane.model.config.hf and ane.util.failure. Usage: `local cfg = config.read(source)`
--
-- Fields (config.json's word in brackets where it differs); nil if the file lacks the key, unless a default is named:
--   format                    "gguf", "hf" (config.json beside safetensors) or "onnx" (read from the graph: ane.onnx.roles)
--   architecture, name        general.architecture (model_type); general.name
--   folder                    hf: where config.json lies
--   n_layer, d_model, d_ff    layers; residual width (hidden_size); inner width (intermediate_size)
--   n_block                   gguf: layers, with those that draft tokens
--   n_head, n_head_kv, head_dim   defaults: n_head_kv = n_head, head_dim = d_model // n_head
--   per_layer                 n_head_kv, d_ff as lists, if layers differ; the plain field is then the largest.
--                             key_of(field): the key that holds the list
--   norm_eps, context_length (max_position_embeddings), vocab_size
--   act                       "silu", "gelu_tanh", "gelu_erf" or "relu" (hidden_act, hidden_activation)
--   classifier_act            the same between the matrices of a classifier (classifier_activation)
--   tied                      the head is the embedding (tie_word_embeddings)
--   attention_bias, mlp_bias  true, false, or nil: as the file has them
--   sliding_window            number of keys that a sliding layer sees, including its own; nil: none
--   layer_types               list with one word per layer, as config.json spells them
--   rope                      see below; ropes: word of layer_types -> rope, where kinds of layers have their own
--   bos_id, eos_ids (list: config.json and generation_config.json), pad_id, dtype (torch_dtype)
--   meta(key, kind)           any other key: of the architecture in GGUF ("attention.scale"), of config.json; or nil. kind (nil:
--                             anything): "number", "positive", "whole" (0 or more), "count" (1 or more), "flag", "list" (of
--                             numbers) or "object"; raises {message, code} where it is of another kind
--   task                      "embedding" or "reranker": what a decoder's hidden states are for; nil: logits
--   text_prefix, ignored      hf, for a multimodal model: the prefix of its text part's tensors, instead of "model."; list of the
--                             parts that are left out ("vision_tower")
--   kind, both_sides, max_positions   set by recipes of models that write no text: "token_classifier", "embedding" or "reranker";
--                             true: every token sees all others; rows of the position table
--   labels, reach             set by recipes of token classifiers: list of label names by class; number of tokens on each side that a
--                             label depends on
--   n_scores, score_at_end    set for rerankers: number of scores; true: the last token has them (ane.recipe.head)
--   classifier                set by recipes whose classifier follows the pooling: see ane.recipe.head
--   quantised_as              hf: "mxfp4" if the experts are stored so; else nil
--   holds(name)               does the source have a tensor of this name?
--   tensors                   set of the names that the reader used, and of layers that draft tokens: no weights of the computation
--   unread()                  hf: a key that changes the result but was not asked for by meta(), and its value; or nil
--
-- A rope: theta (base), dims (rotary size), layout ("half" | "interleaved"; nil: half), local_theta (base of sliding layers),
-- divisors (list that divides the frequencies), growth ({beta, original}, hf: q grows with the position, see the builder's
-- position_scale), mscale_all_dim (hf: that of yarn), scaling = nil or
--   "linear"    factor
--   "llama3"    factor, low_freq_factor, high_freq_factor, original_context
--   "yarn"      factor, original_context, beta_fast, beta_slow, truncate, attn_factor
--   "proportional"  partial (the leading part of the pairs that rotates, the others do not; nil: all), factor (nil: 1)
--   "longrope"  short_factors, long_factors (dims / 2 numbers each), original_context, factor, attn_factor
--   "dynamic"   alpha; or without it: factor, limit (positions up to which it changes nothing)
-- A rope of an ONNX graph has instead of theta and scaling: inv_freq (the frequencies), magnitude, long_freq, original_context, fp16. A
-- rope that cannot be computed has fault = {code, message}, which the builder raises if a recipe uses the rope.
--
-- A recipe's `defaults` fill fields that are nil (see ane.recipe).

local failure = require "ane.util.failure"

local M = {}

-- Format of a source -> its reader.
local READERS = { gguf = "ane.model.config.gguf", safetensors = "ane.model.config.hf" }

local function reader(source)
  local name = READERS[source:format()]
  -- A GGUF of an architecture for which GGUF defines no keys holds config.json itself (ane.quantise.hf).
  if source:format() == "gguf" and source:meta "ane.config" then name = "ane.model.config.hf" end
  if name then return require(name) end
  failure.raise("unsupported", "%s: must be a GGUF file, or a folder with config.json and safetensors, but is %s", source:path(),
    source:format())
end

--- The configuration of a source.
-- @param source an open source
-- @param defaults nil, or what a config.json lacks: `config` of a recipe (see ane.recipe)
-- @param whole_rope of a recipe
-- @return the table described above; or nil, message, code
function M.read(source, defaults, whole_rope)
  return failure.border(source:path(), function() return reader(source).read(source, defaults, whole_rope) end)
end

--- Returns only the name of the architecture, even if the rest cannot be read.
-- @return name; or nil, message, code
function M.architecture(source)
  return failure.border(source:path(), function() return reader(source).architecture(source) end)
end

return M
