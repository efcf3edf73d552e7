-- Ports an architecture: from config.json, weights and a golden to a recipe that computes the same.
-- Usage: lua5.4 examples/port_a_model.lua FOLDER      (spec/fixtures/check/gemma: a tiny Gemma 1 with random weights)
--
-- 1. Make a golden where transformers is installed: python3 examples/make_golden.py MODEL FOLDER 5,60,17 ...
-- 2. Look at config.json and at the names of the tensors (`ane info FOLDER`); take the nearest recipe of models/ as a guess.
-- 3. Run `ane check`, correct what it names, and repeat. A role ("attn_q") stands for a weight, with its bias where the file has
--    one. The names of Hugging Face files are known; others go into the recipe's `names`.
-- 4. Put the recipe into models/<architecture>.lua: ane.load then finds it.

local ane = require "ane"
local attention = require "ane.recipe.attention"
local ffn = require "ane.recipe.ffn"

if not arg[1] then
  io.stderr:write "usage: lua5.4 examples/port_a_model.lua FOLDER\n"
  os.exit(2)
end

local folder = arg[1]

-- The differences from llama are a table here, so that the steps below can change them. Your recipe is plain code.
local function recipe(is)
  local function build(b, cfg)
    local function norm(x, role) return b:rms_norm(x, role, { offset = is.norm_offset }) end
    local x = b:embed "token_embd"                                      -- [1, d_model, T, 1]
    if is.embed_scaled then x = b:scale(x, math.sqrt(cfg.d_model)) end
    local rope = b:rope_table(cfg.rope)
    for i = 0, cfg.n_layer - 1 do
      b:layer(i, function()                                             -- values are named "layers.i....", weights are those of layer i
        x = b:add(x, attention.gqa(b, norm(x, "attn_norm"), { rope = rope }))
        x = b:add(x, ffn.gated(b, norm(x, "ffn_norm"), cfg.act))
      end)
    end
    return b:linear(norm(b:gather(x), "output_norm"), "token_embd")       -- the head is the embedding
  end
  return { architectures = { "gemma" }, version = 1, build = build }
end

local function try(what, is)
  local model <close> = assert(ane.load(folder, { recipe = recipe(is), activations = "fp32" }))
  local report = assert(ane.check(model, folder .. "/golden.json"))
  print("== " .. what)
  print(report)
  return report
end

-- First guess: a llama. hidden.0 differs by one factor; the check names the cause.
try("as llama", {})

-- Next hidden.1 drifts, from the first norm on: its convention differs.
try("with the embedding scaled", { embed_scaled = true })

-- Everything agrees, and the tokens are those of transformers.
local gemma = { embed_scaled = true, norm_offset = 1 }
assert(try("with norms by 1 + w", gemma).ok)

-- The recipe is now known in this process, as if it were in models/. Any value can be traced.
ane.register(recipe(gemma))
local model <close> = assert(ane.load(folder))
local t = assert(model:trace({ 5, 60, 17 }, "layers.0.*"))
print(t["layers.0.attn_q"])
print(t["layers.0.glu"]:heat { height = 3, width = 40 })
