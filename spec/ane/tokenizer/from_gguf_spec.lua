-- tokenizer.json of GGUF vocabularies: its ids are those of the file. spec/ane/tokenizer/tokenizer_json_spec.lua compares what is read
-- from tokenizer.json with the `tokenizers` library.
local core = require "ane.core"
local exporter = require "ane.coreml.export"
local from_gguf = require "ane.tokenizer.from_gguf"
local gguf = require "support.gguf_writer"
local tokenizer = require "ane.tokenizer"

local FOLDER = "spec/fixtures/tokenizer/"
local PIECES = {
  "Hello", " world", "\n\n", " 12345", "'s", " don't", "été", "日本語", "🙂", "   ", "\t", "<|im_start|>", "a", "...", "(x)", "ſ", " Ω",
  "\u{2581}", "e\u{301}", "_-", "<s>", "</s>", "😀😀", "0xFF", "\r\n", "\u{a0}", "\0", "Ünïcödé", "  if x:\n",
}

describe("tokenizer.json of a GGUF vocabulary", function()
  local dir
  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    assert(os.execute("mkdir " .. dir))
  end)
  after_each(function() os.execute("rm -rf " .. dir) end)

  -- The tokenizer of the file, that of the files made of it, and these: {[name] = object}.
  local function both(path)
    local source = assert(core.open(path))
    local made = {}
    for name, text in pairs(assert(from_gguf.files(source))) do
      assert(core.write_file(dir .. "/" .. name, text))
      made[name] = core.json_decode(text)
    end
    return assert(tokenizer.new(source)), assert(tokenizer.new(dir)), made
  end

  for _, name in ipairs { "gemma3", "llama", "llama-bias", "phi3", "qwen2", "spm-prefix" } do
    it("gives the ids and texts of the file: " .. name, function()
      local a, b = both(FOLDER .. name .. ".gguf")
      local random = math.random
      math.randomseed(#name)
      for k = 1, 400 do
        local text = {}
        for i = 1, random(0, 12) do text[i] = PIECES[random(#PIECES)] end
        text = table.concat(text)
        local ids = assert(a:encode(text, { special = k % 2 == 0 }))
        assert.same(ids, assert(b:encode(text, { special = k % 2 == 0 })), ("%q"):format(text))
        assert.equal(a:decode(ids), b:decode(ids))
      end
    end)
  end

  it("gives the ids of llama.cpp", function()
    local known = { ["llama.gguf"] = true, ["phi3.gguf"] = true, ["qwen2.gguf"] = true, ["gemma3.gguf"] = true }
    local opts = { bos = false, special = true } -- as the fixture was made
    for _, file in ipairs(core.json_decode(assert(core.read_file(FOLDER .. "golden.json"))).files) do
      if known[file.gguf] then
        known[file.gguf] = nil
        local _, t = both(FOLDER .. file.gguf)
        for _, case in ipairs(file.cases) do assert.same(case.ids, assert(t:encode(case.text, opts)), case.text) end
      end
    end
    assert.is_nil(next(known))
  end)

  it("names the special tokens and keeps the chat template", function()
    local _, _, made = both(FOLDER .. "gemma3.gguf")
    local config, added = made["tokenizer_config.json"], made["tokenizer.json"].added_tokens
    assert.equal("<bos>", config.bos_token)
    assert.equal("<eos>", config.eos_token)
    assert.equal("<unk>", config.unk_token)
    local source = assert(core.open(FOLDER .. "gemma3.gguf"))
    assert.equal(source:meta "tokenizer.chat_template", config.chat_template)
    local kinds = {}
    for _, token in ipairs(added) do kinds[token.content] = token.special end
    assert.equal(true, kinds["<bos>"])
  end)

  -- A file with a vocabulary of two tokens and some values.
  local function vocabulary(values)
    local list = {
      { "general.architecture", "string", "llama" }, { "tokenizer.ggml.tokens", "array", { "string", { "a", "b" } } },
    }
    table.move(values, 1, #values, #list + 1, list)
    gguf.write(dir .. "/x.gguf", { values = list, tensors = {} })
    return assert(core.open(dir .. "/x.gguf"))
  end

  it("says why a vocabulary has no such form", function()
    local function why(...)
      local files, reason = from_gguf.files(vocabulary { ... })
      assert.is_nil(files)
      return reason
    end
    local function kind(name) return { "tokenizer.ggml.model", "string", name } end
    local function pre(name) return { "tokenizer.ggml.pre", "string", name } end
    assert.equal("a vocabulary of the kind bert cannot be written in this form", why(kind "bert"))
    assert.equal("a vocabulary of the kind nil cannot be written in this form", why())
    assert.equal("tokenizer.ggml.scores is missing", why(kind "llama"))
    assert.equal("the pre-tokenizer nil is unknown", why(kind "gpt2"))
    assert.equal("the pre-tokenizer none-such is unknown", why(kind "gpt2", pre "none-such"))
    assert.equal("tokenizer.ggml.merges is missing", why(kind "gpt2", pre "qwen2"))
  end)

  it("stands in the bundle of an asset", function()
    local out = dir .. "/out"
    local report = assert(exporter.of_path("spec/fixtures/gguf/qwen2-q4_0.gguf", out, { target = "coreai", context = 16 }))
    local source = assert(core.open "spec/fixtures/gguf/qwen2-q4_0.gguf")
    local files, why = from_gguf.files(source)
    assert.same({ why and "the bundle has no tokenizer.json: " .. why }, report.warnings)
    for name, text in pairs(files or {}) do assert.equal(text, core.read_file(out .. "/tokenizer/" .. name)) end
    assert.equal("file", core.path_kind(out .. "/tokenizer/tokenizer.gguf"))
  end)
end)
