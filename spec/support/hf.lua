--- Folders of spec/fixtures/hf: where they are, what they should give, and copies with another config.json.
--
--   local prompts, tensors = hf.golden "zaya-odd"   -- prompts: name, ids, greedy; tensors: see support.safetensors
--   local path <close> = hf.changed("zaya-odd", function(cfg) cfg.num_experts = 3 end)   -- path.name
--   local path <close> = hf.changed("zaya-odd", nil, function(t) return t.name ~= "model.norm.weight" and t or nil end)

local ane = require "ane"
local check = require "ane.evaluate.check"
local core = require "ane.core"
local safetensors = require "support.safetensors"
local st = require "support.safetensors_writer"

local M = {}

local FOLDER = "spec/fixtures/hf/"

function M.path(name) return FOLDER .. name end

local function json(path) return assert(core.json_decode(assert(core.read_file(path)))) end

local function ints(list)
  local out = {}
  for i, v in ipairs(list) do out[i] = math.tointeger(v) end
  return out
end

function M.golden(name)
  local prompts = json(FOLDER .. name .. "/golden.json").prompts
  for _, p in ipairs(prompts) do p.ids, p.greedy = ints(p.input_ids), p.greedy and ints(p.greedy) end
  return prompts, safetensors.open(FOLDER .. name .. "/golden.safetensors")
end

--- Asserts that a file gives the golden logits of a folder.
function M.agrees(file, name)
  local model <close> = assert(ane.load(file, { activations = "fp32" }))
  local golden = FOLDER .. name .. "/golden.json"
  local prompt = json(golden).prompts[1].name == "p0" and "p0" or "short"
  local report = assert(check.check(model, golden, { hints = false, prompt = prompt }))
  assert(report.ok, tostring(report))
end

--- Largest |got - want| / (1 + |want|) of strings of floats; a tensor of a golden may hold the last rows only.
function M.apart(got, want)
  local data, worst = want.data, 0
  assert(#data > 0 and #got >= #data)
  got = got:sub(-#data)
  for at = 1, #data, 4 do
    local x, y = string.unpack("<f", got, at), string.unpack("<f", data, at)
    local d = math.abs(x - y) / (1 + math.abs(y))
    if d ~= d then return math.huge end
    worst = math.max(worst, d)
  end
  return worst
end

function M.cosine(a, b)
  local dot, aa, bb = 0, 0, 0
  for at = 1, #a, 4 do
    local x, y = string.unpack("<f", a, at), string.unpack("<f", b, at)
    dot, aa, bb = dot + x * y, aa + x * x, bb + y * y
  end
  return dot / math.sqrt(aa * bb)
end

local function remove(self)
  for _, file in ipairs { "config.json", "model.safetensors" } do os.remove(self.name .. "/" .. file) end
  os.remove(self.name)
end

-- The bytes of a file of safetensors whose tensors edit(t) has changed.
local function edited(path, edit, more)
  local tensors = table.move(more or {}, 1, #(more or {}), 1, {})
  for name, t in pairs(safetensors.all(path)) do
    tensors[#tensors + 1] = edit { name = name, dtype = t.dtype, shape = t.shape, data = t.data }
  end
  return (st.bytes { tensors = tensors })
end

--- A copy of the folder whose configuration change(cfg) has changed in place; it is removed when closed.
-- @param change nil: none
-- @param edit nil, or function(t) -> t or nil: changes {name, dtype, shape, data} of each tensor, or leaves it out
-- @param more nil, or a list of tensors that the copy has besides
function M.changed(name, change, edit, more)
  local path = os.tmpname()
  os.remove(path)
  assert(os.execute(("mkdir '%s'"):format(path)))
  local cfg, weights = json(FOLDER .. name .. "/config.json"), FOLDER .. name .. "/model.safetensors"
  if change then change(cfg) end
  assert(core.write_file(path .. "/config.json", assert(core.json_encode(cfg))))
  assert(core.write_file(path .. "/model.safetensors", edit and edited(weights, edit, more) or assert(core.read_file(weights))))
  return setmetatable({ name = path }, { __close = remove })
end

return M
