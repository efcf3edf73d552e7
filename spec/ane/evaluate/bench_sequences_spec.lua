-- Several sequences at once: what is fed, what is counted, what is refused.
local ane = require "ane"
local command = require "support.command"
local sequences = require "ane.evaluate.bench_sequences"
local tiny = require "support.tiny"

describe("a benchmark of several sequences", function()
  it("gives a row for each number of sequences", function()
    local r = command.json { "bench", tiny.path(), "--sequences", "1,3", "-p", "5", "-n", "4", "-r", "2", "--no-limits" }
    local what = {}
    for i, t in ipairs(r.tests) do
      what[i] = ("%s %d %d %d"):format(t.test, t.sequences, t.prompt, t.tokens)
      assert.is_true(t.pp > 0 and t.tg > 0)
    end
    assert.same({ "batch 1 5 4", "batch 3 5 4" }, what)
  end)

  it("feeds every sequence its whole prompt, though a run holds fewer tokens", function()
    local model <close> = assert(ane.load(tiny.path(), { context = 2000 }))
    local program = require("ane.model").bundle(model).program
    local fed, open = {}, {}
    local counting = setmetatable({
      run = function(_, items, want)
        local total = 0
        for _, item in ipairs(items) do
          fed[item[1]] = (fed[item[1]] or 0) + #item[2]
          total = total + #item[2]
        end
        assert.is_true(total <= program:max_chunk())
        return program:run(items, want)
      end,
      session = function(_, o)
        local s = program:session(o)
        open[#open + 1] = s
        return s
      end,
    }, { __index = function(_, name) return program[name] and function(_, ...) return program[name](program, ...) end end })
    require("ane.model").bundle(model).program = counting
    local rows = assert(sequences.run(model, { numbers = { 3 }, prompt = 700, tokens = 2, repetitions = 1 }))
    require("ane.model").bundle(model).program = program
    assert.equal(1, #rows)
    for _, s in ipairs(open) do assert.equal(2 * 702, fed[s]) end -- the repetition that does not count, and one
  end)

  it("refuses lists of sizes, and none at all", function()
    local status, _, message = command.run { "bench", tiny.path(), "--sequences", "2", "-p", "4,8", "-n", "2" }
    assert.not_equal(0, status)
    assert.matches("%-%-sequences needs one value", message)
  end)

  it("refuses more sequences than fit in a run, before it measures any", function()
    local status, out, message = command.run { "bench", tiny.path(), "--sequences", "1,513", "-p", "2", "-n", "1", "-r", "1" }
    assert.equal(1, status)
    assert.equal("", out)
    assert.matches("%-%-sequences: at most 512 sequences fit in a run, but 513 are to be measured", message)
  end)
end)
