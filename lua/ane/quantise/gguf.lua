--- The plan of a GGUF file that is rewritten: all its metadata and tensors, in their order.
-- Needs ane.model.config, ane.quantise.types, ane.recipe and ane.recipe.names.
-- Usage: `local plan = require("ane.quantise.gguf").plan(source)`
--
-- A plan is {architecture, note (or nil), tensors, values, table, head}. table and head: names of the table of the embedding and of the
-- head, which the file may lack. tensors: list of {name, shape, dtype and bytes (as stored), parts, plain (why it cannot be in blocks, or
-- nil)}. A part is {source, name, first, last, head, add, by, transposed} (see writer:send) or {data = bytes}. values: function(set, copy),
-- which calls set(key, type, value) and copy(source, key) for every value of the new file but general.file_type and
-- general.quantization_version. gguf_names: function() -> names in the source -> those that their roles have in GGUF files; nil where the
-- new file has these names.

local config = require "ane.model.config"
local names = require "ane.recipe.names"
local recipe = require "ane.recipe"
local types = require "ane.quantise.types"

local M = {}

-- Keys that are written anew, or apply only to the old file: a split file becomes one.
local function is_own(key)
  return key == "general.file_type" or key == "general.quantization_version" or key:find "^split%." ~= nil
end

local function architecture_of(source)
  local architecture = source:meta "general.architecture"
  return type(architecture) == "string" and architecture or nil
end

--- The tensors of the plan of an open GGUF source.
-- @param r its recipe; nil: that of its architecture
function M.tensors(source, r)
  local architecture, list = architecture_of(source), {}
  for i, t in ipairs(source:tensors()) do
    list[i] = {
      name = t.name, shape = t.shape, dtype = t.dtype, bytes = t.bytes, parts = { { source = source, name = t.name } },
      plain = types.plain(architecture or "", t.shape, r),
    }
  end
  return list
end

--- The names in GGUF files of the weights of a model, by their names in a source; {} if its graph cannot be built, of which a load says
-- why.
function M.gguf_names(r, cfg, source)
  local found = {}
  local graph = recipe.build(r, cfg, source, function(b)
    found = names.in_gguf(b, r)
    return true
  end)
  if graph then graph:close() end
  return found
end

-- The names of tensors by role. Files with a config.json of their own (ane.quantise.hf) have names of their recipe; returns this recipe
-- and the configuration too.
local function names_of(source, r)
  local architecture = architecture_of(source)
  local own = architecture and architecture:find "^ane%-" and (r or recipe.find(config.architecture(source) or architecture))
  local cfg = own and config.read(source, own.config, own.whole_rope)
  return cfg and names.for_source(own, cfg) or names.of "gguf", own, cfg
end

--- The plan of an open GGUF source.
-- @param r its recipe; nil: that of its architecture
function M.plan(source, _, r)
  local name, own, cfg = names_of(source, r)
  local plan = {
    architecture = architecture_of(source), tensors = M.tensors(source, r), table = name "token_embd" .. ".weight",
    head = name "output" .. ".weight",
  }
  if cfg then
    function plan.gguf_names() return M.gguf_names(own, cfg, source) end
  end
  function plan.values(_, copy)
    for _, key in ipairs(source:keys()) do
      if not is_own(key) then copy(source, key) end
    end
  end
  return plan
end

return M
