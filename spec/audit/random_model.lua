--- Models of random dimensions: the configuration of a fixture with some keys changed, and random weights of the shapes that its recipe
-- asks for.
--
--   local model <close> = random_model.make(d)   -- d: of audit.draw
--   model.path, model.name ("llama: head_dim = 24"), model.config, model.vocab, model.dtype (of the matrices)
--
-- A configuration that is refused, with a message and a code as it must be, is drawn again.

local core = require "ane.core"
local loader = require "ane.model.loader"
local recipe = require "ane.recipe"
local shapes = require "ane.recipe.shapes"
local writer = require "support.safetensors_writer"

local M = {}

local HF = "spec/fixtures/hf/"

--- Decoders, one of each architecture or more; all but those of M.fixed have a config.json that shapes follow from.
M.decoders = {
  "llama", "cohere-odd", "cohere2-odd", "deepseek_v2-odd", "deepseek_v3-odd", "falcon_h1-odd", "gemma3", "gemma3_softcap", "gemma3n-odd",
  "gemma4-odd", "glm4-odd", "glm4_moe_lite-odd", "glm4_moe-odd", "gpt_oss-odd", "granite-odd", "granitemoehybrid-odd",
  "granitemoehybrid_dense-odd",
  "gemma2-odd", "mixtral-odd", "olmoe-odd",
  "hunyuan_v1_dense", "lfm2-odd", "lfm2_moe-odd", "mamba2-odd", "ministral3-odd", "nemotron_h-odd", "olmo2-odd", "olmo3-odd", "phi3",
  "qwen2_moe-odd", "qwen2_swa", "qwen3-odd", "qwen3_5-odd", "qwen3_5_moe-odd", "qwen3_moe-odd", "smollm3-odd", "starcoder2-odd", "zaya-odd",
  "ernie4_5_moe-odd", "seed_oss-odd",
}

--- Fixtures whose recipes derive no shapes: the tensors keep the shapes of the fixture, so fewer changes are taken.
M.fixed = { bert = true, xlm_roberta = true, modernbert = true, nomic_bert = true }

-- Most numbers of a model: enough for tiny ones, and a case stays quick.
local MOST = 1500000

-- Keys whose changes say nothing about the graph, or only make texts end.
local LEFT_ALONE = {
  eos_token_id = true, bos_token_id = true, pad_token_id = true, eod_token_id = true, initializer_range = true, use_cache = true,
  max_position_embeddings = true, attention_dropout = true, output_router_logits = true, router_aux_loss_coef = true,
}

local function numbers_of(cfg, path, list)
  for key, value in pairs(cfg) do
    if type(key) == "string" and not LEFT_ALONE[key] then
      if type(value) == "number" or type(value) == "boolean" then list[#list + 1] = { cfg, key, path .. key }
      elseif type(value) == "table" and value ~= core.null and #value == 0 then numbers_of(value, path .. key .. ".", list) end
    end
  end
  return list
end

-- Another value of about the same size.
local function changed(d, v)
  if type(v) == "boolean" then return not v end
  if math.tointeger(v) then
    v = math.tointeger(v)
    if v <= 2 then return d.between(1, 4) end
    return math.max(1, d.one_of { v * 2, v // 2, v * 3 // 2, v + 1, v - 1, v + 8, v * 3, v // 4 * 2 })
  end
  return v * d.one_of { 0.5, 0.9, 1.1, 2 }
end

-- The configuration with one to four keys changed, and what was done.
local function mutated(d, cfg)
  local keys = numbers_of(cfg, "", {})
  table.sort(keys, function(a, b) return a[3] < b[3] end)
  local said = {}
  for i = 1, d.between(1, 4) do
    local place = d.one_of(keys)
    local object, key = place[1], place[2]
    object[key] = changed(d, object[key])
    said[i] = ("%s = %s"):format(place[3], object[key])
  end
  return table.concat(said, ", ")
end

-- Names and shapes of the tensors that the recipe asks for.
-- @return {name = shape}, configuration; or nil, message, code
local function wanted(path)
  local source = shapes.source(path .. "/config.json")
  local r, cfg, code = loader.identify(source, path, {})
  if not r then return nil, cfg, code end
  local asked
  local graph, message
  graph, message, code = recipe.build(r, cfg, source, function(builder)
    asked = builder.asked.tensors
    return true
  end)
  if not graph then return nil, message, code end
  graph:close()
  return asked, cfg
end

-- Names and shapes of the tensors of a fixture.
local function stored(name)
  local source <close> = assert(core.open(HF .. name))
  local asked = {}
  for _, t in ipairs(source:tensors()) do asked[t.name] = t.shape end
  return asked
end

-- Does a model load? nil, message, code: no.
local function builds(path)
  local source <close> = assert(core.open(path))
  local r, cfg, code = loader.identify(source, path, {})
  if not r then return nil, cfg, code end
  local graph, message
  graph, message, code = recipe.build(r, cfg, source)
  if not graph then return nil, message, code end
  graph:close()
  return cfg
end

local function product(shape)
  local n = 1
  for _, v in ipairs(shape) do n = n * v end
  return n
end

-- Random numbers of one scale, as float32: a window of a longer list.
local pools = {}
local LENGTH = 9973

local function numbers(d, n, scale)
  scale = 2.0 ^ math.floor(math.log(scale, 2) + 0.5)
  if not pools[scale] then
    local list = {}
    for i = 1, LENGTH do list[i] = (2 * core.random(77, i) - 1) * scale end
    pools[scale] = writer.f32(list)
  end
  local at = d.below(LENGTH)
  return pools[scale]:rep((n + at) // LENGTH + 1):sub(4 * at + 1, 4 * (at + n))
end

-- Matrices keep the size of what they multiply; vectors of norms are about 1.
local function values(d, name, shape)
  local n = product(shape)
  if #shape == 1 and name:find "norm" then
    local list = {}
    for i = 1, n do list[i] = 0.5 + d.below(1000) / 1000 end
    return writer.f32(list)
  end
  return numbers(d, n, #shape == 1 and 0.25 or 1.7 / math.sqrt(shape[#shape]))
end

local function tensors_of(d, asked, dtype)
  local names, list = {}, {}
  for name in pairs(asked) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do
    local shape, data = asked[name], values(d, name, asked[name])
    local own = #shape > 1 and dtype or "F32"
    if own ~= "F32" then data = core.testing.encode(own == "F16" and "fp16" or "bf16", data) end
    list[i] = { name = name, dtype = own, shape = shape, data = data }
  end
  return list
end

local function remove(self) writer.remove(self.path) end

local function refused(name, message, code)
  assert(type(message) == "string" and type(code) == "string", name .. ": refused without a message and a code")
  assert(code ~= "internal" and not message:find "attempt to", name .. ": " .. message)
end

local function attempt(d, name)
  local cfg = assert(core.json_decode(assert(core.read_file(HF .. name .. "/config.json"))))
  local vocab = cfg.vocab_size
  local said = name .. ": " .. mutated(d, cfg)
  local path = writer.folder { ["config.json"] = { json = cfg } }
  local self = setmetatable({ path = path, name = said, dtype = d.one_of { "F32", "F32", "BF16", "F16" } }, { __close = remove })
  local asked, found, code
  if M.fixed[name] then
    asked = stored(name)
  else asked, found, code = wanted(path) end
  local size = 0
  for _, shape in pairs(asked or {}) do size = size + product(shape) end
  if asked and size <= MOST then
    writer.write(path .. "/model.safetensors", { tensors = tensors_of(d, asked, self.dtype) })
    if M.fixed[name] then
      local message
      found, message, code = builds(path)
      if not found then asked, found = nil, message end
    end
  end
  if not asked then refused(said, found, code) end
  if not asked or size > MOST then
    remove(self)
    return nil
  end
  self.config, self.vocab = found, M.fixed[name] and math.min(vocab, found.vocab_size) or found.vocab_size
  return self
end

--- Draws a model; names: of fixtures, default M.decoders.
function M.make(d, names)
  local name = d.one_of(names or M.decoders)
  for _ = 1, 40 do
    local model = attempt(d, name)
    if model then return model end
  end
  error(name .. ": no configuration out of 40 was taken")
end

return M
