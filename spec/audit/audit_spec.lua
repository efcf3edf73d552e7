-- A few cases of each property of the audit, from fixed seeds; `make audit` tries others for as long as it is told to.
local draw = require "audit.draw"
local properties = require "audit.properties"

describe("the audit", function()
  for _, p in ipairs(properties) do
    it("holds: " .. p.title, function()
      local missing = p.missing and p.missing()
      if missing then return pending(missing) end
      for seed = 1, p.cases do
        local ok, message = xpcall(p.case, debug.traceback, draw.new(seed))
        assert(ok, ("%s, seed %d: %s"):format(p.name, seed, message))
      end
    end)
  end
end)
