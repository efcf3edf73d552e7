-- Options that need or exclude others, in every command.
local argparse = require "argparse"
local cli = require "ane.cli"
local command = require "support.command"
local filter = require "support.filter"
local relations = require "ane.cli.relations"
local tiny = require "support.tiny"

-- The options and arguments of a command by name: {words that give it, default, help}; and the words of required arguments.
local function elements(module)
  local parser, all, required = argparse(), {}, {}
  module.options(parser)
  for _, argument in ipairs(parser._arguments) do
    all[argument._name:upper()] = { words = {}, default = argument._default, help = argument._description }
    if argument._minargs > 0 then required[#required + 1] = "x" end
  end
  for _, option in ipairs(parser._options) do
    local long = option._aliases[#option._aliases]
    for _, alias in ipairs(option._aliases) do
      if alias:find "^%-%-" then long = long:find "^%-%-" and long or alias end
    end
    local words = { long }
    if option._minargs > 0 then words[2] = option._choices and option._choices[1] or "1" end
    all[long:gsub("^%-+", ""):gsub("%-", "_")] = { words = words, default = option._default, help = option._description or "" }
  end
  return all, required
end

-- Values of options whose check takes no "1".
local VALUES = { weights = "int8", head = "full", mixed = "a=int8", target = "coreai", chip = "M1", experts = "whole" }

local function give(list, name, element)
  for i, word in ipairs(element.words) do list[#list + 1] = i == 2 and VALUES[name] or word end
end

local function refused(name, words, message)
  local code, out, err = command.run(words)
  assert.equal(2, code, table.concat(words, " "))
  assert.equal("", out)
  assert.equal(("ane %s: %s\n"):format(name, message), err)
end

for _, name in ipairs(cli.commands) do
  local module = require("ane.cli." .. name)

  describe("ane " .. name, function()
    local all, required = elements(module)

    it("refuses options without what they need", function()
      for _, row in ipairs(relations.needs(module)) do
        local first, needed = all[row[1]], {}
        if first and row[2] then
          assert.is_nil(first.default, row[1] .. " has a default, so its value does not say that it was given")
          for i = 2, #row do
            assert(all[row[i]], ("%s is neither an option nor an argument of ane %s"):format(row[i], name))
            needed[i - 1] = relations.spelling(row[i])
          end
          local words = { name, table.unpack(required) }
          give(words, row[1], first)
          local there = required[1] and all.MODEL and table.concat(row, " ", 2):find "MODEL"
          if not there then refused(name, words, ("%s needs %s"):format(relations.spelling(row[1]), table.concat(needed, " or "))) end
        end
      end
    end)

    it("refuses options that exclude each other", function()
      for _, row in ipairs(module.excludes or {}) do
        for i = 2, #row do
          local words = { name, table.unpack(required) }
          for _, one in ipairs { row[1], row[i] } do
            assert(all[one] and all[one].default == nil, one)
            give(words, one, all[one])
          end
          refused(name, words, ("%s cannot be combined with %s"):format(relations.spelling(row[1]), relations.spelling(row[i])))
        end
      end
    end)

    it("has a row for each option whose help says what it goes with", function()
      for option, element in pairs(all) do
        local other = element.help:match "^With %-%-([%l-]+)"
        if other and option:find "%l" then
          local found = false
          for _, row in ipairs(relations.needs(module)) do
            local needed = " " .. table.concat(row, " ", 2) .. " "
            found = found or row[1] == option and (#row == 1 or needed:find(" " .. other:gsub("%-", "_") .. " ", 1, true) ~= nil)
          end
          assert(found, ("--%s: its help says 'With --%s'"):format(option, other))
        end
      end
    end)
  end)
end

describe("options for another kind of model", function()
  it("are refused by ane bench", function()
    local code, _, err = command.run { "bench", tiny.path(), "-p", "2", "-n", "0", "--batch", "3" }
    assert.same({ 2, ("ane bench: --batch is for a token classifier, %s is a language model\n"):format(tiny.path()) }, { code, err })
    code, _, err = command.run { "bench", filter.path, "-d", "3" }
    assert.same({ 2, ("ane bench: --depth is for a language model, %s is a token classifier\n"):format(filter.path) }, { code, err })
  end)
end)
