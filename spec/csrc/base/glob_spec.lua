-- Patterns of names: found anywhere, * for any characters, ? for one.
local core = require "ane.core"

-- The same in Lua patterns.
local function by_lua(pattern, name)
  local p = pattern:gsub("[%^%$%(%)%%%.%[%]%+%-]", "%%%0"):gsub("%*", ".*"):gsub("%?", ".")
  return name:find(p) ~= nil
end

describe("a name pattern", function()
  it("is found anywhere in the name", function()
    local cases = {
      { "attn", "blk.0.attn_q.weight", true }, { "", "", true }, { "", "x", true }, { "x", "", false }, { "*", "", true },
      { "?", "", false },
      { "blk.?.attn", "blk.0.attn_q", true }, { "blk.?.attn", "blk.10.attn_q", false }, { "blk.*.attn", "blk.10.attn_q", true },
      { "q*weight", "blk.0.attn_q.weight", true }, { "q.bias", "blk.0.attn_q.weight", false }, { "a*b*c", "xaxxbbxcx", true },
      { "a*b*c", "acb", false }, { "**", "a", true }, { "a**b", "ab", true }, { ".", "abc", false }, { "[a]", "a", false },
    }
    for _, case in ipairs(cases) do assert.equal(case[3], core.glob(case[1], case[2]), case[1] .. " in " .. case[2]) end
  end)

  it("agrees with Lua's patterns on all short ones", function()
    local letters, patterns, names = { "a", "b", "*", "?" }, { "" }, { "" }
    local function longer(list, from, to)
      local out = {}
      for _, s in ipairs(list) do
        for i = from, to do out[#out + 1] = s .. letters[i] end
      end
      return table.move(out, 1, #out, #list + 1, list)
    end
    for _ = 1, 4 do longer(patterns, 1, 4) longer(names, 1, 2) end
    for _, pattern in ipairs(patterns) do
      for _, name in ipairs(names) do
        if core.glob(pattern, name) ~= by_lua(pattern, name) then error(pattern .. " in " .. name) end
      end
    end
  end)

  it("does not try all ways to place its stars", function()
    assert.is_false(core.glob(("a*"):rep(30) .. "b", ("a"):rep(2000))) -- would not end
  end)
end)
