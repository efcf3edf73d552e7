-- Tokenizers that no model has: very many steps, very long tokens and patterns, tables with circles. They are refused, or a text
-- takes time in proportion to its length. The stack and the time of a program do not depend on what a file asks for.
local core = require "ane.core"

local function vocabulary(model)
  model.merges = model.merges or core.json_array()
  return assert(core.vocabulary_json(core.json_encode { version = "1.0", model = model }))
end

local function letters() return vocabulary { type = "BPE", vocab = { a = 0, b = 1, ab = 2 }, merges = { "a b" } } end

-- The tokenizer of a vocabulary; or its message and code.
local function make(v, fields)
  fields.library_rules = true
  fields.model = fields.model or "merges"
  local t, message, code = core.tokenizer(v, fields)
  if t then return t end
  return { message, code }
end

local function list(n, item)
  local all = {}
  for i = 1, n do all[i] = item end
  return all
end

-- The processor time of a call, and its results.
local function timed(f, ...)
  local start = os.clock()
  local result = table.pack(f(...))
  return os.clock() - start, table.unpack(result, 1, result.n)
end

local function little(...)
  local parts = {}
  for i, u in ipairs { ... } do parts[i] = ("<I4"):pack(u) end
  return table.concat(parts)
end

describe("a tokenizer", function()
  it("has at most 256 steps of a kind", function()
    local split, change = { pattern = "zq", literal = true, behaviour = "isolated" }, { kind = "replace", from = "x", to = "y" }
    for kind, fields in pairs {
      pre_tokenizer = { splits = list(40000, split) }, normalizer = { normalisers = list(257, change) },
      decoder = { decoders = list(257, change) },
    } do
      local n = kind == "pre_tokenizer" and 40000 or 257
      assert.same({ ("%s: must have at most 256 steps, but has %d"):format(kind, n), "range" }, make(letters(), fields))
    end
    assert.same({ 2 }, make(letters(), { splits = list(256, split), normalisers = list(256, change) }):encode "ab")
  end)

  it("is made of what its description holds, not of what metamethods return", function()
    local v = letters()
    local t = assert(core.tokenizer(v, setmetatable({ model = "merges" }, { __index = function() v:close() end })))
    assert.same({ 2 }, t:encode "ab")
    v = letters()
    local ok, message = pcall(core.tokenizer, v, { model = "merges", splits = { "a" } })
    assert.is_false(ok)
    assert.matches("description: change is looked for in a string", message)
  end)

  it("has patterns of at most 65,536 bytes", function()
    local long = { pattern = ("a"):rep(65537), behaviour = "isolated", place = "pre_tokenizer.pattern" }
    local message = "pre_tokenizer.pattern: a pattern must have at most 65536 bytes, but this one has 65537"
    assert.same({ message, "range" }, make(letters(), { splits = { long } }))
    long.literal = true
    assert.same({ message, "range" }, make(letters(), { splits = { long } }))
  end)

  -- JIT counts no steps back in a repeat of one character: without a limit of its own this takes minutes.
  it("limits what patterns of a file try in a text", function()
    local t = make(letters(), { splits = { { pattern = "(?=a{0,3000}a{0,3000}b)|.", behaviour = "isolated" } } })
    local ids, message, code = t:encode(("a"):rep(6000))
    assert.same({ nil, "matching with PCRE2 failed: match limit exceeded", "range" }, { ids, message, code })
    assert.same({ 0, 0, 0, 1 }, t:encode "aaab")
    assert.equal(100040, #t:encode(("a"):rep(40) .. ("b"):rep(100000)))
  end)

  it("has added tokens, and tokens that are found by their length, of at most 4,096 bytes", function()
    local added = { id = 3, content = ("a"):rep(4097), flags = 0, special = false }
    assert.same({ "token 3 must have at most 4096 bytes, but has 4097", "range" }, make(letters(), { added = { added } }))
    added.content, added.flags = "c", 16 -- normalised
    assert.same({ "token 3 must have at most 4096 bytes after the normalizer, but has 4097", "range" },
      make(letters(), { added = { added }, normalisers = { { kind = "replace", from = "c", to = ("a"):rep(4097) } } }))
    local words = vocabulary { type = "WordPiece", vocab = { a = 0, [("a"):rep(4097)] = 1 } }
    assert.same({ "token 1 must have at most 4096 bytes, but has 4097", "range" }, make(words, { model = "wordpiece" }))
    assert.same({ "the prefix of tokens must have at most 4096 bytes, but has 4097", "range" },
      make(letters(), { prefix = ("#"):rep(4097) }))
    local merged = vocabulary { type = "BPE", vocab = { a = 0, [("a"):rep(4097)] = 1 } }
    assert.same({ 0, 0 }, make(merged, {}):encode "aa") -- merges do not walk along the text
  end)

  it("takes linear time for a long word of WordPiece", function()
    local long = ("a"):rep(4000)
    local words = vocabulary { type = "WordPiece", vocab = { x = 0, ["#a"] = 1, ["#" .. long] = 2, ["#ab"] = 3 } }
    local t = make(words, { model = "wordpiece", prefix = "#" })
    local seconds, ids = timed(t.encode, t, "x" .. ("a"):rep(7999))
    assert.same({ 0, 2 }, { ids[1], ids[2] })
    assert.equal(2 + 3999, #ids)
    assert.is_true(seconds < 5, seconds)
    assert.same({ 0, 1, 3 }, t:encode "xaab")
  end)

  it("takes linear time for a charsmap whose units form a circle", function()
    -- Unit 0 leads to unit 1 ~ "a", and that unit to itself by "a".
    local units = {}
    for i = 1, 256 do units[i] = 0 end
    units[1] = 1 << 10                       -- the root: offset 1
    units[(1 ~ 0x61) + 1] = 0x61 | 0x61 << 10 -- label "a"; at ~ 0x61 is 1 again
    local map = little(1024) .. little(table.unpack(units)) .. "\0"
    local t = make(letters(), { normalisers = { { kind = "charsmap", from = map } } })
    local seconds, ids = timed(t.encode, t, ("a"):rep(200000))
    assert.equal(200000, #ids)
    assert.is_true(seconds < 10, seconds)
  end)
end)
