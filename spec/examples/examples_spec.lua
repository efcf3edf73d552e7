-- Each example runs on a tiny model.
local tiny = require "support.tiny"

-- Runs an example; what it wrote.
local function run(name, args, input)
  local parts, at = {}, 0
  local lines = input or {}
  local function write(...)
    parts[#parts + 1] = table.concat({ ... })
    return true
  end
  local fake_io = setmetatable({
    write = write, flush = function() end,
    read = function()
      at = at + 1
      return lines[at]
    end,
  }, { __index = io })
  local env = setmetatable({
    arg = args, io = fake_io,
    print = function(...)
      local texts = table.pack(...)
      for i = 1, texts.n do texts[i] = tostring(texts[i]) end
      write(table.concat(texts, "\t"), "\n")
    end,
  }, { __index = _G })
  assert(loadfile("examples/" .. name .. ".lua", "t", env))()
  return table.concat(parts)
end

describe("examples", function()
  it("hello", function()
    local out = run("hello", { tiny.path(), "Hello" })
    assert.matches("^model %(llama", out)
    assert.matches("\nHello", out)
    assert.matches("ended by %a+\n$", out)
  end)

  it("stream", function()
    local out = run("stream", { tiny.path() })
    assert.matches("^Once upon a time", out)
    assert.matches("\n%[%a+%]\n", out)
    assert.matches("\nb: ", out)
  end)

  it("speculate", function()
    assert.matches("\n%[64 tokens in %d+ calls%]\n$", run("speculate", { tiny.path() }))
    local lines = 0
    for line in io.lines "examples/speculate.lua" do
      lines = lines + (line:find "%S" and not line:find "^%-%-" and 1 or 0)
    end
    assert.is_true(lines <= 31)
  end)

  it("port_a_model", function()
    local out = run("port_a_model", { "spec/fixtures/check/gemma" })
    assert.matches("== as llama.-cause: embedding scale.-sqrt%(d_model%).-not ok", out)
    assert.matches("== with the embedding scaled.-cause: norm convention.-not ok", out)
    assert.matches("== with norms by 1 %+ w.-\nok\n", out)
    assert.matches("tensor %[3, 32%]", out)
  end)

  it("make_golden.py is a page", function()
    local lines = 0
    for line in io.lines "examples/make_golden.py" do
      lines = lines + 1
      assert.is_true(#line <= 140)
    end
    assert.is_true(lines <= 30)
  end)

  it("chat", function()
    local out = run("chat", { tiny.path(), "Be brief." }, { "Hi", "" })
    assert.matches("^> ", out)
    assert.matches("3 messages; of the last prompt's %d+ tokens 0 were known\n$", out)
  end)
end)
