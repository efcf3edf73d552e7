-- Prints the report of `make coverage`: lines by folder, uncovered lines, and the totals. C is counted by gcov, Lua by lines.c.
-- usage: lua5.4 scripts/coverage/report.lua BUILD FLOOR_C FLOOR_LUA      (percent); GCOV names the gcov of the compiler
-- Exit status 1: a total is below its floor. BUILD/uncovered.txt has all lines that no spec ran.

local build, floor_c, floor_lua = arg[1], tonumber(arg[2]), tonumber(arg[3])

-- Excluded from the floor: which of these lines run depends on the CPU.
local BY_CPU = "csrc/kernels/x86"
local MOST_FILES = 25

local function lines_of(command)
  return assert(io.popen(command)):lines()
end

-- path -> { line -> did it run? }, of lines that have code
local files = {}

local function note(path, line, ran)
  files[path] = files[path] or {}
  files[path][line] = files[path][line] or ran
end

-- gcov's text: "   count:   line:source"; count is "-" for no code, "#####" for never. A header's lines come once per unit.
local function read_c()
  local path
  local list = ("find '%s/csrc' -name '*.gcno' | LC_ALL=C sort"):format(build)
  for text in lines_of(("%s | xargs '%s' -t 2>/dev/null"):format(list, os.getenv "GCOV" or "gcov")) do
    local count, line, rest = text:match "^%s*([^:]+):%s*(%d+):(.*)$"
    if line == "0" then
      path = rest:match "^Source:(.*)$" or path
    elseif count and count ~= "-" and path:match "^csrc/" then
      note(path, tonumber(line), not count:match "[#=]")
    end
  end
end

-- luac's listing heads each function with its file and gives the line of each instruction. Two instructions do not
-- count as lines: VARARGPREP, which hooks do not see, and the implicit return at the end of a function, if
-- it follows an explicit one.
local function read_lua_code(luac)
  local path, last, op, before
  local function close()
    if last and not (before or ""):match "^RETURN" then note(path, last, false) end
    last, op, before = nil, nil, nil
  end
  -- One file a call: luac 5.4.4 crashes over lists.
  for text in lines_of(("find lua models -name '*.lua' | LC_ALL=C sort | xargs -n 1 '%s' -l -p --"):format(luac)) do
    local source = text:match "^%l+ <(.-):%d+,%d+>"
    local line, name = text:match "^\t%d+\t%[(%d+)%]\t(%u[%u%d]*)"
    if source then
      close()
      path = source
    elseif line and name ~= "VARARGPREP" then
      if last then note(path, last, false) end
      last, op, before = tonumber(line), name, op
    end
  end
  close()
end

local function read_lua_runs()
  local file <close> = assert(io.open(build .. "/lines.txt"))
  for text in file:lines() do
    local path, list = text:match "^([^\t]*)\t(.*)$"
    path = path and path:match "%f[^/\0]lua/ane/.*$"
    path = path and path:gsub("^lua/ane/models/", "models/") -- a link
    local known = path and files[path]
    for line in (known and list or ""):gmatch "%d+" do
      line = tonumber(line)
      if known[line] ~= nil then known[line] = true end
    end
  end
end

local function folder_of(path)
  local folder = path:match "^(.*)/[^/]*$"
  return folder:match "^[^/]+/[^/]+/[^/]+" or folder
end

-- { lines, covered } by folder, and in all of C and of Lua.
local function count()
  local folders, totals = {}, { C = { 0, 0 }, Lua = { 0, 0 } }
  for path, lines in pairs(files) do
    local folder = folder_of(path)
    local into = folders[folder] or { 0, 0 }
    folders[folder] = into
    local total = path:match "^csrc/" and totals.C or totals.Lua
    for _, ran in pairs(lines) do
      for _, sum in ipairs { into, folder ~= BY_CPU and total or nil } do
        sum[1], sum[2] = sum[1] + 1, sum[2] + (ran and 1 or 0)
      end
    end
  end
  return folders, totals
end

-- The number of lines of a file that did not run, and their text: "3 7-9 20". A range holds no line that ran.
local function missing(lines)
  local numbers, parts, n = {}, {}, 0
  for line in pairs(lines) do numbers[#numbers + 1] = line end
  table.sort(numbers)
  local first, last
  for _, line in ipairs(numbers) do
    if not lines[line] then
      n, first, last = n + 1, first or line, line
    end
    if first and (lines[line] or line == numbers[#numbers]) then
      parts[#parts + 1] = first == last and tostring(first) or first .. "-" .. last
      first = nil
    end
  end
  return n, table.concat(parts, " ")
end

local function sorted_keys(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

local function percent(sum)
  return sum[1] > 0 and 100 * sum[2] / sum[1] or 100
end

local function print_missing()
  local path <const> = build .. "/uncovered.txt"
  local out <close> = assert(io.open(path, "w"))
  local list = {}
  for _, name in ipairs(sorted_keys(files)) do
    local n, text = missing(files[name])
    if n > 0 then
      list[#list + 1] = { name = name, n = n, text = text }
      out:write(name, ": ", text, "\n")
    end
  end
  table.sort(list, function(a, b) return a.n > b.n or a.n == b.n and a.name < b.name end)
  print(("\nuncovered lines of the %d files that have most of them (all: %s):"):format(math.min(#list, MOST_FILES), path))
  for i = 1, math.min(#list, MOST_FILES) do
    local text = list[i].text
    if #text > 100 then text = text:sub(1, 100):match "^(.*) " .. " ..." end
    print(("%5d  %s: %s"):format(list[i].n, list[i].name, text))
  end
end

read_c()
read_lua_code((arg[-1]:gsub("lua([%d.]*)$", "luac%1")))
read_lua_runs()
local folders, totals = count()
print "  lines  covered       %  folder"
for _, folder in ipairs(sorted_keys(folders)) do
  local sum = folders[folder]
  print(("%7d  %7d  %6.2f  %s"):format(sum[1], sum[2], percent(sum), folder))
end
print_missing()
print(("\nC: %.2f %% of %d lines (floor %g %%; without %s, where the CPU decides what runs)"):format(percent(totals.C), totals.C[1],
  floor_c, BY_CPU))
print(("Lua: %.2f %% of %d lines (floor %g %%)"):format(percent(totals.Lua), totals.Lua[1], floor_lua))
-- Without gcov or luac no line is known.
local unknown = totals.C[1] == 0 or totals.Lua[1] == 0
if unknown or percent(totals.C) < floor_c or percent(totals.Lua) < floor_lua then
  print(unknown and "no lines are known: are gcov and luac there?" or "coverage is below its floor")
  os.exit(1)
end
