-- What a file may say of its tokenizer, right and wrong.
local core = require "ane.core"
local gguf = require "support.gguf_writer"

local T = "tokenizer.ggml."

--- Metadata of a small byte-level vocabulary: a, b, c, ab, <e> (control). Entries of `changes` replace or remove (false) keys.
local function values(changes)
  local base = {
    { T .. "model", "string", "gpt2" },
    { T .. "pre", "string", "gpt-2" },
    { T .. "tokens", "array", { "string", { "a", "b", "c", "ab", "<e>" } } },
    { T .. "token_type", "array", { "int32", { 1, 1, 1, 1, 3 } } },
    { T .. "merges", "array", { "string", { "a b" } } },
    { T .. "eos_token_id", "uint32", 4 },
  }
  local out, used = {}, {}
  for _, entry in ipairs(base) do
    local change = changes[entry[1]]
    used[entry[1]] = true
    if change then out[#out + 1] = { entry[1], table.unpack(change) } elseif change == nil then out[#out + 1] = entry end
  end
  for key, change in pairs(changes) do
    if change and not used[key] then out[#out + 1] = { key, table.unpack(change) } end
  end
  return out
end

local function spm(changes)
  local base = {
    [T .. "model"] = { "string", "llama" },
    [T .. "pre"] = false, [T .. "merges"] = false,
    [T .. "tokens"] = { "array", { "string", { "<unk>", "<s>", "</s>", "\u{2581}", "a", "\u{2581}a" } } },
    [T .. "token_type"] = { "array", { "int32", { 2, 3, 3, 1, 1, 1 } } },
    [T .. "scores"] = { "array", { "float32", { 0, 0, 0, -1, -2, -1 } } },
    [T .. "eos_token_id"] = { "uint32", 2 },
  }
  for key, change in pairs(changes) do base[key] = change end
  return values(base)
end

local function load(list)
  local path = gguf.write(gguf.temp(), { values = list })
  local source = assert(core.open(path))
  os.remove(path)
  local tokenizer, message, code = core.tokenizer(source)
  source:close()
  return tokenizer, message, code
end

describe("tokenizer metadata", function()
  it("make a tokenizer", function()
    local t = assert(load(values {}))
    assert.equal(5, #t)
    assert.same({ 3, 2 }, t:encode("abc"))
    assert.same({ eos = 4, add_bos = false, add_eos = false }, t:special())
    assert.equal("control", t:token_type(4))
    assert.is_nil(t:token(5))
    assert.is_nil(t:id("zz"))
    assert.equal(3, t:id("ab"))
    assert.has_error(function() t:token(-1) end)
    t:close()
    assert.has_error(function() t:encode("a") end, "tokenizer is closed")
    t:close()
  end)

  it("may leave the tokenizer out", function()
    for _, list in ipairs { values { [T .. "model"] = false }, values { [T .. "model"] = { "string", "none" } } } do
      local t, message, code = load(list)
      assert.is_nil(t)
      assert.equal("notfound", code)
      assert.is_truthy(message:find("no tokenizer", 1, true))
    end
  end)

  it("that nobody here knows are named, with what is known", function()
    local t, message, code = load(values { [T .. "model"] = { "string", "bert" } })
    assert.same({ nil, "unsupported" }, { t, code })
    assert.is_truthy(message:find("'bert'", 1, true) and message:find("gpt2, llama", 1, true))
    t, message, code = load(values { [T .. "pre"] = { "string", "gpt-9" } })
    assert.same({ nil, "unsupported" }, { t, code })
    assert.is_truthy(message:find("'gpt-9'", 1, true) and message:find("default, gpt-2", 1, true))
    t, message, code = load(values { [T .. "pre"] = false })
    assert.same({ nil, "unsupported" }, { t, code })
    assert.is_truthy(message:find(T .. "pre is missing", 1, true))
  end)

  local wrong = {
    ["tokens of numbers"] = values { [T .. "tokens"] = { "array", { "int32", { 1, 2 } } } },
    ["no tokens"] = values { [T .. "tokens"] = { "array", { "string", {} } } },
    ["tokens missing"] = values { [T .. "tokens"] = false },
    ["a string as tokens"] = values { [T .. "tokens"] = { "string", "abc" } },
    ["types of bytes"] = values { [T .. "token_type"] = { "array", { "uint8", { 1, 1, 1, 1, 3 } } } },
    ["types of floats"] = values { [T .. "token_type"] = { "array", { "float32", { 1, 1, 1, 1, 3 } } } },
    ["types of strings"] = values { [T .. "token_type"] = { "array", { "string", { "1", "1", "1", "1", "3" } } } },
    ["too few types"] = values { [T .. "token_type"] = { "array", { "int32", { 1, 1, 1, 1 } } } },
    ["too many types"] = values { [T .. "token_type"] = { "array", { "int32", { 1, 1, 1, 1, 1, 1 } } } },
    ["an unknown type"] = values { [T .. "token_type"] = { "array", { "int32", { 1, 1, 1, 1, 7 } } } },
    ["a negative type"] = values { [T .. "token_type"] = { "array", { "int32", { 1, 1, 1, 1, -3 } } } },
    ["merges missing"] = values { [T .. "merges"] = false },
    ["merges of numbers"] = values { [T .. "merges"] = { "array", { "int32", { 1 } } } },
    ["a merge of one"] = values { [T .. "merges"] = { "array", { "string", { "ab" } } } },
    ["a merge without a right side"] = values { [T .. "merges"] = { "array", { "string", { "a " } } } },
    ["an empty merge"] = values { [T .. "merges"] = { "array", { "string", { "" } } } },
    ["an end token beyond the table"] = values { [T .. "eos_token_id"] = { "uint32", 5 } },
    ["an end token that is a string"] = values { [T .. "eos_token_id"] = { "string", "<e>" } },
    ["a negative end token"] = values { [T .. "eos_token_id"] = { "int32", -2 } },
    ["add_bos_token as a number"] = values { [T .. "add_bos_token"] = { "uint32", 1 } },
    ["a begin token wanted and not named"] = values { [T .. "add_bos_token"] = { "bool", true } },
    ["the model as a number"] = values { [T .. "model"] = { "uint32", 1 } },
    ["the pre-tokenizer as a number"] = values { [T .. "pre"] = { "uint32", 1 } },
    ["scores missing"] = spm { [T .. "scores"] = false },
    ["scores of doubles"] = spm { [T .. "scores"] = { "array", { "float64", { 0, 0, 0, 0, 0, 0 } } } },
    ["scores of integers"] = spm { [T .. "scores"] = { "array", { "int32", { 0, 0, 0, 0, 0, 0 } } } },
    ["scores of strings"] = spm { [T .. "scores"] = { "array", { "string", { "", "", "", "", "", "" } } } },
    ["too few scores"] = spm { [T .. "scores"] = { "array", { "float32", { 0, 0, 0 } } } },
    ["a score that is not a number"] = spm { [T .. "scores"] = { "array", { "float32", { 0, 0, 0, 0, 0, 0 / 0 } } } },
    ["a space rule that is not a bool"] = spm { [T .. "add_space_prefix"] = { "uint8", 1 } },
  }
  for what, list in pairs(wrong) do
    it("are refused: " .. what, function()
      local t, message, code = load(list)
      assert.is_nil(t)
      assert.equal("format", code, message)
      assert.is_truthy(#message > 20)
    end)
  end

  it("may have tokens without use: -1 ids, a pad token beyond the table, merges of unknown parts", function()
    local t = assert(load(values {
      [T .. "bos_token_id"] = { "uint32", 0xFFFFFFFF }, [T .. "eot_token_id"] = { "int32", -1 },
      [T .. "padding_token_id"] = { "uint32", 77 },
      [T .. "merges"] = { "array", { "string", { "x y", "a c", "a b" } } },
    }))
    assert.same({ eos = 4, add_bos = false, add_eos = false }, t:special())
    assert.same({ 3, 0, 2 }, t:encode("abac"))
  end)

  it("of SentencePiece have defaults and a space rule", function()
    local t = assert(load(spm {}))
    assert.same({ bos = 1, eos = 2, unk = 0, add_bos = true, add_eos = false }, t:special())
    assert.same({ 5, 5 }, t:encode("a a"))
    t = assert(load(spm { [T .. "add_space_prefix"] = { "bool", false } }))
    assert.same({ 4, 5, 3, 5 }, t:encode("a a  a"))
    t = assert(load(spm { [T .. "remove_extra_whitespaces"] = { "bool", true } }))
    assert.same({ 5, 5 }, t:encode("  a   a "))
    local _, spans = t:encode("  a   a ", false, false, true)
    assert.same({ 3, 3, 4, 7 }, spans)
  end)

  it("without byte tokens make runs of unknown characters one unknown token", function()
    local t = assert(load(spm {}))
    local ids, spans = t:encode("a\u{4e2d}\u{6587}a", false, false, true)
    assert.same({ 5, 0, 4 }, ids)
    assert.same({ 1, 1, 2, 7, 8, 8 }, spans)
  end)

  it("give their chat templates", function()
    local t = assert(load(values {
      ["tokenizer.chat_template"] = { "string", "A" }, ["tokenizer.chat_template.tool_use"] = { "string", "B" },
      ["tokenizer.chat_templates"] = { "array", { "string", { "tool_use" } } },
    }))
    assert.same({ default = "A", tool_use = "B" }, t:chat_templates())
  end)

  it("survive the failure of each allocation", function()
    local testing = core.testing
    -- Calls f with each of its allocations failing in turn. Some are dispensable: the JIT compiler's.
    local function each_failure(f, check)
      local before = testing.alloc_fail_after(-1)
      check(f())
      local count = testing.alloc_fail_after(-1) - before
      assert.is_true(count > 3)
      for n = 0, count - 1 do
        testing.alloc_fail_after(n)
        local result, message, code = f()
        testing.alloc_fail_after(-1)
        if result then check(result) else assert.equal("memory", code, message) end
      end
    end
    for _, list in ipairs { values {}, spm {} } do
      local path = gguf.write(gguf.temp(), { values = list })
      local source = assert(core.open(path))
      os.remove(path)
      each_failure(function() return core.tokenizer(source) end, function(t) assert.is_true(#t > 4) end)
      local t = assert(core.tokenizer(source))
      local text = ("ab a\xff\u{4e2d}"):rep(200)
      local want = assert(t:encode(text, true, true, true))
      each_failure(function() return t:encode(text, true, true, true) end, function(ids) assert.same(want, ids) end)
      source:close()
    end
  end)
end)
