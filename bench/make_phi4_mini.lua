--- Writes a checkpoint of the size of Phi-4-mini with random weights: 3.84 B parameters, bf16, 7.7 GB in four safetensors files
-- with an index, and config.json. It writes a few rows of a tensor at a time, so it needs little memory.
--
--   lua5.4 bench/make_phi4_mini.lua FOLDER [LAYERS [PART [SIZES]]]
--
-- With PART (2, 4, 8, 16) all widths and the vocabulary are that many times smaller. SIZES: phi4-mini (default); llama-8b: 8.03 B
-- parameters with a head of its own, for models over ranks; meta-llama/Llama-3.1-8B, config.json, in the architecture of Phi.
-- Weights are normally distributed, with a spread that keeps the size of hidden states constant through the layers; norm weights have a
-- mean of 1. A tensor has the same weights on every machine. Sizes: microsoft/Phi-4-mini-instruct, config.json.

local FILES = 4
local LAYERS, PART = tonumber(arg[2] or 32), tonumber(arg[3] or 1)
local SIZES = {
  ["phi4-mini"] = { heads = 24, hidden = 3072, inner = 8192, vocab = 200064, tied = true },
  ["llama-8b"] = { heads = 32, hidden = 4096, inner = 14336, vocab = 128256, tied = false },
}
local SIZE = SIZES[arg[4] or "phi4-mini"]
if not arg[1] or #arg > 4 or not SIZE or not (math.type(LAYERS) == "integer" and LAYERS > 0) or not (PART and 16 % PART == 0) then
  io.stderr:write("usage: lua5.4 bench/make_phi4_mini.lua FOLDER [LAYERS [PART [SIZES]]], PART 1, 2, 4, 8 or 16, ",
    "SIZES phi4-mini or llama-8b\n")
  os.exit(2)
end
local HEADS, KV_HEADS = SIZE.heads, 8
local HIDDEN, HEAD_DIM, INNER, VOCAB = SIZE.hidden // PART, 128 // PART, SIZE.inner // PART, SIZE.vocab // PART

-- ---- Random bf16 -------------------------------------------------------------------------------------------------------

-- Uniform 64-bit words: xorshift64* (Vigna 2016).
local function words(seed)
  local x = seed * 0x9E3779B97F4A7C15 | 1
  return function()
    x = x ~ (x >> 12)
    x = x ~ (x << 25)
    x = x ~ (x >> 27)
    return x * 0x2545F4914F6CDD1D
  end
end

-- 65536 normal bf16 values (Box and Muller 1958) times `spread`, plus `mean`, as one string. A row is put
-- together from pieces of such strings, which is as fast as copying.
local POOL = 1 << 16
local function pool(spread, mean)
  local next_word, parts = words(12345), {}
  for i = 1, POOL do
    local u = ((next_word() >> 11) + 1) * 2.0 ^ -53
    local v = ((next_word() >> 11) + 1) * 2.0 ^ -53
    local bits = string.unpack("<I4", string.pack("<f", mean + spread * math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)))
    parts[i] = string.pack("<I2", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF)
  end
  return table.concat(parts)
end

-- n values of a pool: pieces of 509 values from random positions.
local PIECE = 509
local function values(source, n, next_word)
  local parts = {}
  for i = 1, (n + PIECE - 1) // PIECE do
    local at = (next_word() >> 33) % (POOL - PIECE)
    parts[i] = source:sub(2 * at + 1, 2 * (at + math.min(PIECE, n - (i - 1) * PIECE)))
  end
  return table.concat(parts)
end

-- ---- The tensors -------------------------------------------------------------------------------------------------------

-- Spread of norm weights.
local NORM = 0.1

-- List of {name, shape, spread, mean}.
local function tensors()
  local list = {}
  local function add(name, shape, spread)
    list[#list + 1] = { name = name .. ".weight", shape = shape, spread = spread or NORM, mean = spread and 0 or 1 }
  end
  local q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
  add("model.embed_tokens", { VOCAB, HIDDEN }, 0.02)
  for i = 0, LAYERS - 1 do
    local at = ("model.layers.%d."):format(i)
    add(at .. "input_layernorm", { HIDDEN })
    add(at .. "self_attn.qkv_proj", { q + 2 * kv, HIDDEN }, HIDDEN ^ -0.5)
    add(at .. "self_attn.o_proj", { HIDDEN, q }, q ^ -0.5)
    add(at .. "post_attention_layernorm", { HIDDEN })
    add(at .. "mlp.gate_up_proj", { 2 * INNER, HIDDEN }, HIDDEN ^ -0.5)
    add(at .. "mlp.down_proj", { HIDDEN, INNER }, INNER ^ -0.5)
  end
  add("model.norm", { HIDDEN })
  if not SIZE.tied then add("lm_head", { VOCAB, HIDDEN }, 0.02) end
  return list
end

local function bytes_of(t) return 2 * t.shape[1] * (t.shape[2] or 1) end

-- Tensors in their order, into files of about the same size.
local function split(list)
  local total, files, sum = 0, { {} }, 0
  for _, t in ipairs(list) do total = total + bytes_of(t) end
  for _, t in ipairs(list) do
    if sum >= total * #files // FILES and #files < FILES then files[#files + 1] = {} end
    table.insert(files[#files], t)
    sum = sum + bytes_of(t)
  end
  return files, total
end

-- ---- Files -------------------------------------------------------------------------------------------------------------

local function header(list)
  local parts, at = { '"__metadata__":{"format":"pt"}' }, 0
  for _, t in ipairs(list) do
    parts[#parts + 1] = ('"%s":{"dtype":"BF16","shape":[%s],"data_offsets":[%d,%d]}'):format(t.name, table.concat(t.shape, ","), at,
      at + bytes_of(t))
    at = at + bytes_of(t)
  end
  local text = "{" .. table.concat(parts, ",") .. "}"
  return text .. (" "):rep(-#text % 8)
end

local pools = {}
local function write_tensor(file, t, seed)
  local rows, cols = t.shape[1], t.shape[2] or 1
  if not t.shape[2] then rows, cols = 1, rows end
  local next_word = words(seed)
  pools[t.spread] = pools[t.spread] or pool(t.spread, t.mean)
  for _ = 1, rows do assert(file:write(values(pools[t.spread], cols, next_word))) end
end

local function write_file(path, list, seed)
  local file <close> = assert(io.open(path, "wb"))
  file:setvbuf("full", 1 << 20)
  local text = header(list)
  assert(file:write(string.pack("<I8", #text), text))
  for i, t in ipairs(list) do write_tensor(file, t, seed + i) end
  assert(file:flush())
end

local function write_text(path, text)
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write(text))
end

local function factors(first, last)
  local n, parts = HEAD_DIM * 3 // 4 // 2, {}
  for i = 1, n do parts[i] = ("%.4f"):format(first + (last - first) * (i - 1) / (n - 1)) end
  return table.concat(parts, ",")
end

local function config()
  return ([[{"architectures":["Phi3ForCausalLM"],"model_type":"phi3","hidden_size":%d,"num_hidden_layers":%d,"num_attention_heads":%d,
"num_key_value_heads":%d,"intermediate_size":%d,"vocab_size":%d,"hidden_act":"silu","rms_norm_eps":1e-05,"rope_theta":10000.0,
"partial_rotary_factor":0.75,"original_max_position_embeddings":4096,"max_position_embeddings":131072,"sliding_window":262144,
"rope_scaling":{"type":"longrope","short_factor":[%s],"long_factor":[%s]},"attention_bias":false,"tie_word_embeddings":%s,
"bos_token_id":%d,"eos_token_id":%d,"pad_token_id":%d,"torch_dtype":"bfloat16"}
]]):format(HIDDEN, LAYERS, HEADS, KV_HEADS, INNER, VOCAB, factors(1, 1), factors(1, 40), tostring(SIZE.tied),
    VOCAB - 65, VOCAB - 65, VOCAB - 65)
end

local function main(folder)
  local files, total = split(tensors())
  assert(os.execute(("mkdir -p '%s'"):format((folder:gsub("'", "'\\''")))))
  local map, seed = {}, 0
  for i, list in ipairs(files) do
    local name = ("model-%05d-of-%05d.safetensors"):format(i, #files)
    write_file(folder .. "/" .. name, list, seed)
    seed = seed + #list
    for _, t in ipairs(list) do map[#map + 1] = ('"%s":"%s"'):format(t.name, name) end
    io.stderr:write(("%s/%s\n"):format(folder, name))
  end
  write_text(folder .. "/model.safetensors.index.json",
    ('{"metadata":{"total_size":%d},"weight_map":{%s}}\n'):format(total, table.concat(map, ",\n")))
  write_text(folder .. "/config.json", config())
  io.stderr:write(("%.2f B parameters, %.2f GB\n"):format(total / 2e9, total / 1e9))
end

main(arg[1])
