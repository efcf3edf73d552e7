-- Options of the builder's methods and of the blocks: names, types, and what is documented.
local loader = require "ane.model.loader"
local options = require "ane.recipe.options"
local tiny = require "support.tiny_llama"
local tree = require "support.tree"

-- The options that a method documents in types/recipe.lua: name -> type as it is written.
local function documented(method)
  local text = tree.read "types/recipe.lua"
  local at = assert(text:find("function builder:" .. method .. "(", 1, true), method)
  local fields
  for line in text:sub(1, at - 1):gmatch "[^\n]+" do fields = line:match "^%-%-%-@param opts%?? {(.-)}" or fields end
  local found = {}
  for name, kind in (fields .. ","):gmatch "([%w_]+)%??: ([^,]+)," do found[name] = kind end
  return found
end

-- A Lua value of each type that options have, and one that is of none of them.
local GOOD = { integer = 1, number = 1.5, string = "x", boolean = true, any = {}, list = { 0, 4 }, table = {} }
local WRONG = { integer = 1.5, number = "x", string = 7, boolean = "yes", list = "x", table = "x" }

local function good(rule) return rule.choices and rule.choices[1] or GOOD[rule.type] end

local function complete(what, name, value)
  local opts = {}
  for key, rule in pairs(options.rules[what]) do opts[key] = good(rule) end
  opts[name] = value
  return opts
end

describe("options of recipes", function()
  for what, rules in pairs(options.rules) do
    it("of " .. what .. " are known, and have types", function()
      for name, rule in pairs(rules) do
        assert.same(complete(what, name, good(rule)), options.check(what, complete(what, name, good(rule))))
        if WRONG[rule.type] then
          local ok, message = pcall(options.check, what, complete(what, name, WRONG[rule.type]))
          assert.is_false(ok, name)
          assert.equal(1, message:find(what .. ": option " .. name .. " must be ", 1, true), message)
        end
      end
      local ok, message = pcall(options.check, what, { windw = 4 })
      assert.is_false(ok)
      assert.matches(': unknown option "windw"; the options are ', message, 1, true)
    end)
  end

  it("are those that the types document", function()
    local methods = 0
    for what, rules in pairs(options.rules) do
      if not what:find(".", 1, true) then
        methods = methods + 1
        local here, there = {}, documented(what)
        for name, rule in pairs(rules) do
          if not rule.internal then here[name] = true end
        end
        for name in pairs(there) do
          assert.is_true(here[name] == true, what .. " has no option " .. name)
          here[name] = nil
        end
        assert.is_nil(next(here), ("types/recipe.lua does not list %s of %s"):format(next(here), what))
      end
    end
    assert.equal(10, methods)
  end)

  it("may be floats without a fraction where integers are wanted", function()
    local given = { heads = 576 / 64, layout = "half" }
    local opts = options.check("rope", given)
    assert.same({ heads = 9, layout = "half" }, opts)
    assert.equal("integer", math.type(opts.heads))
    assert.equal("float", math.type(given.heads))
  end)

  it("are absent where a number or a text is false", function()
    local opts = options.check("attention.gqa", { window = false, layout = false, fused = false, sinks = false })
    assert.same({ fused = false, sinks = false }, opts)
  end)

  it("that a method needs are asked for by name", function()
    for what, name in pairs { rope = "heads", attention = "heads", conv_causal = "weight", ssm_scan = "heads", delta_rule = "heads" } do
      local ok, message = pcall(options.check, what, nil)
      assert.is_false(ok)
      assert.equal(("%s: option %s is missing"):format(what, name), message)
    end
  end)

  it("are named with their layer where a recipe misspells one", function()
    local recipe = {
      architectures = { "llama" },
      build = function(b)
        local x = b:embed "token_embd"
        b:layer(0, function() b:attention(x, x, x, { heads = 2, kv_heads = 2, head_dim = 8, scale = 1, windw = 4 }) end)
        return x
      end,
    }
    local path = tiny.write()
    local model, message = loader.load(path, { recipe = recipe })
    os.remove(path)
    assert.is_nil(model)
    assert.matches('layers%.0: attention: unknown option "windw"; the options are ahead, head_dim, heads', message)
  end)
end)
