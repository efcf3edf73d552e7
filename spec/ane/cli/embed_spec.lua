-- ane embed and ane rerank: what they read and write.
local ane = require "ane"
local command = require "support.command"
local hf = require "support.hf"

local BERT, CROSS = hf.path "bert", hf.path "cross_encoder"

describe("ane embed", function()
  it("makes a vector of each line", function()
    local model <close> = assert(ane.load(BERT, { threads = 2 }))
    local r = command.json({ "embed", BERT, "-t", "2" }, "a cat\nthe moon\n")
    assert.equal(64, r.dim)
    assert.same({ #model.tokenizer:sequence "a cat", #model.tokenizer:sequence "the moon" }, { table.unpack(r.tokens) })
    local want = model:embed "the moon":totable()
    for i, x in ipairs(want) do assert.near(x, r.embeddings[2][i], 1e-6) end
  end)

  it("takes any text as a line", function()
    local r = command.json({ "embed", BERT, "-t", "2" }, "The moon\n\n?\nrain")
    assert.equal(4, #r.embeddings)
  end)

  it("takes ids, options of embed, and writes lines without --json", function()
    local r = command.json { "embed", BERT, "--ids", "1,2,3", "--ids", "4,5", "--dims", "8", "--no-normalise" }
    assert.equal(8, r.dim)
    assert.same({ 3, 2 }, { table.unpack(r.tokens) })
    local sum = 0
    for _, x in ipairs(r.embeddings[1]) do sum = sum + x * x end
    assert.is_true(math.abs(sum - 1) > 0.01)
    local code, out = command.run({ "embed", BERT, "--prefix", "query: ", "--dims", "3" }, "a\nb\n")
    assert.equal(0, code)
    assert.matches("^[-%d.e]+ [-%d.e]+ [-%d.e]+\n[-%d.e]+ [-%d.e]+ [-%d.e]+\n$", out)
  end)

  it("reads control tokens where --special asks for them", function()
    local plain = command.json({ "embed", BERT, "-t", "2" }, "a [SEP] b\n")
    local special = command.json({ "embed", BERT, "-t", "2", "--special" }, "a [SEP] b\n")
    assert.equal(special.tokens[1] + 4, plain.tokens[1]) -- [ s ##e ##p ]
    local code, _, err = command.run { "embed", BERT, "--ids", "1,2", "--special" }
    assert.equal(2, code)
    assert.matches("cannot be combined with", err, 1, true)
    local scored = command.json({ "rerank", CROSS, "-q", "a", "--special" }, "b [SEP] c\n")
    assert.is_true(scored.tokens[1] < command.json({ "rerank", CROSS, "-q", "a" }, "b [SEP] c\n").tokens[1])
  end)

  it("says how many texts were truncated", function()
    local long = ("moon "):rep(300)
    local code, out, err = command.run({ "embed", BERT, "--json" }, long .. "\na cat\n")
    assert.equal(0, code)
    assert.matches('"truncated":1', out, 1, true)
    assert.matches("ane embed: 1 of 2 texts were truncated to 128 tokens", err, 1, true)
  end)

  it("says what fails", function()
    local code, _, err = command.run({ "embed", BERT, "--prompt", "query" }, "a\n")
    assert.equal(1, code)
    assert.matches("the model has no prompt 'query'", err)
    code, _, err = command.run({ "embed", BERT }, "")
    assert.equal(1, code)
    assert.matches("has no text, but must have one in each line", err)
  end)
end)

describe("ane rerank", function()
  it("says how many pairs were truncated", function()
    local long = ("moon "):rep(300)
    local code, out, err = command.run({ "rerank", CROSS, "-q", "a cat", "--json", "--max-length", "20" }, long .. "\na cat\n")
    assert.equal(0, code)
    assert.matches('"truncated":1', out, 1, true)
    assert.matches('"tokens":%[20,%d+%]', out)
    assert.matches("ane rerank: 1 of 2 pairs were truncated to 20 tokens", err, 1, true)
  end)

  it("scores each line, or ids", function()
    local model <close> = assert(ane.load(CROSS, { threads = 2 }))
    local want = model:rerank("a cat", { "the moon", "a cat sat" })
    local r = command.json({ "rerank", CROSS, "--query", "a cat", "-t", "2" }, "the moon\na cat sat\n")
    for i, x in ipairs(want) do assert.near(x, r.scores[i], 1e-6) end
    r = command.json { "rerank", CROSS, "--ids", "2,60,17,3", "--raw" }
    assert.equal(1, #r.scores)
  end)

  it("writes the best first without --json", function()
    local code, out = command.run({ "rerank", CROSS, "-q", "a cat" }, "the moon\na cat sat\nrain falls\n")
    assert.equal(0, code)
    local last = math.huge
    for score in out:gmatch "([-%d.]+)  %a" do
      assert.is_true(tonumber(score) <= last)
      last = tonumber(score)
    end
  end)

  it("refuses no query, and a query beside ids", function()
    local code, _, err = command.run({ "rerank", CROSS }, "a\n")
    assert.equal(2, code)
    assert.matches("give %-%-query or %-%-ids", err)
    code, _, err = command.run({ "rerank", CROSS, "-q", "a", "--ids", "1,2" }, "")
    assert.equal(2, code)
    assert.matches("%-%-ids cannot be combined with %-%-query", err)
  end)
end)
