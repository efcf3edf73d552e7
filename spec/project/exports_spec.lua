-- Functions that C files export: each is called from another file, and what specs alone reach is reached by a spec.
local tree = require "support.tree"

-- Called by what is not here: Lua opens the module, the system starts the programs of bench/.
local ENTRIES = { luaopen_ane_core = true, luaopen_ane_mpi = true, main = true }

-- C source of a folder by path, without comments and strings.
local function read(folder, extension, into)
  for _, path in ipairs(tree.files(folder, extension)) do into[path] = tree.code(path) end
  return into
end

-- Macros that stand for `static inline` and the like.
local function static_macros(sources)
  local names = { static = true }
  for _, code in pairs(sources) do
    for name in code:gmatch "#%s*define%s+([%w_]+)%s+static%f[^%w_]" do names[name] = true end
  end
  return names
end

-- Names that macros paste together, as patterns whose capture is the macro's argument: ane_##id##_decode, infer_##name.
local function pasted(sources)
  local patterns = {}
  for _, code in pairs(sources) do
    for before, after in code:gmatch "([%w_]*_)##[%w_]+([#%w_]*)" do
      patterns["^" .. before .. "(.+)" .. (after:match "^##(_[%w_]+)$" or "") .. "$"] = true
    end
  end
  return patterns
end

-- Reads one file into the index: which functions it defines, and the words that it uses outside of them.
local function index_file(index, path, code)
  local head, name, inside -- text of a declaration so far, its name, the function whose body this is
  for line in (code .. "\n"):gmatch "(.-)\n" do
    local first = line:match "^([%a_][%w_]*)"
    if line:match "^}" then inside = nil end
    if first and first ~= "typedef" and not index.static[first] then
      name = line:match "^[%a_][%w_%s%*]-%f[%w_]([%w_]+)%s*%("
      head = name and ""
    elseif first then
      head, name = nil, nil
    end
    for word in line:gmatch "[%a_][%w_]*" do
      if word ~= inside and not (head and word == name) then
        index.uses[word] = index.uses[word] or {}
        index.uses[word][path] = true
      end
    end
    if head then
      head = head .. line
      local ending = head:match "[;{]"
      if ending == "{" and path:match "%.[cm]$" then
        index.definitions[name] = index.definitions[name] or {}
        table.insert(index.definitions[name], path)
        if not head:match "}%s*$" then inside = name end
      end
      if ending then head = nil end
    end
  end
end

-- Every exported function with the files that define it; every word with the files that use it.
local function read_index()
  local sources = read("bench", "c", read("csrc", "def", read("csrc", "[chm]", {})))
  local index = { static = static_macros(sources), pasted = pasted(sources), definitions = {}, uses = {} }
  for path, code in pairs(sources) do index_file(index, path, code) end
  return index
end

local function made_by_macro(index, name)
  for pattern in pairs(index.pasted) do
    local argument = name:match(pattern)
    if argument and index.uses[argument] then return true end
  end
  return false
end

local function used_elsewhere(index, name, paths)
  local own = {}
  for _, path in ipairs(paths) do own[path] = true end
  for path in pairs(index.uses[name] or {}) do
    if not own[path] then return true end
  end
  return false
end

describe("exported C functions", function()
  it("are called from another file: else they are static, or nothing calls them at all", function()
    local index, bad, count = read_index(), {}, 0
    for name, paths in pairs(index.definitions) do
      count = count + 1
      if not ENTRIES[name] and not used_elsewhere(index, name, paths) and not made_by_macro(index, name) then
        bad[#bad + 1] = paths[1] .. ": " .. name
      end
    end
    table.sort(bad)
    assert.same({}, bad)
    assert.is_true(count > 500, "only " .. count .. " functions were found")
  end)

  it("that core.testing shows to specs are used by one", function()
    local specs = {}
    for _, path in ipairs(tree.files("spec", "lua")) do specs[#specs + 1] = tree.read(path) end
    specs = table.concat(specs)
    local bad, count = {}, 0
    for _, path in ipairs(tree.files("csrc/binding", "c")) do
      if path:match "testing[^/]*$" then
        for name in tree.read(path):gmatch '{"([%a][%w_]*)", ' do
          count = count + 1
          if not specs:find("%f[%w_]" .. name .. "%f[^%w_]") then bad[#bad + 1] = path .. ": " .. name end
        end
      end
    end
    assert.same({}, bad)
    assert.is_true(count > 10, "only " .. count .. " functions were found")
  end)
end)
