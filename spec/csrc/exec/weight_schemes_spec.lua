-- weights = a form of packages: what a program then holds is what the encoder says, to the bit, for every shape.
local core = require "ane.core"
local floats = require "support.floats"
local graphs = require "support.graphs"
local programs = require "support.programs"

local FORMS = { "int8", "int8-channel", "int8-block", "int4-block", "int4-block64", "uint4-block", "lut4", "lut4-g8", "lut4-g16",
  "lut4-g32",   "lut2", "lut2-g16", "lut3-g8", "lut6", "lut6-g16", "lut8" }

local function head_graph(rows, cols, head)
  local table_values = floats.unpack(floats.uniform(40 * cols, 5, 2))
  local g = graphs.parse(([[
    input ids: int32[1, T]
    input out_rows: int32[1, W]
    const table: fp32[40, %d]
    const head: fp32[%d, %d]
    x = embed(ids, table)
    t = gather(x, out_rows)
    y = conv1x1(t, head)
    give y
  ]]):format(cols, rows, cols), { table = table_values, head = floats.unpack(head) })
  assert(g:passes "cpu")
  return g
end

local function run(g, opts)
  opts.threads, opts.context, opts.chunk = opts.threads or 1, 40, 40
  local p <close> = assert(core.program(g, opts))
  local s <close> = assert(p:session { context = 40, kv = "fp32" })
  assert(s:feed(programs.ids(9, 40, 3), "all"))
  return programs.rows(s), p:info().matrices[1]
end

describe("weights in forms of packages", function()
  for _, shape in ipairs { { 64, 64 }, { 33, 96 }, { 40, 40 }, { 7, 33 }, { 24, 1 }, { 100, 128 } } do
    local rows, cols = shape[1], shape[2]
    it(("hold the encoder's values: %d x %d"):format(rows, cols), function()
      local head = floats.uniform(rows * cols, rows, 0.7)
      local g <close> = head_graph(rows, cols, head)
      for _, form in ipairs(FORMS) do
        local encoded = assert(core.testing.encode_weights(form, "fp32", head, rows, cols))
        local plain <close> = head_graph(rows, cols, encoded.values)
        local want = run(plain, { int8 = false })
        for _, isa in ipairs(core.isa_list()) do
          local got, m = run(g, { weights = form, isa = isa, threads = 3 })
          assert.is_nil(floats.difference(got, want))
          assert.equal(encoded.scheme, m.weights)
          assert.equal(encoded.error > 0, m.error > 0)
          assert.is_true(math.abs(m.error - encoded.error) <= 1e-9 * encoded.error and m.max_abs == encoded.max_abs)
          local quick = run(g, { weights = form, isa = isa, int8 = true })
          got, m = run(g, { weights = form, isa = isa, int8 = true, threads = 2 })
          assert.equal(quick, got)
          assert.equal(form:find "^lut" and "fp32" or "int8", m.act)
          if m.act == "fp32" then assert.is_nil(floats.difference(quick, want)) end
        end
      end
    end)
  end

  it("take other forms by pattern, the last that fits", function()
    local function held(mixed)
      local p <close> = programs.open("llama-mixed", { weights = "int8", mixed = mixed })
      local forms = {}
      for _, m in ipairs(p:info().matrices) do forms[m.name] = m.weights or m.form end
      return forms
    end
    local got = held {
      { "ffn_down", "lut4", true }, { "blk.1.*down", "int4-block", true }, { "attn_?.w", "q8_0", true }, { "output", "file", true },
    }
    assert.equal("lut4", got["blk.0.ffn_down.weight"])
    assert.equal("int4-block", got["blk.1.ffn_down.weight"])
    assert.equal("q8_0", got["blk.0.attn_q.weight"])
    assert.equal("int8", got["blk.0.ffn_up.weight"])
    local function refused(mixed)
      local g <close> = programs.graph "llama-mixed"
      assert(g:passes "cpu")
      local p, message, code = core.program(g, { threads = 1, context = 8, chunk = 8, mixed = mixed })
      assert.is_nil(p)
      return code .. ": " .. message
    end
    assert.equal('invalid: option mixed: no weight matches "ffn_dawn"', refused { { "ffn_dawn", "int8", true } })
    assert.equal('invalid: option mixed: weight blk.1.ffn_down.weight matches "blk.1" and "down", which differ; '
      .. "a list of {pattern, weights} has an order", refused { { "blk.1", "int8" }, { "down", "lut4" } })
    assert.equal("unsupported: weights cannot be encoded as iq2_s", refused { { "down", "iq2_s" } })
  end)

  it("follow the importance of columns", function()
    local rows, cols = 32, 64
    local head, weight = floats.uniform(rows * cols, 3, 0.7), {}
    for c = 1, cols do weight[c] = c <= 8 and 50 or 0.01 end
    local g <close> = head_graph(rows, cols, head)
    for _, form in ipairs { "lut4", "lut4-g16", "int4-block", "uint4-block" } do
      local bytes = floats.pack(weight)
      local encoded = assert(core.testing.encode_weights(form, "fp32", head, rows, cols, 1, bytes))
      local plain <close> = head_graph(rows, cols, encoded.values)
      assert.is_nil(floats.difference((run(g, { weights = form, importance = { head = bytes } })), (run(plain, {}))))
      assert.is_not_nil(floats.difference((run(g, { weights = form })), (run(plain, {}))))
    end
  end)

  it("follow an importance that progress drops from the options", function()
    local names, list = {}, {}
    do
      local p <close> = programs.open "llama-mixed"
      for i, m in ipairs(p:info().matrices) do names[i] = { m.name, m.cols } end
    end
    local function errors(progress)
      for i, n in ipairs(names) do
        local numbers = {}
        for c = 1, n[2] do numbers[c] = ("<f"):pack((c * 7919 + i) % 97 / 10 + 0.01) end
        list[n[1]] = table.concat(numbers)
      end
      local p <close> = programs.open("llama-mixed", { weights = "int4-block", importance = list, progress = progress })
      local found = {}
      for i, m in ipairs(p:info().matrices) do found[i] = m.error end
      return found
    end
    local want, others = errors(), {}
    assert.same(want, errors(function()
      for name in pairs(list) do list[name] = nil end
      collectgarbage()
      for _, n in ipairs(names) do others[#others + 1] = ("<f"):pack(#others):rep(n[2]) end
    end))
    assert.is_true(#others > 0)
  end)

  it("refuse weights that are not finite, by name", function()
    local head = floats.unpack(floats.uniform(33 * 8, 3, 0.7))
    head[32 * 8 + 2] = 0 / 0
    local g <close> = head_graph(33, 8, floats.pack(head))
    for _, form in ipairs(FORMS) do
      local p, message, code = core.program(g, { threads = 1, context = 8, chunk = 8, weights = form })
      assert.same({ nil, "invalid" }, { p, code })
      assert.matches("^weight head: row 32 has an element that is not finite", message)
    end
  end)

  it("give models the same logits on any number of threads and steps, and states that tell forms apart", function()
    local path = os.tmpname()
    for i, form in ipairs { "int4-block", "lut4", "lut4-g8" } do
      for _, int8 in ipairs { false, true } do
        local first
        for _, way in ipairs { { 1 }, { 3 }, { 2, 1 }, { 1, 4 } } do
          local p <close> = programs.open("qwen2-bf16", { weights = form, threads = way[1], int8 = int8 })
          local s <close> = assert(p:session { context = 64, kv = "fp32" })
          local bits = programs.feed(s, programs.ids(20, 77, 3), way[2])
          first = first or bits
          assert.equal(first, bits)
          if i == 2 and not int8 then assert(s:save(path)) end
          if i == 3 and not int8 then assert.equal("state", select(3, s:restore(path))) end
        end
      end
    end
    os.remove(path)
  end)

  it("survive every failing allocation", function()
    local g <close> = head_graph(40, 64, floats.uniform(40 * 64, 3, 0.7))
    for _, form in ipairs { "int8", "int4-block", "uint4-block", "lut4", "lut4-g8" } do
      local failed = 0
      for n = 0, 200 do
        core.testing.alloc_fail_after(n)
        local p, message, code = core.program(g, { threads = 2, context = 8, chunk = 8, weights = form })
        core.testing.alloc_fail_after()
        if p then
          p:close()
          if n > failed + 20 then break end
        else
          failed = failed + 1
          assert.equal("memory", code, message)
        end
      end
      assert.is_true(failed > 10)
    end
  end)
end)
