--- The outputs of a command line. They must not replace an input of the same command.
-- Needs ane.cli.relations, ane.core and ane.util.paths. Usage: `local ok, message, code = outputs.check(command, args)`

local core = require "ane.core"
local paths = require "ane.util.paths"
local relations = require "ane.cli.relations"

local M = {}

local WRITTEN = { "out", "output", "dot", "svg", "prompt_cache" }

-- Ends of the names of files that a model folder has.
local OF_MODELS = { json = true, safetensors = true, model = true, txt = true, jinja = true, bin = true, onnx = true, gguf = true }

--- Does an argument name a file to write? `output` of bench is a format.
function M.is_written(args, name)
  for _, written in ipairs(WRITTEN) do
    if name == written then return args.command ~= "bench" end
  end
  return false
end

--- Calls a function with each text among the values of an argument.
function M.each_text(value, fn)
  if type(value) == "string" then fn(value) end
  if type(value) == "table" then
    for _, inner in pairs(value) do M.each_text(inner, fn) end
  end
end

-- Is the path a file of the model folder?
local function is_of_model(path, model)
  return OF_MODELS[path:match "%.([^./]+)$"] and core.same_file(paths.folder_of(path), model)
end

-- Where arguments name files: FILE, @FILE or FILE+samples:N.
local NAMED = { "^(.*)$", "^@(.*)$", "^(.+)%+samples:%d*$" }

-- The path of the model; nil: the command has none.
local function model_of(command, args)
  if command.loads and not command.loads(args) then return nil end
  return type(args.model) == "string" and args.model or nil
end

-- The input that the file at a path is; nil: none.
-- @param model its path, or nil
local function input_of(command, args, path, model)
  local found
  for name, value in pairs(args) do
    if not M.is_written(args, name) and name ~= command.in_place then
      M.each_text(value, function(text)
        for _, pattern in ipairs(NAMED) do
          local input = text:match(pattern)
          if input and core.path_kind(input) == "file" and core.same_file(input, path) then found = input end
        end
      end)
    end
  end
  if found or not model or core.path_kind(model) ~= "folder" then return found end
  return is_of_model(path, model) and model or nil
end

-- What is wrong with an output that is an input.
local function fault_of(path, input, model)
  local what = "%s: is the input %s, and would be overwritten; name another file for the output"
  if input == model then
    what = core.same_file(path, input) and "%s: is the model itself; name another file for the output"
      or "%s: is a file of the model %s; name another file for the output"
  end
  return what:format(path, input)
end

-- How messages name an output: the option, or the argument OUT.
local function spelling(name) return relations.spelling(name == "out" and "OUT" or name) end

-- What is wrong with the names of the outputs alone, or nil. `-` is standard output only for --output.
local function fault_of_names(given)
  for i, name in ipairs(given) do
    if given[name] == "-" and name ~= "output" then
      return ("%s must be the path of a file or folder, but is -: it appears as a whole, and is never standard output")
        :format(spelling(name))
    end
    for k = 1, i - 1 do
      local other = given[k]
      if given[name] == given[other] or core.same_file(given[name], given[other]) then
        return ("%s and %s must be two files, but are both %s"):format(spelling(other), spelling(name), given[name])
      end
    end
  end
end

--- Checks the outputs of a command line.
-- @param command its module; in_place: name of an argument whose file the output may replace; loads(args): does it load args.model?
-- @param args of the command line
-- @return true; or nil, message, code
function M.check(command, args)
  local given = {} -- list of names, and the path of each
  for _, name in ipairs(WRITTEN) do
    if M.is_written(args, name) and type(args[name]) == "string" then given[#given + 1], given[name] = name, args[name] end
  end
  local fault = fault_of_names(given)
  if fault then return nil, fault, "usage" end
  local model = model_of(command, args)
  for _, name in ipairs(given) do
    local path = given[name]
    local input = path ~= "-" and core.path_kind(path) == "file" and input_of(command, args, path, model)
    if input then return nil, fault_of(path, input, model), "invalid" end
  end
  return true
end

return M
