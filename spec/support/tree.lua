--- The files of this source tree, for specs about them.
-- Usage: `for _, path in ipairs(tree.files("csrc", "[ch]")) do local code = tree.code(path) ... end`

local M = {}

local function lines_of(command)
  local pipe = assert(io.popen(command))
  local list = {}
  for line in pipe:lines() do list[#list + 1] = line:match "^%./(.*)" or line end
  pipe:close()
  return list
end

local all

--- Paths of the files below a folder ("" for all), by pattern of the extension; built and fetched files are omitted.
function M.files(folder, extension)
  all = all or lines_of [[find . \( -path ./build -o -path ./.git -o -path ./models-cache \) -prune -o -type f -print | LC_ALL=C sort]]
  local prefix = folder == "" and "" or folder .. "/"
  local list = {}
  for _, path in ipairs(all) do
    local name = path:match "[^/]*$"
    if path:sub(1, #prefix) == prefix and (not extension or name:match("%.(" .. extension .. ")$")) then list[#list + 1] = path end
  end
  return list
end

--- Bytes of a file.
function M.read(path)
  local file <close> = assert(io.open(path, "rb"))
  return file:read "a"
end

--- Whether the file or folder exists.
function M.exists(path)
  return (os.execute(("test -e '%s'"):format(path))) == true
end

--- C source without comments, strings and characters; its lines stay where they are.
function M.code(path)
  local out, at, text = {}, 1, M.read(path)
  while true do
    local first = text:find("[\"'/]", at)
    if not first then break end
    local last
    local two = text:sub(first, first + 1)
    if two == "//" then last = (text:find("\n", first, true) or #text + 1) - 1
    elseif two == "/*" then last = select(2, text:find("*/", first + 2, true)) or #text
    elseif two:sub(1, 1) == "/" then last = nil
    else
      local quote, i = two:sub(1, 1), first + 1
      while text:sub(i, i) ~= quote and i < #text do i = i + (text:sub(i, i) == "\\" and 2 or 1) end
      last = i
    end
    out[#out + 1] = text:sub(at, first - 1)
    if last then
      out[#out + 1] = (text:sub(first, last):gsub("[^\n]+", " "))
      at = last + 1
    else
      out[#out + 1] = "/"
      at = first + 1
    end
  end
  return table.concat(out) .. text:sub(at)
end

--- The numbered lines of a text that match a pattern, as "path:line: text".
function M.grep(path, text, pattern)
  local found, number = {}, 0
  for line in (text .. "\n"):gmatch "(.-)\n" do
    number = number + 1
    if line:find(pattern) then found[#found + 1] = ("%s:%d: %s"):format(path, number, line) end
  end
  return found
end

--- Whether the program exists.
function M.has(program)
  return (os.execute("command -v " .. program .. " >/dev/null 2>&1")) == true
end

--- The emulator of the processor that runs the specs (scripts/arm64), or nil. It has threads and signal handlers of its own, and no
-- sandbox.
function M.emulator() return os.getenv "ANE_EMULATOR" end

--- Why a program that a spec starts cannot load the module, or nil: the thread sanitizer is not preloaded there (scripts/own_preload.c).
function M.cannot_load() return os.getenv "ANE_BUILD" == "build/tsan" and "other programs run without the thread sanitizer" or nil end

--- Runs a command of the shell.
-- @return whether it succeeded, what it wrote (both streams)
function M.run(command)
  local pipe = assert(io.popen("{ " .. command .. "\n} 2>&1 </dev/null"))
  local text = pipe:read "a"
  return pipe:close() == true, text
end

--- A new folder for a spec; the caller removes it with M.remove.
function M.folder()
  local pipe = assert(io.popen "mktemp -d")
  local path = pipe:read "l"
  pipe:close()
  return path
end

--- Writes a file of a folder. Returns its path.
function M.write(folder, name, text)
  local path = folder .. "/" .. name
  assert(require("ane.core").write_file(path, text))
  return path
end

function M.remove(path)
  assert(path:match "^/.+/.+")
  os.execute("rm -rf '" .. path .. "'")
end

return M
