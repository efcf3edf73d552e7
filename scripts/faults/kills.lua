--- Kills a command (SIGKILL) at random moments and checks what it leaves. An output must be complete or as before, and the next run must
-- complete the work and remove what the killed one left.
-- usage: lua5.4 scripts/faults/kills.lua [--kills N] [--seed N] [TASK ...]      N: kills of each task; default 200
-- Tasks: quantise, export, coreai, save, pull, batch. ANE_BUILD names the build folder.

local build = os.getenv "ANE_BUILD" or "build/release"
local lua = os.getenv "LUA" or "lua5.4"
package.path = "./lua/?.lua;./lua/?/init.lua;./spec/?.lua;" .. package.path
package.cpath = "./" .. build .. "/?.so;" .. package.cpath

local core = require "ane.core"
local tree = require "support.tree"

local MODEL, WORDS = "spec/fixtures/gguf/llama-kquants.gguf", "spec/fixtures/gguf/llama-q8_0.gguf"
local ANE = build .. "/bin/ane"

local most, seed, only = 200, os.time(), {}
do
  local i = 1
  while arg[i] do
    if arg[i] == "--kills" or arg[i] == "--seed" then
      local n = assert(math.tointeger(arg[i + 1]), arg[i] .. " wants a whole number")
      if arg[i] == "--kills" then most = n else seed = n end
      i = i + 1
    else only[arg[i]] = true end
    i = i + 1
  end
end
math.randomseed(seed)

local folder = tree.folder()
local function at(name) return folder .. "/" .. name end

-- The paths of the files below a folder with their hashes, one per line, without those that match `ignored`.
local function contents(path, ignored)
  local list = {}
  local function walk(prefix)
    for _, name in ipairs(core.list_dir(path .. prefix) or {}) do
      local full = prefix .. "/" .. name
      if core.path_kind(path .. full) == "folder" then walk(full)
      elseif not (ignored and full:find(ignored)) then list[#list + 1] = full .. " " .. assert(core.sha256_file(path .. full)) end
    end
  end
  walk ""
  table.sort(list)
  return table.concat(list, "\n")
end

-- ---- Tasks -----------------------------------------------------------------------------------------------------------------------
-- Fields of a task: name (also that of its folder), command, env and prepare() (both optional), keeps (true: the next run continues what a
-- killed one left), check() -> problem (after a kill), done() -> problem (after a run that was not killed).

local tasks = {}

local function writes_whole(name, command, opts)
  local whole
  local task = { name = name, command = command, keeps = opts.keeps, prepare = opts.prepare, env = opts.env }
  local function output() return core.path_kind(at(name .. "/out")) and contents(at(name), opts.ignored) end
  function task.done()
    local got = contents(at(name), opts.ignored)
    whole = whole or got
    if got ~= whole then return "the output differs from the first: " .. got end
    local left = contents(at(name)):match "[^\n]*%.tmp[^\n]*" or contents(at(name)):match "[^\n]*%.partial[^\n]*"
    if left then return "left behind: " .. left end
  end
  function task.check()
    local got = output()
    if got and opts.only_out(got) ~= opts.only_out(whole) then return "a half-written output: " .. got end
  end
  tasks[#tasks + 1] = task
end

local function first_lines(pattern)
  return function(text)
    local list = {}
    for line in text:gmatch "[^\n]+" do
      if line:find(pattern) then list[#list + 1] = line end
    end
    return table.concat(list, "\n")
  end
end

writes_whole("quantise", ("%s quantise %s %s --weights q8_0 --no-progress"):format(ANE, MODEL, at "quantise/out"), {
  only_out = first_lines "^/out ",
})

writes_whole("export", ("%s export %s %s --weights int8 --layers 1 --no-progress"):format(ANE, MODEL, at "export/out"), {
  only_out = first_lines "^/out/", keeps = true,
})

writes_whole("coreai", ("%s export %s %s --target coreai --weights int8 --context 64 --no-progress"):format(ANE, MODEL, at "coreai/out"), {
  only_out = first_lines "^/out/", keeps = true,
})

-- Two sessions are saved in turn under one name.
local SAVE = [[
  package.path, package.cpath = %q, %q
  local model = assert(require "ane".load(%q, { threads = 1 }))
  local list = {}
  for i = 1, 2 do
    list[i] = assert(model:session { context = 64 })
    assert(list[i]:feed(i == 1 and { 1, 2, 3, 4, 5 } or { 9, 8, 7 }))
  end
  for i = 1, 40 do assert(list[1 + i %% 2]:save(%q)) end
]]
do
  local task = { name = "save", command = lua .. " " .. at "save.lua" }
  function task.prepare()
    assert(core.write_file(at "save.lua", SAVE:format(package.path, package.cpath, MODEL, at "save/out")))
    task.model = task.model or assert(require "ane".load(MODEL, { threads = 1 }))
  end
  function task.check()
    if not core.path_kind(at "save/out") then return end
    local session <close> = assert(task.model:session { context = 64 })
    local ok, message = session:restore(at "save/out")
    if not ok then return message end
    if session.length ~= 5 and session.length ~= 3 then return "restored " .. session.length .. " tokens" end
  end
  function task.done()
    local list = core.list_dir(at "save")
    if #list ~= 1 then return "left behind: " .. table.concat(list, ", ") end
    return task.check()
  end
  tasks[#tasks + 1] = task
end

do
  local rows = {}
  for i = 1, 40 do rows[i] = ('{"id": %d, "prompt": "Once %d", "max_tokens": %d}\n'):format(i, i, 1 + i % 7) end
  writes_whole("batch", ("%s batch %s %s -o %s --resume --ordered --no-progress"):format(ANE, WORDS, at "rows.jsonl", at "batch/out"), {
    prepare = function() assert(core.write_file(at "rows.jsonl", table.concat(rows))) end,
    only_out = first_lines "^/out ", keeps = true, ignored = "journal",
  })
end

if core.fetch_available() and tree.has "python3" then
  local server
  local function start()
    if server then return end
    os.execute(("mkfifo '%s'; python3 spec/support/hub.py '%s' <'%s' >'%s' 2>/dev/null &"):format(at "in", at "log", at "in", at "ports"))
    server = assert(io.open(at "in", "w"))
    local ports
    repeat
      core.sleep(0.02)
      ports = core.read_file(at "ports")
    until ports and ports:find "\n"
    tasks.pull.env = ("HF_ENDPOINT=http://127.0.0.1:%s HF_HUB_CACHE=%s"):format(ports:match "%d+", at "pull")
  end
  writes_whole("pull", ANE .. " pull hf:org/gguf:Q2_K --no-progress", {
    prepare = start, keeps = true, only_out = first_lines "snapshots", ignored = "%.lock",
  })
  tasks.pull = tasks[#tasks]
  -- A file of a snapshot is there only whole.
  function tasks.pull.check()
    local got, want = contents(at "pull"), {}
    for line in tasks.pull.whole:gmatch "[^\n]+" do want[line] = true end
    for line in got:gmatch "[^\n]+" do
      if line:find("/snapshots/", 1, true) and not want[line] then return "a half-written file: " .. line end
    end
  end
  local done = tasks.pull.done
  function tasks.pull.done()
    tasks.pull.whole = tasks.pull.whole or contents(at "pull")
    if contents(at "pull"):find "incomplete" then return "left behind: an .incomplete file" end
    return done()
  end
end

-- ---- Kills ------------------------------------------------------------------------------------------------------------------------

local function run(task, prefix)
  return tree.run(("env %s %s %s"):format(task.env or "", prefix or "", task.command))
end

local function empty(task)
  os.execute(("rm -rf '%s'; mkdir '%s'"):format(at(task.name), at(task.name)))
end

local failed = false

local function fail(task, what, problem)
  failed = true
  print(("%s, seed %d: %s: %s"):format(task.name, seed, what, problem))
end

local function sweep(task)
  empty(task)
  if task.prepare then task.prepare() end
  local started = core.clock()
  local ok, text = run(task)
  local seconds = core.clock() - started
  local problem = not ok and text or task.done()
  if problem then return fail(task, "undisturbed", problem) end
  local kills, ended, resumed = 0, 0, 0
  empty(task)
  while kills < most and not failed do
    ok = run(task, ("timeout -s KILL %.4f"):format(math.random() * seconds * 1.1))
    if ok then
      ended = ended + 1
    else
      kills = kills + 1
      problem = task.check()
      if problem then return fail(task, "after a kill", problem) end
    end
    -- The next run finds what this one left. It is killed too, or in one of three cases it runs to its end.
    if ok or not task.keeps or math.random(3) == 1 then
      if not ok then
        resumed = resumed + 1
        ok, text = run(task)
        problem = not ok and text
      end
      problem = problem or task.done()
      if problem then return fail(task, "the run after a kill", problem) end
      empty(task)
    end
  end
  print(("%-9s %4d kills in %.2f s of work, %d runs after one ended it, %d were not hit"):format(task.name, kills, seconds, resumed, ended))
end

print(("seed %d"):format(seed))
local all = not next(only)
for _, task in ipairs(tasks) do
  if all or only[task.name] then sweep(task) end
  only[task.name] = nil
end
if next(only) then fail({ name = next(only) }, "undisturbed", "no such task, or a tool for it is missing") end
tree.remove(folder)
os.exit(not failed, true)
