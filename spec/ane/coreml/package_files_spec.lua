-- Files of package sets: sizes always, hashes on demand; which profile of several is opened.
local ane = require "ane"
local core = require "ane.core"
local command = require "support.command"
local sets = require "support.sets"
local tree = require "support.tree"

local HF = "spec/fixtures/hf/"

-- Changes one bit of a byte, which keeps the size.
local function flip(path, at)
  local bytes = assert(core.read_file(path))
  at = at or #bytes // 2
  assert(core.write_file(path, bytes:sub(1, at - 1) .. string.char(bytes:byte(at) ~ 1) .. bytes:sub(at + 1)))
end

describe("the files of a package set", function()
  local out, source
  local WEIGHTS = "layer_00.mlpackage/Data/com.apple.CoreML/weights/weight.bin"

  before_each(function()
    out = tree.folder()
    source = assert(ane.load(HF .. "llama", { context = 32 }))
    assert(source:export(out, { context = 32, layers = 1 }))
  end)
  after_each(function()
    source:close()
    tree.remove(out)
  end)

  local function verify(opts)
    opts = opts or { verify = true }
    local model, message, code = ane.load(out, opts)
    if model then return model:close() or true end
    return nil, message, code
  end

  it("are what was written", function()
    local seen = {}
    assert.is_true(verify { verify = true, progress = function(stage) seen[stage] = true end })
    assert.is_true(seen.verify)
    sets.change_meta(out, function(meta) -- all files have a hash but the manifest
      local n = tonumber(io.popen(("find %s -type f | wc -l"):format(out)):read "a")
      local listed = 0
      for path, file in pairs(meta.files) do
        listed = listed + 1
        assert.equal(core.sha256_file(out .. "/" .. path), file.sha256)
        assert.equal(#core.read_file(out .. "/" .. path), file.bytes)
      end
      assert.equal(n - 1, listed)
    end)
  end)

  it("are named where a bit differs, if hashes are asked for", function()
    for _, path in ipairs { WEIGHTS, "embed.bin", "tokenizer_config.json" } do
      if core.path_kind(out .. "/" .. path) == "file" then
        flip(out .. "/" .. path)
        local ok, message, code = verify()
        assert.same({ nil, "format" }, { ok, code })
        assert.matches(path .. ": the file differs from the one that was written: its SHA-256 is ", message, 1, true)
        flip(out .. "/" .. path)
      end
    end
    assert.is_true(verify())
    local found, text = command.run { "info", out, "--verify" }
    assert.equal(0, found)
    assert.matches("all hashes are right", text, 1, true)
    assert.is_nil(command.json({ "info", out }).verified)
    assert.is_true(command.json({ "info", out, "--verify" }).verified)
    flip(out .. "/" .. WEIGHTS)
    assert.is_true(verify {}) -- sizes are right: that is all that is asked
    local status, _, err = command.run { "run", out, "--ids", "1,2", "--max-tokens", "1", "--verify" }
    assert.equal(1, status)
    assert.matches("weight.bin: the file differs from the one that was written", err, 1, true)
  end)

  it("are all there, and no others in the packages", function()
    core.write_file(out .. "/layer_01.mlpackage/more", "")
    local ok, message = verify()
    assert.is_nil(ok)
    assert.matches("layer_01.mlpackage/more: is not listed under files of the manifest", message, 1, true)
    os.remove(out .. "/layer_01.mlpackage/more")
    sets.change_meta(out, function(meta) meta.files["letter.txt"] = { bytes = 3, sha256 = "x" } end)
    assert.matches("letter.txt: the file is not there", select(2, verify()), 1, true)
    sets.change_meta(out, function(meta) meta.files["letter.txt"], meta.files["../x"] = nil, { bytes = 1, sha256 = "x" } end)
    assert.matches("path \"../x\" leaves the folder", select(2, verify()), 1, true)
    sets.change_meta(out, function(meta) meta.files["../x"], meta.files["embed.bin"] = nil, {} end)
    assert.matches("embed.bin has no hash", select(2, verify()), 1, true)
  end)

  it("are hashed by package where the manifest has no more", function()
    sets.change_meta(out, function(meta) meta.files = nil end)
    assert.is_true(verify())
    flip(out .. "/" .. WEIGHTS)
    assert.matches("layer_00.mlpackage: the package differs from the one that was written", select(2, verify()), 1, true)
    flip(out .. "/" .. WEIGHTS)
    flip(out .. "/embed.bin")
    assert.matches("embed.bin: the file differs from the one that was written", select(2, verify()), 1, true)
    sets.change_meta(out, function(meta) meta.packages[1].sha256 = nil end)
    assert.equal("unsupported", (select(3, verify())))
  end)

  it("are asked for of package sets alone", function()
    local model, message, code = ane.load(HF .. "llama", { verify = true })
    assert.same({ nil, "unsupported" }, { model, code })
    assert.matches("option verify is for package sets", message, 1, true)
  end)
end)

describe("profiles of a package set", function()
  it("with packages of their own: the least context that holds the one asked for", function()
    local out = tree.folder()
    local source <close> = assert(ane.load(HF .. "llama", { weights = "int8", activations = "fp32", context = 64 }))
    assert(source:export(out, { context = 64, tiers = { 16, 32 }, weights = "int8" }))
    local ids = { 1, 17, 300, 5, 9 }
    local want = assert(source:generate(ids, { max_tokens = 11, ignore_eos = true, details = true })).ids
    for _, case in ipairs { { 10, 16 }, { 16, 16 }, { 17, 32 }, { 33, 64 }, { nil, 64 } } do
      local model <close> = assert(ane.load(out, { context = case[1], verify = true, engine = "graph" }))
      assert.equal(case[2], model.config.context_length)
      assert.equal(case[1] or 64, model.context)
      local got = model:generate(ids, { max_tokens = 11, ignore_eos = true, details = true }).ids
      assert.same(table.move(want, 1, #got, 1, {}), got)
    end
    for context, hint in pairs { [16] = "%-%-context gives up to 64", [64] = "the packages hold no more" } do
      local status, _, err = command.run { "run", out, "--ids", "1,2", "--ignore-eos", "--context", tostring(context) }
      assert.equal(0, status)
      assert.matches(("the context of %d tokens is full; %s\n$"):format(context, hint), err)
    end
    local model, message, code = ane.load(out, { context = 65 })
    assert.same({ nil, "unsupported" }, { model, code })
    assert.matches("option context must be 1 .. 64, the positions that the states hold, but is 65", message, 1, true)
    -- the head does not depend on the context: one package for all
    local heads = io.popen(("ls -d %s/lm_head*"):format(out)):read "a"
    assert.equal(1, select(2, heads:gsub("\n", "")))
    sets.change_meta(out, function(meta) meta.profiles[1].packages[1].path = "../x" end)
    assert.matches("path \"../x\" leaves the folder", select(2, ane.load(out)), 1, true)
    tree.remove(out)
  end)

  it("of classifiers: fewer columns for shorter texts", function()
    local out = tree.folder()
    local source <close> = assert(ane.load(HF .. "privacy_filter-odd", { weights = "int8", activations = "fp32" }))
    assert(source:export(out, { fixed_t = { 8, 16 }, weights = "int8" }))
    for context, held in pairs { [5] = 8, [8] = 8, [9] = 16 } do
      local model <close> = assert(ane.load(out, { context = context, engine = "graph" }))
      assert.equal(held, model.config.context_length)
      local a <close> = assert(source:session())
      local b <close> = assert(model:session())
      assert(a:feed({ 1, 2, 3, 4 }, { want = "all" }))
      assert(b:feed({ 1, 2, 3, 4 }, { want = "all" }))
      for i = 1, 4 do assert.equal(a:logits(i):argmax(), b:logits(i):argmax()) end
    end
    tree.remove(out)
  end)
end)
