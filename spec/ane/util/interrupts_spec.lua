-- An error "interrupted!" of a debug hook, which is what Ctrl-C makes, ends any call with just this error, wherever it comes.
local ane = require "ane"
local grammar = require "ane.grammar"

local EVERY = 50 -- instructions between two calls of the hook

-- Calls f with a hook that raises at its n-th call.
-- @return calls of the hook, did it raise, what pcall gives
local function interrupted(n, f)
  local calls, raised = 0, false
  local function hook()
    calls = calls + 1
    if calls ~= n then return end
    raised = true
    error "interrupted!"
  end
  local results = table.pack(pcall(function()
    debug.sethook(hook, "", EVERY)
    local value, message = f()
    debug.sethook()
    return value, message
  end))
  debug.sethook()
  return calls, raised, table.unpack(results, 1, 3)
end

local function load(path, make_options)
  return function()
    local model, message = ane.load(path, make_options and make_options())
    if model then model:close() end
    return model and true, message
  end
end

local CALLS = {
  ["a folder with an adapter"] = load("spec/fixtures/hf/llama", function() return { adapters = { "spec/fixtures/hf/lora_llama" } } end),
  ["a graph of ONNX by recipe"] = load "spec/fixtures/onnx/odd",
  ["a graph of ONNX by graph"] = load("spec/fixtures/onnx/odd", function() return { engine = "graph" } end),
  ["a set of packages"] = load "spec/fixtures/mlpackage/set",
  ["a grammar"] = function() return grammar.gbnf 'root ::= ("a" | "b" [0-9]{1,30})* "x"\n' and true end,
}

describe("an interrupt", function()
  for name, f in pairs(CALLS) do
    it("ends " .. name .. " at any point", function()
      assert(f())
      local total = interrupted(math.huge, f)
      for i = 1, math.min(total, 120) do
        local _, raised, ok, value, message = interrupted(math.max(1, total * i // 120), f)
        assert.is_true(not raised or not ok and value:find ":%d+: interrupted!$" ~= nil, ("%s %s"):format(value, message))
      end
    end)
  end
end)
