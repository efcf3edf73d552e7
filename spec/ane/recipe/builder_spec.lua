-- The builder's methods: documented where they are, and listed in the types that the reference is made from.
local tree = require "support.tree"

-- Of each public method in the source its parameters, and the names that its comment documents.
local function methods()
  local found = {}
  local comment = {}
  for line in tree.read("lua/ane/recipe/builder.lua"):gmatch "([^\n]*)\n" do
    local name, params = line:match "^function Builder:(%l[%w_]*)%((.-)%)"
    if name then
      found[name] = { params = params, comment = table.concat(comment, "\n") }
      comment = {}
    elseif line:find "^%-%-" then
      comment[#comment + 1] = line
    else
      comment = {}
    end
  end
  return found
end

-- Of each function of the class its parameters, in types/recipe.lua.
local function types()
  local classes = dofile("scripts/reference.lua").read(tree.read "types/recipe.lua")
  for _, class in ipairs(classes) do
    if class.name == "ane.builder" then
      local found = {}
      for _, f in ipairs(class.functions) do
        local documented = {}
        for _, note in ipairs(f.notes) do
          if note.kind == "param" then documented[#documented + 1] = (note.name:gsub("%?$", "")) end
        end
        found[f.name] = { params = f.params, documented = table.concat(documented, ", "), text = f.text }
      end
      return found
    end
  end
end

describe("the builder", function()
  local here, listed = methods(), types()

  it("has the methods that types/recipe.lua lists", function()
    for name, method in pairs(here) do
      assert.is_truthy(listed[name], name .. " is not in types/recipe.lua")
      assert.equal(method.params, listed[name].params, name)
      assert.equal(method.params, listed[name].documented, name)
      assert.not_equal("", listed[name].text, name)
    end
    for name in pairs(listed) do assert.is_truthy(here[name], name .. " is not a method of the builder") end
  end)

  it("documents each parameter, and what a method gives", function()
    for name, method in pairs(here) do
      assert.matches("^%-%-%- %u", method.comment, nil, nil, name .. " has no description")
      local names = {}
      for param in method.comment:gmatch "%-%- @param ([%w_]+) " do names[#names + 1] = param end
      assert.equal(method.params, table.concat(names, ", "), name)
      local gives = not (name == "scope" or name == "layer" or name == "ignore")
      assert.equal(gives, method.comment:find("-- @return ", 1, true) ~= nil, name)
    end
  end)
end)
