--- The kernel level: the option, else the environment's ANE_ISA, else the best of the machine.
-- Needs ane.core. Usage: `local level = isa.choose(opts.isa)`

local core = require "ane.core"

local M = {}

--- The name of the level to use.
-- @param name "ref", "avx2", ...; nil: ANE_ISA, and if that is unset or empty the best level
-- @return the name; or nil, message, code if the level is unknown or this machine cannot run it
function M.choose(name)
  local from = "isa"
  if name == nil then
    name, from = os.getenv "ANE_ISA", "ANE_ISA"
    if name == nil or name == "" then return core.isa_best() end
  end
  local list = core.isa_list()
  for _, level in ipairs(list) do
    if level == name then return level end
  end
  return nil, ("%s=%s: no such level on this machine; there are %s"):format(from, name, table.concat(list, ", ")), "invalid"
end

return M
