--- Core AI assets: main.mlirb. The asset is printed, and run as a program where that is possible.
local ane = require "ane"
local core = require "ane.core"
local ports = require "lib.ports"
local promise = require "lib.promise"
local scratch = require "lib.scratch"
local use = require "lib.use"

local M = {}

local APPLE = "spec/fixtures/aimodel/apple.aimodel/"
local path = scratch.folder "case.aimodel"

function M.run(data)
  scratch.write("case.aimodel/main.mlirb", data)
  local asset = promise.keep("aimodel", core.aimodel(path))
  if not asset then return end
  asset:text()
  asset:contents()
  asset:close()
  local pkg = promise.keep("package", ane.package(path, { threads = 1, run_memory = use.RUN_MEMORY }))
  if not pkg then return end
  for _, f in ipairs(pkg:info().functions) do
    local inputs = ports.inputs(f.inputs)
    local state = inputs and #f.states > 0 and promise.keep("state", pkg:state()) or nil
    if inputs then promise.misuse("predict", { "^predict: " }, pkg.predict, pkg, inputs, state, { ["function"] = f.name }) end
    if state then state:close() end
  end
  pkg:close()
end

function M.seeds()
  local written = scratch.path .. "/seed.aimodel"
  assert(core.testing.aimodel_write(written, { {
    name = "main", { "input", "x", "fp16", { 2, 3 } }, { "output", "y", 1 } } }))
  local small = scratch.read(written .. "/main.mlirb")
  scratch.remove "seed.aimodel"
  return { { "small", small }, { "apple", scratch.read(APPLE .. "main.mlirb") } }
end

for _, name in ipairs { "main.hash", "metadata.json" } do scratch.write("case.aimodel/" .. name, scratch.read(APPLE .. name)) end

return M
