local core = require "ane.core"
local Tokenizer = require "ane.tokenizer"

local folder = "spec/fixtures/tokenizer/"

local function load(path)
  local source = assert(core.open(path))
  local tokenizer = assert(Tokenizer.new(source))
  source:close()
  return tokenizer
end

describe("ane.tokenizer", function()
  it("adds the begin token as the model wishes, or as told", function()
    local t = load(folder .. "llama.gguf")
    assert.is_true(t.add_bos)
    local ids = t:encode("Hi")
    assert.equal(t.bos, ids[1])
    assert.same({ table.unpack(ids, 2) }, t:encode("Hi", { bos = false }))
    assert.equal(t.eos, t:encode("Hi", { eos = true })[#ids + 1])
    local q = load(folder .. "qwen2.gguf")
    assert.is_false(q.add_bos)
    assert.same(q:encode("Hi"), q:encode("Hi", { bos = true })) -- there is none
  end)

  it("gives spans that fit string.sub", function()
    local t = load(folder .. "llama.gguf")
    local text = "Gr\u{fc}\u{df}e \u{1f600}<|eot_id|>!"
    local ids, spans = t:encode(text, { special = true, offsets = true })
    assert.equal(#ids, #spans)
    assert.same({ 1, 0 }, spans[1])
    for i = 2, #ids do assert.equal(t:token(ids[i]), text:sub(spans[i][1], spans[i][2])) end
    assert.equal("<|eot_id|>", text:sub(table.unpack(spans[#spans - 1])))
  end)

  it("decodes to raw bytes, or to UTF-8 with replacements", function()
    local t = load(folder .. "llama.gguf")
    local ids = t:encode("\xe4\xbd", { bos = false })
    assert.equal("\xe4\xbd", t:decode(ids))
    assert.equal("\u{fffd}", t:decode(ids, { utf8 = "replace" }))
    assert.equal("x", t:decode(t:encode("<|begin_of_text|>x", { special = true }), { skip_special = true }))
    assert.equal("!", t:decode(0))
  end)

  it("refuses ids outside of the vocabulary by name and range", function()
    local t = load(folder .. "llama.gguf")
    for shown, ids in pairs {
      ["ids[1] is -1"] = { -1 }, ["ids[2] is 1024"] = { 1, 1024 }, ["ids[1] is 10000000"] = { 1e7 }, ["id is -1"] = -1,
      ["id is 1024"] = 1024, ["ids[1] is 1.5"] = { 1.5 }, ["ids[1] is 1099511627776"] = { 1 << 40 }, ['id is "x"'] = "x",
    } do
      local ok, message = pcall(t.decode, t, ids)
      assert.is_false(ok, shown)
      local what, found = shown:match "^(%S+) is (.+)$"
      assert.is_truthy(message:find(("decode: %s must be 0 .. 1023, but is %s"):format(what, found), 1, true), message)
    end
    assert.equal("!", t:decode { 0.0 })
    assert.equal("", t:decode {})
    assert.equal("", t:stream():push(1024)) -- models with a padded head may produce one
  end)

  it("streams", function()
    local t = load(folder .. "llama.gguf")
    local stream, out = t:stream { skip_special = true }, {}
    for _, id in ipairs(t:encode("a\u{1f600}b")) do out[#out + 1] = stream:push(id) end
    out[#out + 1] = stream:flush()
    assert.equal("a\u{1f600}b", table.concat(out))
    stream:reset()
  end)

  it("knows what ends a reply", function()
    local t = load(folder .. "llama.gguf")
    local names = {}
    for i, id in ipairs(t.eos_ids) do names[i] = t:piece(id) end
    assert.same({ "<|eot_id|>", "<|end_of_text|>" }, names)
    local gemma = load(folder .. "gemma3.gguf")
    assert.same({ gemma:id("<eos>"), gemma:id("<end_of_turn>") }, gemma.eos_ids)
  end)

  it("has its size, names and templates", function()
    local t = load(folder .. "llama.gguf")
    assert.equal(1024, #t)
    assert.equal("tokenizer (1024 tokens)", tostring(t))
    assert.equal(1003, t:id("<|eot_id|>"))
    assert.equal("\u{120}t", t:piece(t:encode(" t", { bos = false })[1]))
    assert.equal(" t", t:token(t:id("\u{120}t")))
    assert.equal("unused", t:token_type(1023))
    assert.is_truthy(t.chat_templates.default:find("messages", 1, true))
  end)

  it("names options that it does not know, and theirs", function()
    local t = load(folder .. "llama.gguf")
    local function fails(part, f)
      local ok, message = pcall(f)
      assert.is_false(ok)
      assert.is_truthy(message:find(part, 1, true), message)
    end
    fails("bos, eos, offsets, special", function() t:encode("x", { specials = true }) end)
    fails("raw, replace", function() t:decode({ 1 }, { utf8 = "strict" }) end)
    fails("skip_special", function() t:stream { skip = true } end)
    fails("text", function() t:encode(12) end)
    fails('ids[2] must be 0 .. 1023, but is "x"', function() t:decode { 1, "x" } end)
  end)

  it("normalises on request", function() assert.equal("\u{e9}", Tokenizer.normalise("e\u{301}", "nfc")) end)

  it("ends with close", function()
    local t = load(folder .. "llama.gguf")
    local stream = t:stream()
    t:close()
    assert.has_error(function() t:encode("x") end)
    assert.has_error(function() stream:push(1) end)
  end)

  it("gives the ids of transformers for a real model", function()
    local path = (os.getenv "ANE_MODEL_CACHE" or "models-cache") .. "/SmolLM2-135M-Instruct.Q4_1.gguf"
    local source = core.open(path)
    if not source then return pending("the demo model is not in the cache folder") end
    local t = assert(Tokenizer.new(source))
    source:close()
    for _, case in ipairs(core.json_decode(core.read_file(folder .. "smollm2.json")).cases) do
      assert.same(case.ids, t:encode(case.text, { special = true }))
      assert.equal(case.decoded, t:decode(case.greedy, { utf8 = "replace" }))
    end
  end)
end)
