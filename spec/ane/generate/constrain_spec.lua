-- Replies under a grammar, by a tiny model that knows nothing of JSON: what comes is valid all the same.
local ane = require "ane"
local core = require "ane.core"
local tiny = require "support.tiny"

local SCHEMA = {
  type = "object", required = { "kind", "n" }, additionalProperties = false,
  properties = { kind = { enum = { "alpha", "alphabet", "beta" } }, n = { type = "integer", minimum = 10, maximum = 99 } },
}

describe("generate with a grammar", function()
  local model

  setup(function() model = tiny.load() end)
  teardown(function() model:close() end)

  local function reply(grammar, opts)
    opts = opts or {}
    opts.grammar, opts.details, opts.max_tokens = grammar, true, opts.max_tokens or 200
    return assert(model:generate("Hello", opts))
  end

  it("replies with texts of it, whatever is drawn", function()
    local grammar = assert(ane.grammar.json_schema(SCHEMA))
    for seed = 1, 12 do
      local result = reply(grammar, { temperature = 1.5, seed = seed })
      assert.same({ "grammar", true }, { result.stop, result.grammar_complete })
      assert.is_true(grammar:matches(result.text), result.text)
      local value = assert(core.json_decode(result.text))
      assert.is_true(value.n >= 10 and value.n <= 99)
    end
    local greedy = reply(grammar)
    assert.is_true(grammar:matches(greedy.text))
    assert.is_true(greedy.grammar_complete)
  end)

  it("takes the best allowed token, drafted or not", function()
    for _, grammar in ipairs { assert(ane.grammar.regex "[a-z ]{20,60}"), assert(ane.grammar.json_schema(SCHEMA)),
      assert(ane.grammar.choice { "one two three four", "one two six" }) } do
      local plain = reply(grammar)
      assert.same(plain.ids, reply(grammar, { speculate = true }).ids)
      -- The same by masks alone.
      assert.same(plain.text, reply(grammar, { logit_bias = { [1] = 0 } }).text)
    end
  end)

  it("runs the model once for a token, also if its best choice is not allowed", function()
    local grammar = assert(ane.grammar.regex "[b-d]{30}x[^a-z]{30}")
    local plain = reply(grammar, { logit_bias = { [1] = 0 } })
    local s <close> = assert(model:session())
    assert(s:feed(plain.prompt_ids, { want = "none" }))
    local runs = 0
    s:_compute_with(function(c, ids, want, upto, mask)
      runs = runs + #ids
      return c:feed(ids, want, upto, mask)
    end)
    local clock = core.clock
    core.clock = function() return 0 end -- masks take no time
    local result = assert(s:generate { grammar = grammar, max_tokens = 200, details = true })
    core.clock = clock
    assert.same({ plain.ids, plain.text }, { result.ids, result.text })
    assert.is_true(runs <= #result.ids + 1, ("%d runs for %d tokens"):format(runs, #result.ids))
    -- The rows that are left are those of all ids.
    local other <close> = assert(model:session())
    assert(other:feed(s.ids, { want = "argmax" }))
    assert.same({ other:argmax() }, { s:argmax() })
  end)

  it("gives the same where masks cost too much", function()
    local grammar = assert(ane.grammar.regex "[b-d]{30}x[^a-z]{30}")
    local plain = reply(grammar)
    local pool <close> = assert(model:pool {})
    local clock, now = core.clock, 0
    core.clock = function() -- every span takes one second, so masks take as long as runs
      now = now + 1
      return now
    end
    local result = assert(pool:add("Hello", { grammar = grammar, max_tokens = 200 })):finish()
    core.clock = clock
    assert.same({ plain.ids, plain.text }, { result.ids, result.text })
  end)

  it("says where a reply ends early", function()
    local result = reply(assert(ane.grammar.regex "[a-z]{500}"), { max_tokens = 4 })
    assert.same({ "length", false }, { result.stop, result.grammar_complete })
  end)

  it("allows an end token only where the text is complete", function()
    local grammar = assert(ane.grammar.regex "(ab)+")
    local eos = model.tokenizer.eos_ids[1]
    local result = reply(grammar, { logit_bias = { [eos] = 1000 } })
    assert.same({ "ab", "eos", true }, { result.text, result.stop, result.grammar_complete })
    result = reply(grammar, { ignore_eos = true, max_tokens = 9 })
    assert.equal("length", result.stop)
    assert.is_nil(result.text:gsub("ab", ""):match "^[^a]")
  end)

  it("streams, and holds in a chat", function()
    local grammar = assert(ane.grammar.choice { "yes", "no" })
    local pieces = {}
    for piece in model:stream("Hello", { grammar = grammar, max_tokens = 20 }) do pieces[#pieces + 1] = piece end
    local text = table.concat(pieces)
    assert.is_true(text == "yes" or text == "no")
  end)

  it("refuses other values than grammars", function()
    assert.has_error(function() model:generate("Hello", { grammar = { type = "object" } }) end)
  end)
end)
