local core = require "ane.core"
local gguf = require "support.gguf_writer"
local loader = require "ane.model.loader"
local tiny = require "support.tiny_llama"

local temps = {}
local function write(change)
  temps[#temps + 1] = tiny.write(change)
  return temps[#temps]
end

local function load(path, o)
  local all = { threads = 1, activations = "fp32", kv = "fp32" }
  for k, v in pairs(o or {}) do all[k] = v end
  return loader.load(path, all)
end

after_each(function()
  for _, path in ipairs(temps) do os.remove(path) end
  temps = {}
end)

-- The message of a file changed in one place, without its path, and the code.
local function fault(change, o)
  local path = write(change)
  local bundle, message, code = load(path, o)
  assert.is_nil(bundle)
  assert.equal(path .. ": ", message:sub(1, #path + 2))
  return message:sub(#path + 3), code
end

local function set(key, kind, value) return function(_, put) put(key, kind, value) end end
local function shape(name, ...)
  local dims = { ... }
  return function(_, _, replace) replace(name, table.unpack(dims)) end
end

describe("loading", function()
  it("gives a program that runs, within the model's own context", function()
    local b = assert(load(write()))
    assert.equal(32, b.context)
    assert.equal(32, b.program:context())
    assert.equal("llama", b.architecture)
    assert.is_nil(b.tokenizer)
    assert.equal(20, b.program:vocab())
    local s <close> = assert(b.program:session { context = 32, kv = "fp32" })
    assert(s:feed({ 1, 2, 3 }, "all"))
  end)

  it("refuses a head with other rows than the embedding", function()
    for _, rows in ipairs { 10, 24 } do
      assert.equal(("output.weight has %d rows and token_embd.weight has 20, but both must have one row for each token"):format(rows),
        (fault(shape("output.weight", rows, 16))))
    end
    assert.equal(20, assert(load(write(shape("output.weight", 20, 16)))).program:vocab())
  end)

  local A = "metadata key llama."
  local keys = {
    { set("llama.block_count"), A .. "block_count is missing" },
    { set("llama.block_count", "uint32", 0), A .. "block_count must be a whole number from 1 to 4096, but is 0" },
    { set("llama.block_count", "string", "2"), A .. "block_count must be a number, but is a string" },
    { set("llama.block_count", "float32", 1.5), A .. "block_count must be a whole number from 1 to 4096, but is 1.5" },
    { set("llama.block_count", "uint32", 4000000000), A .. "block_count must be a whole number from 1 to 4096, but is 4000000000" },
    { set("llama.block_count", "int32", -1), A .. "block_count must be a whole number from 1 to 4096, but is -1" },
    { set("llama.nextn_predict_layers", "uint32", 1),
      A .. "nextn_predict_layers must be less than block_count (1), but is 1" },
    { set("llama.embedding_length"), A .. "embedding_length is missing" },
    { set("llama.attention.head_count"), A .. "attention.head_count is missing" },
    { set("llama.attention.head_count", "uint32", 0), A .. "attention.head_count must be a whole number from 1 to 65536, but is 0" },
    { set("llama.attention.head_count", "array", { "uint32", { 4 } }), A .. "attention.head_count must be a number, but is a table" },
    { set("llama.attention.head_count_kv", "uint32", 3),
      A .. "attention.head_count is 4, but must be a multiple of attention.head_count_kv (3)" },
    { set("llama.attention.head_count_kv", "array", { "uint32", { 2, 0 } }),
      A .. "attention.head_count_kv has 2 numbers, but must have one for each of 1 layers" },
    { set("llama.embedding_length", "uint32", 18),
      A .. "embedding_length is 18, no multiple of attention.head_count, 4, and attention.key_length is missing" },
    { set("llama.attention.layer_norm_rms_epsilon",
      "float32", -1), A .. "attention.layer_norm_rms_epsilon must be a number above 0, but is -1.0" },
    { set "llama.attention.layer_norm_rms_epsilon",
      A .. "attention.layer_norm_rms_epsilon is missing (or, of LayerNorm, attention.layer_norm_epsilon)" },
    { set("llama.rope.freq_base", "float32", 0), A .. "rope.freq_base must be a number above 0, but is 0.0" },
    { set("llama.rope.scaling.factor", "float32", 0), A .. "rope.scaling.factor must be a number above 0, but is 0.0" },
    { set("llama.rope.dimension_count", "uint32", 3), A .. "rope.dimension_count must be an even number up to the head's 4, but is 3" },
    { set("llama.rope.dimension_count", "uint32", 6), A .. "rope.dimension_count must be an even number up to the head's 4, but is 6" },
    { set("general.architecture"), "metadata key general.architecture is missing: this file holds no model" },
    { set("general.architecture", "uint32", 3), "metadata key general.architecture is missing: this file holds no model" },
  }
  for i, case in ipairs(keys) do
    it(("refuses metadata %d: %s"):format(i, case[2]), function() assert.same({ case[2], "format" }, { fault(case[1]) }) end)
  end

  it("names the fault of the recipe before a list that the recipe did not read", function()
    local message, code = fault(function(_, put)
      put("llama.block_count", "uint32", 2)
      put("llama.attention.head_count_kv", "array", { "uint32", { 2, 0 } })
    end)
    assert.matches("^layers.1: no tensor blk.1.attn_norm.weight in %S+; metadata key llama.attention.head_count_kv differs from layer " ..
      "to layer %(2 in layer 0, 0 in layer 1%)$", message)
    assert.equal("shape", code)
  end)

  it("reads which layers slide, from a period or a list", function()
    local function words(kind, value)
      local source <close> = assert(core.open(write(function(_, put)
        put("llama.block_count", "uint32", 4)
        put("llama.attention.sliding_window_pattern", kind, value)
      end)))
      local cfg, message = require("ane.model.config").read(source)
      return cfg and table.concat(cfg.layer_types or {}, " "):gsub("_attention", "") or message
    end
    assert.equal("sliding full sliding full", (words("uint32", 2)))
    assert.equal("full full full full", (words("uint32", 1)))
    assert.equal("sliding sliding sliding sliding", (words("uint32", 0)))
    assert.equal("full sliding sliding full", (words("array", { "bool", { false, true, true, false } })))
    assert.equal("full sliding sliding full", (words("array", { "int32", { 0, 1, 1, 0 } })))
    local drafting <close> = assert(core.open(write(function(_, put)
      put("llama.block_count", "uint32", 4)
      put("llama.nextn_predict_layers", "uint32", 1)
      put("llama.attention.head_count_kv", "array", { "uint32", { 2, 2, 2, 4 } })
      put("llama.attention.sliding_window_pattern", "array", { "bool", { false, true, true, false } })
    end)))
    local cfg = assert(require("ane.model.config").read(drafting))
    assert.same({ 3, "full_attention sliding_attention sliding_attention", 2, {} },
      { cfg.n_layer, table.concat(cfg.layer_types, " "), cfg.n_head_kv, cfg.per_layer })
    assert.matches("sliding_window_pattern has 2 entries, but must have one for each of 4 layers", words("array", { "bool", { true,
      true } }))
    assert.matches("sliding_window_pattern%[2%] must be true or false, but is 7", words("array", { "int32", { 0, 1, 7, 0 } }))
    assert.matches("sliding_window_pattern must be a whole number from 0 to 16777216, but is none", words("string", "none"))
  end)

  it("takes a list of key-value heads that is the same in all layers", function()
    assert(load(write(set("llama.attention.head_count_kv", "array", { "uint32", { 2 } }))))
  end)

  it("names the known architectures before it asks anything else of the file", function()
    local message, code = fault(function(_, put)
      put("general.architecture", "string", "mystery-9")
      put("mystery-9.attention.head_count_kv", "array", { "uint32", { 1, 0 } })
    end)
    assert.equal("unsupported", code)
    assert.matches("^architecture 'mystery%-9' is not known; known are: .*gemma3.*llama.*qwen2", message)
    assert.matches("models/mystery_9.lua", message, 1, true)
    message, code = fault(set("general.architecture", "string", "../../etc/passwd"))
    assert.equal("unsupported", code)
    assert.matches("architecture '../../etc/passwd' is not known", message, 1, true)
  end)

  local shapes = {
    { shape("blk.0.attn_q.weight", 16, 12), "weight blk.0.attn_q.weight must be [N, 16] for an input of 16 channels, but is [16, 12]" },
    { shape("blk.0.attn_k.weight", 12, 16), "k has 12 and v 8 channels, but must have 2 heads of 4" },
    { shape("blk.0.attn_norm.weight", 15), "weight blk.0.attn_norm.weight must be [16], but is [15]" },
    { shape("blk.0.attn_q.bias", 5), "bias blk.0.attn_q.bias must be [16], but is [5]" },
    { shape("blk.0.ffn_up.weight", 23, 16), "layers.0.ffn_gate is [1, 24, ?, 1] but layers.0.ffn_up is [1, 23, ?, 1]" },
    { shape("blk.0.ffn_down.weight", 15, 24), "layers.0.add is [1, 16, ?, 1] but layers.0.ffn_down is [1, 15, ?, 1]" },
    { shape("output_norm.weight", 4), "weight output_norm.weight must be [16], but is [4]" },
    { shape("token_embd.weight", 320), "token_embd.weight must be a table [V, C], but is fp32[320]" },
    { shape("blk.0.attn_v.weight"), "no tensor blk.0.attn_v.weight in " },
    { shape("token_embd.weight"), "no tensor token_embd.weight in " },
    { shape("blk.0.attn_extra.weight", 3),
      "tensor blk.0.attn_extra.weight is not used by the recipe for llama: the result would be wrong" },
    { shape("blk.1.attn_q.weight", 16, 16), "tensor blk.1.attn_q.weight is not used by the recipe for llama" },
  }
  for i, case in ipairs(shapes) do
    it(("refuses tensors %d: %s"):format(i, case[2]), function()
      local message = fault(case[1])
      assert.is_truthy(message:find(case[2], 1, true), message)
      -- What stands in a layer says so.
      if case[2]:find("blk.0", 1, true) and not case[2]:find "not used" then assert.matches("layers%.0", message) end
    end)
  end

  it("refuses divisors that are none, or too many", function()
    local function divisors(list)
      return function(file)
        table.insert(file.tensors, { name = "rope_freqs.weight", dtype = "fp32", shape = { #list }, data = gguf.f32(list) })
      end
    end
    assert.equal("tensor rope_freqs.weight has the divisor 0.0, but divisors must be above 0", (fault(divisors { 1, 0 })))
    assert.matches("rope has 2 frequencies, but rope_freqs has 3 divisors", (fault(divisors { 1, 2, 3 })))
  end)

  it("refuses scaling that it does not know or cannot compute", function()
    assert.matches("rope scaling sphere is unknown; known are: dynamic, linear, llama3, longrope, proportional, yarn",
      (fault(set("llama.rope.scaling.type", "string", "sphere"))))
    assert.matches("rope scaling linear: the factor is missing", (fault(set("llama.rope.scaling.type", "string", "linear"))))
  end)
end)

describe("a recipe", function()
  local llama = require "ane.models.llama"

  local function file(text)
    local path = os.tmpname()
    assert(core.write_file(path, text))
    temps[#temps + 1] = path
    return path
  end

  it("may be a table or a file, for any architecture", function()
    local path = write(set("general.architecture", "string", "llama"))
    assert(load(path, { recipe = llama }))
    assert(load(path, { recipe = file "return require 'ane.models.llama'" }))
  end)

  local broken = {
    { { architectures = { "x" } }, "option recipe: build must be a function(b, cfg)" },
    { { build = llama.build }, "option recipe: architectures must be a list of names" },
    { { architectures = { "x" }, build = llama.build, version = 99 }, "option recipe: written for recipe API 99" },
    { { architectures = { "x" }, build = llama.build, version = "two" }, "option recipe: version must be a number" },
    { { architectures = { "x" }, build = llama.build, ignore = "a" }, "option recipe: ignore must be a list of patterns" },
    { { architectures = { "x" }, build = function() end }, "build of the recipe for llama must return the value of its logits, but "
      .. "returns nil" },
    { { architectures = { "x" }, build = function() return 99 end }, "must return the value of its logits, but returns 99" },
    { { architectures = { "x" }, build = function() error "my own mistake" end }, "my own mistake" },
    { { architectures = { "x" }, build = function(b) b:layer(3, function() error "inside" end) end }, "layers.3: inside" },
    { { architectures = { "x" }, build = function(b) return b:embed "token_embd" end }, "is not used by the recipe" },
  }
  for i, case in ipairs(broken) do
    it(("that is broken is told, %d: %s"):format(i, case[2]), function()
      local message = fault(nil, { recipe = case[1] })
      assert.is_truthy(message:find(case[2], 1, true), message)
    end)
  end

  it("in a broken file is told", function()
    assert.matches("unexpected symbol", (fault(nil, { recipe = file "return +" })))
    assert.matches("a recipe must be a table, but is a number", (fault(nil, { recipe = file "return 3" })))
    assert.matches("lost", (fault(nil, { recipe = file "error 'lost'" })))
    assert.matches("No such file", (fault(nil, { recipe = "/nowhere/recipe.lua" })))
  end)

  it("that is registered goes before those in the tree", function()
    local built = false
    loader.register { architectures = { "new-one" }, build = function(b, cfg) built = true return llama.build(b, cfg) end }
    local message = fault(set("general.architecture", "string", "new-one"))
    assert.equal("metadata key new-one.block_count is missing", message)
    assert.is_false(built)
    assert.error_matches(function() loader.register {} end, "register: architectures must be a list of names")
    assert.matches("new%-one", (fault(set("general.architecture", "string", "old-one"))))
  end)
end)
