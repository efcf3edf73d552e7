-- What holds for every source file.
local tree = require "support.tree"

local MOST_LINES = 800

local function each(folders, extension, fn)
  local bad = {}
  for _, folder in ipairs(folders) do
    for _, path in ipairs(tree.files(folder, extension)) do
      local fault = fn(path)
      if fault then bad[#bad + 1] = path .. ": " .. fault end
    end
  end
  assert.same({}, bad)
end

describe("source files", function()
  it("have at most " .. MOST_LINES .. " lines, unless they are generated", function()
    local function check(path)
      local text = tree.read(path)
      if text:match "^[^\n]*[Gg]enerated" then return nil end
      local _, lines = text:gsub("\n", "")
      return lines > MOST_LINES and lines .. " lines" or nil
    end
    each({ "csrc", "bench", "fuzz" }, "[chm]", check)
    each({ "lua", "models", "spec", "examples", "scripts", "types", "fuzz" }, "lua", check)
  end)

  it("have names of their own in csrc", function()
    local seen = {}
    each({ "csrc" }, "c", function(path)
      local name = path:match "[^/]+$"
      local other = seen[name]
      seen[name] = path
      return other and "has the name of " .. other
    end)
  end)

  it("say what they are for, in Lua", function()
    each({ "lua", "models", "examples", "scripts", "types", "fuzz" }, "lua", function(path)
      local text = tree.read(path):gsub("^#![^\n]*\n", "")
      return not text:match "^%-%-" and "has no comment at its head" or nil
    end)
  end)

  it("end with a line end and hold no tabs, blanks at ends of lines or carriage returns", function()
    local function check(path)
      local text = tree.read(path)
      if text ~= "" and text:sub(-1) ~= "\n" then return "does not end with a line end" end
      if text:find "[ \t]\n" then return "blanks at the end of line " .. select(2, text:sub(1, text:find "[ \t]\n"):gsub("\n", "")) + 1 end
      if text:find "\r\n" then return "carriage returns" end
      if text:find "\n *\t" then return "tabs" end
    end
    each({ "csrc", "bench", "fuzz" }, "[chm]", check)
    each({ "csrc" }, "def", check)
    each({ "lua", "models", "spec", "examples", "scripts", "types", "fuzz" }, "lua", check)
  end)

  it("have no inline function that a linker might take from another level's object", function()
    each({ "csrc" }, "[ch]", function(path)
      for line in tree.code(path):gmatch "[^\n]+" do
        if line:match "%f[%w_]inline%f[^%w_]" and not line:match "%f[%w_]static%f[^%w_]" then return line end
      end
    end)
  end)

  it("are built without flags that break NaN, infinity or other machines", function()
    for _, path in ipairs { "Makefile", "scripts/tasks.mk", "ane-scm-1.rockspec" } do
      local text = tree.read(path)
      for _, flag in ipairs { "ffast-math", "Ofast", "march=native", "mtune=native" } do
        assert.is_nil(text:find(flag, 1, true), path .. " has " .. flag)
      end
    end
  end)

  it("name no path of the machine they were written on", function()
    -- Split, or this file would name them.
    local words = { "/wo" .. "rk/", "/ro" .. "ot/", "/ho" .. "me/", "ane%-check" .. "%-cache" }
    each({ "" }, nil, function(path)
      local text = tree.read(path)
      if text:find("\0", 1, true) then return nil end -- data
      for _, word in ipairs(words) do
        if text:find(word) then return "names " .. word end
      end
    end)
  end)
end)
