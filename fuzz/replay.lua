--- Runs targets over inputs without libFuzzer: over their corpora, seeds, or files that are named.
-- usage (from the root of the tree, after `make`): lua5.4 fuzz/replay.lua [TARGET [FILE ...]]
--        lua5.4 fuzz/replay.lua --seeds TARGET FOLDER        writes the seeds, which are made from the specs' fixtures
-- As a module: `replay.targets()`, `replay.inputs(target)` -> list of {name, bytes}, `replay.run(target, bytes)`

local main = arg and arg[0] and arg[0]:find "fuzz/replay%.lua$"
if main then
  local build = os.getenv "ANE_BUILD" or "build/release"
  package.path = "lua/?.lua;lua/?/init.lua;fuzz/?.lua;spec/?.lua;" .. package.path
  package.cpath = build .. "/?.so;" .. package.cpath
end

local core = require "ane.core"

local M = {}

--- Names of all targets, in order.
function M.targets()
  local out = {}
  for _, name in ipairs(assert(core.list_dir "fuzz/targets")) do out[#out + 1] = name:match "^([%w_]+)%.lua$" end
  table.sort(out)
  return out
end

local loaded = {}

--- A target's table.
function M.target(name)
  loaded[name] = loaded[name] or dofile(("fuzz/targets/%s.lua"):format(name))
  return loaded[name]
end

--- The files of a corpus and the seeds: list of {name, bytes}.
function M.inputs(name)
  local out = {}
  local folder = "fuzz/corpus/" .. name
  local files = core.list_dir(folder) or {}
  table.sort(files)
  for _, file in ipairs(files) do out[#out + 1] = { file, assert(core.read_file(folder .. "/" .. file)) } end
  local target = M.target(name)
  for _, seed in ipairs(target.seeds and target.seeds() or {}) do out[#out + 1] = seed end
  return out
end

--- Runs a target once. It raises where a promise is broken.
function M.run(name, bytes) M.target(name).run(bytes) end

--- Writes a target's seeds into a folder, and its words as a dictionary of libFuzzer, FOLDER.dict.
function M.write_seeds(name, folder)
  assert(os.execute(("rm -rf '%s'; mkdir -p '%s'"):format(folder, folder)))
  local lines = {}
  for i, word in ipairs(M.target(name).words or {}) do
    lines[i] = ('"%s"\n'):format(word:gsub("[^%w_.]", function(c) return ("\\x%02X"):format(c:byte()) end))
  end
  assert(core.write_file(folder .. ".dict", table.concat(lines)))
  for _, seed in ipairs(M.target(name).seeds()) do assert(core.write_file(folder .. "/" .. seed[1], seed[2])) end
end

local function replay(names, files)
  for _, name in ipairs(names) do
    local inputs = files or M.inputs(name)
    for _, input in ipairs(inputs) do
      local started = os.clock()
      M.run(name, input[2])
      io.write(("%-14s %-40s %7d bytes %7.2f s\n"):format(name, input[1], #input[2], os.clock() - started))
    end
  end
end

if main then
  if arg[1] == "--seeds" then M.write_seeds(arg[2], arg[3])
  elseif arg[2] then
    local files = {}
    for i = 2, #arg do files[#files + 1] = { arg[i], assert(core.read_file(arg[i])) } end
    replay({ arg[1] }, files)
  else replay(arg[1] and { arg[1] } or M.targets())
  end
end

return M
