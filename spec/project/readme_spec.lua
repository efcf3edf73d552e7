-- README.md stays true: its code runs on a tiny model, its commands exist, its tables agree with what there is.
local command = require "support.command"
local tiny = require "support.tiny"
local tree = require "support.tree"

local README = tree.read "README.md"
local MODEL = "models%-cache/SmolLM2%-135M%-Instruct%.Q4_1%.gguf"

local function blocks(language)
  local list = {}
  for text in README:gmatch("\n```" .. language .. "\n(.-)\n```") do list[#list + 1] = text end
  assert(#list > 0)
  return list
end

local function pwd()
  return (select(2, tree.run "pwd"):gsub("\n", ""))
end

local function set_of(list)
  local set = {}
  for _, name in ipairs(list) do set[name] = true end
  return set
end

-- The words in backquotes of the row of a table that begins with `name`, behind it.
local function row(name)
  local line = README:match("\n| `" .. name .. "` |([^\n]*)")
  local list = {}
  for word in assert(line, "no row for " .. name):gmatch "`([^`]+)`" do list[#list + 1] = word end
  return list, line
end

describe("README.md", function()
  it("has a command that works within its first 20 lines", function()
    local _, lines = README:match("^(.-)\n```sh\n"):gsub("\n", "")
    assert.is_true(lines < 20)
  end)

  it("has Lua code that runs, one block after the other", function()
    local folder = tree.folder()
    finally(function() tree.remove(folder) end)
    local script = table.concat(blocks "lua", "\n"):gsub(MODEL, pwd() .. "/" .. tiny.path())
    script = script:gsub('"README.md"', ("%q"):format(pwd() .. "/README.md"))
    local file <close> = assert(io.open(folder .. "/readme.lua", "w"))
    file:write(script)
    file:close()
    local path, cpath = package.path:gsub("%./", pwd() .. "/"), package.cpath:gsub("%./", pwd() .. "/")
    local ok, text = tree.run(("cd '%s' && LUA_PATH='%s' LUA_CPATH='%s' lua5.4 readme.lua"):format(folder, path, cpath))
    assert.is_true(ok, text)
  end)

  it("has commands that run", function()
    local build = os.getenv "ANE_BUILD" or "build/release"
    for _, block in ipairs(blocks "sh") do
      for line in block:gmatch "[^\n]+" do
        local target = line:match "%f[%w]make (%l+)"
        if line:find("build/bin/ane", 1, true) then
          local ok, text = tree.run((line:gsub(MODEL, tiny.path()):gsub("build/bin/ane", build .. "/bin/ane")))
          assert.is_true(ok, line .. "\n" .. text)
        elseif line:match "^luarocks" then
          assert.is_truthy(tree.read(line:match "%S+$"))
          assert.is_truthy(line:find(" --lua-version 5.4 ", 1, true), "Debian's luarocks builds for another Lua unless told: " .. line)
        else
          assert.is_truthy(target, "what is this? " .. line)
          local ok, text = tree.run("make --no-print-directory -n " .. target)
          assert.is_true(ok, line .. "\n" .. text)
        end
      end
    end
  end)

  it("names each command of ane, and the keys of its --json", function()
    for _, name in ipairs(require("ane.cli").commands) do
      assert.is_truthy(README:find("ane " .. name, 1, true), "the command " .. name .. " is not named")
    end
    local path = tiny.path()
    local outputs = {
      run = command.json { "run", path, "--ids", "1,2", "--max-tokens", "2" },
      logits = command.json { "logits", path, "--ids", "1,2" },
      tokenize = command.json({ "tokenize", path }, "Hello"),
      check = command.json { "check", "spec/fixtures/check/llama.gguf", "spec/fixtures/check/llama.golden.json" },
      bench = command.json { "bench", path, "-p", "4", "-n", "2", "-r", "1" },
    }
    for name, out in pairs(outputs) do
      local words, line = row(name)
      local named = set_of(words)
      for key in pairs(out) do assert.is_true(named[key], name .. " --json also has " .. key) end
      local plain = line:match "^[^;:(,]*"
      for key in plain:gmatch "`([%l_]+)`" do assert.is_not_nil(out[key], name .. " --json has no " .. key) end
    end
    for key in pairs(outputs.run.timings) do assert.is_truthy(README:match("`timings` has[^\n]*`" .. key .. "`"), key) end
  end)

  it("lists the architectures that there are", function()
    for _, path in ipairs(tree.files("models", "lua")) do
      local recipe = assert(loadfile(path))()
      local line = README:match("\n|[^\n]*`" .. path:gsub("%.", "%%.") .. "`[^\n]*")
      assert.is_truthy(line, path)
      for _, name in ipairs(recipe.architectures) do assert.is_truthy(line:find("`" .. name .. "`", 1, true), name) end
    end
  end)

  it("names options of load and generate that there are", function()
    local load = README:match "\n`ane%.load%(path, options%)`:(.-)\n\n":gsub("%b()", "")
    for name in load:gmatch "`([%w_]+)`" do assert.is_table(require("ane.model").rules[name], name) end
    local rules = require("ane.util.schema").merge(require("ane.generate").rules, require("ane.generate.chat").rules, { special = {} })
    local count = 0
    for name in README:match("\nOptions of `generate`[^:]*:(.-)\n\n"):gmatch "`([%w_]+)`" do
      assert.is_table(rules[name], name)
      count = count + 1
    end
    assert.is_true(count > 15)
  end)

  it("names each error code", function()
    for code in tree.read("csrc/base/status.h"):gmatch 'X%([%u]+, "(%l+)"%)' do
      if code ~= "ok" then assert.is_truthy(README:find("`" .. code .. "`", 1, true), "code: " .. code) end
    end
  end)

  it("maps every folder of csrc", function()
    for _, path in ipairs(tree.files("csrc", "[ch]")) do
      local folder = path:match "^csrc/[^/]+/"
      assert.is_truthy(README:find("`" .. folder .. "`", 1, true), folder)
    end
  end)

  it("names files that exist", function()
    for name in README:gmatch "`([%w_%./]+%.%l+)`" do
      local folder = name:match "^(%l+)/"
      if folder and folder ~= "build" then assert.is_truthy(tree.read(name)) end
    end
  end)
end)

describe("the types for editors", function()
  local STUB = tree.read "types/ane.lua"

  local function declared(class)
    local set = {}
    for name in STUB:gmatch("\nfunction " .. class .. "[.:]([%w_]+)%(") do set[name] = true end
    assert(next(set), class)
    return set
  end

  local function methods(value)
    local mt = getmetatable(value)
    local index = mt.__names or mt.__index
    local set = {}
    for name, f in pairs(type(index) == "table" and index or mt) do
      if type(f) == "function" and not name:match "^_" then set[name] = true end
    end
    return set
  end

  it("declare what there is, and all of it", function()
    local ane = require "ane"
    local model <close> = tiny.load()
    local session <close> = model:session()
    local chat <close> = model:chat()
    local pieces <close> = model:stream("a", { max_tokens = 1 })
    local functions = {}
    for name, f in pairs(ane) do functions[name] = type(f) == "function" or nil end
    local there = {
      ane = functions, model = methods(model), session = methods(session), chat = methods(chat), pieces = methods(pieces),
      tokenizer = methods(model.tokenizer), decoder = methods(model.tokenizer:stream()),
    }
    for class, names in pairs(there) do assert.same(names, declared(class), class) end
    local tensor = ane.tensor { 1 }
    for name in pairs(declared "tensor") do assert.is_function(tensor[name], "tensor:" .. name) end
  end)
end)
