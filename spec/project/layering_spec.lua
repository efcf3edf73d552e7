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

-- Lua modules: what each may require. A name that ends in "." stands for a folder.
local LUA = {
  ["ane"] = "ane.core ane.isa ane.loader ane.model",
  ["ane.schema"] = "", ["ane.stops"] = "", ["ane.stream"] = "",
  ["ane.isa"] = "ane.core", ["ane.progress"] = "ane.core", ["ane.sampler"] = "ane.core", ["ane.config"] = "ane.schema",
  ["ane.tokenizer"] = "ane.core ane.schema",
  ["ane.session"] = "ane.schema",
  ["ane.generate"] = "ane.core ane.sampler ane.schema ane.stops",
  ["ane.chat"] = "ane.generate ane.jinja ane.schema ane.stream",
  ["ane.loader"] = "ane.config ane.core ane.recipe ane.tokenizer",
  ["ane.model"] = "ane.chat ane.core ane.generate ane.isa ane.loader ane.progress ane.schema ane.session ane.stream",
  ["ane.jinja"] = "ane.jinja. lpeg", ["ane.jinja."] = "ane.jinja. lpeg",
  ["ane.recipe"] = "ane.recipe. ane.core ane.config", ["ane.recipe."] = "ane.recipe. ane.core ane.config",
  ["ane.models."] = "ane.recipe.",
  ["ane.cli"] = "ane argparse", ["ane.cli."] = "ane argparse readline",
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

local function folder_of(module)
  return module:match "^(.*%.)[^.]*$" or ""
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
      local rule = assert(LUA[module] or LUA[folder_of(module)], "a module that has no layer: " .. module)
      local allowed = words(rule)
      local code = tree.read(path):gsub("%-%-[^\n]*", "")
      for name in code:gmatch '%f[%w]require%s*%(?%s*"([^"]+)"' do
        local any = module:match "^ane%.cli" and name:match "^ane"
        if not (any or allowed[name] or allowed[folder_of(name)]) then bad[#bad + 1] = module .. " requires " .. name end
      end
    end
    assert.same({}, bad)
  end)
end)
