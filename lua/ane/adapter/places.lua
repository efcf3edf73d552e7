--- Places in a model where adapters can act: the weights that a recipe has used, by their names in adapters.
-- Needs ane.recipe.names and ane.util.failure. Usage: `local places = places.of(builder, recipe)` in the `examine` of ane.recipe.build

local failure = require "ane.util.failure"
local names = require "ane.recipe.names"

local M = {}

-- Prefixes before the layers that only some files have.
local PREFIXES = { "model.", "language_model.", "text_model.", "transformer.", "backbone." }

--- The name of a module without the prefix of a larger model.
function M.bare(module)
  for _, prefix in ipairs(PREFIXES) do
    if module:sub(1, #prefix) == prefix then return M.bare(module:sub(#prefix + 1)) end
  end
  return module
end

-- Returns the result of a function; nil if it raises, as for names that a model does not have.
local function attempt(fn, ...)
  local ok, value = pcall(fn, ...)
  if ok then return value end
  if failure.code(value) == "memory" then error(value, 0) end
end

-- The names of a format for a recipe; nil if it has none.
local function namer(r, cfg, format)
  if format == cfg.format then return names.for_source(r, cfg) end
  return attempt(names.of, format, r.names and r.names[format], cfg)
end

-- Rope pairs neighbours in GGUF and halves in files of transformers, so the converter permutes the rows of q and k.
local function permutes(r)
  local function layout(format)
    local rope = r.defaults and r.defaults[format] and r.defaults[format].rope
    return rope and rope.layout or "half"
  end
  return layout "gguf" == "interleaved" and layout "hf" == "half"
end

-- Does the model rotate queries and keys? GGUF files of models without rope have the rows of transformers.
local function rotates(record)
  for _, node in pairs(record) do
    if node.op == "rope" then return true end
  end
  return false
end

-- The matrices of an expert by their index among its six inputs, from 0.
local SLOTS = { [0] = "gate", [2] = "up", [4] = "down" }

-- What is known of input i of an op `experts`: {slot, expert, count, up_alone (gate and up are one weight), down (role)}; nil for other
-- inputs.
local function expert_of(b, node, i)
  local slot = node.op == "experts" and i >= 3 and SLOTS[(i - 3) % 6]
  if not slot then return nil end
  local first = i - (i - 3) % 6
  return {
    slot = slot, expert = (i - 3) // 6, count = node.attrs.count, up_alone = node.inputs[first] == node.inputs[first + 2],
    down = b.record[node.inputs[first + 4]].role,
  }
end

local KINDS = { conv1x1 = "linear", embed = "embedding" }

-- Ops whose inputs are x, weight and bias.
local BIASED = { conv1x1 = true, layer_norm = true, conv_causal = true }

-- One place for each use of a weight: {kind, role, layer, weight (tensor), label (of the matrix), from, to, bias (tensor), heads (whose
-- rows GGUF permutes), differs (why the numbers of this GGUF file are not those of the folder, or nil), stack (of expert_of), index,
-- step, transposed (as Builder:weight has them)}. M.of adds own = true to the place of a module that consists of the rows from .. to alone.
local function uses_of(b, r)
  local list, seen, swaps = {}, {}, permutes(r) and rotates(b.record)
  for _, node in pairs(b.record) do
    for i, value in ipairs(node.op and node.inputs or {}) do
      local weight = value and b.record[value]
      if weight and weight.weight and weight.role then
        local kind = i == 2 and KINDS[node.op] or "other"
        local role = weight.role
        if weight.index or weight.step then kind = "other" end
        if kind == "linear" and role == "token_embd" then role = "output" end -- a tied head
        local key = ("%s %s %s"):format(kind, role, weight.label)
        local bias = BIASED[node.op] and i == 2 and node.inputs[3] and b.record[node.inputs[3]]
        local stack = expert_of(b, node, i)
        if not seen[key] and (stack or weight.weight:find "%.weight$") then
          seen[key] = true
          local place = {
            kind = kind, role = role, layer = weight.layer, weight = weight.weight, label = weight.label, from = weight.from,
            to = weight.to, index = weight.index, step = weight.step, transposed = weight.transposed, stack = stack,
            bias = bias and bias.weight or nil,
            heads = swaps and (role == "attn_q" and b.cfg.n_head or role == "attn_k" and b.cfg.n_head_kv) or nil,
          }
          place.differs = b.cfg.format == "gguf" and r.gguf_differs and r.gguf_differs(place, b.cfg) or nil
          list[#list + 1] = place
        end
      end
    end
  end
  return list
end

-- The parameter of transformers that holds a matrix of all experts of a layer, such as layers.0.mlp.experts.gate_up_proj; nil if the
-- files' names do not say it.
local function parameter_of(r, cfg, name, place)
  local stack = place.stack
  local module = r.modules and r.modules(place, cfg)
  if not module then
    local down = attempt(name, stack.down, place.layer)
    module = down and M.bare(down:match "^(.+)%.%%d%." or down:match "^(.+)%.[^.]+$" or "")
  end
  local last = stack.slot == "down" and "down_proj" or stack.up_alone and "up_proj" or "gate_up_proj"
  return module and module .. "." .. last
end

--- The places of a built model.
-- @param b the builder, after the recipe has built
-- @param r the recipe
-- @return {hf = module -> list of places, gguf = the same by tensor names without ".weight", stacks = parameter of transformers that
-- holds all experts -> list of places, interleaved (the rows of gate and up alternate in it), format, output (name of the head's weight
-- if the model is tied), unused = patterns of names of tensors that the computation does not need}
function M.of(b, r)
  local unused = not b.cfg.classifier and r.ignore or {} -- a classifier after the pooling is not part of the graph, but needed
  local out = {
    hf = {}, gguf = {}, stacks = {}, interleaved = r.interleaved_experts, format = b.cfg.format, unused = unused,
    architecture = b.cfg.architecture,
  }
  local function add(format, place)
    local name = namer(r, b.cfg, format)
    local module = attempt(name, place.role, place.layer)
    if not module then return end
    if place.stack then module = module:gsub("%%d", place.stack.expert) end
    if format == "hf" then module = M.bare(module) end
    out[format][module] = out[format][module] or {}
    table.insert(out[format][module], place)
  end
  -- The names of the classes of transformers. A module that is some rows of a weight of the file is a place of its own.
  local function add_class_name(place)
    local module = not place.stack and r.modules and r.modules(place, b.cfg)
    if not module then return end
    local own = setmetatable({ own = place.from ~= nil }, { __index = place })
    out.hf[module] = out.hf[module] or {}
    table.insert(out.hf[module], own)
  end
  for _, place in ipairs(uses_of(b, r)) do
    for _, format in ipairs { "hf", "gguf" } do
      if namer(r, b.cfg, format) then add(format, place) end
    end
    add_class_name(place)
    local parameter = place.stack and parameter_of(r, b.cfg, namer(r, b.cfg, "hf"), place)
    if parameter then
      out.stacks[parameter] = out.stacks[parameter] or {}
      table.insert(out.stacks[parameter], place)
    end
    if place.role == "output" then out.head = place end
  end
  local head = attempt(b.names, "output")
  out.output = head and head .. ".weight" or nil
  return out
end

--- Returns whether the computation does not use this module, such as the pooler of an encoder with another pooling.
function M.is_unused(places, module)
  for _, pattern in ipairs(places.unused) do
    if (module .. ".weight"):find(pattern) then return true end
  end
  return false
end

--- Returns the places of a module of an adapter; nil if the model has none.
-- @param naming "hf" or "gguf"
function M.find(places, naming, module)
  return places[naming][naming == "hf" and M.bare(module) or module]
end

return M
