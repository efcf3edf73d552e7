-- Models that look up several embeddings by token id (Gemma 3n): packages and assets hold one whose rows have the rows of all.
local ane = require "ane"
local core = require "ane.core"
local coreai = require "support.coreai"
local exporter = require "ane.coreml.export"
local tree = require "support.tree"
local writer = require "support.safetensors_writer"

local MODEL = "spec/fixtures/hf/gemma3n-odd"
local FIRST, SECOND = "model.embed_tokens.weight", "model.embed_tokens_per_layer.weight"
local IDS = { 7, 11, 3, 25, 30, 2, 49, 14 }

-- The tensors of a safetensors file (format: github.com/huggingface/safetensors), in order of their names.
local function tensors_of(path)
  local text = assert(core.read_file(path))
  local size = string.unpack("<I8", text)
  local list = {}
  for name, t in pairs(assert(core.json_decode(text:sub(9, 8 + size)))) do
    local from, to = (t.data_offsets or {})[1], (t.data_offsets or {})[2]
    if from then list[#list + 1] = { name = name, dtype = t.dtype, shape = t.shape, data = text:sub(9 + size + from, 8 + size + to) } end
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

local function find(list, name)
  for _, t in ipairs(list) do
    if t.name == name then return t end
  end
end

-- Row `row` of a BF16 or F32 tensor as numbers.
local function row_of(t, row)
  local out, bytes = {}, t.dtype == "BF16" and 2 or 4
  for c = 0, t.shape[2] - 1 do
    local at = (row * t.shape[2] + c) * bytes + 1
    out[c + 1] = string.unpack("<f", bytes == 4 and t.data:sub(at, at + 3) or "\0\0" .. t.data:sub(at, at + 1))
  end
  return out
end

-- n fp16 numbers of a text, from number `from` on (IEEE 754 binary16).
local function halves(text, from, n)
  local out = {}
  for i = 1, n do
    local bits = string.unpack("<I2", text, 2 * (from + i) - 1)
    local e, m = bits >> 10 & 31, bits & 1023
    local x = e == 0 and m * 2.0 ^ -24 or (1024 + m) * 2.0 ^ (e - 25)
    out[i] = bits >> 15 == 1 and -x or x
  end
  return out
end

local function near(want, got, what)
  assert.equal(#want, #got)
  for i, x in ipairs(want) do
    assert(math.abs(x - got[i]) <= math.abs(x) / 1024 + 1e-7, ("%s, column %d: %g, wanted %g"):format(what, i, got[i], x))
  end
end

describe("a model with two embeddings", function()
  local dir

  before_each(function() dir = tree.folder() end)
  after_each(function() tree.remove(dir) end)

  -- A copy of the model, whose second table has `rows` rows.
  local function copy(rows)
    local path = dir .. "-model"
    assert(os.execute(("rm -rf %s; cp -r %s %s; chmod -R u+w %s"):format(path, MODEL, path, path)))
    local list = tensors_of(path .. "/model.safetensors")
    local t = find(list, SECOND)
    local row = #t.data // t.shape[1]
    t.data = (t.data .. t.data):sub(1, rows * row)
    t.shape = { rows, t.shape[2] }
    writer.write(path .. "/model.safetensors", { metadata = { format = "pt" }, tensors = list })
    local cfg = assert(core.json_decode(assert(core.read_file(path .. "/config.json"))))
    cfg.vocab_size_per_layer_input = rows
    assert(core.write_file(path .. "/config.json", core.json_encode(cfg)))
    return path
  end

  it("has a file with the rows of both", function()
    assert(exporter.of_path(MODEL, dir, { context = 16, weights = "fp16" }))
    local meta = assert(core.json_decode(assert(core.read_file(dir .. "/runtime_meta.json"))))
    local list, data = tensors_of(MODEL .. "/model.safetensors"), assert(core.read_file(dir .. "/embed.bin"))
    assert.same({ 48, 78, 71 * 78 * 2 }, { meta.d_model, meta.d_embed, #data })
    for _, row in ipairs { 0, 1, 37, 70 } do
      near(row_of(find(list, FIRST), row), halves(data, row * 78, 48), "row " .. row)
      near(row_of(find(list, SECOND), row), halves(data, row * 78 + 48, 30), "row " .. row)
    end
  end)

  it("may have fewer rows in the second: the others are row 0", function()
    local path = copy(50)
    assert(exporter.of_path(path, dir, { context = 16, weights = "fp16" }))
    local list, data = tensors_of(path .. "/model.safetensors"), assert(core.read_file(dir .. "/embed.bin"))
    near(row_of(find(list, FIRST), 60), halves(data, 60 * 78, 48), "first")
    near(row_of(find(list, SECOND), 49), halves(data, 49 * 78 + 48, 30), "second, row 49")
    near(row_of(find(list, SECOND), 0), halves(data, 60 * 78 + 48, 30), "second, row 60")
    local set <close> = assert(ane.load(dir, { activations = "fp32" }))
    local source <close> = assert(ane.load(path, { context = 16, activations = "fp32" }))
    assert.same({ "recipe" }, { set.engine, set.engine_reason })
    local a <close> = set:session()
    local b <close> = source:session()
    assert(a:feed(IDS) and b:feed(IDS))
    assert.is_true(a:logits():compare(b:logits()).max_scaled < 1e-6)
  end)

  it("may have them in an asset, too", function()
    local path = copy(50)
    local report = assert(exporter.of_path(path, dir, { target = "coreai", context = 16, weights = "fp16", fixed_t = { 8 } }))
    local case = coreai.case(report, IDS, coreai.rows(path, IDS, "fp16"))
    assert.is_true(coreai.run(report.path, case) <= case.tolerance.atol)
    local package <close> = assert(ane.package(report.path))
    local tables = assert(package:predict({}, nil, { ["function"] = "load_embeddings" }))
    assert.same({ 71, 1, 78 }, tables.embedding_table:shape())
    local rows = assert(package:predict({ in_new_token_ids = { { 60, 49, 1, 0, 70, 50, 2, 3 } }, embedding_table = tables.embedding_table },
      nil, { ["function"] = "gather_embeddings_8" })).gathered_embeddings
    local list = tensors_of(path .. "/model.safetensors")
    local numbers = rows:totable()
    for i, row in ipairs { { 60, 0 }, { 49, 49 }, { 1, 1 }, { 0, 0 }, { 70, 0 }, { 50, 0 } } do
      local got = {}
      for c = 1, 78 do got[c] = numbers[(i - 1) * 78 + c] end
      near(row_of(find(list, FIRST), row[1]), table.move(got, 1, 48, 1, {}), "first of token " .. i)
      near(row_of(find(list, SECOND), row[2]), table.move(got, 49, 78, 1, {}), "second of token " .. i)
    end
  end)

  it("cannot have more rows in the second", function()
    local report, message, code = exporter.of_path(copy(80), dir, { context = 16 })
    assert.same({ nil, "unsupported" }, { report, code })
    assert.matches("per_layer_token_embd: has 80 rows, more than the 71 of the first embedding", message, 1, true)
  end)

  it("is refused if the set's file has another width", function()
    assert(exporter.of_path(MODEL, dir, { context = 16, weights = "fp16" }))
    local path = dir .. "/runtime_meta.json"
    local meta = assert(core.json_decode(assert(core.read_file(path))))
    for _, width in ipairs { 48, 79, 0, -1, "x" } do
      meta.d_embed = width
      assert(core.write_file(path, core.json_encode(meta)))
      local set, _, code = ane.load(dir)
      assert.same({ nil, "format" }, { set, code })
    end
  end)
end)
