local core = require "ane.core"
local gguf = require "support.gguf_writer"

local folder = "spec/fixtures/tokenizer/"

local function read_json(name) return assert(core.json_decode(assert(core.read_file(folder .. name)))) end

local function load(path)
  local source = assert(core.open(path))
  local tokenizer = assert(core.tokenizer(source))
  source:close() -- a tokenizer keeps nothing of it
  return tokenizer
end

local golden, cases = read_json "golden.json", read_json "cases.json"

--- The vocabulary of llama.gguf under another tokenizer.ggml.pre.
local function with_pre(pre)
  local source = assert(core.open(folder .. "llama.gguf"))
  local function list(key, kind) return { key, "array", { kind, source:meta(key) } } end
  local path = gguf.write(gguf.temp(), {
    values = {
      { "tokenizer.ggml.model", "string", "gpt2" }, { "tokenizer.ggml.pre", "string", pre },
      list("tokenizer.ggml.tokens", "string"), list("tokenizer.ggml.token_type", "int32"),
      list("tokenizer.ggml.merges", "string"), { "tokenizer.ggml.bos_token_id", "uint32", 1000 },
    },
  })
  local tokenizer = load(path)
  os.remove(path)
  return tokenizer
end

describe("encoding", function()
  for _, file in ipairs(golden.files) do
    it("gives the ids of the golden file: " .. file.gguf, function()
      local tokenizer = load(folder .. file.gguf)
      for _, case in ipairs(file.cases) do
        assert.same(case.ids, tokenizer:encode(case.text, true, false), case.text)
        assert.same(case.with_bos, tokenizer:encode(case.text, true, tokenizer:special().add_bos), case.text)
      end
    end)
  end

  for _, file in ipairs(cases.files) do
    it(("gives the ids of llama.cpp: %s, special tokens %s"):format(file.gguf, file.special and "parsed" or "as text"), function()
      local tokenizer = load(folder .. file.gguf)
      for i, text in ipairs(cases.more_texts) do
        assert.same(file.ids[i], tokenizer:encode(text, file.special), text)
      end
    end)
  end

  for name, pre in pairs(cases.pre) do
    it(("splits as %s does: %s"):format(pre.by, name), function()
      local tokenizer = with_pre(name)
      for i, text in ipairs(cases.texts) do
        assert.same(pre.ids[i], tokenizer:encode(text), text)
        assert.equal(text, tokenizer:decode(tokenizer:encode(text)))
      end
    end)
  end

  it("takes special tokens in text as text unless asked", function()
    local tokenizer = load(folder .. "qwen2.gguf")
    local im_end, call = tokenizer:id("<|im_end|>"), tokenizer:id("<tool_call>")
    assert.equal("control", tokenizer:token_type(im_end))
    assert.equal("user", tokenizer:token_type(call))
    assert.same({ im_end }, tokenizer:encode("<|im_end|>", true))
    local ids = tokenizer:encode("<|im_end|><tool_call>", false)
    assert.equal(call, ids[#ids])
    for i = 1, #ids - 1 do assert.not_equal("control", tokenizer:token_type(ids[i])) end
    assert.equal("<|im_end|><tool_call>", tokenizer:decode(ids))
  end)

  it("takes the longest of the added tokens that begin at the first place", function()
    local path = gguf.write(gguf.temp(), {
      values = {
        { "tokenizer.ggml.model", "string", "gpt2" }, { "tokenizer.ggml.pre", "string", "gpt-2" },
        { "tokenizer.ggml.tokens", "array", { "string", { "a", "b", "ab", "abb", "bbbb" } } },
        { "tokenizer.ggml.token_type", "array", { "int32", { 1, 1, 4, 4, 4 } } },
        { "tokenizer.ggml.merges", "array", { "string", {} } },
      },
    })
    local tokenizer = load(path)
    os.remove(path)
    assert.same({ 3, 1, 0, 2, 0 }, tokenizer:encode("abbbaaba"))
    assert.same({ 3, 4 }, tokenizer:encode("abbbbbb"))
  end)

  it("keeps any bytes through encode and decode", function()
    local tokenizer = load(folder .. "llama.gguf")
    math.randomseed(7)
    local bits = { "\xff", "\xe2\x82", "\xf0\x9f\x98", "\xed\xa0\x80", "\xc0\x80", "\u{1f600}", " a", "\n", "12", "\0", "\x80" }
    for _ = 1, 300 do
      local parts = {}
      for i = 1, math.random(0, 20) do
        parts[i] = math.random() < 0.5 and bits[math.random(#bits)] or string.char(math.random(0, 255), math.random(0, 255))
      end
      local text = table.concat(parts)
      local ids, spans = tokenizer:encode(text, false, false, true)
      assert.equal(text, tokenizer:decode(ids))
      local at = 1
      for i, id in ipairs(ids) do -- byte-level tokens lie behind each other
        assert.equal(at, spans[2 * i - 1])
        assert.equal(tokenizer:token(id), text:sub(at, spans[2 * i]))
        at = spans[2 * i] + 1
      end
      assert.equal(#text + 1, at)
    end
  end)

  it("encodes bytes that are no UTF-8 as those bytes where the vocabulary falls back to them", function()
    local tokenizer = load(folder .. "gemma3.gguf")
    assert.same({ tokenizer:id("a"), tokenizer:id("<0xFF>"), tokenizer:id("<0xE2>"), tokenizer:id("b") }, tokenizer:encode("a\xff\xe2b"))
    assert.equal("a\xff\xe2b", tokenizer:decode(tokenizer:encode("a\xff\xe2b")))
  end)

  it("gives spans in the text as it was given", function()
    local tokenizer = load(folder .. "spm-prefix.gguf")
    local text = "The  cat\xff \u{4e2d}\u{6587} sat.<s>x"
    local ids, spans = tokenizer:encode(text, true, true, true)
    local at, covered = 1, {}
    assert.same({ 1, 0 }, { spans[1], spans[2] }) -- the begin token stands for no text
    for i, id in ipairs(ids) do
      local from, to = spans[2 * i - 1], spans[2 * i]
      assert.is_true(from >= at)
      at = from
      local bytes = tokenizer:token(id)
      if i > 1 and bytes ~= " " then assert.equal((bytes:gsub("^ ", "")), (text:sub(from, to):gsub("^ ", ""))) end
      for p = from, to do covered[p] = true end
    end
    for p = 1, #text do assert.is_true(covered[p], "byte " .. p) end
  end)

  it("stays fast on a megabyte of one letter, of blanks, of digits", function()
    local tokenizer = load(folder .. "llama.gguf")
    local started = os.clock()
    for _, text in ipairs { ("a"):rep(1000000), (" "):rep(1000000) .. "x", ("1"):rep(1000000), ("\u{301}"):rep(500000) } do
      assert.equal(text, tokenizer:decode(tokenizer:encode(text)))
    end
    assert.is_true(os.clock() - started < 60) -- a square of the length would take hours
  end)
end)

describe("a tokenizer without memory", function()
  for _, name in ipairs { "bert", "llama", "xlm_roberta", "embedding_gemma" } do
    it("gives an error or the right ids: " .. name, function()
      local model <close> = assert(require("ane").load("spec/fixtures/hf/" .. name, { threads = 1 }))
      local text = "the Moon, unaffordable caf\u{e9}s 12"
      if not model.tokenizer then return end
      local want, failed = assert(model.tokenizer:encode(text)), 0
      for n = 0, 400 do
        core.testing.alloc_fail_after(n)
        local ok, ids, message, code = pcall(model.tokenizer.encode, model.tokenizer, text)
        core.testing.alloc_fail_after()
        if ok and ids then assert.same(want, ids)
        else
          failed = failed + 1
          assert(not ok or code == "memory", message)
        end
        if n > failed + 5 then break end
      end
      assert.is_true(failed > 0)
    end)
  end
end)

describe("every known pre-tokenizer", function()
  it("keeps the text, and has one row in the table", function()
    local seen = {}
    for line in io.lines("csrc/text/pretokenizers.def") do
      local name, sentence = line:match('^X%("([^"]+)".*, (%a+)%)$')
      if name then
        assert.is_nil(seen[name], name)
        seen[name] = true
        local tokenizer = with_pre(name)
        for _, text in ipairs(cases.texts) do
          if sentence == "false" then assert.equal(text, tokenizer:decode(tokenizer:encode(text)), name) end
        end
      end
    end
    assert.is_true(seen["gpt-2"] and seen["tekken"] and seen["kimi-k2"])
  end)
end)
