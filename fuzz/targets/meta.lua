--- runtime_meta.json of a set of packages, and embed.bin beside it (part "embed").
local bundle = require "lib.bundle"
local mutate_json = require "lib.mutate_json"
local scratch = require "lib.scratch"
local use = require "lib.use"

local M = {}

local SET = "spec/fixtures/mlpackage/set"

local WORDS = {
  "packages", "path", "kind", "layers", "head", "argmax", "embed", "start", "end", "inputs", "outputs", "role", "hidden", "logits",
  "position",
  "mask", "cos", "sin", "state", "edge", "functions", "embed_bin", "ropes", "vocab_size", "../embed.bin", "layer_00.mlpackage", "fp16",
  "int8",
}
M.words = WORDS

M.mutate = bundle.mutator { mutate_json.mutator(WORDS), embed = function(text, most, _, bytes) return bytes(text, most) end }

local folder = scratch.folder "set"
for _, name in ipairs { "layer_00", "layer_01", "lm_head_00", "lm_head_01", "argmax_00", "argmax_01" } do
  assert(os.execute(("cp -r '%s/%s.mlpackage' '%s/'"):format(SET, name, folder)))
end

function M.run(data)
  local parts = bundle.split(data)
  scratch.write("set/runtime_meta.json", parts.meta or data)
  scratch.write("set/embed.bin", parts.embed or scratch.read(SET .. "/embed.bin"))
  use.set(folder)
end

function M.seeds()
  local embed = scratch.read(SET .. "/embed.bin")
  return {
    { "set", bundle.join { { "meta", scratch.read(SET .. "/runtime_meta.json") }, { "embed", embed } } },
    { "argmax", bundle.join { { "meta", scratch.read(SET .. "/argmax_meta.json") }, { "embed", embed } } },
  }
end

return M
