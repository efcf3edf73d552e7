--- model.onnx: single graphs, run on ones, and bundles of a language model (where part "genai_config.json" is given).
local bundle = require "lib.bundle"
local core = require "ane.core"
local mutate_json = require "lib.mutate_json"
local mutate_proto = require "lib.mutate_proto"
local onnx = require "support.onnx_writer"
local ports = require "lib.ports"
local promise = require "lib.promise"
local scratch = require "lib.scratch"
local use = require "lib.use"

local M = { mutate = bundle.mutator { mutate_proto.mutate, ["genai_config.json"] = mutate_json.mutator() } }

local folder = scratch.folder "onnx"
scratch.write("onnx/model.onnx.data", ("\0\0\128\63"):rep(1024))

local function graph(path)
  local source = promise.keep("open", core.open(path))
  if not source then return end
  local made = promise.keep("interp", core.interp(source, { threads = 1, run_memory = use.RUN_MEMORY }))
  if made then
    made:info()
    made:dump()
    local inputs = ports.inputs(made:inputs())
    if inputs then promise.misuse("run", { "input " }, made.run, made, inputs) end
    made:close()
  end
  source:close()
end

M.words = {}
for op in scratch.read("csrc/interp/onnx.def"):gmatch 'ONNX_OP%([^,]*, "(%w+)"' do M.words[#M.words + 1] = op end

function M.run(data)
  local parts = bundle.split(data)
  local path = scratch.write("onnx/model.onnx", parts["model.onnx"] or data)
  scratch.remove "onnx/genai_config.json"
  if not parts["genai_config.json"] then return graph(path) end
  scratch.write("onnx/genai_config.json", parts["genai_config.json"])
  use.model(folder, data, { run_memory = use.RUN_MEMORY, engine = #data % 2 == 0 and "graph" or nil })
end

-- Operators whose shapes, indices or bodies come from the file.
local OPS = {
  "gather", "slice", "concat", "reshape", "expand", "conv", "matmul", "gemm", "split", "pad", "loop", "if", "scan", "where", "range",
  "topk",
  "resize", "nbits", "qdq", "rotary", "attention", "group_query", "scatter", "einsum", "cumsum", "trilu", "tile", "one_hot", "lstm",
  "layer_norm",
}

-- Functions that call each other, also in subgraphs and in defaults of attributes, and a subgraph that two branches share.
local function functions()
  local function output(name) return { { name, "float" } } end
  local both = { ref = "body" }
  local body = { nodes = { { "G", { "one" }, { "z" }, domain = "local" } }, outputs = output "z",
    constants = { { "one", onnx.floats({ 1 }, { 1 }) } } }
  return onnx.model { inputs = { { "c", "bool", {} } }, outputs = output "y", functions = {
    { name = "F", inputs = { "c" }, outputs = { "b" }, attrs = { "body" }, defaults = { body = body },
      nodes = { { "If", { "c" }, { "b" }, attrs = { then_branch = both, else_branch = both } } } },
    { name = "G", inputs = { "a" }, outputs = { "b" }, nodes = { { "Neg", { "a" }, { "b" } } } },
  }, nodes = { { "F", { "c" }, { "x" }, domain = "local", attrs = { body = body } }, { "F", { "c" }, { "w" }, domain = "local" },
    { "Add", { "x", "w" }, { "y" } } } }
end

function M.seeds()
  local out = { { "functions", functions() } }
  local names = core.list_dir "spec/fixtures/onnx_ops"
  table.sort(names)
  for _, op in ipairs(OPS) do
    local taken = 0
    for _, name in ipairs(names) do
      if taken < 2 and name:find("^" .. op) and name:find "%.onnx$" then
        taken = taken + 1
        out[#out + 1] = { name, scratch.read("spec/fixtures/onnx_ops/" .. name) }
      end
    end
  end
  for _, name in ipairs { "half", "odd", "extra" } do
    local from = "spec/fixtures/onnx/" .. name
    out[#out + 1] = { name, bundle.join {
      { "genai_config.json", scratch.read(from .. "/genai_config.json") }, { "model.onnx", scratch.read(from .. "/model.onnx") } } }
  end
  return out
end

return M
