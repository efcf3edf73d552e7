-- Gemma 3n against transformers: spec/golden/decoders.py made the fixtures.
local ane = require "ane"
local core = require "ane.core"
local decoders = require "support.decoders"
local hf = require "support.hf"
local safetensors = require "support.safetensors"
local st = require "support.safetensors_writer"

describe("Gemma 3n", function()
  for _, case in ipairs(decoders.cases("gemma3n", { folder_only = true })) do it(table.unpack(case)) end
  for _, case in ipairs(decoders.cases("gemma3n_second", { folder_only = true })) do it(table.unpack(case)) end

  -- transformers' Gemma3nTextModel.get_per_layer_inputs: ids from vocab_size_per_layer_input on take row 0 of the second table.
  it("takes row 0 of the second table for ids beyond it", function()
    local name, ids = "model.embed_tokens_per_layer.weight", { 7, 60, 3, 49, 50, 2, 70 }
    local function folder(rows, stored)
      local config = assert(core.json_decode(assert(core.read_file(hf.path "gemma3n-odd" .. "/config.json"))))
      config.vocab_size_per_layer_input = stored
      local tensors = {}
      for tensor, t in pairs(safetensors.all(hf.path "gemma3n-odd" .. "/model.safetensors")) do
        local shape, data = t.shape, t.data
        if tensor == name then
          local row = #data // shape[1]
          data = data:sub(1, rows * row) .. data:sub(1, row):rep(stored - rows)
          shape = { stored, shape[2] }
        end
        tensors[#tensors + 1] = { name = tensor, dtype = t.dtype, shape = shape, data = data }
      end
      return st.folder { ["config.json"] = core.json_encode(config), ["model.safetensors"] = { tensors = tensors } }
    end
    local function logits(path)
      local model <close> = assert(ane.load(path, { threads = 2 }))
      local session <close> = assert(model:session())
      assert(session:feed(ids, { want = "all" }))
      local rows = {}
      for i = 1, #ids do rows[i] = session:logits(i):tostring() end
      assert.is_nil((session:feed { 71 }))
      return rows
    end
    local short, whole = folder(50, 50), folder(50, 71)
    local got, want = logits(short), logits(whole)
    st.remove(short)
    st.remove(whole)
    assert.same(want, got)
  end)

  it("refuses more streams than files have, and an active stream that is not there", function()
    assert.matches("key altup_num_inputs must be at most 8, but is 16777216",
      decoders.refusal("gemma3n_second", function(cfg) cfg.altup_num_inputs = 1 << 24 end), 1, true)
    assert.matches("altup_active_idx must be less than altup_num_inputs (2), but is 2",
      decoders.refusal("gemma3n_second", function(cfg) cfg.altup_active_idx = 2 end), 1, true)
  end)
end)
