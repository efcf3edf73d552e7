-- Who may use whom, in C and in Lua.
local tree = require "support.tree"

-- What each folder of csrc/ may include besides itself. `base` is open to all and shows a header per structure; of the
-- others only X/X.h and lists (.def) are seen from outside.
local C = {
  base = "", platform = "", tensor = "platform", text = "", sampling = "",
  formats = "platform tensor", quant = "platform tensor", graph = "tensor", passes = "tensor quant graph",
  mil = "tensor quant formats graph passes", kernels = "platform tensor quant", exec = "platform tensor quant graph kernels",
  binding = "platform tensor text sampling formats quant graph passes mil kernels exec",
}

-- Seen from outside besides X/X.h: functions small enough to be inline, which most files with floats in them do not need.
local OPEN = { ["tensor/half.h"] = true }

-- Below the binding no function prints, ends the process or reads the environment.
local FORBIDDEN = {
  "exit", "_exit", "quick_exit", "abort", "assert", "printf", "fprintf", "vprintf", "puts", "fputs", "putchar", "perror", "getenv",
}

-- Lua modules, lowest first: each may require those of the lines above it and, in a folder (a name that ends in a dot and
-- stands for the folder's own module, too), its neighbours.
local LUA = {
  "ane.core lpeg argparse readline",
  "ane.bioes ane.isa ane.progress ane.schema ane.stops",
  "ane.config. ane.golden ane.jinja. ane.recipe. ane.sampler ane.session ane.stream ane.tensor_view ane.tokenizer",
  "ane.classify ane.generate ane.loader ane.models.",
  "ane.chat ane.quantise. ane.trace",
  "ane.model",
  "ane.check.",
  "ane",
  "ane.cli. examples.",
}

-- Of these nothing else may be used, so that each can be read, or replaced, by itself.
local ONLY = {
  ["ane.jinja."] = "ane.jinja. lpeg",
  ["ane.models."] = "ane.recipe.",
  ["examples."] = "ane",
}

local function words(list)
  local set = {}
  for word in list:gmatch "%S+" do set[word] = true end
  return set
end

local function module_of(path)
  local name = path:gsub("^lua/", ""):gsub("^models/", "ane/models/"):gsub("%.lua$", ""):gsub("/init$", "")
  return (name:gsub("/", "."))
end

-- The level of a module, and the name under which it is listed.
local function level_of(module)
  for level, line in ipairs(LUA) do
    local set = words(line)
    for name = 1, 2 do
      local listed = name == 1 and module or module:match "^.*%." or ""
      if set[listed] then return level, listed end
      if set[module .. "."] then return level, module .. "." end
    end
  end
end

describe("layering", function()
  it("holds for every #include in csrc", function()
    local bad = {}
    for _, path in ipairs(tree.files("csrc", "[ch]")) do
      local folder = path:match "^csrc/([^/]+)/"
      local allowed = words(assert(C[folder], "a folder that has no layer: " .. path))
      for wanted in tree.read(path):gmatch '#%s*include%s*"([^"]+)"' do
        local other, rest = wanted:match "^([^/]+)/(.+)$"
        local public = rest and (rest == other .. ".h" or rest:match "^[^/]+%.def$" or OPEN[wanted])
        local open = other == folder or other == "base" or allowed[other] and public
        if not other or not open then bad[#bad + 1] = path .. " includes " .. wanted end
      end
    end
    assert.same({}, bad)
  end)

  it("keeps Lua in the binding and the operating system in platform", function()
    local bad = {}
    for _, path in ipairs(tree.files("csrc", "[ch]")) do
      local code = tree.code(path)
      if not path:match "^csrc/binding/" then
        for _, line in ipairs(tree.grep(path, code, "#%s*include%s*<l[ua][ua][^>]*%.h>")) do bad[#bad + 1] = line end
      end
      if not path:match "^csrc/platform/" then
        for _, name in ipairs { "__APPLE__", "__linux__", "_WIN32" } do
          for _, line in ipairs(tree.grep(path, code, name)) do bad[#bad + 1] = line end
        end
      end
    end
    assert.same({}, bad)
  end)

  it("lets nothing below the binding print, end the process or read the environment", function()
    local bad = {}
    for _, path in ipairs(tree.files("csrc", "[ch]")) do
      if not path:match "^csrc/binding/" then
        local code = tree.code(path)
        for _, name in ipairs(FORBIDDEN) do
          for _, line in ipairs(tree.grep(path, code, "%f[%w_]" .. name .. "%s*%(")) do bad[#bad + 1] = line end
        end
      end
    end
    assert.same({}, bad)
  end)

  it("holds for every require", function()
    local bad = {}
    local files = tree.files("lua", "lua")
    for _, folder in ipairs { "models", "examples" } do
      for _, path in ipairs(tree.files(folder, "lua")) do files[#files + 1] = path end
    end
    for _, path in ipairs(files) do
      local module = module_of(path)
      local level, listed = level_of(module)
      assert(level, "a module that is on no line of LUA, at the head of this file: " .. module)
      local only = ONLY[listed] and words(ONLY[listed])
      local code = tree.read(path):gsub("%-%-[^\n]*", "")
      for name in code:gmatch '%f[%w]require%s*%(?%s*"([^"]+)"' do
        local other, other_listed = level_of(name)
        local fine = other and (other < level or other_listed == listed) and (not only or only[other_listed])
        if not fine then bad[#bad + 1] = module .. " requires " .. name end
      end
    end
    assert.same({}, bad)
  end)
end)
