-- Assets of nets with many operations, which coreai-torch 0.4.3 converted: our runner gives what Apple's library gave. The assets in
-- spec/fixtures/aimodel/nets are made by torch_nets.py; with ANE_COREAI_PYTHON (a Python with coreai-torch) it makes others, from
-- another seed.
local ane = require "ane"
local command = require "support.command"
local core = require "ane.core"

local FOLDER = "spec/fixtures/aimodel/nets"
local NETS = { "unary", "binary", "reductions", "moves", "indexing", "convolutions", "pooling", "norms", "attention", "weights",
  "quantised", "dynamic", "branches", "loops", "functions" }

local function check(folder, name)
  local path = ("%s/%s"):format(folder, name)
  local code, text = command.run { "predict", path .. ".aimodel", path .. ".json" }
  assert.equal(0, code, text)
end

describe("assets of coreai-torch run:", function()
  for _, name in ipairs(NETS) do
    it(name, function()
      check(FOLDER, name)
      local code, text = command.run { "info", ("%s/%s.aimodel"):format(FOLDER, name) }
      assert.equal(0, code, text)
      assert.matches(name == "functions" and "function count.*state  total.*state  last.*function soft" or "function main", text)
    end)
  end

  it("with inputs of any size where the first size is not known", function()
    local pkg <close> = assert(ane.package(FOLDER .. "/dynamic.aimodel"))
    local case = assert(core.json_decode(assert(core.read_file(FOLDER .. "/dynamic.json"))))
    local inputs = {}
    for key, x in pairs(case.calls[1].inputs) do
      local row, data = #x.data // x.shape[1], {}
      table.move(x.data, 1, 2 * row, 1, data)
      inputs[key] = { shape = { 2, x.shape[2] }, data = data }
    end
    local out = assert(pkg:predict(inputs)).y0
    local want = case.calls[1].outputs.y0.data
    local got = out:reshape({ #out }):totable()
    assert.equal(2 * 8, #got)
    for i, v in ipairs(got) do assert.is_true(math.abs(v - want[i]) < 1e-4) end
  end)

  it("and their text has the regions of control flow", function()
    local aimodel = require "ane.coreml.aimodel"
    local text = assert(aimodel.text(FOLDER .. "/branches.aimodel"))
    assert.matches("controlflow%.if_v1%(%%%d+%).-\n    region 1\n.-\n    region 2\n", text)
    text = assert(aimodel.text(FOLDER .. "/loops.aimodel"))
    assert.matches("controlflow%.while_v1%(.-region 1\n      %%%d+ = input ", text)
    local ops = assert(aimodel.contents(FOLDER .. "/loops.aimodel")).functions[1].ops
    assert.equal(5, ops["controlflow.while_v1"])
    assert.truthy(ops["primitive.greater_v1"] or ops["broadcasting_greater_v1"]) -- of the conditions, which are regions
  end)

  local python = os.getenv "ANE_COREAI_PYTHON"
  if not python then return end

  it("of another seed, converted now", function()
    local dir = os.tmpname()
    os.remove(dir)
    assert(os.execute("mkdir " .. dir))
    local pipe = assert(io.popen(("%s spec/fixtures/aimodel/torch_nets.py %s 2 2>&1"):format(python, dir)))
    local text = pipe:read "a"
    assert(pipe:close(), text)
    for _, name in ipairs(NETS) do check(dir, name) end
    os.execute("rm -rf " .. dir)
  end)
end)
