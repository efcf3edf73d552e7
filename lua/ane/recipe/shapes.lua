--- A source without weights. It derives shapes by role from the configuration alone, so that a graph built on it can be planned.
-- Needs ane.recipe.names and ane.util.shape. Usage: `local source = shapes.source("config.json"); recipe.build(r, cfg, source)`
--
-- This module holds the shapes of the roles (see ane.recipe.names) that most models share. A recipe adds or overrides shapes with
-- `shapes = function(cfg) return {role = shape} end`. A key is a role for a weight, or "role.bias" for a bias. A shape is a list of
-- numbers, false (there is no such tensor), or function(layer) -> shape. A role without a shape has no tensor.

local elements = require("ane.util.shape").count
local names = require "ane.recipe.names"

local M = {}

-- The weights of Llama and related architectures, as stored in Hugging Face files.
local function common(cfg)
  local d, f, hd = cfg.d_model, cfg.d_ff, cfg.head_dim
  local q, kv = cfg.n_head * hd, cfg.n_head_kv * hd
  local t = {
    token_embd = { cfg.vocab_size, d }, output = not cfg.tied and { cfg.vocab_size, d }, output_norm = { d },
    attn_norm = { d }, ffn_norm = { d }, post_attention_norm = { d }, post_ffw_norm = { d },
    attn_q = { q, d }, attn_k = { kv, d }, attn_v = { kv, d }, attn_qkv = { q + 2 * kv, d }, attn_output = { d, q },
    attn_q_norm = { hd }, attn_k_norm = { hd }, ffn_gate = { f, d }, ffn_up = { f, d }, ffn_down = { d, f },
  }
  for _, key in ipairs { "attention_bias", "mlp_bias" } do
    if cfg[key] then M.biases(t, names.with_bias(key)) end
  end
  return t
end

--- Adds a bias to the weights of these roles, with one number per row.
function M.biases(t, roles)
  for _, role in ipairs(roles) do t[role .. ".bias"] = { t[role][1] } end
  return t
end

local Source = {}
Source.__index = Source

--- Makes a source of shapes.
-- @param path path of the configuration, a JSON file
function M.source(path) return setmetatable({ file = path, rules = {} }, Source) end

function Source:path() return self.file end
function Source:config_path() return self.file end
function Source.format() return "safetensors" end
function Source.bytes() return 0 end
function Source.tensors() return {} end
function Source.close() end

--- Derives the shapes. Called when a graph is built.
-- @param cfg configuration
-- @param own the recipe's `shapes`, or nil
function Source:learn(cfg, own)
  self.rules = common(cfg)
  for role, shape in pairs(own and own(cfg, self.rules) or {}) do self.rules[role] = shape end
end

--- The description {shape, name} of a role's tensor, or nil.
function Source:tensor(name, role, suffix, layer)
  local shape = self.rules[suffix == ".bias" and role .. suffix or role]
  if type(shape) == "function" then shape = shape(layer) end
  if not shape then return nil end
  for i = 1, #shape do
    if math.type(shape[i]) ~= "integer" or shape[i] < 1 then
      error(("%s: dimension %d of %s is %s: the configuration does not say"):format(self.file, i, name, tostring(shape[i])), 0)
    end
  end
  self.last = { shape = shape, name = name }
  return self.last
end

--- The shape of a view of a tensor.
-- @param stored shape of the tensor
-- @param view nil, or index, from, to, step, transposed, part_rows, flat, row (see the builder's weight)
-- @return list of dimensions
function M.viewed(stored, view)
  local shape = table.move(stored, 1, #stored, 1, {})
  view = view or {}
  if view.part_rows then shape[1] = view.part_rows end
  if view.flat then shape = { elements(shape) } end
  if view.row and #shape == 1 then table.insert(shape, 1, 1) end
  if view.index then table.remove(shape, 1) end
  if view.transposed then shape[1], shape[2] = shape[2], shape[1] end
  if view.step then
    shape[1] = (shape[1] - view.from + view.step - 1) // view.step
  elseif view.from or view.to then shape[1] = (view.to or shape[1]) - (view.from or 0) end
  return shape
end

--- The tensor last looked up, as a constant without values.
function Source:constant(graph, name, label, view)
  assert(self.last.name == name, "looked up just before")
  return graph:blank(label, M.viewed(self.last.shape, view))
end

--- Numbers are not known.
function Source.number() return nil end

return M
