-- Loads of ONNX bundles where recipes cannot be read or tried: a lack of memory or of open files is an error. It is no reason to run
-- the graph itself, which is slower and rounds in other places.
local ane = require "ane"
local core = require "ane.core"
local recipe = require "ane.recipe"

local PATH = "spec/fixtures/onnx/odd"

describe("a rebuilt ONNX graph", function()
  -- Loads with one function of a module replaced.
  local function load_with(module, name, fn)
    local before = module[name]
    finally(function() module[name] = before end)
    module[name] = fn
    return ane.load(PATH, { threads = 1, context = 16 })
  end

  local function fails(wanted, text, model, message, code)
    assert.is_nil(model)
    assert.are.equal(wanted, code)
    assert.matches(text, message, 1, true)
  end

  it("is an error where the named recipe cannot be read", function()
    local function find() return nil, "llama.lua: too many open files", "io" end
    fails("io", "llama.lua: too many open files", load_with(recipe, "find", find))
  end)

  it("is an error where a recipe has no memory", function()
    fails("memory", "weight: out of memory", load_with(recipe, "build", function() return nil, "weight: out of memory", "memory" end))
  end)

  it("is an error where its weights have no memory", function()
    fails("memory", "out of memory", load_with(core, "onnx_weights", function() return nil, "out of memory", "memory" end))
  end)

  it("is an error where Lua has no memory", function()
    fails("memory", PATH, load_with(recipe, "build", function() error "not enough memory" end))
  end)

  it("runs as a graph where no recipe covers it", function()
    local model <close> = assert(load_with(recipe, "build", function() return nil, "differs", "unsupported" end))
    assert.are.equal("graph", model:info().engine)
  end)
end)
