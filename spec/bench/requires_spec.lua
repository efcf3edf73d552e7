-- The scripts of bench/ take functions of modules that have them.
local core = require "ane.core"

describe("a script of bench/", function()
  for _, name in ipairs(assert(core.list_dir "bench")) do
    if name:find "%.lua$" then
      it("finds what it takes from modules: " .. name, function()
        local text = assert(core.read_file("bench/" .. name))
        assert(load(text, "=" .. name))
        for module, field in text:gmatch 'require%(?%s*"(ane[%w_.]*)"%)?%.?([%w_]*)' do
          local loaded = require(module)
          if field ~= "" then assert.is_not_nil(loaded[field], module .. "." .. field) end
        end
      end)
    end
  end
end)
