--- ane: language models in Lua.
-- Needs ane.core, ane.util.list, ane.util.schema and ane.util.tensor_view; other modules are loaded at their first use.
-- Usage: `local ane = require "ane"; local model = assert(ane.load("model.gguf")); print(model:generate("The sky is"))`

local core = require "ane.core"
local list_of = require "ane.util.list"
local schema = require "ane.util.schema"
require "ane.util.tensor_view" -- plots of tensors

local M = {}

M._VERSION = "0.1.0"

--- JSON null, where a value is needed for it.
M.null = core.null

--- Grammars for constrained replies: json_schema, json, regex, choice. See ane.grammar.
M.grammar = setmetatable({}, { __index = function(_, name) return require("ane.grammar")[name] end })

--- Ranks of an MPI program, over which a model's layers lie: join, work, leave, size. See ane.pipeline.
M.ranks = setmetatable({}, { __index = function(_, name) return require("ane.pipeline")[name] end })

--- Calls of tools in replies: parse, arguments. See ane.tools.
M.tools = setmetatable({}, { __index = function(_, name) return require("ane.tools")[name] end })

--- Loads a model.
-- The files are mapped while the model is open. If another program truncates one, calls that read the missing part fail with the code
-- io (SECURITY.md). It is safe to replace a file by renaming a new one over it.
-- @param path a GGUF file; a folder with safetensors and config.json; an ONNX file or bundle; a folder with Core ML packages
-- @param opts context, threads, weights, mixed, activations, kv, head, engine, recipe, isa, progress, ...: see ane.model
-- @return a model; or nil, message, code
function M.load(path, opts)
  return require("ane.model").load(path, opts)
end

--- Fetches a model of the Hugging Face hub into its cache. See ane.hub.
-- @param name "hf:OWNER/NAME", with ":Q4_K_M" or ":FILE" for one of several models
-- @param opts progress, offline, fallback
-- @return path for load, table of facts; or nil, message, code
function M.pull(name, opts)
  local path, info, code = require("ane.hub").pull(name, opts, 2)
  return path, info, code
end

--- Makes a recipe known, for architectures that ane.models has no file for.
-- @param recipe a table as the files of ane.models return it
function M.register(recipe)
  return require("ane.model.loader").register(recipe)
end

--- Compares a model with a golden, layer by layer. See ane.evaluate.check.
-- @param model a loaded model. Goldens are computed in fp32, so it should have activations = "fp32"
-- @param golden path of a golden.json, with its tensors in the safetensors file beside it
-- @param opts prompt, hints
-- @return a report that prints as a table; or nil, message, code
function M.check(model, golden, opts)
  local report, message, code = require("ane.evaluate.check").check(model, golden, opts, 2)
  return report, message, code -- no tail call: the level of errors counts this function
end

--- Collects the mean square of each weight's input columns on a text: the importance (imatrix) that guides int4-block, uint4-block and lut4
-- (options of load and export) and the types of quantise that search for scales. See ane.evaluate.calibrate.
-- @param model built by a recipe
-- @param input a text, a list of token ids, a list of texts and lists, {samples = N} or {chats = list} (ane.model.inputs)
-- @param opts tokens, chunk, progress
-- @return tensor name -> tensor [columns]; or nil, message, code
function M.calibrate(model, input, opts)
  return require("ane.evaluate.calibrate").run(model, input, opts)
end

--- Measures what each weight costs when it alone is rounded, for the choice of types under a budget. See ane.evaluate.sensitivity.
-- @param model built by a recipe
-- @param input a text, a list of token ids, a list of texts and lists, {samples = N} or {chats = list} (ane.model.inputs)
-- @param opts types, tokens, chunk, threads, progress
-- @return a report, whose mixed{size = bytes} or mixed{bits = bits} gives what quantise takes; it prints as lines; or nil, message, code
function M.sensitivity(model, input, opts)
  return require("ane.evaluate.sensitivity").run(model, input, opts)
end

--- Applies the quality gate: compares hidden states, logits and best tokens of a changed model with those of its source. See
-- ane.evaluate.gate.
-- @param a the source
-- @param b the changed model: loaded with other weights, or a package set
-- @param input a text, a list of token ids, or a list of texts and lists
-- @param opts chunk, tokens, hidden, progress
-- @return a report: ok, warning, verdict, cosine, hidden, logits, argmax, ...; it prints as lines; or nil, message, code
function M.gate(a, b, input, opts)
  return require("ane.evaluate.gate").run(a, b, input, opts)
end

--- Proposes the next tokens of a text from its earlier tokens, for speculative loops outside of generate. See ane.generate.speculate.
-- @param ids the tokens so far
-- @param corpus list of more tokens to draft from, or nil
-- @return a drafter: push(id), draft(max) -> list of at most max tokens and the length of the match that they follow, or nil
function M.drafter(ids, corpus)
  return require("ane.generate.speculate").drafter(ids, corpus)
end

--- Reads the tensor of a .npy file, or all tensors of a safetensors or GGUF file as a table name -> tensor.
-- @return the tensor or the table; or nil, message, code
function M.tensors(path)
  return require("ane.evaluate.golden").tensors(path)
end

--- Opens a Core ML package, or a Core AI asset. See ane.coreml.package.
-- @param path folder of the .mlpackage or .aimodel
-- @param opts precision ("fp32" or "fp16"), threads, isa, progress, backend ("cpu" or "coreml"), anywhere
-- @return a package, which prints as a summary: info(), dump(), value(output), predict(inputs, state), state(), rewrite(path),
-- close(); or nil, message, code
function M.package(path, opts)
  return require("ane.coreml.package").open(path, opts)
end

--- Serves a model over HTTP: OpenAI's API and a chat page. See ane.serve.
-- @param model a loaded one
-- @param opts host, port, sessions, queue, api_key, cert, key, cors, names, defaults, time_limit, ...
-- @return a server: port, run(), turn(wait), stop(), stats(), close(); or nil, message, code
function M.serve(model, opts)
  require("ane.model").bundle(model, 2)
  local server, message, code = require("ane.serve").new(model, opts, 2, M._VERSION)
  return server, message, code -- no tail call: the level of errors counts this function
end

--- Answers the rows of a file, folder or pipe: one line of JSON each. See ane.batch.
-- @param model a loaded one
-- @param opts input, output, form, task, body, ordered, resume, restart, shard, max_errors, max_row, sessions, progress, ...
-- @return summary: ok, rows, errors, resumed, tokens, seconds; or nil, message, code
function M.batch(model, opts)
  require("ane.model").bundle(model, 2)
  local summary, message, code = require("ane.batch").run(model, opts, 2)
  return summary, message, code -- no tail call: the level of errors counts this function
end

local DIMS = 5 -- maximum dimensions of a tensor

local function shape_of(values)
  local shape = {}
  while type(values) == "table" and #shape < DIMS do
    shape[#shape + 1] = #values
    values = values[1]
  end
  return shape
end

-- Appends the numbers of nested lists to the flat list `out`. Returns a message if the lists do not have this shape.
local function flatten(values, shape, depth, out)
  if depth > #shape then
    if type(values) == "table" and depth > DIMS then return ("tensor: lists must be nested at most %d deep"):format(DIMS) end
    out[#out + 1] = values -- the core checks that it is a number
    return nil
  end
  if type(values) ~= "table" or #values ~= shape[depth] then
    return ("tensor: lists at depth %d must all have %d entries"):format(depth, shape[depth])
  end
  local fault = list_of.stray(values)
  if fault then return "tensor: values " .. fault end
  for i = 1, shape[depth] do
    local message = flatten(values[i], shape, depth + 1, out)
    if message then return message end
  end
end

-- Makes a tensor. An error of the core is raised again at the level of M.tensor's caller.
local function made(shape, values)
  local ok, tensor = pcall(core.tensor, shape, values)
  if ok then return tensor end
  error((tostring(tensor):gsub("^bad argument #%d to '[^']*' %((.*)%)$", "tensor: %1")), 3)
end

--- Makes a float32 tensor.
-- @param values a number, a list, or lists in lists; or a string of little-endian float32
-- @param shape list of up to 5 dimensions; default: as the lists are nested
-- @return a tensor: get(i, ...), set(i, ..., value), fill(value), t[i] or row(i), slice(dim, from, to), reshape(shape), shape(),
-- + - * / with tensors and numbers, abs(), sort(), dot(t), topk(k), argmax(), min(), max(), mean(), compare(t), histogram(opts),
-- heat(opts), totable(), tostring(); # counts the elements; indices count from 1, negative ones from the end, token ids from 0
-- @raise if the values do not fill the shape
function M.tensor(values, shape)
  local kind = type(values)
  if shape ~= nil then shape = schema.argument({ type = "list", of = { type = "integer", min = 0 } }, shape, "tensor: shape", 2) end
  if kind == "string" then return made(shape or { #values // 4 }, values) end
  if kind ~= "table" and kind ~= "number" then
    error("tensor: values must be a number, a list or a string, but is " .. list_of.kind(values), 2)
  end
  local nested, flat = shape_of(values), {}
  local message = flatten(values, nested, 1, flat)
  if message then error(message, 2) end
  return made(shape or nested, flat)
end

--- What is running: version, isa (the level in use, after ANE_ISA), isa_list, cpu, cores, memory (bytes).
-- @return a table; or nil, message, code if ANE_ISA names a level that the machine does not have
function M.info()
  local level, message, code = require("ane.util.isa").choose()
  if not level then return nil, message, code end
  return {
    version = M._VERSION, isa = level, isa_list = core.isa_list(), cpu = core.cpu_name(), cores = core.cpu_cores(),
    memory = core.memory(),
  }
end

return M
