-- Exports to Core AI that are interrupted: the next one takes over what was encoded, and gives the same bytes.
local ane = require "ane"
local command = require "support.command"
local core = require "ane.core"
local exporter = require "ane.coreml.export"
local types = require "ane.quantise.types"

local MODEL = "spec/fixtures/hf/llama"
local OPTIONS = { weights = "lut4-g8", context = 16, fixed_t = { 4 } }

-- An export that stops behind its fifth weight and waits there, until it is killed.
local SLOW = [[
  package.path, package.cpath = %q, %q
  local done = 0
  local function progress()
    done = done + 1
    if done == 5 then
      assert(io.open(%q, "w")):close()
      while true do end
    end
  end
  require("ane.coreml.export").of_path(%q, %q, { target = %q, weights = "lut4-g8", context = 16, fixed_t = { 4 }, progress = progress })
]]

describe("an interrupted export to Core AI", function()
  local folder, out
  before_each(function()
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute(("mkdir '%s'"):format(folder)))
    out = folder .. "/out"
  end)
  after_each(function() os.execute(("rm -rf '%s'"):format(folder)) end)

  local function export(more)
    local opts = { target = "coreai" }
    for key, value in pairs(OPTIONS) do opts[key] = value end
    for key, value in pairs(more or {}) do opts[key] = value end
    return assert(exporter.of_path(MODEL, out, opts))
  end

  -- The hash of a whole export, whose output is then removed; its number of weights.
  local function whole(more)
    local report = export(more)
    assert.equal(0, report.kept)
    os.execute(("rm -r '%s'"):format(out))
    return report.shards[1].sha256, #report.weights
  end

  -- Ends an export behind n weights.
  local function interrupt(n, more)
    local opts = { progress = function() n = n - 1; if n == 0 then error "enough" end end }
    for key, value in pairs(more or {}) do opts[key] = value end
    local _, why = pcall(export, opts)
    assert.matches("enough", tostring(why))
    assert.equal("folder", core.path_kind(out .. ".partial"))
    assert.is_nil(core.path_kind(out))
  end

  for _, weights in ipairs { "fp16", "int8", "int8-channel", "int8-block", "int4-block", "uint4-block", "lut4", "lut4-g8" } do
    it("keeps the encoded weights: " .. weights, function()
      local hash, n = whole { weights = weights }
      interrupt(7, { weights = weights })
      local report = export { weights = weights }
      assert.same({ hash, 7, n }, { report.shards[1].sha256, report.kept, #report.weights })
      assert.same({ "metadata.json", "out.aimodel", "tokenizer" }, (function(l) table.sort(l) return l end)(core.list_dir(out)))
      assert.same({ "main.hash", "main.mlirb", "metadata.json" },
        (function(l) table.sort(l) return l end)(core.list_dir(out .. "/out.aimodel")))
      assert.is_nil(core.path_kind(out .. ".partial"))
    end)
  end

  it("keeps the work of the longer of two runs", function()
    local hash = whole()
    interrupt(9)
    interrupt(3) -- copies three of the nine
    local report = export()
    assert.same({ hash, 9 }, { report.shards[1].sha256, report.kept })
  end)

  it("says of kept weights what it said of them before", function()
    local before = export().weights
    os.execute(("rm -r '%s'"):format(out))
    interrupt(6)
    assert.same(before, export().weights)
  end)

  it("does not believe damaged bytes", function()
    local hash = whole()
    interrupt(8)
    local path = out .. ".partial/out.aimodel.partial/main.mlirb"
    local bytes = assert(core.read_file(path))
    local at = #bytes - 1000 -- in codes of the last weight
    assert(core.write_file(path, bytes:sub(1, at - 1) .. string.char(bytes:byte(at) ~ 255) .. bytes:sub(at + 1)))
    local report = export()
    assert.equal(hash, report.shards[1].sha256)
    assert.is_true(report.kept > 0 and report.kept < 8)
    os.execute(("rm -r '%s'"):format(out))
    interrupt(8)
    local notes = out .. ".partial/out.aimodel.partial/main.notes"
    bytes = assert(core.read_file(notes))
    assert(core.write_file(notes, bytes:sub(1, #bytes // 2)))
    report = export()
    assert.equal(hash, report.shards[1].sha256)
    assert.is_true(report.kept > 0 and report.kept < 8)
  end)

  it("keeps nothing of other options", function()
    interrupt(8)
    local report = export { weights = "lut4" }
    assert.equal(0, report.kept)
    assert.equal(whole { weights = "lut4" }, report.shards[1].sha256)
  end)

  it("keeps nothing that another revision of gptq has rounded", function()
    local model <close> = assert(ane.load(MODEL))
    local ids = {}
    for i = 1, 300 do ids[i] = i * 7 % 50 end
    local function compensated(progress)
      return model:export(out, { target = "coreai", weights = "int4-block", context = 16, fixed_t = { 4 }, method = "gptq", tune = "none",
        inputs = "source", calibrate = ids, progress = progress })
    end
    local n
    local function stop() n = n - 1; if n == 0 then error "enough" end end
    for _, case in ipairs { { 0, true }, { 1, false } } do
      n = 8
      assert.is_false((pcall(compensated, stop)))
      types.REVISION = types.REVISION + case[1]
      local report = assert(compensated())
      types.REVISION = types.REVISION - case[1]
      assert.equal(case[2], report.kept > 0)
      os.execute(("rm -r '%s'"):format(out))
    end
  end)

  it("keeps a finished asset", function()
    local hash, n = whole()
    interrupt(n) -- behind the last weight, before the functions
    assert.equal(n, export().kept)
    os.execute(("rm -r '%s'"):format(out))
    local write = core.write_file
    core.write_file = function(path, ...) -- luacheck: ignore 122
      if path:find "metadata.json$" then error "enough" end
      return write(path, ...)
    end
    local ok = pcall(export)
    core.write_file = write -- luacheck: ignore 122
    assert.is_false(ok)
    assert.equal("folder", core.path_kind(out .. ".partial/out.aimodel"))
    local report = export()
    assert.same({ hash, n, n }, { report.shards[1].sha256, report.kept, #report.weights })
    assert.equal("load_embeddings", report.functions[1].name)
  end)

  it("keeps weights of the asset of a set that was being written", function()
    local first = export { target = "coreai-sharded", layers = 1 }
    os.execute(("rm -r '%s'"):format(out))
    interrupt(2, { target = "coreai-sharded", layers = 1 })
    local again = export { target = "coreai-sharded", layers = 1 }
    assert.equal(2, again.kept)
    for i, s in ipairs(first.shards) do assert.equal(s.sha256, again.shards[i].sha256) end
  end)

  -- The file `mark` says that the export waits.
  local function killed(target)
    local script, mark = folder .. "/slow.lua", folder .. "/mark"
    assert(core.write_file(script, SLOW:format(package.path, package.cpath, mark, MODEL, out, target)))
    local pipe <close> = assert(io.popen(table.concat({
      "exec 2>/dev/null",
      ("%s %s >/dev/null 2>&1 & pid=$!"):format(os.getenv "LUA" or "lua5.4", script),
      ("while [ ! -e '%s' ] && kill -0 $pid; do sleep 0.05; done"):format(mark),
      "kill -9 $pid; wait $pid; echo $?",
    }, "\n")))
    return pipe:read "n"
  end

  it("goes on after SIGKILL, with the same bytes", function()
    local hash = whole()
    assert.equal(137, killed "coreai")
    local code, text = command.run { "export", MODEL, out, "--target", "coreai", "--weights", "lut4-g8", "--context", "16",
      "--fixed-t", "4", "--json", "--no-progress" }
    assert.equal(0, code, text)
    local report = core.json_decode(text)
    assert.same({ hash, 5 }, { report.shards[1].sha256, report.kept })
  end)
end)
