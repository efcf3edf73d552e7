--- Encoders of random dimensions: vectors of whole sequences have the same bits on every level, with any number of threads, and alone
-- or among others in a run.
local ane = require "ane"
local core = require "ane.core"
local random_model = require "audit.random_model"

local M = { cases = 5 }

local ENCODERS = { "bert", "xlm_roberta", "modernbert", "nomic_bert" }

-- Tokens that all of them have.
local VOCAB = 250

function M.case(d)
  local model <close> = random_model.make(d, ENCODERS)
  local lists = {}
  for i = 1, d.between(1, 4) do lists[i] = d.ids(d.between(1, 30), VOCAB) end
  -- bf16 products round as their instruction does, which only some levels have.
  local activations, want = model.dtype == "BF16" and "fp32" or d.one_of { "int8", "fp32" }, {}
  for _, isa in ipairs(core.isa_list()) do
    local threads = d.between(1, 4)
    local one <close> = assert(ane.load(model.path, { isa = isa, threads = threads, activations = activations }))
    local all = assert(one:embed(lists))
    for i, ids in ipairs(lists) do
      local bits = all[i]:tostring()
      want[i] = want[i] or bits
      local what = ("%s: %s, %d threads, %s, list %d"):format(model.name, isa, threads, activations, i)
      assert(bits == want[i], what .. ": other bits than on " .. core.isa_list()[1])
      assert(assert(one:embed(ids)):tostring() == bits, what .. ": other bits alone")
    end
  end
end

return M
