--- The plan of a Hugging Face folder written as GGUF, as llama.cpp's converter does it (conversion/*.py, 2025).
-- Needs ane.model.config, ane.core, ane.embed.modules, ane.util.failure, ane.quantise.gguf, ane.quantise.types, ane.quantise.vocabulary,
-- ane.quantise.known, ane.recipe, ane.recipe.names, ane.recipe.same, ane.util.paths and ane.util.weight_type. ane.quantise.gguf says what a
-- plan is.
--
-- If llama.cpp knows the architecture, the file is one that llama.cpp computes correctly. Other architectures, and configurations that
-- its metadata cannot express, get general.architecture "ane-<model_type>", the text of config.json as ane.model.config, and tensors by
-- the folder's names without the leading "model.": ane.model.config reads these files as it reads the folder.
-- Usage: `local plan = require("ane.quantise.hf").plan(source, out)`; raises {message, code}

local config = require "ane.model.config"
local core = require "ane.core"
local failure = require "ane.util.failure"
local gguf = require "ane.quantise.gguf"
local known = require "ane.quantise.known"
local modules = require "ane.embed.modules"
local names = require "ane.recipe.names"
local paths = require "ane.util.paths"
local recipe = require "ane.recipe"
local same = require "ane.recipe.same"
local types = require "ane.quantise.types"
local vocabulary = require "ane.quantise.vocabulary"
local weight_type = require "ane.util.weight_type"

local M = {}

local try = failure.try

local function floats(list)
  local parts = {}
  for i, v in ipairs(list) do parts[i] = string.pack("<f", v) end
  return table.concat(parts)
end

-- Divisors of llama 3's rope frequencies (transformers, modeling_rope_utils.py).
local function llama3_divisors(rope)
  local list = {}
  local low, high = rope.original_context / rope.low_freq_factor, rope.original_context / rope.high_freq_factor
  for t = 0, rope.dims // 2 - 1 do
    local wave = 2 * math.pi * rope.theta ^ (2 * t / rope.dims)
    if wave < high then
      list[t + 1] = 1.0
    elseif wave > low then
      list[t + 1] = rope.factor
    else
      local s = (rope.original_context / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
      list[t + 1] = 1 / ((1 - s) / rope.factor + s)
    end
  end
  return list
end

-- ---- Rope --------------------------------------------------------------------------------------------------------------

-- Names a rope that no reader of this GGUF would compute, or that the folder's own recipe refuses; nil: none.
local function rope_fault(arch, cfg)
  local rope = cfg.rope
  local scaling = rope.scaling
  local is_said = arch.partial and not rope.fault
  if rope.dims ~= cfg.head_dim and not is_said then return ("a rope of %d of %d dimensions"):format(rope.dims, cfg.head_dim) end
  if scaling == nil or scaling == "linear" then return nil end
  if scaling == "llama3" and arch.divisors then return nil end
  if scaling == "longrope" and arch.longrope then return nil end
  if scaling == "dynamic" and rope.alpha and arch.alpha then return nil end
  if scaling == "yarn" and rope.truncate ~= false and (not rope.attn_factor or known.says_magnitude(arch, rope)) then return nil end
  return ("rope type %s%s"):format(scaling, rope.alpha and " with alpha" or "")
end

local function rope_values(set, cfg, context)
  local rope = cfg.rope
  if rope.scaling == "dynamic" then -- Hunyuan: the base that alpha makes, and its 256k context
    set("rope.freq_base", "fp32", rope.theta * rope.alpha ^ (rope.dims / (rope.dims - 2)))
    set("rope.scaling.type", "string", "none")
    set("rope.scaling.factor", "fp32", 1)
    set("rope.scaling.original_context_length", "uint32", context)
    return
  end
  set("rope.freq_base", "fp32", rope.theta)
  if rope.scaling ~= "linear" and rope.scaling ~= "yarn" then return end
  set("rope.scaling.type", "string", rope.scaling)
  set("rope.scaling.factor", "fp32", rope.factor)
  if rope.scaling ~= "yarn" then return end
  set("rope.scaling.original_context_length", "uint32", rope.original_context)
  if rope.beta_fast then set("rope.scaling.yarn_beta_fast", "fp32", rope.beta_fast) end
  if rope.beta_slow then set("rope.scaling.yarn_beta_slow", "fp32", rope.beta_slow) end
end

-- ---- Tensors -----------------------------------------------------------------------------------------------------------

local function squeeze(shape)
  local out = {}
  for _, n in ipairs(shape) do
    if n ~= 1 then out[#out + 1] = n end
  end
  return #out > 0 and out or { 1 }
end

-- Collects the tensors of a model; `used` has the names that were taken.
local Gather = {}
Gather.__index = Gather

-- The description of a weight of the folder; nil if there is none.
function Gather:find(name)
  local t = self.source:tensor(name)
  if t then weight_type.check(self.source, name, t.dtype) end
  return t
end

-- Adds one tensor of the file to the plan.
-- @param opts add, by (of all numbers), heads (whose rows are permuted), shape (function(elements) -> shape; nil: that of the source),
-- pieces (list of {first, last, by, transposed}, rows of the source; nil: all), again (true: another tensor has taken some of its rows)
function Gather:take(name, from, opts)
  local t = self:find(from)
  if not t or (self.used[from] and not opts.again) then return end -- used: roles of different architectures may share a name
  self.used[from] = true
  local parts, rows = {}, 0
  for i, piece in ipairs(opts.pieces or { {} }) do
    local by = piece.by or opts.by
    parts[i] = {
      source = self.source, name = from, first = piece.first, last = piece.last, add = opts.add, by = by ~= 1 and by or nil,
      head = opts.heads and (t.shape[1] or 1) // opts.heads, transposed = piece.transposed,
    }
    rows = rows + (piece.last and piece.last - piece.first + 1 or 0)
  end
  local shape = opts.shape and opts.shape(types.elements(t.shape)) or squeeze(t.shape)
  local all = types.elements(t.shape) // (t.shape[#t.shape] or 1)
  local bytes = opts.pieces and t.bytes * rows // all or t.bytes
  self.list[#self.list + 1] = { name = name, shape = shape, dtype = t.dtype, bytes = bytes, parts = parts }
end

-- A vector of the file.
-- @param change function(number) -> number
-- @param shape_of function(elements) -> shape; nil: that of the source
function Gather:vector(name, from, change, shape_of)
  local t = self:find(from)
  if not t then return end
  self.used[from] = true
  local list, raw = {}, try(self.source:read(from))
  for i = 1, #raw // 4 do list[i] = change((string.unpack("<f", raw, 4 * i - 3))) end
  local part, shape = { data = floats(list) }, shape_of and shape_of(#list) or squeeze(t.shape)
  self.list[#self.list + 1] = { name = name, shape = shape, dtype = "fp32", bytes = t.bytes, parts = { part } }
end

-- Stacks experts that the folder stores one by one, as [experts, out, in].
function Gather:stack(name, pattern, count)
  local parts, shape, bytes, dtype = {}, nil, 0, nil
  for e = 0, count - 1 do
    local from = pattern:format(e) .. ".weight"
    local t = self:find(from)
    if not t then return end
    self.used[from] = true
    parts[#parts + 1] = { source = self.source, name = from }
    shape, bytes, dtype = { count, t.shape[1], t.shape[2] }, bytes + t.bytes, t.dtype
  end
  if shape then self.list[#self.list + 1] = { name = name, shape = shape, dtype = dtype, bytes = bytes, parts = parts } end
end

-- The weight of a role, and its bias; row: of names.ROLES.
function Gather:role(row, layer)
  local role = row[1]
  local called, from = pcall(self.hf, role, layer)
  if not called then
    if failure.code(from) == "memory" then error(from, 0) end
    return -- this architecture lacks the role
  end
  local to, arch, cfg, r = self.gguf(role, layer), self.arch, self.cfg, self.recipe
  local own = arch.own and arch.own[role]
  if own then
    own(self, to, from, layer)
  elseif from:find("%d", 1, true) then
    self:stack(to .. ".weight", from, known.experts(arch, cfg, r))
  elseif row.suffix then
    self:take(to .. row.suffix, from, {})
  else
    local scale = arch.norm_scale and arch.norm_scale(role, cfg) or 1
    if scale ~= 1 then
      return self:vector(to .. ".weight", from .. ".weight", function(v) return (v + arch.norm_add) * scale end)
    end
    local opts = { add = role:find "norm" and arch.norm_add or nil, by = arch.by and arch.by(role, cfg, r) }
    if arch.pair and arch.pair[role] then opts.heads = role == "attn_k" and cfg.n_head_kv or cfg.n_head end
    self:take(to .. ".weight", from .. ".weight", opts)
    if arch.biases and arch.biases[role] then self:take(to .. ".bias", from .. ".bias", opts) end
  end
end

-- The names of the folder's tensors by role. The files of models without a head, such as Qwen3-Embedding, lack the leading "model.".
local function folder_names(r, cfg, source)
  local name = names.of("hf", r.names and r.names.hf, cfg)
  local first = name "token_embd" .. ".weight"
  if source:tensor(first) or not source:tensor(names.bare(first)) then return name end
  return function(role, layer) return names.bare(name(role, layer)) end
end

-- Is the head the table of the embedding? As recipes have it (ane.recipe.head): a head with other numbers is not tied, whatever
-- the configuration says. The head of a rotated model has other numbers.
local function is_tied(self)
  local head = self.cfg.tied and self.hf "output" .. ".weight"
  return head and (not self.source:tensor(head) or same(self.source, head, self.hf "token_embd" .. ".weight"))
end

local function gather(arch, r, cfg, source)
  local self = setmetatable({
    arch = arch, cfg = cfg, recipe = r, source = source, list = {}, used = {}, ignore = arch.ignores and r.ignore or {},
  }, Gather)
  self.hf = folder_names(r, cfg, source)
  self.gguf = names.of("gguf", r.names and r.names.gguf, cfg)
  local function add(name, values)
    local data = floats(values)
    self.list[#self.list + 1] = { name = name, shape = { #values }, dtype = "fp32", bytes = 0, parts = { { data = data } } }
  end
  if arch.tensors then arch.tensors(add, cfg) end
  if cfg.rope and cfg.rope.scaling == "llama3" then add("rope_freqs.weight", llama3_divisors(cfg.rope)) end
  local roles = arch.roles or names.ROLES
  self.is_tied = is_tied(self)
  for _, row in ipairs(roles) do
    if row.outside and not (row[1] == "output" and self.is_tied) then self:role(row) end
  end
  local by = arch.by and arch.by("output", cfg, r)
  if self.is_tied and arch.untied and (arch.untied ~= "by" or by ~= arch.by("token_embd", cfg, r)) then
    self:take("output.weight", self.hf "token_embd" .. ".weight", { by = by, again = true })
  end
  for layer = 0, cfg.n_layer - 1 do
    for _, row in ipairs(roles) do
      if not row.outside then self:role(row, layer) end
    end
  end
  return self
end

-- Buffers of old files, and the head of a model whose head is its embedding.
local function is_idle(self, name)
  for _, pattern in ipairs(self.ignore) do
    if name:find(pattern) then return true end
  end
  return name:find "%.rotary_emb%.inv_freq$" or (self.cfg.tied and name == "lm_head.weight")
end

local function unnamed(self)
  for _, t in ipairs(self.source:tensors()) do
    if not self.used[t.name] and not is_idle(self, t.name) then return ("tensor %s"):format(t.name) end
  end
end

-- ---- Values ------------------------------------------------------------------------------------------------------------

local function folder_name(folder)
  local absolute = paths.name_of(folder)
  return absolute and absolute:find "%w" and absolute or nil
end

local function inner_size(self)
  local d_ff = self.arch.d_ff
  if d_ff then return d_ff == true and self.cfg.d_ff or d_ff(self.cfg, self.recipe) end
  local gate = self.source:tensor(self.hf("ffn_gate", 0) .. ".weight")
  return gate and gate.shape[1] or self.cfg.d_ff
end

local function own_values(self, set)
  local cfg, arch = self.cfg, self.arch
  set("block_count", "uint32", cfg.n_layer)
  local context = cfg.context_length or arch.context
  if cfg.rope and cfg.rope.scaling == "dynamic" then context = arch.context or context end
  if context then set("context_length", "uint32", context) end
  set("embedding_length", "uint32", cfg.d_model)
  set("feed_forward_length", "uint32", inner_size(self))
  set("attention.head_count", "uint32", arch.heads == false and 0 or cfg.n_head)
  local kv = arch.kv and arch.kv(cfg, self.recipe) or cfg.n_head_kv
  if arch.heads ~= false then set("attention.head_count_kv", type(kv) == "table" and "int32[]" or "uint32", kv) end
  set(arch.norm_key or "attention.layer_norm_rms_epsilon", "fp32", cfg.norm_eps)
  local writes = arch.head_dims
  if writes == nil then writes = arch.heads ~= false and (cfg.meta "head_dim" or cfg.head_dim * cfg.n_head ~= cfg.d_model) end
  if writes then
    set("attention.key_length", "uint32", cfg.head_dim)
    set("attention.value_length", "uint32", cfg.head_dim)
  end
  if arch.rope ~= false then
    if arch.dims or cfg.rope.dims ~= cfg.head_dim then set("rope.dimension_count", "uint32", cfg.rope.dims) end
    rope_values(set, cfg, context)
  end
  if arch.values then arch.values(set, cfg, self) end
end

-- llama.cpp looks up <unk>, <s> and <|endoftext|> in a model whose name says Phi-3, and gives up where the vocabulary, such as
-- Phi-4's, lacks one (llama-vocab.cpp, 2025): then the name is left out.
local function is_trap(name, tokens)
  if not name:lower():find "phi%-?3" then return false end
  local left = { ["<unk>"] = true, ["<s>"] = true, ["<|endoftext|>"] = true }
  for _, v in ipairs(tokens or {}) do
    for _, token in ipairs(v[1] == "tokenizer.ggml.tokens" and v[3] or {}) do left[token] = nil end
  end
  return next(left) ~= nil
end

local function values_of(self, tokens)
  local arch = self.arch
  return function(set)
    set("general.architecture", "string", arch.name)
    local name = folder_name(self.cfg.folder)
    if name and not is_trap(name, tokens) then set("general.name", "string", name) end
    local put_keys = {}
    local function put(key, kind, value)
      local full = arch.name .. "." .. key
      if value == nil then failure.raise("format", "%s/config.json: says nothing for metadata key %s", self.cfg.folder, full) end
      put_keys[key] = true
      set(full, kind, value)
    end
    own_values(self, put)
    if arch.shared then arch.shared(set, self.cfg, self) end
    for _, v in ipairs(tokens or { { "tokenizer.ggml.model", "string", "none" } }) do set(v[1], v[2], v[3]) end
    if not tokens and not put_keys.vocab_size then put("vocab_size", "uint32", self.cfg.vocab_size) end
  end
end

-- ---- The plan ----------------------------------------------------------------------------------------------------------

-- The reason why llama.cpp could not compute this model from a GGUF; nil: it can.
local function fault_of(self)
  local arch, cfg = self.arch, self.cfg
  if not cfg.rope and arch.rope ~= false then return "ropes of kinds of layers without full_attention" end
  if cfg.holds "score.weight" then return "a head of scores" end
  if (cfg.act or "silu") ~= (arch.act or "silu") then return ("activation %s"):format(cfg.act) end
  if arch.even_heads and cfg.head_dim * cfg.n_head ~= cfg.d_model then return ("%d heads of %d"):format(cfg.n_head, cfg.head_dim) end
  if arch.tied and not self.is_tied then return "a head that is not the embedding" end
  return (arch.rope ~= false and rope_fault(arch, cfg)) or (arch.fault and arch.fault(cfg, self.recipe))
end

-- Stores config.json itself, for architectures that GGUF has no keys for. Only this program reads such files (ane.model.config).
local function whole_values(cfg, tokens)
  return function(set)
    set("general.architecture", "string", "ane-" .. cfg.architecture)
    local name = folder_name(cfg.folder)
    if name then set("general.name", "string", name) end
    set("ane.config", "string", try(core.read_file(cfg.folder .. "/config.json")))
    local generation = core.read_file(cfg.folder .. "/generation_config.json")
    if generation then set("ane.generation_config", "string", generation) end
    for _, v in ipairs(tokens or { { "tokenizer.ggml.model", "string", "none" } }) do set(v[1], v[2], v[3]) end
  end
end

local function whole_tensors(source, cfg, r)
  local list = {}
  for i, t in ipairs(source:tensors()) do
    list[i] = {
      name = names.bare(t.name), shape = #t.shape > 0 and t.shape or { 1 }, dtype = t.dtype, bytes = t.bytes,
      parts = { { source = source, name = t.name } }, plain = types.plain("ane-" .. cfg.architecture, t.shape, r),
    }
  end
  return list
end

-- Rows of the embedding: the number of ids.
local function n_ids(source, cfg, name)
  local t = source:tensor(name .. ".weight")
  return t and t.shape[1] or cfg.vocab_size
end

-- The pooling type of a folder of sentence-transformers, or nil; and what its GGUF file lacks, or nil.
local function pooling_of(cfg)
  local type, lacks = modules.for_gguf(cfg)
  if not type and _G.type(lacks) == "string" then failure.raise("format", "%s: %s", cfg.folder, lacks) end
  if not type and lacks[1] then
    return nil, ("GGUF has no key for %s of modules.json: the file gives other embeddings, or none"):format(lacks[1])
  end
  return type, lacks[1] and ("the file does not keep these settings of the folder's embeddings: %s"):format(table.concat(lacks, ", "))
end

local function with_pooling(values, architecture, type)
  if not type then return values end
  return function(set, ...)
    values(set, ...)
    set(architecture .. ".pooling_type", "uint32", type)
  end
end

-- What the files of a folder say: recipe, configuration, row of ane.quantise.known (or nil), tensors by role (or nil), and what a file of
-- that architecture cannot say (or nil).
-- @param r the recipe; nil: that of the architecture
local function read(source, r)
  local architecture = try(config.architecture(source))
  r = r or try(recipe.find(architecture))
  local cfg = try(config.read(source, r.config, r.whole_rope))
  recipe.complete(r, cfg)
  local arch = known.of(cfg, r)
  local self = arch and gather(arch, r, cfg, source)
  return r, cfg, arch, self, not arch and "no architecture of GGUF is known for it here" or fault_of(self) or unnamed(self)
end

--- The tensors of the plan of an open folder.
-- @param own its recipe; nil: that of its architecture
function M.tensors(source, own)
  local r, cfg, _, self, unsaid = read(source, own)
  return unsaid and whole_tensors(source, cfg, r) or self.list
end

--- The plan of an open folder.
-- @param source the folder's safetensors
-- @param out path of the new file; a scratch file is made beside it
-- @param own its recipe; nil: that of its architecture
function M.plan(source, out, own)
  local r, cfg, arch, self, unsaid = read(source, own)
  local name = folder_names(r, cfg, source)
  local tokens, why = vocabulary.read(cfg.folder, cfg.architecture, n_ids(source, cfg, name "token_embd"), out .. ".vocabulary.tmp")
  local notes = {}
  if unsaid then
    notes[1] = ("general.architecture is ane-%s, which only this program reads: %s"):format(cfg.architecture,
      arch and ("files of architecture %s cannot represent %s"):format(arch.name, unsaid) or unsaid)
  end
  if not tokens then notes[#notes + 1] = "no tokenizer is in the file: " .. why end
  local architecture = unsaid and "ane-" .. cfg.architecture or arch.name
  local pooling, lacks = pooling_of(cfg)
  if lacks then notes[#notes + 1] = lacks end
  local values = unsaid and whole_values(cfg, tokens) or values_of(self, tokens)
  local written = unsaid and function(role) return names.bare(name(role)) end or self.gguf
  return {
    architecture = architecture, tensors = unsaid and whole_tensors(source, cfg, r) or self.list,
    table = written "token_embd" .. ".weight", head = written "output" .. ".weight",
    values = with_pooling(values, architecture, pooling),
    gguf_names = unsaid and function() return gguf.gguf_names(r, cfg, source) end or nil, note = notes[1] and table.concat(notes, "; "),
  }
end

return M
