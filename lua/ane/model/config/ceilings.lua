--- Upper limits for the numbers in a configuration. A wrong number is refused before it is used.
-- Needs nothing. Usage: `if n > ceilings.of "head_dim" then ... end`
--
-- Each ceiling is far above any published model and far below what would overflow a size or fill the memory.

local M = {}

-- The limit of keys that are not listed.
local OTHER = 1 << 24

-- A rope table takes the frequencies of a head of up to 8192 (csrc/graph).
local POSITIONS, LAYERS, HEADS, HEAD, WIDTH = 1 << 31, 1 << 12, 1 << 16, 1 << 13, 1 << 20

-- Keys of config.json, then keys of GGUF without the architecture prefix.
local MOST = {
  max_position_embeddings = POSITIONS, original_max_position_embeddings = POSITIONS, sliding_window = POSITIONS,
  num_hidden_layers = LAYERS, num_attention_heads = HEADS, num_key_value_heads = HEADS, head_dim = HEAD, hidden_size = WIDTH,
  num_experts = HEADS, num_local_experts = HEADS, num_experts_per_tok = HEADS, experts_per_token = HEADS, conv_L_cache = HEADS,
  cca_time0 = HEADS, cca_time1 = HEADS, cca_num_q_heads = HEADS,
  context_length = POSITIONS, ["attention.sliding_window"] = POSITIONS, ["rope.scaling.original_context_length"] = POSITIONS,
  block_count = LAYERS, ["attention.head_count"] = HEADS, ["attention.head_count_kv"] = HEADS, ["attention.key_length"] = HEAD,
  ["rope.dimension_count"] = HEAD, embedding_length = WIDTH, expert_count = HEADS, expert_used_count = HEADS,
  ["shortconv.l_cache"] = HEADS,
}

-- The largest float32.
local FLOAT = 3.4028234663852886e38

--- Returns the largest integer allowed under a key.
function M.of(key) return MOST[key] or OTHER end

--- Returns whether a number fits float32. False for infinity, NaN and numbers that are too large.
function M.fits(v) return v >= -FLOAT and v <= FLOAT end

return M
