local core = require "ane.core"
local floats = require "support.floats"
local graphs = require "support.graphs"
local programs = require "support.programs"
local testing = core.testing

local HEAD = [[
  input ids: int32[1, T]
  input positions: int32[1, T]
  input out_rows: int32[1, W]
  input given: fp32[1, 8, T, 1]
  const table: fp32[16, 8]
  const w: fp32[12, 8]
  const n: fp32[8]
  state ks: fp16[1, 2, context, 4]
  state vs: fp16[1, 2, context, 4]
  state vs2: fp16[1, 2, context, 4]
  x = embed(ids, table)
  r = rope_table(positions) {inv_freq=[1 0.5]}
]]
local TAIL = "\n t = gather(y, out_rows)\n out = conv1x1(t, w)\n give out"

local function plan(text, o)
  local g <close> = graphs.parse(HEAD .. text)
  local ok, message, code = g:passes(o and o.pipeline or "cpu-plain")
  if not ok then return nil, message, code end
  return core.program(g, { threads = o and o.threads or 1, context = 100, chunk = 32, int8 = false })
end

describe("a plan", function()
  local refused = {
    { "an activation that a run cannot give", "y = add(x, given)" .. TAIL,
      "y: graph input given can only feed embed, rope_table, position_scale or gather" },
    { "output rows looked up as ids", "y = embed(out_rows, table)\n out = conv1x1(y, w)\n give out",
      "y: graph input out_rows can only feed embed, rope_table, position_scale or gather" },
    { "columns taken by ids", "y = gather(x, ids)\n t = gather(y, out_rows)\n out = conv1x1(t, w)\n give out",
      "y: graph input ids can only feed embed, rope_table, position_scale or gather" },
    { "attention on output rows",
      "z = gather(x, out_rows)\n y = attention(z, z, z, ks, vs) {heads=2 kv_heads=2}\n out = conv1x1(y, w)\n give out",
      "y: attention cannot follow gather" },
    { "gather behind gather", "z = gather(x, out_rows)\n y = gather(z, out_rows)\n out = conv1x1(y, w)\n give out",
      "y: gather cannot follow gather" },
    { "a state of two attentions",
      "z = attention(x, x, x, ks, vs) {heads=2 kv_heads=2}\n y = attention(z, z, z, ks, vs2) {heads=2 kv_heads=2}" .. TAIL,
      "y: state ks belongs to another attention" },
    { "values of two attentions in one state",
      "z = attention(x, x, x, ks, vs) {heads=2 kv_heads=2}\n y = attention(z, z, z, vs2, vs) {heads=2 kv_heads=2}" .. TAIL,
      "y: state vs belongs to another attention" },
    { "logits of all tokens", "y = scale(x)\n give y", "the graph g has 1 results; the executor takes one, of the output rows" },
    { "two results", "y = scale(x)\n t = gather(y, out_rows)\n u = conv1x1(t, w)\n give t u",
      "the graph g has 2 results; the executor takes one, of the output rows" },
    { "no head behind gather", "t = gather(x, out_rows)\n give t", "the graph g does not gather its output rows before the head" },
  }
  for _, case in ipairs(refused) do
    it("refuses " .. case[1], function()
      local p, message, code = plan(case[2])
      assert.is_nil(p)
      assert.equal(case[3], message)
      assert.equal("unsupported", code)
    end)
  end

  it("checks its options", function()
    local g <close> = programs.graph "llama-odd"
    assert(g:passes "cpu")
    local function try(o)
      local all = { threads = 1, context = 10, chunk = 8 }
      for k, v in pairs(o) do all[k] = v end
      return select(2, pcall(core.program, g, all))
    end
    assert.matches("option threads must be an integer in 1 .. 1024, but is 0", try { threads = 0 })
    assert.matches("option chunk must be an integer in 1 .. 32768, but is 32769", try { chunk = 32769 })
    assert.matches("option context must be an integer in 1 .. 2147483647, but is 1.5", try { context = 1.5 })
    assert.matches("option isa is neon9, no ISA level", try { isa = "neon9" })
    assert.matches("option weights is q9; known are: file, fp16, int8, int8%-channel, int8%-block, int4%-block", try { weights = "q9" })
    local p, message, code = core.program(g, { threads = 1, context = 10, chunk = 8, weights = "iq2_s" })
    assert.same({ nil, "weights cannot be encoded as iq2_s", "unsupported" }, { p, message, code })
  end)

  it("holds what it needs of graph and source, in whatever order they are closed", function()
    local g, _, source = programs.graph "llama-odd"
    assert(g:passes "cpu")
    local function progress() g:close() end -- even from inside
    local p = assert(core.program(g, { threads = 2, context = 64, chunk = 64, progress = progress }))
    source:close()
    local s = assert(p:session { context = 64, kv = "fp16" })
    p:close()
    g, source = nil, nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert(s:feed { 1, 2, 3 })
    local other <close> = assert(s:fork())
    s:close()
    s:close()
    assert(other:feed(4))
    assert.error_matches(function() s:feed(1) end, "session is closed")
    assert.error_matches(function() p:info() end, "program is closed")
    assert.equal("program (closed)", tostring(p))
    assert.equal("session (closed)", tostring(s))
  end)

  it("raises what its progress function raises, and counts up to the whole", function()
    local g <close> = programs.graph "llama-odd"
    assert(g:passes "cpu")
    local o = { threads = 1, context = 64, chunk = 64, progress = function() error("no more", 0) end }
    assert.error(function() core.program(g, o) end, "no more")
    local seen, last = 0, 0
    o.progress = function(done, total)
      assert.is_true(done > last and done <= total)
      seen, last = seen + 1, done == total and math.huge or done
    end
    local p <close> = assert(core.program(g, o))
    assert.equal(#p:info().matrices, seen)
    assert.equal(math.huge, last)
  end)
end)

-- Lifetimes from the graph's text, places from the program's: no two values that live at once may overlap.
describe("the memory plan", function()
  local function check(model, pipeline, chunk)
    local g <close> = programs.graph(model)
    assert(g:passes(pipeline))
    local p <close> = assert(core.program(g, { threads = 1, context = 64, chunk = chunk }))
    local place = {}
    for line in p:dump():gmatch "[^\n]+" do
      local name, rest = line:match "^%S+%s+(%S+)%s+(@.*)$"
      place[name] = {}
      for at, channels, result in rest:gmatch "@(%d+) x (%d+)( ?r?)" do
        table.insert(place[name], { from = tonumber(at), channels = tonumber(channels), result = result == " r" })
      end
    end
    local nodes, lives, tail = {}, {}, nil
    for line in g:dump():gmatch "[^\n]+" do
      local names, inputs, types = line:match "^(%S.-) = [%w_]+%((.-)%).- : (.+)$"
      if names then
        nodes[#nodes + 1] = inputs
        tail = tail or types:find "W" and #nodes
        local i, first = 0, names:match "^[^,]+"
        for name in names:gmatch "[^, ]+" do
          i = i + 1
          local at = assert(place[first][i], name)
          local cols = types:find "W" and math.min(64, chunk) or chunk
          lives[name] = {
            name = name, made = #nodes, last = #nodes, from = at.from, to = at.from + at.channels * cols * 4, result = at.result,
          }
        end
        for name in inputs:gmatch "[^, ]+" do
          if lives[name] then lives[name].last = #nodes end
        end
      end
    end
    local list = {}
    for _, l in pairs(lives) do
      if l.last >= tail then l.last = #nodes end -- the tail runs again for each block of wanted positions
      if l.made >= tail then l.made = tail end
      if not l.result then list[#list + 1] = l end
    end
    local shared = 0
    for i, a in ipairs(list) do
      for j = i + 1, #list do
        local b = list[j]
        local overlap = a.from < b.to and b.from < a.to
        if overlap then shared = shared + 1 end
        assert.is_false(overlap and a.made <= b.last and b.made <= a.last, a.name .. " and " .. b.name)
      end
    end
    assert.is_true(shared > 0) -- else the check above has looked at nothing
  end

  for _, model in ipairs { "llama-mixed", "qwen2-q4_0", "gemma3-q8_0" } do
    it("keeps apart what lives together: " .. model, function()
      for _, pipeline in ipairs { "cpu", "cpu-plain" } do
        for _, chunk in ipairs { 1, 17, 512 } do check(model, pipeline, chunk) end
      end
    end)
  end

  it("leaves no step to read what none wrote", function()
    for _, model in ipairs { "llama-mixed", "llama-kquants", "qwen2-bf16", "gemma3-q8_0" } do
      for _, int8 in ipairs { true, false } do
        for _, pipeline in ipairs { "cpu", "cpu-plain" } do
          local p <close> = programs.open(model, { int8 = int8, threads = 2, pipeline = pipeline })
          local s <close> = assert(p:session { context = 512 })
          local ids, bits = programs.ids(100, 300, 5), {}
          for turn = 1, 2 do
            assert(s:rewind(0))
            if turn == 2 then testing.poison(s) end
            bits[turn] = programs.feed(s, programs.slice(ids, 1, 70))
            if turn == 2 then testing.poison(s) end
            bits[turn] = bits[turn] .. programs.feed(s, programs.slice(ids, 71, 100), 1)
          end
          assert.is_true(bits[1] == bits[2], model .. " " .. pipeline)
        end
      end
    end
  end)
end)

describe("weights", function()
  local function cosine(a, b)
    local x, y, dot, aa, bb = floats.unpack(a), floats.unpack(b), 0, 0, 0
    for i = 1, #x do dot, aa, bb = dot + x[i] * y[i], aa + x[i] * x[i], bb + y[i] * y[i] end
    return dot / math.sqrt(aa * bb)
  end

  local least = { fp32 = 1, fp16 = 0.99999, bf16 = 0.9999, q8_0 = 0.9995, q5_1 = 0.97, q5_0 = 0.97, q4_1 = 0.92, q4_0 = 0.92,
    int8 = 0.999, ["int8-channel"] = 0.999, ["int8-block"] = 0.999 }

  for _, model in ipairs { "llama-mixed", "qwen2-bf16", "llama-odd" } do
    it("in another format stay close: " .. model, function()
      local ids, forms = programs.ids(30, 77, 3), {}
      local file <close> = programs.open(model)
      local s <close> = assert(file:session { context = 64, kv = "fp32" })
      local want = programs.feed(s, ids)
      for weights, bound in pairs(least) do
        local p <close> = programs.open(model, { weights = weights, threads = 2 })
        local t <close> = assert(p:session { context = 64, kv = "fp32" })
        local got = cosine(programs.feed(t, ids), want)
        assert.is_true(got >= bound - 1e-9, ("%s: cosine %.6f"):format(weights, got))
        for _, m in ipairs(p:info().matrices) do forms[weights .. " " .. m.form] = true end
      end
      -- Rows of 60 columns are no whole blocks: they stay as they are.
      local q8 = model == "llama-odd" and "q8_0 fp32" or "q8_0 q8_0"
      assert.is_true(forms[q8] and forms["fp32 fp32"] and forms["fp16 fp16"])
      assert.is_true(forms["int8 int8"])
    end)
  end

  -- One scale a tensor that fp16 can hold: logits of a model whose head is a single number times int8 codes show it.
  it("as int8 have a scale per tensor that fp16 can hold", function()
    local head = {}
    for i = 1, 32 * 32 do head[i] = ((i - 1) // 32 == (i - 1) % 32) and 0.3 or 0 end
    head[1] = 1.7
    local eye = {}
    for i = 1, 32 * 32 do eye[i] = ((i - 1) // 32 == (i - 1) % 32) and 1 or 0 end
    local g <close> = graphs.parse([[
      input ids: int32[1, T]
      input out_rows: int32[1, W]
      const table: fp32[32, 32]
      const head: fp32[32, 32]
      x = embed(ids, table)
      t = gather(x, out_rows)
      y = conv1x1(t, head)
      give y
    ]], { table = eye, head = head })
    assert(g:passes "cpu")
    local p <close> = assert(core.program(g, { threads = 1, context = 8, chunk = 8, weights = "int8" }))
    local s <close> = assert(p:session { context = 8 })
    assert(s:feed { 0, 5 }, "all")
    assert(s:rewind(0))
    assert(s:feed({ 0, 5 }, "all"))
    local scale = s:logits(1):get(1) / 127
    assert.equal(scale, string.unpack("<f", testing.decode("fp16", testing.encode("fp16", string.pack("<f", scale)))))
    assert.is_true(scale >= 1.7 / 127 and scale < 1.7 / 127 * (1 + 2 ^ -10))
    assert.equal(math.floor(0.3 / scale + 0.5) * scale, s:logits(2):get(6))
  end)
end)
