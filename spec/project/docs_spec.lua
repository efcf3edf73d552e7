-- README.md, docs/ and bench/results/ stay true: their code and commands run on tiny models, their links lead somewhere, their tables
-- agree with what there is.
local command = require "support.command"
local tiny = require "support.tiny"
local tree = require "support.tree"

local MODEL = "models%-cache/SmolLM2%-135M%-Instruct%.Q4_1%.gguf"
-- Folders that stand for models of these names.
local FOLDERS = {
  ["privacy-filter"] = "spec/fixtures/hf/privacy_filter", ["all-MiniLM-L6-v2"] = "spec/fixtures/hf/bert",
  ["cross-encoder"] = "spec/fixtures/hf/cross_encoder", ["llama-base"] = "spec/fixtures/hf/llama",
}

local README = tree.read "README.md"
local PAGES = { "README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md" }
for _, folder in ipairs { "docs", "bench" } do
  for _, path in ipairs(tree.files(folder, "md")) do PAGES[#PAGES + 1] = path end
end

-- Code of a page in a language.
local function blocks(path, language)
  local list = {}
  for text in tree.read(path):gmatch("\n```" .. language .. "\n(.-)\n```") do list[#list + 1] = text end
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

-- Runs Lua code in an empty folder, with the modules of this tree.
local function run_lua(script)
  local folder = tree.folder()
  script = script:gsub(MODEL, pwd() .. "/" .. tiny.path())
  script = script:gsub('ane.load(%(?) ?"([%w-]+)"', function(open, name)
    return FOLDERS[name] and ("ane.load%s %q"):format(open, pwd() .. "/" .. FOLDERS[name])
  end)
  script = script:gsub('"adapters/%w+"', ("%q"):format(pwd() .. "/spec/fixtures/hf/lora_llama"))
  local file <close> = assert(io.open(folder .. "/page.lua", "w"))
  file:write(script)
  file:close()
  local path, cpath = package.path:gsub("%./", pwd() .. "/"), package.cpath:gsub("%./", pwd() .. "/")
  local ok, text = tree.run(("cd '%s' && LUA_PATH='%s' LUA_CPATH='%s' lua5.4 page.lua"):format(folder, path, cpath))
  tree.remove(folder)
  return ok, text
end

-- Runs a line of shell code; installing is only looked at.
local function run_line(line)
  local build = os.getenv "ANE_BUILD" or "build/release"
  if line:find("build/bin/ane", 1, true) then
    return tree.run((line:gsub(MODEL, tiny.path()):gsub("build/bin/ane", build .. "/bin/ane")))
  elseif line:match "^luarocks" then
    assert.is_truthy(tree.read(line:match "%S+$"))
    return line:find(" --lua-version 5.4 ", 1, true) ~= nil, "Debian's luarocks builds for another Lua unless told"
  end
  local target = line:match "%f[%w]make (%l+)"
  if not target then return false, "neither a command of ane nor of make" end
  return tree.run("make --no-print-directory -n " .. target)
end

-- The heading of a link's target as GitHub makes it.
local function anchor(heading)
  return (heading:lower():gsub("`", ""):gsub("[^%w%s_-]", ""):gsub("%s", "-"))
end

-- The words in backquotes of the row of docs/json.md that begins with `name`.
local function row(name)
  local line = tree.read("docs/json.md"):match("\n| `" .. name .. "` |([^\n]*)")
  local list = {}
  for word in assert(line, "no row for " .. name):gmatch "`([^`]+)`" do list[#list + 1] = word end
  return list, line
end

-- The files in types/, types/ane.lua first.
local STUB = tree.read "types/ane.lua"
for _, path in ipairs(tree.files("types", "lua")) do
  if path ~= "types/ane.lua" then STUB = STUB .. tree.read(path) end
end

describe("the documents", function()
  it("begin with a command that works within the first 20 lines of README.md", function()
    local _, lines = README:match("^(.-)\n```sh\n"):gsub("\n", "")
    assert.is_true(lines < 20)
  end)

  for _, path in ipairs(PAGES) do
    it("have Lua code that runs, one block after the other: " .. path, function()
      local code = blocks(path, "lua")
      if #code == 0 then return end
      if path == "docs/reference.md" then -- its examples are about a model that is open
        table.insert(code, 1, 'local model = assert(require("ane").load "models-cache/SmolLM2-135M-Instruct.Q4_1.gguf")')
      end
      local ok, text = run_lua(table.concat(code, "\n"))
      assert.is_true(ok, text)
    end)

    it("have commands that run: " .. path, function()
      for _, block in ipairs(blocks(path, "sh")) do
        for line in block:gmatch "[^\n]+" do
          local ok, text = run_line(line)
          assert.is_true(ok, line .. "\n" .. tostring(text))
        end
      end
    end)

    it("have links and file names that exist: " .. path, function()
      local text = tree.read(path):gsub("\n```.-\n```", "")
      local base = path:match "^(.*/)" or ""
      for target in text:gmatch "%]%(([^)%s]+)%)" do
        if not target:find "^https?://" then
          local file, place = target:match "^([^#]*)#?(.*)$"
          file = file == "" and path or (base .. file):gsub("[^/]+/%.%./", "")
          local page = tree.read(file)
          local found = place == ""
          for heading in ("\n" .. page):gmatch "\n#+ ([^\n]+)" do found = found or anchor(heading) == place end
          assert.is_true(found, target)
        end
      end
      for name in text:gmatch "`([%w_%./-]+%.%l+)`" do
        local folder = name:match "^(%l+)/"
        if folder and folder ~= "build" and folder ~= "models-cache" and not name:find "%u" then
          assert.is_true(tree.exists(name), path .. " names " .. name)
        end
      end
    end)
  end

  it("name each command of ane, and the keys of its --json", function()
    local text = README .. tree.read "docs/guide.md" .. tree.read "docs/json.md"
    for _, name in ipairs(require("ane.cli").commands) do
      local named = text:find("ane " .. name, 1, true) or text:find("| `" .. name .. "` |", 1, true) or name == "chat" or name == "repl"
      assert.is_truthy(named, "the command " .. name .. " is not named")
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
    local keys = tree.read("docs/json.md"):match "`timings` has.*"
    for key in pairs(outputs.run.timings) do assert.is_truthy(keys:find("`" .. key .. "`", 1, true), key) end
  end)

  it("list the architectures that there are", function()
    local models = tree.read "docs/models.md"
    for _, path in ipairs(tree.files("models", "lua")) do
      local recipe = assert(loadfile(path))()
      local line = models:match("\n|[^\n]*`" .. path:gsub("%.", "%%.") .. "`[^\n]*")
      assert.is_truthy(line, path)
      for _, name in ipairs(recipe.architectures) do assert.is_truthy(line:find("`" .. name .. "`", 1, true), name) end
    end
  end)

  -- Names in the first column of the tables of a section of the guide.
  local function options_of(section)
    local set, count = {}, 0
    local text = tree.read("docs/guide.md"):match("\n## " .. section .. "\n(.-)\n## ")
    for first in text:gmatch "\n| (`[^|]*) |" do
      for name in first:gmatch "`([%w_]+)`" do
        set[name] = true
        count = count + 1
      end
    end
    return set, count
  end

  it("list the options of load and generate, and no others", function()
    local schema = require "ane.util.schema"
    local generate = schema.merge(require("ane.generate").rules, require("ane.generate.chat").rules, { special = {}, adapters = {} })
    for section, rules in pairs { ["Loading a model"] = require("ane.model").rules, ["Generating text"] = generate } do
      local named, count = options_of(section)
      assert.is_true(count > 10)
      for name in pairs(named) do assert.is_table(rules[name], section .. ": " .. name) end
      for name, rule in pairs(rules) do
        assert.is_true(named[name] or rule.alias ~= nil or rule.internal == true, section .. " does not name " .. name)
      end
    end
  end)

  it("name functions and files as the sources do, where they say how to add something", function()
    local sources = { table.concat(tree.files "", "\n") }
    for _, folder in ipairs { "csrc", "lua" } do
      for _, kind in ipairs { "[ch]", "def", "lua" } do
        for _, path in ipairs(tree.files(folder, kind)) do sources[#sources + 1] = tree.read(path) end
      end
    end
    local all = table.concat(sources, "\n")
    for _, path in ipairs(PAGES) do
      if path:find "^docs/adding%-" then
        for name in tree.read(path):gmatch "`(%l[%l%d]*_[%l%d_]+)`" do
          assert.is_truthy(all:find("%f[%w_]" .. name .. "%f[^%w_]"), path .. " names " .. name)
        end
      end
    end
  end)

  it("name each error code", function()
    for code in tree.read("csrc/base/status.h"):gmatch 'X%([%u]+, "(%l+)"%)' do
      if code ~= "ok" then assert.is_truthy(tree.read("docs/guide.md"):find("`" .. code .. "`", 1, true), "code: " .. code) end
    end
  end)

  it("map every folder of csrc and lua/ane", function()
    local map = tree.read "docs/architecture.md"
    for _, list in ipairs { tree.files("csrc", "[chm]"), tree.files("lua", "lua") } do
      for _, path in ipairs(list) do
        local folder = path:match "^csrc/[^/]+/" or path:match "^lua/ane/[^/]+/"
        if folder then assert.is_truthy(map:find("`" .. folder .. "`", 1, true), folder) end
      end
    end
  end)

  it("have a reference that is made from the types of now", function()
    local reference = dofile "scripts/reference.lua"
    local classes, aliases = reference.read(STUB)
    assert.is_true(reference.markdown(classes, aliases) == tree.read "docs/reference.md", "docs/reference.md is old: run make doc")
    local with, all, without = reference.coverage(classes)
    assert.equal(all, with, "functions without a description: " .. table.concat(without, " "))
  end)
end)

describe("the types for editors", function()

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
    local pool <close> = model:pool()
    local request <close> = pool:add "a"
    local functions = {}
    for name, f in pairs(ane) do functions[name] = type(f) == "function" or nil end
    local there = {
      ane = functions, model = methods(model), session = methods(session), chat = methods(chat), pieces = methods(pieces),
      pool = methods(pool), request = methods(request),
      tokenizer = methods(model.tokenizer), decoder = methods(model.tokenizer:stream()),
    }
    for class, names in pairs(there) do assert.same(names, declared(class), class) end
    local tensor = ane.tensor { 1 }
    for name in pairs(declared "tensor") do assert.is_function(tensor[name], "tensor:" .. name) end
  end)
end)
