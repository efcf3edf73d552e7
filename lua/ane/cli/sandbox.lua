--- The option --sandbox: a command opens its model and the files of its command line, and nothing else.
-- Needs ane.core, ane.cli.outputs, ane.evaluate.golden and ane.util.paths.
-- Usage: `assert(sandbox.enter(args, true)); ...load...; assert(sandbox.enter(args, false))`
--
-- Two steps. Before the command begins (ane.cli) the process gives up programs, sockets and all files but the model, what the command
-- line names, and the program's own modules. After the load (ane.cli.common) it gives up the model too, unless the command is batch,
-- whose journal holds the hash of the model.

local core = require "ane.core"
local golden = require "ane.evaluate.golden"
local outputs = require "ane.cli.outputs"
local paths = require "ane.util.paths"

local M = {}

-- Arguments that name what the load reads, and what the command reads later.
local LOADED = { model = true, recipe = true, adapter = true }
local READ = {
  file = true, prompts = true, messages = true, golden = true, inputs = true, json_schema = true, gbnf = true, lark = true, tools = true,
  speculate_corpus = true,
}

-- A single GGUF file needs nothing beside it. Other models have files beside the one that is named.
local function add_model(list, path)
  list[#list + 1] = path
  if core.path_kind(path) ~= "file" then return end
  if not path:find "%.gguf$" or path:find "%-%d+%-of%-%d+%.gguf$" then list[#list + 1] = paths.folder_of(path) end
  if path:find "/snapshots/" then list[#list + 1] = path:match "^(.*)/snapshots/" .. "/blobs" end -- where links of the cache lead
end

-- Folders of Lua's modules, but not those below the current folder.
local function add_modules(list)
  for _, templates in ipairs { package.path, package.cpath } do
    for template in templates:gmatch "[^;]+" do
      local folder = template:match "^(.-)/[^/]*%?"
      if folder and folder ~= "." and folder ~= "" then list[#list + 1] = folder end
    end
  end
end

-- The recipes. In the source tree a symbolic link leads to them.
local function add_recipes(list)
  local llama = package.searchpath("ane.models.llama", package.path)
  if llama then list[#list + 1] = paths.folder_of(llama) end
end

-- What the system tells about the machine and the terminal.
local MACHINE = {
  "/proc/meminfo", "/proc/cpuinfo", "/proc/self/status", "/sys/devices/system/cpu", "/dev/null", "/dev/urandom", "/etc/inputrc",
  "/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo",
}

-- Modules in shared libraries, which may be links to other folders. They are loaded before the process gives up rights.
local LIBRARIES = { "lpeg", "readline" }

--- Gives up rights, if the command has the option.
-- @param args of the command line
-- @param loads whether the model is still to be loaded
-- @param ranks whether the command joins other processes
-- @return true; or nil, message, code: "unsupported" if the kernel cannot do it
function M.enter(args, loads, ranks)
  if not args.sandbox then return true end
  if args.command == "serve" or args.mpi or ranks then return nil, "option sandbox: this command needs the network", "unsupported" end
  for _, name in ipairs(LIBRARIES) do pcall(require, name) end
  local reads, writes = table.move(MACHINE, 1, #MACHINE, 1, {}), {}
  add_modules(reads)
  add_recipes(reads)
  for name, value in pairs(args) do
    outputs.each_text(value, function(path)
      if outputs.is_written(args, name) then
        if path ~= "-" then writes[#writes + 1] = paths.folder_of(path) end
      elseif LOADED[name] then
        if (loads or args.command == "batch") and core.path_kind(path) then add_model(reads, path) end
      elseif name == "calibrate" then -- FILE, or FILE+samples:N
        if loads then reads[#reads + 1] = path:match "^(.+)%+samples:.*$" or path end
      elseif READ[name] and core.path_kind(path) then
        reads[#reads + 1] = path
        if name == "golden" then reads[#reads + 1] = golden.beside(path) end
      end
    end)
  end
  return core.sandbox(reads, writes)
end

return M
