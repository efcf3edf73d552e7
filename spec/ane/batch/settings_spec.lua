-- The settings in a journal: runs of other settings are neither continued nor joined, and the message names the difference.
local ane = require "ane"
local core = require "ane.core"
local merge = require "ane.batch.merge"
local tiny = require "support.tiny"
local tree = require "support.tree"

local ROW = '{"id":1,"prompt":"a","max_tokens":1}\n'

local folder, model

setup(function() model = tiny.load() end)
teardown(function() model:close() end)
before_each(function() folder = tree.folder() end)
after_each(function() tree.remove(folder) end)

local function write(name, text) return tree.write(folder, name, text) end

-- Answers the rows of `path` with a model that is loaded with other options, or with the usual one.
local function run(path, output, opts, loaded)
  local other <close> = loaded and tiny.load(nil, loaded) or nil
  local all = { input = path, output = output }
  for key, value in pairs(opts or {}) do all[key] = value end
  local summary, message, code = ane.batch(other or model, all)
  return summary, message, code
end

-- Makes the journal of an output one of version 1.
local function age(output)
  local text, count = tree.read(output .. ".journal"):gsub('"ane_batch":2', '"ane_batch":1', 1)
  assert.equal(1, count)
  assert(core.write_file(output .. ".journal", text))
end

describe("an output file", function()
  it("is not continued with weights of other types, or rounded for another text", function()
    local path, out = write("in.jsonl", ROW), folder .. "/out"
    local unlike = "option importance is not the same"
    local one = assert(ane.calibrate(model, "Once upon a time"))
    local other = assert(ane.calibrate(model, "Twice"))
    for _, row in ipairs {
      { { weights = "int8" }, {}, 'option weights is "file", was "int8"' },
      { { weights = "int4-block" }, { weights = "uint4-block" }, 'option weights is "uint4-block", was "int4-block"' },
      { {}, { mixed = { ffn_down = "int8" } }, 'option mixed is ["ffn_down=int8"], was null' },
      { { mixed = { attn_v = "int8" } }, { mixed = { attn_k = "int8" } }, 'option mixed is ["attn_k=int8"], was ["attn_v=int8"]' },
      { { weights = "int4-block", importance = one }, { weights = "int4-block" }, unlike },
      { { weights = "int4-block", importance = one }, { weights = "int4-block", importance = other }, unlike },
      { { transform = "rotate" }, {}, 'option transform is null, was "rotate"' },
    } do
      assert(run(path, out, { restart = true }, row[1]))
      assert.equal(1, assert(run(path, out, { resume = true }, row[1])).resumed)
      local summary, message, code = run(path, out, { resume = true }, row[2])
      assert.is_nil(summary)
      assert.equal("invalid", code)
      assert.is_truthy(message:find(row[3], 1, true), message)
    end
  end)

  it("is not continued if its journal does not say of what types the weights were", function()
    local path, out = write("in.jsonl", ROW), folder .. "/out"
    assert(run(path, out))
    age(out)
    local summary, message, code = run(path, out, { resume = true })
    assert.is_nil(summary)
    assert.equal("invalid", code)
    assert.matches("out.journal: was written by another version of ane, so .*; option restart starts again$", message)
  end)
end)

describe("shards", function()
  it("do not merge with weights of other types", function()
    local path, paths = write("in.jsonl", ROW:rep(2)), { folder .. "/1", folder .. "/2" }
    assert(run(path, paths[1], { shard = "1/2" }))
    assert(run(path, paths[2], { shard = "2/2" }, { weights = "int8" }))
    assert.matches('2: was made with other settings than .*/1: option weights is "int8", not "file"$',
      select(2, merge.run(paths, folder .. "/all")))
    assert(run(path, paths[2], { shard = "2/2", restart = true }))
    assert.equal(2, assert(merge.run(paths, folder .. "/all")).rows)
  end)

  it("do not merge if a journal does not say of what types the weights were", function()
    local path, paths = write("in.jsonl", ROW:rep(2)), { folder .. "/1", folder .. "/2" }
    for i = 1, 2 do
      assert(run(path, paths[i], { shard = i .. "/2" }))
      age(paths[i])
    end
    local summary, message, code = merge.run(paths, folder .. "/all")
    assert.is_nil(summary)
    assert.equal("invalid", code)
    assert.matches("1.journal: was written by another version of ane", message)
  end)
end)
