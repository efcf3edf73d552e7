--- Refuses outputs that would replace an input of the same command.
-- Needs ane.core. Usage: `local ok, message, code = outputs.check(command, args)`

local core = require "ane.core"

local M = {}

-- Arguments that name a file to write. `output` of bench is a format.
local WRITTEN = { "out", "output", "dot", "svg", "prompt_cache" }

-- Ends of the names of files that a model folder has.
local OF_MODELS = { json = true, safetensors = true, model = true, txt = true, jinja = true, bin = true, onnx = true, gguf = true }

-- Calls fn with each path among the values of an argument: texts, lists of texts, and FILE of @FILE.
local function each_path(value, fn)
  if type(value) == "table" then
    for _, inner in pairs(value) do each_path(inner, fn) end
  elseif type(value) == "string" and #value < 4096 and not value:find "[%z\n]" then
    fn(value)
    if value:sub(1, 1) == "@" then fn(value:sub(2)) end
  end
end

-- Is the path a file of the model folder?
local function is_of_model(path, model)
  local parent = path:match "^(.*)/[^/]*$" or "."
  return OF_MODELS[path:match "%.([^./]+)$"] and core.same_file(parent, model)
end

-- The input that a file is: its name, or nil.
local function input_of(command, args, name)
  local path, found = args[name], nil
  for other, value in pairs(args) do
    local is_written = false
    for _, w in ipairs(WRITTEN) do is_written = is_written or w == other end
    if not is_written and other ~= command.in_place then
      each_path(value, function(input)
        if core.path_kind(input) == "file" and core.same_file(input, path) then found = input end
      end)
    end
  end
  if not found and type(args.model) == "string" and core.path_kind(args.model) == "folder" and is_of_model(path, args.model) then
    found = args.model
  end
  return found
end

--- Checks the outputs of a command line.
-- @param command its module; in_place: name of an argument whose file the output may replace
-- @param args of the command line
-- @return true; or nil, message, code
function M.check(command, args)
  for _, name in ipairs(WRITTEN) do
    local path = args[name]
    if type(path) == "string" and core.path_kind(path) == "file" then
      local input = input_of(command, args, name)
      if input then
        local what = "%s: is the input %s, and would be overwritten; name another file for the output"
        if input == args.model then
          what = core.same_file(path, input) and "%s: is the model itself; name another file for the output"
            or "%s: is a file of the model %s; name another file for the output"
        end
        return nil, what:format(path, input), "invalid"
      end
    end
  end
  return true
end

return M
