--- Writes LoRA adapters for specs: random numbers in PEFT's layout, or as GGUF.
-- Usage: `local folder = adapters.peft { tensors = adapters.pair("model.layers.0.self_attn.q_proj", 64, 96, 4, 1) }`

local core = require "ane.core"
local gguf = require "support.gguf_writer"
local st = require "support.safetensors_writer"

local M = {}

--- n numbers of a generator with this seed, about -0.1 .. 0.1.
function M.numbers(n, seed)
  local out, state = {}, seed * 2654435761 + 12345
  for i = 1, n do
    state = (state * 6364136223846793005 + 1442695040888963407)
    out[i] = ((state >> 40) / (1 << 24) - 0.5) * 0.2
  end
  return out
end

--- A tensor of random numbers.
function M.tensor(name, shape, seed, add)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  local list = M.numbers(n, seed)
  for i = 1, n do list[i] = list[i] + (add or 0) end
  return { name = name, dtype = "F32", shape = shape, data = st.f32(list) }
end

--- lora_A [rank, cols] and lora_B [rows, rank] of a module, by PEFT's names.
function M.pair(module, cols, rows, rank, seed)
  local stem = "base_model.model." .. module
  return {
    M.tensor(stem .. ".lora_A.weight", { rank, cols }, seed), M.tensor(stem .. ".lora_B.weight", { rows, rank }, seed + 1),
  }
end

--- Pairs for all matrices of the layers of a Hugging Face folder whose names end with one of `targets`.
function M.pairs_of(folder, targets, rank, seed)
  local source <close> = assert(core.open(folder))
  local list = {}
  for _, t in ipairs(source:tensors()) do
    local module = t.name:match "^(.*)%.weight$"
    for _, target in ipairs(targets) do
      if module and #t.shape == 2 and module:sub(-#target) == target then
        for _, one in ipairs(M.pair(module, t.shape[2], t.shape[1], rank, seed + 2 * #list)) do list[#list + 1] = one end
      end
    end
  end
  return list
end

--- Writes a PEFT folder; remove it with safetensors_writer.remove.
-- @param opts tensors (list); config: fields over r = 4, lora_alpha = 8
function M.peft(opts)
  local config = { peft_type = "LORA", r = 4, lora_alpha = 8, target_modules = "all-linear", bias = "none" }
  for key, value in pairs(opts.config or {}) do config[key] = value end
  return st.folder {
    ["adapter_config.json"] = { json = config }, ["adapter_model.safetensors"] = { tensors = opts.tensors },
  }
end

--- Writes a GGUF adapter; the caller removes the file.
-- @param opts tensors (PEFT's data under the names of llama.cpp), alpha, architecture, values (more metadata)
function M.gguf(opts)
  local path, tensors = os.tmpname(), {}
  for i, t in ipairs(opts.tensors) do tensors[i] = { name = t.name, dtype = "fp32", shape = t.shape, data = t.data } end
  local values = {
    { "general.architecture", "string", opts.architecture }, { "general.type", "string", "adapter" },
    { "adapter.type", "string", "lora" }, { "adapter.lora.alpha", "float32", opts.alpha },
  }
  for _, v in ipairs(opts.values or {}) do values[#values + 1] = v end
  gguf.write(path, { values = values, tensors = tensors })
  return path
end

return M
