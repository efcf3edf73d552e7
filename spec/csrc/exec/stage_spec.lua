-- Stages of a pipeline have the bits of the whole program, wherever it is cut.
local core = require "ane.core"
local programs = require "support.programs"
local stages = require "support.stages"

-- Dense, tied and untied heads; windows; shared K and V; mixtures; latent attention; convolutions; recurrent states.
local MODELS = {
  "gguf/llama-mixed.gguf", "gguf/llama-kquants.gguf", "gguf/gemma3-q8_0.gguf", "gguf/qwen2-bf16.gguf", "hf/gemma3n-odd", "hf/gemma4-odd",
  "hf/qwen3_moe-odd", "hf/gpt_oss_mxfp4-odd", "hf/deepseek_v2-odd", "hf/lfm2-odd", "hf/falcon_h1-odd", "hf/qwen3_5-odd", "hf/zaya-odd",
  "hf/cohere2-odd", "hf/phi3",
}

local function ids_of(n, seed) return programs.ids(n, 30, seed) end

-- Body steps before which a model of `steps` is cut, for `n` stages; some stages may be empty.
local function cuts_of(steps, n, seed)
  local cuts = {}
  for i = 1, n - 1 do cuts[i] = math.floor(core.random(seed, i) * steps) end
  table.sort(cuts)
  return cuts
end

local function steps_of(path)
  local graph <close>, source = stages.graph(path)
  local n = #graph:costs() - 1
  source:close()
  return n
end

-- What the calls of a session give, by a pipeline or a whole program.
local function story(line)
  local rows = {}
  local function feed(...)
    line:feed(...)
    rows[#rows + 1] = line:rows()
  end
  feed(ids_of(37, 1), "all", 11)
  feed(ids_of(1, 2), "all")
  line:each("rewind", 33) -- rings and recurrent states: some tokens are fed again
  feed(ids_of(5, 3), "all")
  line:each("rewind", 2)
  feed(ids_of(40, 4), "all")
  line:each("rewind", 0)
  feed(ids_of(9, 5), "last", 4)
  return rows
end

describe("stages of a pipeline", function()
  for _, name in ipairs(MODELS) do
    it("have the bits of the whole: " .. name, function()
      local path = "spec/fixtures/" .. name
      local steps = steps_of(path)
      for _, int8 in ipairs { true, false } do
        local opts = { context = 96, int8 = int8 }
        local whole <close> = stages.open(path, {}, { context = 96, int8 = int8, whole = true })
        local want = story(whole)
        for n = 1, 4 do
          local cuts = cuts_of(steps, n, n)
          local line <close> = stages.open(path, cuts, opts)
          local got = story(line)
          for i = 1, #want do assert(got[i] == want[i], ("call %d differs, cut at %s"):format(i, table.concat(cuts, ", "))) end
          assert.equal(0, line:left())
        end
      end
    end)
  end

  for _, name in ipairs(MODELS) do
    it("have the bits of the whole where the head is divided: " .. name, function()
      local path = "spec/fixtures/" .. name
      local graph <close>, source = stages.graph(path)
      local found, steps = graph:head(), #graph:costs() - 1
      source:close()
      assert(found, "the head cannot be divided")
      local whole <close> = stages.open(path, {}, { context = 96, whole = true })
      local want = story(whole)
      for n = 1, 3 do
        local line <close> = stages.open(path, cuts_of(steps, n, n), { context = 96, heads = n })
        local got = story(line)
        for i = 1, #want do assert(got[i] == want[i], ("call %d differs, %d parts"):format(i, n)) end
        assert.equal(0, line:left())
      end
    end)
  end

  it("refuse parts of the head that there are not", function()
    local graph <close>, source = stages.graph "spec/fixtures/gguf/llama-mixed.gguf"
    local ok, message, code = graph:slice_head(0, 1 << 30)
    assert.equal(nil, ok)
    assert.equal("range", code)
    assert.matches("of the head", message)
    local made, why = core.program(graph, { threads = 1, int8 = true, context = 8, chunk = 8, stage = {
      from = 0, to = 3, tail = "no-head", receive = print, send = print,
    } })
    assert.equal(nil, made)
    assert.matches("does not end with the body", why)
    source:close()
  end)

  it("change over to the long factors of rope together", function()
    local path = "spec/fixtures/hf/phi3"
    local whole <close> = stages.open(path, {}, { context = 128, chunk = 128, whole = true })
    local line <close> = stages.open(path, { 3, 8 }, { context = 128, chunk = 128 })
    for i, n in ipairs { 20, 60, 10 } do
      whole:feed(ids_of(n, i), "all")
      line:feed(ids_of(n, i), "all")
      assert(whole:rows() == line:rows())
    end
    assert.equal(whole.sessions[1]:replayed(), line.sessions[2]:replayed())
    assert(whole.sessions[1]:replayed() > 0)
  end)

  it("hold their own weights and states, and together those of the whole", function()
    local path = "spec/fixtures/gguf/llama-mixed.gguf"
    local whole <close> = stages.open(path, {}, { whole = true })
    local line <close> = stages.open(path, { 4, 9 })
    local all, sum, kv = whole.programs[1]:info(), 0, 0
    for _, p in ipairs(line.programs) do
      local info = p:info()
      assert(info.stored_bytes < all.stored_bytes)
      sum, kv = sum + info.stored_bytes, kv + info.kv_bytes_per_token
    end
    assert.equal(all.stored_bytes, sum)
    assert.equal(all.kv_bytes_per_token, kv)
  end)

  it("list what steps cost, which sums up to the model", function()
    local graph <close>, source = stages.graph "spec/fixtures/hf/qwen3_moe-odd"
    local costs, bytes = graph:costs(), 0
    for _, c in ipairs(costs) do
      bytes = bytes + c.weights + c.table
      assert(c.read <= c.weights)
    end
    local cfg, attention, layers = assert(core.json_decode(assert(core.read_file "spec/fixtures/hf/qwen3_moe-odd/config.json"))), 0, 0
    for _, c in ipairs(costs) do
      attention, layers = attention + c.attention, layers + (c.attention > 0 and 1 or 0)
      assert.equal(0, c.window)
    end
    assert.equal(cfg.num_hidden_layers, layers)
    assert.equal(2 * layers * cfg.num_attention_heads * cfg.head_dim, attention)
    assert.equal(0, costs[1].crossing)
    assert(costs[2].crossing > 0)
    assert(bytes >= source:bytes() * 0.9, "costs leave out weights")
    source:close()
  end)

  it("save and restore each their own part", function()
    local path = "spec/fixtures/hf/qwen3_5-odd"
    local line <close> = stages.open(path, { 7 })
    local again <close> = stages.open(path, { 7 })
    line:feed(ids_of(21, 1), "last")
    for i, s in ipairs(line.sessions) do
      local file = os.tmpname()
      assert(s:save(file))
      assert(again.sessions[i]:restore(file))
      local ok, _, code = again.sessions[3 - i]:restore(file)
      os.remove(file)
      assert.equal(nil, ok)
      assert.equal("state", code)
    end
    line:feed(ids_of(5, 2), "all")
    again:feed(ids_of(5, 2), "all")
    assert(line:rows() == again:rows())
  end)

  it("send half the bytes as fp16, which is close", function()
    local path = "spec/fixtures/gguf/llama-mixed.gguf"
    local exact <close> = stages.open(path, { 6 }, { int8 = false })
    local half <close> = stages.open(path, { 6 }, { fp16 = true, int8 = false })
    local bytes = {}
    for i, line in ipairs { exact, half } do
      assert(line.sessions[1]:feed(ids_of(8, 1), "none"))
      bytes[i] = #line.queues[1][1]
      assert(line.sessions[2]:feed(ids_of(8, 1), "last"))
    end
    assert.equal(bytes[1], 2 * bytes[2])
    local a, b = exact.sessions[2]:logits(-1):totable(), half.sessions[2]:logits(-1):totable()
    for i = 1, #a do assert(math.abs(a[i] - b[i]) < 0.05 * (1 + math.abs(a[i]))) end
  end)

  it("fail a run whose message does not come or has another size, and leave its session as it was", function()
    local path = "spec/fixtures/gguf/llama-mixed.gguf"
    local line <close> = stages.open(path, { 6 })
    local second = line.sessions[2]
    local ok, _, code = second:feed(ids_of(4, 1), "last")
    assert.equal(nil, ok)
    assert.equal("io", code)
    assert(line.sessions[1]:feed(ids_of(5, 1), "last"))
    local message
    ok, message = second:feed(ids_of(4, 1), "last")
    assert.equal(nil, ok)
    assert.matches("but must send", message)
    assert.equal(0, second:length())
  end)

  it("refuse steps that the graph does not have", function()
    local ok, message = pcall(stages.open, "spec/fixtures/gguf/llama-mixed.gguf", { 1000 })
    assert.equal(false, ok)
    assert.matches("the graph", message)
  end)

  describe("whose functions use them in the middle of a run", function()
    local graph, source, steps

    lazy_setup(function()
      graph, source = stages.graph "spec/fixtures/gguf/llama-mixed.gguf"
      steps = #graph:costs() - 1
    end)
    lazy_teardown(function()
      graph:close()
      source:close()
    end)

    -- A program of the last steps, and a session of it. Their messages are zeros; `during` is called before each.
    local function open(during)
      local program = assert(core.program(graph, {
        threads = 1, int8 = false, context = 64, chunk = 16, stage = {
          from = 3, to = steps, send = function() return true end,
          receive = function(bytes)
            during()
            return ("\0"):rep(bytes)
          end,
        },
      }))
      return program, assert(program:session { context = 64 })
    end

    it("refuse that, and are as usual afterwards", function()
      local program, session, message
      program, session = open(function()
        for _, use in ipairs {
          function() session:close() end, function() session:feed { 1 } end, function() session:rewind(0) end,
          function() session:fork() end, function() program:session { context = 8 } end,
          function() coroutine.wrap(session.length)(session) end,
        } do
          local ok, why = pcall(use)
          assert(not ok and why:find("the program is in a run: a function of its stage cannot use it or its sessions", 1, true), why)
        end
        message = true
      end)
      assert.is_true(session:feed({ 1, 2, 3 }, "last"))
      assert.is_true(message)
      local row = session:logits():tostring()
      assert.is_true(session:rewind(0))
      assert.is_true(program:run { { session, { 1, 2, 3 } } })
      assert.equal(row, session:logits():tostring())
      session:close()
      program:close()
    end)

    it("may stop them, close the program and change the tables of the run", function()
      local program, session, items
      program, session = open(function()
        session:stop()
        program:close()
        if items then items[1][1], items[1][2], items[1][3], items[1].mask = nil, nil, nil, nil end
        collectgarbage()
        collectgarbage()
      end)
      items = { { session, { 1, 2 }, { 0, 0 }, want = "best", mask = core.mask(program:vocab(), { 7 }) } }
      assert.is_true(program:run(items))
      assert.equal(7, (session:argmax()))
      assert.equal("stopped", select(3, session:feed { 1 }))
      assert.is_true(session:feed { 1 })
      session:close()
    end)

    it("fail the run where the error has no text", function()
      local program, session = open(function() error(setmetatable({}, { __tostring = function() error {} end })) end)
      local ok, message, code = session:feed { 1 }
      assert.same({ nil, "receiving from the stage before: table", "io" }, { ok, message, code })
      assert.equal(0, session:length())
      session:close()
      program:close()
    end)
  end)

  it("refuse a head alone that would take more rows than there is room for", function()
    local graph <close>, source = stages.graph "spec/fixtures/gguf/llama-mixed.gguf"
    local steps = #graph:costs() - 1
    local function none() return true end
    local ok, message, code = core.program(graph, {
      threads = 1, int8 = false, context = 65, chunk = 65, stage = { from = steps, to = steps, tail = "head", send = none, receive = none },
    })
    source:close()
    assert.same({ nil, "chunk is 65, but the head alone takes at most 64 output rows", "invalid" }, { ok, message, code })
  end)

  it("tell models apart by a few bytes of each weight", function()
    local function identity(name)
      local graph <close>, source = stages.graph("spec/fixtures/gguf/" .. name)
      local hash = assert(graph:identity())
      source:close()
      return hash
    end
    assert.equal(identity "llama-mixed.gguf", identity "llama-mixed.gguf")
    assert.are_not.equal(identity "llama-mixed.gguf", identity "llama-q8_0.gguf")
  end)
end)
