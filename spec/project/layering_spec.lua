-- Who may use whom, in C and in Lua.
local tree = require "support.tree"

-- What each folder of csrc/ may include besides itself. `base` is open to all and shows a header per structure. Of the others
-- only X/X.h and lists (.def) are seen from outside.
local C = {
  base = "", platform = "", session = "platform", tensor = "platform", text = "", sampling = "", grammar = "", vocabulary = "text formats",
  formats = "platform tensor", quant = "platform tensor", graph = "tensor", passes = "tensor quant graph", kv = "platform",
  mil = "tensor quant formats graph passes", kernels = "platform tensor quant", exec = "platform session tensor quant graph kernels kv",
  prim = "platform tensor quant kernels", interp = "platform session tensor formats prim kernels",
  coreml = "platform tensor", http = "platform", fetch = "",
  binding = "platform session tensor text sampling grammar formats vocabulary quant graph passes mil kernels kv exec prim interp coreml "
    .. "http fetch",
}

-- Seen from outside besides X/X.h: functions small enough to be inline, and parts that few who use the folder need.
local OPEN = {
  ["tensor/dyn.h"] = true, ["tensor/half.h"] = true, ["tensor/rows.h"] = true, ["quant/weight_schemes.h"] = true,
  ["tensor/finite.h"] = true, ["quant/compensate.h"] = true, ["quant/gradient.h"] = true,
  ["grammar/number.h"] = true, ["kernels/recurrent.h"] = true, ["platform/append.h"] = true,
  ["platform/map_guard.h"] = true, ["platform/sandbox.h"] = true, ["platform/shared_wait.h"] = true, ["platform/signals.h"] = true,
}

-- What each folder inside a folder of csrc/ may include besides itself and the headers of the folder that it is in. A folder
-- includes nothing of the folders in it, but for the headers that UMBRELLA names.
local INNER = {
  ["formats/proto"] = "", -- headers are made from .proto files
  ["formats/onnx"] = "formats/proto", ["formats/mil"] = "formats/proto", ["formats/mlpackage"] = "formats/mil", ["formats/aimodel"] = "",
  ["binding/tensor"] = "", ["binding/formats"] = "binding/tensor", ["binding/text"] = "binding/formats",
  ["binding/model"] = "binding/tensor binding/formats", ["binding/grammar"] = "binding/tensor binding/text", ["binding/http"] = "",
  ["binding/fetch"] = "", ["binding/mpi"] = "",
  ["binding/coreml"] = "binding/tensor binding/formats binding/model", ["binding/testing"] = "binding/tensor binding/model",
  ["kernels/vec"] = "", ["kernels/ref"] = "kernels/vec", ["kernels/x86"] = "kernels/vec", ["kernels/arm"] = "kernels/vec",
}

-- Headers that show a whole folder, inner folders included. Nothing inside the folder includes them.
local UMBRELLA = { ["formats/formats.h"] = true }

-- Below the binding no function prints, ends the process or reads the environment.
local FORBIDDEN = {
  "exit", "_exit", "quick_exit", "abort", "assert", "printf", "fprintf", "vprintf", "puts", "fputs", "putchar", "perror", "getenv",
}

-- What each folder of Lua modules may require besides itself, when it loads and later. A name is a folder of lua/ane/, or a module:
-- core is the C module, ane the public table.
local LUA = {
  ["util"] = "core",
  ["jinja"] = "lpeg",
  ["tokenizer"] = "core util",
  ["recipe"] = "core util",
  ["models"] = "recipe",
  ["grammar"] = "core util",
  ["pool"] = "core util",
  ["serve"] = "core util grammar",
  ["batch"] = "core util classify model pool serve",
  ["tools"] = "core util grammar jinja lpeg",
  ["hub"] = "core util",
  ["generate"] = "core util jinja tools",
  ["adapter"] = "core util recipe",
  ["quantise"] = "core util embed model recipe tokenizer",
  ["coreml"] = "core util embed generate model quantise recipe tokenizer",
  ["onnx"] = "core util generate model recipe tokenizer",
  ["classify"] = "core util model",
  ["embed"] = "core util model tokenizer",
  ["pipeline"] = "core util ane coreml model recipe",
  ["model"] = "core util adapter generate pipeline pool recipe tokenizer quantise coreml onnx classify embed",
  ["evaluate"] = "core util model quantise recipe",
  ["ane"] = "core util model generate coreml evaluate grammar tools serve batch hub pipeline",
  ["cli"] = "core util jinja tokenizer generate grammar model quantise coreml classify embed evaluate serve batch hub pipeline ane "
    .. "argparse readline",
  ["examples"] = "ane recipe luv",
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

-- The name in LUA of a module: "jinja" of ane.jinja and of ane.jinja.eval; "ane"; what is not of ane keeps its name.
local function group_of(module)
  return module:match "^ane%.([^.]+)" or module:match "^[^.]+"
end

-- Each module of the tree with the modules that it requires.
-- @param head true: only what it requires while it is loaded
local function requires(head)
  local graph = {}
  for _, folder in ipairs { "lua", "models", "examples" } do
    for _, path in ipairs(tree.files(folder, "lua")) do
      local list = {}
      local code = tree.read(path):gsub("%-%-[^\n]*", "")
      for indent, line in code:gmatch "([ \t]*)([^\n]*)" do
        for name in line:gmatch '%f[%w]require%s*%(?%s*"([^"]+)"' do
          if indent == "" or not head then list[#list + 1] = name end
        end
      end
      graph[module_of(path)] = list
    end
  end
  return graph
end

-- What a file of csrc includes.
local function includes(path) return tree.read(path):gmatch '#%s*include%s*"([^"]+)"' end

-- Circles of a graph {name = list of names}, each as "a -> b -> a".
local function circles_of(graph)
  local state, circles = {}, {}
  local function visit(name, path)
    if state[name] == "done" or not graph[name] then return end
    path[#path + 1] = name
    if state[name] == "open" then
      local first = #path - 1
      while path[first] ~= name do first = first - 1 end
      circles[#circles + 1] = table.concat(path, " -> ", first)
    else
      state[name] = "open"
      for _, other in ipairs(graph[name]) do visit(other, path) end
      state[name] = "done"
    end
    path[#path] = nil
  end
  local names = {}
  for name in pairs(graph) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do visit(name, {}) end
  return circles
end

describe("layering", function()
  it("holds for every #include in csrc", function()
    local bad = {}
    for _, path in ipairs(tree.files("csrc", "[chm]")) do
      local folder = path:match "^csrc/([^/]+)/"
      local allowed = words(assert(C[folder], "a folder that has no layer: " .. path))
      for wanted in includes(path) do
        local other, rest = wanted:match "^([^/]+)/(.+)$"
        local public = rest and (rest == other .. ".h" or rest:match "%.def$" or OPEN[wanted])
        local open = other == folder or other == "base" or allowed[other] and public
        if not other or not open then bad[#bad + 1] = path .. " includes " .. wanted end
      end
    end
    assert.same({}, bad)
  end)

  it("holds for the folders inside a folder of csrc", function()
    local bad = {}
    for _, path in ipairs(tree.files("csrc", "[chm]")) do
      local own, file = path:match "^csrc/(.+)/([^/]+)$"
      local outer = own:match "^[^/]+"
      local allowed = words(own == outer and "" or assert(INNER[own], "a folder that has no layer: " .. path))
      for wanted in includes(path) do
        local other = wanted:match "^(.+)/[^/]+$"
        local inner = other and other:match "^[^/]+" == outer and other ~= own and other ~= outer
        local umbrella = UMBRELLA[outer .. "/" .. file]
        if inner and not allowed[other] and not umbrella then bad[#bad + 1] = path .. " includes " .. wanted end
        if UMBRELLA[wanted] and other == outer then bad[#bad + 1] = path .. " includes " .. wanted end
      end
    end
    assert.same({}, bad)
  end)

  it("has no circle of headers that include each other", function()
    local graph = {}
    for _, path in ipairs(tree.files("csrc", "h")) do
      local list = {}
      for wanted in includes(path) do list[#list + 1] = wanted end
      graph[path:match "^csrc/(.*)"] = list
    end
    assert.same({}, circles_of(graph))
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
    for module, list in pairs(requires()) do
      local group = group_of(module)
      local allowed = words(assert(LUA[group], "a folder that has no layer: " .. module))
      for _, name in ipairs(list) do
        local other = group_of(name)
        if other ~= group and not allowed[other] then bad[#bad + 1] = module .. " requires " .. name end
      end
    end
    table.sort(bad)
    assert.same({}, bad)
  end)

  -- A method of a low module may load a high one when it is called (ane.model does so for what few programs use).
  it("has no circle of modules that load each other", function()
    assert.same({}, circles_of(requires(true)))
  end)
end)
