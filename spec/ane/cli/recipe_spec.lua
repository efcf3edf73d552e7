-- --recipe of the commands that read a model whose architecture is not registered.
local ane = require "ane"
local command = require "support.command"
local core = require "ane.core"
local tiny = require "support.tiny"

local HF = "spec/fixtures/hf/"
local folder, model, own

-- A folder like a fixture's, of an architecture that nobody knows, and its recipe.
local function unknown(name, recipe)
  assert(os.execute(("cp -r %s%s %s && sed -i 's/\"%s\"/\"unknown_one\"/' %s/config.json"):format(HF, name, model, recipe, model)))
  local text = assert(core.read_file("models/" .. recipe .. ".lua")):gsub("architectures = %b{}", 'architectures = { "unknown_one" }')
  assert(core.write_file(own, text))
end

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir " .. folder))
  model, own = folder .. "/model", folder .. "/own.lua"
end)

after_each(function() os.execute("rm -rf " .. folder) end)

local function logits_of(path, recipe)
  local m <close> = assert(ane.load(path, { recipe = recipe, activations = "fp32" }))
  local s <close> = assert(m:session())
  assert(s:feed { 3, 5, 7 })
  return s:logits():totable()
end

describe("--recipe", function()
  it("lets quantise write a folder of an unknown architecture", function()
    unknown("llama", "llama")
    local out = folder .. "/out.gguf"
    local args = { "quantise", model, out, "--weights", "q8_0", "--no-progress" }
    local code, _, err = command.run(args)
    assert.equal(1, code)
    assert.matches("architecture 'unknown_one' is not known", err, 1, true)
    table.move({ "--recipe", own }, 1, 2, #args + 1, args)
    assert.equal("ane-unknown_one", command.json(args).architecture)
    assert(command.json { "quantise", HF .. "llama", folder .. "/known.gguf", "--weights", "q8_0" })
    local want, got = logits_of(folder .. "/known.gguf"), logits_of(out, own)
    for i, v in ipairs(want) do assert.near(v, got[i], 1e-4) end
    -- The file itself can be written again, and the other ways of writing know the recipe too.
    local again = folder .. "/again.gguf"
    assert(command.json { "quantise", out, again, "--weights", "q4_0", "--transform", "rotate", "--recipe", own })
    assert.equal(#want, #logits_of(again, own))
  end)

  it("counts for each load that measures the sensitivity of weights", function()
    unknown("qwen3-odd", "qwen3")
    local m <close> = assert(ane.load(model, { recipe = own }))
    local ids = {}
    for i = 1, 40 do ids[i] = i * 7 % 50 end
    local report = assert(ane.sensitivity(m, ids, { tokens = 32, types = { "fp16" } }))
    assert.equal(32, report.tokens)
  end)

  it("is an error that names the file if it cannot be read", function()
    local code, _, err = command.run { "quantise", HF .. "llama", folder .. "/out.gguf", "--weights", "q8_0", "--recipe", own }
    assert.equal(1, code)
    assert.matches(own .. ": No such file", err, 1, true)
    assert.is_nil(core.path_kind(folder .. "/out.gguf"))
    code, _, err = command.run({ "compare", tiny.path(), tiny.path(), "-", "--recipe", own }, ("one two "):rep(50))
    assert.equal(1, code)
    assert.matches(own .. ": No such file", err, 1, true)
  end)

  it("is known by all commands that read models", function()
    for _, name in ipairs { "quantise", "compare", "export", "plan", "size", "bench", "info", "run", "logits", "check" } do
      local _, out = command.run { name, "--help" }
      assert.is_truthy(out:find("--recipe", 1, true), name)
    end
  end)
end)
