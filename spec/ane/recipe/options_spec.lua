-- Options of the builder's methods and of the blocks: names, types, and what is documented.
local documented = require "support.documented"
local loader = require "ane.model.loader"
local options = require "ane.recipe.options"
local reference = dofile "scripts/reference.lua"
local tiny = require "support.tiny_llama"
local tree = require "support.tree"

-- The options that the builder's methods document in types/recipe.lua: method -> name -> true.
local function listed()
  local found = {}
  for _, class in ipairs(reference.read(tree.read "types/recipe.lua")) do
    for _, f in ipairs(class.functions) do
      for _, note in ipairs(f.notes) do
        if note.kind == "param" and note.name:find "^opts%??$" then
          found[f.name] = {}
          for _, option in ipairs(documented.options(note.text)) do found[f.name][option.name] = true end
        end
      end
    end
  end
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
    local here, methods = {}, 0
    for what, rules in pairs(options.rules) do
      if not what:find(".", 1, true) then
        here[what], methods = {}, methods + 1
        for name, rule in pairs(rules) do here[what][name] = not rule.internal or nil end
      end
    end
    assert.same(here, listed())
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
    for what, name in pairs {
      rope = "heads", attention = "heads", conv_causal = "weight", ssm_scan = "heads", delta_rule = "heads",
      ["shortconv.gated"] = "taps", ["latent.attention"] = "rank", ["gated_delta.block"] = "heads", ["mamba2.block"] = "heads",
    } do
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

  it("are checked by the blocks with settings", function()
    for _, case in ipairs {
      { "latent.attention", "rank", function(b, s) return require("ane.recipe.latent").attention(b, nil, nil, s) end },
      { "gated_delta.block", "heads", function(b, s) return require("ane.recipe.gated_delta").block(b, nil, s) end },
      { "mamba2.block", "heads", function(b, s) return require("ane.recipe.mamba2").block(b, nil, s) end },
    } do
      local what, name, block = table.unpack(case)
      local function told(settings) return select(2, pcall(block, { cfg = { format = "hf", n_head = 2 } }, settings)) end
      assert.matches(what .. ': unknown option "headz"; the options are ', told { headz = 4 }, 1, true)
      assert.equal(("%s: option %s must be an integer, but is \"x\""):format(what, name), told { [name] = "x" })
      assert.equal(("%s: option %s is missing"):format(what, name), told {})
    end
  end)
end)
