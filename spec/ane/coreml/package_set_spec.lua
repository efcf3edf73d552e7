-- Package sets: the fixture of coremltools (spec/golden/package_set.py) against numpy, however tokens are cut; what is wrong
-- with a set is said when it is opened.
local ane = require "ane"
local core = require "ane.core"
local tree = require "support.tree"

local SET = "spec/fixtures/mlpackage/set"
local golden = core.json_decode(assert(core.read_file(SET .. "/golden.json")))

-- A copy of the set, its meta file changed; `files`: function(folder) that changes others.
local function altered(change, files, from)
  local folder = tree.folder()
  assert(tree.run(("cp -r %s/. %s"):format(SET, folder)))
  local meta = core.json_decode(assert(core.read_file(("%s/%s"):format(SET, from or "runtime_meta.json"))))
  if change then meta = change(meta) or meta end
  assert(core.write_file(folder .. "/runtime_meta.json", type(meta) == "string" and meta or core.json_encode(meta)))
  if files then files(folder) end
  return folder
end

local function feed(session, ids, sizes)
  local at, rows = 1, {}
  while at <= #ids do
    local n = math.min(sizes[at % #sizes + 1], #ids - at + 1)
    assert(session:feed(table.move(ids, at, at + n - 1, 1, {}), { want = "all" }))
    for i = 1, n do rows[#rows + 1] = session:logits(i) end
    at = at + n
  end
  return rows
end

local function same(a, b)
  assert.equal(#a, #b)
  for i = 1, #a do assert.equal(0, (a[i] - b[i]):abs():max()) end
end

describe("a package set", function()
  local model, all
  setup(function()
    model = assert(ane.load(SET))
    local s <close> = assert(model:session())
    all = feed(s, golden.ids, { 4 })
  end)
  teardown(function() model:close() end)

  it("gives the logits of numpy", function()
    for i, row in ipairs(golden.logits) do
      for id, want in ipairs(row) do assert.is_near(want, all[i]:get(id), 2e-3) end
    end
  end)

  it("gives the same bits however tokens are cut", function()
    for _, sizes in ipairs { { 1 }, { 2, 3 }, { 3, 1, 4 } } do
      local s <close> = assert(model:session())
      same(all, feed(s, golden.ids, sizes))
    end
    local s <close> = assert(model:session())
    assert(s:feed(golden.ids)) -- in chunks, only the last row
    assert.equal(1, s:rows())
    same({ all[#all] }, { s:logits() })
  end)

  it("generates, streams and says when the context is full", function()
    assert.same(golden.greedy, model:generate(golden.prompt, { max_tokens = 10, ignore_eos = true }))
    local ids = {}
    for id in model:stream(golden.prompt, { max_tokens = 10, ignore_eos = true }) do ids[#ids + 1] = id end
    assert.same(golden.greedy, ids)
    local result = model:generate(golden.prompt, { ignore_eos = true, details = true })
    assert.equal("context", result.stop)
    assert.equal(24, model.context)
    local s <close> = assert(model:session { context = 6 })
    local ok, message, code = s:feed { 2, 3, 4, 5, 6, 7, 8 }
    assert.same({ nil, "7 tokens after 0 do not fit in a context of 6", "range" }, { ok, message, code })
    assert.same({ nil, "range" }, { s:feed { 43 }, (select(3, s:feed { 43 })) })
    assert.same(golden.greedy, model:generate(golden.prompt, { max_tokens = 10, ignore_eos = true, speculate = true }))
  end)

  it("refuses a session whose states do not fit in memory", function()
    local memory = core.memory
    finally(function() core.memory = memory end)
    core.memory = function() return { available = 100 } end
    local s, message, code = model:session()
    assert.same({ nil, "memory" }, { s, code })
    assert.equal("the states of 24 positions take 1.7 kB, but only 100 bytes of memory are free: export with a smaller context", message)
    core.memory = function() return { available = 0 } end -- not known
    assert(model:session()):close()
  end)

  it("rewinds, forks, saves and restores to the bit", function()
    local s <close> = assert(model:session())
    feed(s, golden.ids, { 3 })
    for _, n in ipairs { 11, 10, 5, 0 } do -- on a boundary of calls, beside one, far back, to the start
      assert(s:rewind(n))
      assert.equal(n, s.length)
      local rows = feed(s, table.move(golden.ids, n + 1, #golden.ids, 1, {}), { 2 })
      same(table.move(all, n + 1, #all, 1, {}), rows)
    end
    assert(s:rewind(7))
    local fork <close> = assert(s:fork())
    local file = os.tmpname()
    assert(s:save(file))
    assert(s:feed { 2, 2, 2 })
    local rest = table.move(golden.ids, 8, #golden.ids, 1, {})
    local after = table.move(all, 8, #all, 1, {})
    same(after, feed(fork, rest, { 1 }))
    local other <close> = assert(model:session())
    assert(other:restore(file))
    assert.same(table.move(golden.ids, 1, 7, 1, {}), other.ids)
    same(after, feed(other, rest, { 4 }))
    assert(other:rewind(3))
    same(table.move(all, 4, #all, 1, {}), feed(other, table.move(golden.ids, 4, #golden.ids, 1, {}), { 4 }))
    local bytes = assert(core.read_file(file))
    for _, wrong in ipairs { "", "other", bytes:sub(1, -2), bytes .. "x", bytes:sub(1, 60) } do
      assert(core.write_file(file, wrong))
      local ok, _, code = other:restore(file)
      assert.same({ nil, "format" }, { ok, code })
      assert.equal(#golden.ids, other.length)
    end
    os.remove(file)
    assert.is_true(s:kv_bytes() > 0)
  end)

  it("runs with heads that give the best token only", function()
    local folder = altered(nil, nil, "argmax_meta.json")
    local best <close> = assert(ane.load(folder))
    assert.same(golden.greedy, best:generate(golden.prompt, { max_tokens = 10, ignore_eos = true }))
    local s <close> = assert(best:session())
    assert(s:feed(golden.ids, { want = "argmax" }))
    for i, row in ipairs(all) do
      local id, value = s:argmax(i)
      assert.same({ row:argmax() }, { id, value })
    end
    assert(s:rewind(0))
    assert.has_error(function() s:feed(golden.ids, { want = "all" }) end,
      "the packages give only the best token (they were exported with argmax): use temperature 0 and no logprobs")
    tree.remove(folder)
  end)

  it("runs in fp16 too, and refuses what it has not", function()
    local half <close> = assert(ane.load(SET, { precision = "fp16" }))
    local s <close> = assert(half:session())
    local rows = feed(s, golden.ids, { 4 })
    local worst = 0
    for i = 1, #rows do worst = math.max(worst, (rows[i] - all[i]):abs():max()) end
    assert.is_true(worst > 0 and worst < 0.05)
    assert.same({ nil, "unsupported" }, { ane.load(SET, { weights = "int8" }), (select(3, ane.load(SET, { weights = "int8" }))) })
    local model_, message, code = ane.load(SET, { context = 25 })
    local text = SET .. "/runtime_meta.json: option context must be 1 .. 24, the positions that the states hold, but is 25"
    assert.same({ nil, text, "unsupported" }, { model_, message, code })
    local info = model:info()
    assert.same({ "packages", "fp32", 43 }, { info.engine, info.activations, info.vocab })
  end)
end)

-- A classifier has a fixed number of columns: shorter texts are filled up, longer ones run in windows.
describe("a package set of a classifier", function()
  it("labels texts of any length as the source does", function()
    local source <close> = assert(ane.load("spec/fixtures/hf/privacy_filter", { activations = "fp32", weights = "fp16" }))
    local folder = tree.folder()
    assert(source:export(folder .. "/set", { fixed_t = { 80 }, weights = "fp16" }))
    local set <close> = assert(ane.load(folder .. "/set", { engine = "graph" }))
    assert.equal(80, set.context)
    for _, n in ipairs { 1, 11, 80, 150 } do
      local ids = {}
      for i = 1, n do ids[i] = (i * 37 + 5 * n) % source.config.vocab_size end
      local want, got = assert(source:classify(ids, { details = true })), assert(set:classify(ids, { details = true }))
      assert.same(want.path, got.path)
      assert.is_true((want.logits - got.logits):abs():max() < 0.02)
    end
    local s <close> = assert(set:session())
    assert(s:feed { 1, 2, 3 })
    assert.same({ nil, "range" }, { s:feed { 4 }, (select(3, s:feed { 4 })) })
    local causal <close> = assert(ane.load(SET))
    local other <close> = assert(causal:session())
    assert.same({ nil, "unsupported" }, { other:part(3), (select(3, other:part(3))) })
    tree.remove(folder)
  end)
end)

describe("a wrong package set", function()
  local function fails(text, code, change, files)
    it("is told: " .. text, function()
      local folder = altered(change, files)
      local model, message, got = ane.load(folder)
      tree.remove(folder)
      assert.is_nil(model)
      assert.truthy(message:find(text, 1, true), message)
      assert.equal(code, got)
    end)
  end
  local function at(i, key, value)
    return function(meta) meta.packages[i][key] = value end
  end
  fails("line 1", "format", function() return "{" end)
  fails("format_version must be 1, but is 2", "unsupported", function(meta) meta.format_version = 2 end)
  fails("kind must be one of causal, embedding, reranker, token_classifier, but is rnn", "format", function(meta) meta.kind = "rnn" end)
  fails("d_model must be a whole number of at least 1, but is nil", "format", function(meta) meta.d_model = nil end)
  fails("packages is empty", "format", function(meta) meta.packages = core.json_array {} end)
  fails("layer_01.mlpackage: layers 1 to 1 are in no package", "format", function(meta)
    meta.packages[2].start, meta.packages[2]["end"] = 2, 2
  end)
  fails("layer_01.mlpackage: layers 0 to 0 are in two packages", "format", at(2, "start", 0))
  local function part(i, layer, n, of)
    return function(meta)
      local p = meta.packages[i]
      p.start, p["end"], p.part, p.parts = layer, layer, n, of
      return meta
    end
  end
  local function both(a, b) return function(meta) return b(a(meta)) end end
  fails("layer_01.mlpackage: part 1 of layer 1 must follow part 0", "format", part(2, 1, 1, 2))
  fails("part 1 of layer 1 is in no package", "format", both(part(2, 1, 0, 2), function(meta)
    meta.packages[4], meta.packages[3] = nil, nil
    return meta
  end))
  fails("lm_head_00.mlpackage: must follow part 1 of layer 1", "format", part(2, 1, 0, 2))
  fails("layer_01.mlpackage: must hold part 1 of layer 0, which the package before it begins", "format",
    both(part(1, 0, 0, 3), part(2, 0, 2, 3)))
  fails("layers 1 to 1 are in no package", "format", both(part(1, 0, 0, 2), part(2, 0, 1, 2)))
  fails("packages[2] (layer_01.mlpackage): part must be below parts (2), but is 2", "format", part(2, 1, 2, 2))
  fails("layers 2 to 2 are in no package", "format", function(meta) meta.n_layers = 3 end)
  fails("layers 1 to 1 are beyond the model's 1", "format", function(meta) meta.n_layers = 1 end)
  fails("lm_head_01.mlpackage: rows 20 to 20 are in no package", "format", at(4, "vocab_start", 21))
  fails("lm_head_01.mlpackage: rows 19 to 19 are in two packages", "format", at(4, "vocab_start", 19))
  fails("rows 43 to 44 are in no package", "format", function(meta) meta.vocab_size = 45 end)
  fails("output logits has 23 rows, but must have 22", "format", function(meta) meta.vocab_size, meta.packages[4].vocab_end = 42, 42 end)
  fails("packages[1]: path \"../layer_00.mlpackage\" leaves the folder", "format", at(1, "path", "../layer_00.mlpackage"))
  fails("packages[1]: path \"/tmp/x\" leaves the folder", "format", at(1, "path", "/tmp/x"))
  fails("embed_bin: path \"a/../../b\" leaves the folder", "format", function(meta) meta.embed_bin = "a/../../b" end)
  fails("nothing.mlpackage: the package is not there", "notfound", at(1, "path", "nothing.mlpackage"))
  fails("layer_00.mlpackage: the package has ", "format", nil, function(folder)
    local f <close> = assert(io.open(folder .. "/layer_00.mlpackage/Data/com.apple.CoreML/weights/weight.bin", "a"))
    f:write "x"
  end)
  fails("embed.bin must have 1376 bytes for 43 rows of 16 numbers, but has 1377", "format", nil, function(folder)
    local f <close> = assert(io.open(folder .. "/embed.bin", "a"))
    f:write "x"
  end)
  fails("embed.bin", "io", nil, function(folder) os.remove(folder .. "/embed.bin") end)
  fails("input 1 (hidden): role must be one of edge, hidden, ids, mask, position, rope_cos, rope_sin, types, but is router", "format",
    function(meta) meta.packages[1].inputs[1].role = "router" end)
  fails("the package has no input hiden", "format", function(meta) meta.packages[1].inputs[1].name = "hiden" end)
  fails("runtime_meta.json does not list the input mask_0", "format", function(meta) table.remove(meta.packages[1].inputs) end)
  fails("runtime_meta.json does not list the state values", "format", function(meta) table.remove(meta.packages[1].states) end)
  fails("no earlier package gives layers.7 (input hidden)", "format", function(meta) meta.packages[2].inputs[1].edge = "layers.7" end)
  fails("there is no rope 3", "format", function(meta) meta.packages[1].inputs[3].rope = 3 end)
  fails("input cos_0 has 4 channels, but rope 0 has 3", "format", function(meta) table.remove(meta.ropes[1].inv_freq) end)
  fails("state keys has 24 positions, but max_seq_len is 32", "format", function(meta) meta.max_seq_len = 32 end)
  fails("gives neither logits nor argmax and max", "format", function(meta) meta.packages[3].outputs = core.json_array {} end)
end)
