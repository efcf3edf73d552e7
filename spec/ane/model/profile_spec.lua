local ane = require "ane"
local hf = require "support.hf"
local profile = require "ane.model.profile"
local tiny = require "support.tiny"

local function named(rows, name)
  for _, row in ipairs(rows) do
    if row.name == name then return row end
  end
end

describe("profile", function()
  it("counts every weight once a run, and the products of all tokens", function()
    local model <close> = tiny.load(nil, { head = "full" })
    local s <close> = model:session()
    local bytes, elements = 0, 0
    for _, m in ipairs(model:info().matrices) do
      bytes = bytes + m.bytes
      elements = elements + m.rows * m.cols
    end
    assert(profile.start(model))
    assert(s:feed({ 1, 2, 3, 4, 5 }, { want = "all" }))
    local rows = assert(profile.take(model))
    local attention = named(rows, "layers.*.attn")
    local cfg = model.config
    local tile = 64 -- positions of a block of the cache
    local kv = cfg.n_layer * tile * cfg.n_head_kv * cfg.head_dim * 2 * 2
    assert.same({ cfg.n_layer, 1, kv }, { attention.steps, attention.runs, attention.bytes })
    assert.equal(cfg.n_layer * 4 * cfg.head_dim * cfg.n_head * (1 + 2 + 3 + 4 + 5), attention.ops)
    local stored = 0 -- an embedding that is not the head's is read row by row
    for _, m in ipairs(model:info().matrices) do
      if m.name == "token_embd.weight" and m.form == "rows" then stored = stored + m.bytes end
    end
    assert.near(bytes - stored, rows.total.bytes - kv, bytes * 0.02)
    assert.is_true(rows.total.ops - attention.ops <= 2 * 5 * elements)
    assert.is_true(rows.total.seconds > 0 and rows[1].seconds >= rows[#rows].seconds)
    assert.truthy(named(rows, "argmax"))
  end)

  it("counts what a whole product reads of a head in halves: all but the norms of bounds and the second scales", function()
    local model <close> = tiny.load(nil, { head = "pruned" })
    local s <close> = model:session()
    local matrices = model:info().matrices
    local head = matrices[#matrices]
    assert.equal("q8_0_split", head.form)
    assert(profile.start(model))
    assert(s:feed({ 1, 2, 3 }, { want = "all" }))
    local read = named(assert(profile.take(model)), "output").bytes
    local groups, blocks = (head.rows + 15) // 16, head.cols // 32
    assert.equal(groups * blocks * 16 * (32 + 2 + 1 + 2), head.bytes)
    assert.equal(groups * blocks * 16 * (32 + 2 + 1), read)
  end)

  it("names the weights of each block, as in the file", function()
    local model <close> = tiny.load()
    local s <close> = model:session()
    assert(profile.start(model))
    assert(s:feed(1))
    local rows = assert(profile.take(model))
    local projects = {}
    for _, row in ipairs(rows) do
      if row.op == "linear" then projects[#projects + 1] = table.concat(row.weights, " ") else assert.same({}, row.weights) end
    end
    table.sort(projects)
    assert.same({ "attn_output", "attn_q attn_k attn_v", "ffn_down", "ffn_gate ffn_up", "output" }, projects)
    local text = profile.text(rows)
    assert.matches("\nlayers%.%*%.attn_q +linear [%d%. ]+  attn_q, attn_k, attn_v\n", text)
    assert.is_nil(text:find " \n")
    local folder <close> = assert(ane.load(hf.path "llama"))
    local f <close> = folder:session()
    assert(profile.start(folder))
    assert(f:feed(1))
    assert.matches("  self_attn.o_proj\n", profile.text(assert(profile.take(folder))))
    local mixed <close> = assert(ane.load(hf.path "lfm2-odd"))
    local l <close> = mixed:session()
    assert(profile.start(mixed))
    assert(l:feed(1))
    local both = named(assert(profile.take(mixed)), "layers.*.add").weights
    table.sort(both)
    assert.same({ "conv.out_proj", "self_attn.out_proj" }, both)
  end)

  it("begins anew with each take, and ends", function()
    local model <close> = tiny.load()
    local s <close> = model:session()
    assert.same({ "invalid" }, { (select(3, profile.take(model))) })
    assert(profile.start(model))
    assert(s:feed(1))
    assert(s:feed(2))
    assert.equal(2, profile.take(model).total.runs)
    assert.equal(0, profile.take(model).total.runs)
    assert(profile.stop(model))
    assert(s:feed(3))
    assert.is_nil((profile.take(model)))
  end)

  it("counts only the experts that were chosen", function()
    local model <close> = assert(ane.load(hf.path "qwen2_moe-odd"))
    local soft <close> = assert(ane.load(hf.path "qwen2_moe-odd", { soft_experts = true }))
    local function experts(m)
      local s <close> = m:session()
      assert(profile.start(m))
      assert(s:feed(7))
      for _, row in ipairs(profile.take(m)) do
        if row.op == "experts" then return row end
      end
    end
    local some, all = experts(model), experts(soft)
    local cfg = model.config
    local share = cfg.meta "num_experts_per_tok" / cfg.meta "num_experts"
    assert.near(share, some.bytes / all.bytes, 1e-9)
    assert.near(share, some.ops / all.ops, 1e-9)
  end)

  it("prints a table", function()
    local rows = {
      { name = "b", op = "linear", weights = { "w", "v" }, steps = 2, runs = 4, seconds = 0.5, bytes = 1e9, ops = 0 },
      { name = "a", op = "x", steps = 1, runs = 0, seconds = 0, bytes = 0, ops = 0 },
      total = { name = "total", steps = 3, runs = 4, seconds = 1, bytes = 1e9, ops = 2e9 },
    }
    local lines = {}
    for line in profile.text(rows):gmatch "[^\n]+" do lines[#lines + 1] = line:gsub("%s+", " ") end
    assert.same({
      "block op steps ms a run % GB/s GOPS weights", "b linear 2 125.000 50.0 2.0 w, v", "total 3 250.000 100.0 1.0 2.0",
    }, lines)
  end)
end)
