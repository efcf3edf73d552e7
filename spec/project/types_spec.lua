-- Lists of quant types that stand in text: types/ane.lua has just those that code takes from csrc/tensor/dtype.def.
local weights = require "ane.model.weights"
local types = require "ane.quantise.types"

local function alias(name)
  for line in io.lines "types/ane.lua" do
    local list = line:match("^%-%-%-@alias " .. name:gsub("%.", "%%.") .. " (.+)")
    if list then
      local names = {}
      for one in list:gmatch '"([^"]+)"' do names[#names + 1] = one end
      return names
    end
  end
end

describe("types/ane.lua", function()
  it("lists the ways to hold weights", function() assert.same(weights.names, alias "ane.weights") end)
  it("lists the types of GGUF weights", function() assert.same(types.names, alias "ane.gguf_type") end)
end)
