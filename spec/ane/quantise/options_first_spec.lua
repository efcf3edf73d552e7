-- Wrong options are refused before a calibration text is read, which may take minutes.
local calibrate = require "ane.evaluate.calibrate"
local command = require "support.command"
local core = require "ane.core"
local inputs = require "ane.model.inputs"
local samples = require "ane.model.samples"
local tiny = require "support.tiny"
local windows = require "ane.model.windows"

local TEXT = ("The quick brown fox jumps over the lazy dog.\n"):rep(50)
local saved, folder

-- Reading a text is an error in these specs.
before_each(function()
  saved = { inputs.resolve, samples.draw, calibrate.run, windows.split }
  local function read() error("the text was read", 0) end
  inputs.resolve, samples.draw, calibrate.run, windows.split = read, read, read, read
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir " .. folder))
  assert(core.write_file(folder .. "/text.txt", TEXT))
  assert(core.write_file(folder .. "/other.txt", TEXT))
end)

after_each(function()
  inputs.resolve, samples.draw, calibrate.run, windows.split = table.unpack(saved)
  os.execute("rm -rf " .. folder)
end)

describe("a wrong option of a model's method", function()
  local BOTH = {
    { { none = 1 }, 'unknown option "none"' }, { { weights = "q9" }, "option weights" }, { { method = "best" }, "option method" },
    { { mixed = { nothing_of_the_kind = "int8" } }, "nothing_of_the_kind" }, { { mixed = { attn_v = "q9" } }, "option mixed" },
    { { tune = "all" }, "option tune" }, { { inputs = "both" }, "option inputs" }, { { threads = 0 }, "option threads" },
    { { memory = 0 }, "option memory" }, { { tokens = 0 }, "option tokens" }, { { calibrate = 5 }, "option calibrate" },
    { { progress = 5 }, "option progress" }, { { out = "" }, "path" }, { { out = "/nonexistent/folder/out" }, "No such file" },
  }
  local OWN = {
    quantise = { { { fallback = "q9" }, "option fallback" }, { { weights = false }, "option weights is missing" },
                 { { transform = "turn" }, "option transform" }, { { stages = 0 }, "option stages" },
                 { { resume = 1 }, "option resume" }, { { transform = "rotate", mixed = { nothing = "int8" } }, "nothing" } },
    export = { { { context = 0 }, "option context" }, { { fixed_t = { 4, 2 } }, "option fixed_t" },
               { { tiers = { 4096 } }, "option tiers" },
               { { target = "both" }, "target" }, { { target = "coreai", layers = 2 }, "option layers" },
               { { slices = 100000 }, "option slices" }, { { max_t = 4096 }, "option max_t" }, { { chip = "M0" }, "option chip" },
               { { weights = "int8", tune = "norms" }, "option tune: the scheme is int8" },
               { { inputs = "source", tune = "norms" }, "option tune: option inputs is source" } },
  }

  for name, own in pairs(OWN) do
    it("is refused before the text is read: " .. name, function()
      for _, row in ipairs(table.move(own, 1, #own, #BOTH + 1, table.move(BOTH, 1, #BOTH, 1, {}))) do
        for _, text in ipairs { TEXT, { samples = 100 } } do
          local model <close> = tiny.load()
          local opts = { weights = "int4-block", method = "gptq", calibrate = text }
          for key, value in pairs(row[1]) do opts[key] = value or nil end
          local out = opts.out or folder .. "/out"
          opts.out = nil
          local ok, none, message = pcall(model[name], model, out, opts)
          local said = ok and message or none
          assert.is_falsy(ok and none)
          assert.is_truthy(tostring(said):find(row[2], 1, true), ("%s: %s"):format(row[2], said))
        end
      end
    end)
  end

  it("blames the line that calls it", function()
    local model <close> = tiny.load()
    for _, name in ipairs { "quantise", "export" } do
      local _, message = pcall(function() return model[name](model, folder .. "/out", { calibrate = TEXT, none = 1 }), 1 end)
      assert.matches("^%S*options_first_spec.lua:%d+: ", message)
    end
  end)
end)

describe("files beside an output", function()
  it("are refused before the text is read, and none is made", function()
    local model <close> = tiny.load()
    local out = folder .. "/out.gguf"
    local function refused(name, want)
      local report, message = model:quantise(out, { weights = "q4_0", method = "gptq", calibrate = TEXT, resume = true })
      assert.is_nil(report)
      assert.matches(name .. ".*" .. want, message)
      local code, _, err = command.run { "quantise", tiny.path(), out, "--weights", "q4_0", "--method", "gptq", "--calibrate", "samples:9" }
      assert.equal(1, code)
      assert.matches(name .. ".*" .. want, err)
    end
    assert(core.write_file(out .. ".part", "mine"))
    refused("out.gguf.part", "has no journal")
    assert.is_nil(core.path_kind(out .. ".journal"))
    os.remove(out .. ".part")
    assert(core.write_file(out .. ".journal", "mine\n"))
    refused("out.gguf.journal", "is not a journal of ane quantise")
    os.remove(out .. ".journal")
    local _ <close> = assert(core.append(out .. ".journal"))
    refused("out.gguf.journal", "another process is writing it")
  end)
end)

describe("a wrong option of a command", function()
  local CASES = {
    { "quantise", "--weights", "q4_0", "--mixed", "nothing=q8_0" },
    { "quantise", "--weights", "q4_0", "--transform", "rotate", model = "spec/fixtures/hf/gemma3" },
    { "quantise", "--weights", "int4-block", "--method", "gptq", "--mixed", "nothing=int8" },
    { "export", "--weights", "int4-block", "--mixed", "nothing=int8" },
    { "export", "--weights", "int4-block", "--method", "gptq", "--tiers", "4096" },
    { "export", "--weights", "int8", "--method", "gptq", "--tune", "norms" },
    { "export", "--weights", "lut4", "--slices", "100000" },
    { "export", "--weights", "lut4", "--target", "coreai", "--layers", "1" },
    { "compare", "--weights-b", "lut4", "--mixed-b", "nothing=int8" },
    { "info", "--weights", "lut4", "--mixed", "nothing=int8" },
  }

  for _, case in ipairs(CASES) do
    it("is refused before the text is read: " .. table.concat(case, " "), function()
      for _, text in ipairs { folder .. "/text.txt", "samples:100" } do
        local model = case.model or tiny.path()
        local args = { case[1], model }
        if case[1] == "compare" then table.move({ model, folder .. "/other.txt" }, 1, 2, 3, args) end
        if case[1] == "quantise" or case[1] == "export" then args[3] = folder .. "/out" end
        table.move(case, 2, #case, #args + 1, args)
        table.move({ "--calibrate", text }, 1, 2, #args + 1, args)
        local code, _, err = command.run(args)
        assert.is_true(code == 1 or code == 2, err)
        assert.is_nil(err:find("the text was read", 1, true), err)
      end
    end)
  end
end)
