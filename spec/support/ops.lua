--- Single ops in small graphs, and their inputs as Lua numbers, for comparing with a computation in doubles.
--
--   local o = ops.new { channels = 8, out = 6, consts = { w = { 6, 8 } }, text = "y = conv1x1(x, w)" }
--   local rows, bits = ops.run(o, { 1, 2, 3 }, { threads = 2 })   -- of the value y
--   o.x { 1, 2, 3 }, o.c.w                                        -- its input x by token, its constants, as lists

local core = require "ane.core"
local floats = require "support.floats"
local graphs = require "support.graphs"
local programs = require "support.programs"

local M = {}

M.VOCAB = 40

--- n random numbers that float32 holds exactly.
function M.random(n, seed, limit) return floats.unpack(floats.uniform(n, seed, limit or 1)) end

local function product(list)
  local n = 1
  for _, d in ipairs(list) do n = n * d end
  return n
end

--- o: channels of x, out (channels of y), consts (name -> shape), given (name -> list of numbers), text (graph from x, and
-- the inputs positions and r = a rope table if text says so, to y).
function M.new(o)
  o.c, o.consts = o.given or {}, o.consts or {}
  o.consts.table, o.consts.eye = { M.VOCAB, o.channels }, { o.out, o.out }
  o.c.eye = {}
  for i = 0, o.out * o.out - 1 do o.c.eye[i + 1] = i // o.out == i % o.out and 1 or 0 end
  local names = {}
  for name in pairs(o.consts) do names[#names + 1] = name end
  table.sort(names)
  o.head = "input ids: int32[1, T]\ninput positions: int32[1, T]\ninput out_rows: int32[1, W]\n"
  for i, name in ipairs(names) do
    o.c[name] = o.c[name] or M.random(product(o.consts[name]), i + 10 * o.channels)
    assert(#o.c[name] == product(o.consts[name]), name)
    o.head = o.head .. ("const %s: fp32[%s]\n"):format(name, table.concat(o.consts[name], ", "))
  end
  o.head = o.head .. "x = embed(ids, table)\n"
  function o.x(ids)
    local rows = {}
    for t, id in ipairs(ids) do rows[t] = table.move(o.c.table, id * o.channels + 1, (id + 1) * o.channels, 1, {}) end
    return rows
  end
  return o
end

--- The graph, with a head that gives y as logits.
function M.graph(o)
  local g, v, source = graphs.parse(o.head .. o.text, o.c)
  if o.more then v.y = o.more(g, v, source) end -- what the text form cannot say
  local t = g:add("gather", "t", { v.y, v.out_rows })
  g:results(g:add("conv1x1", "out", { t, v.eye }))
  return g
end

--- A program of the graph. opts: as programs.open, manner too; chunk (16), context (100).
function M.program(o, opts)
  local g <close> = M.graph(o)
  assert(g:passes(opts.pipeline or "cpu"))
  return programs.made(opts.manner, core.program, g, {
    isa = opts.isa, threads = opts.threads or 1, int8 = opts.int8 or false, weights = opts.weights, context = opts.context or 100,
    chunk = opts.chunk or 16,
  })
end

--- y of all tokens, fed `step` at a time: as rows of numbers, and as bits.
function M.run(o, ids, opts)
  opts = opts or {}
  local p <close> = M.program(o, opts)
  local s <close> = assert(p:session { context = opts.context or 100, kv = opts.kv or "fp32" })
  local bits = programs.feed(s, ids, opts.step or math.min(opts.chunk or 16, #ids))
  local flat, rows = floats.unpack(bits), {}
  for t = 1, #ids do rows[t] = table.move(flat, (t - 1) * o.out + 1, t * o.out, 1, {}) end
  return rows, bits
end

--- Nil where all |got - want| <= limit (1 + |want|), else a text.
function M.apart(got, want, limit)
  if #got ~= #want then return ("%d rows, wanted %d"):format(#got, #want) end
  for t = 1, #want do
    if #got[t] ~= #want[t] then return ("row %d has %d numbers, but must have %d"):format(t, #got[t], #want[t]) end
    for i = 1, #want[t] do
      local d = math.abs(got[t][i] - want[t][i])
      if d ~= d or d > (limit or 2e-6) * (1 + math.abs(want[t][i])) then
        return ("row %d, channel %d: %.9g, wanted %.9g"):format(t, i, got[t][i], want[t][i])
      end
    end
  end
end

--- Runs in many ways, all of which must give the same bits, near to the rows wanted.
function M.check(o, ids, want, opts)
  opts = opts or {}
  local first
  local ways = opts.ways or { {}, { threads = 3 }, { step = 1 }, { step = 3, threads = 2 }, { chunk = 1 }, { pipeline = "cpu-plain" } }
  for _, way in ipairs(ways) do
    local rows, bits = M.run(o, ids, setmetatable(way, { __index = opts }))
    first = first or bits
    local label = ("threads %s, step %s, chunk %s"):format(way.threads, way.step, way.chunk)
    local why = M.apart(rows, want, opts.limit) or floats.difference(bits, first)
    if why then error(label .. ": " .. why, 2) end
  end
  for _, isa in ipairs(core.isa_list()) do
    local _, bits = M.run(o, ids, setmetatable({ isa = isa }, { __index = opts }))
    local why = floats.difference(bits, first)
    if why then error(isa .. ": " .. why, 2) end
  end
end

--- W x + b in doubles; w [n][c] as a flat list.
function M.matvec(w, x, b, transposed)
  local n, y = #w // #x, {}
  for r = 1, n do
    local sum = b and b[r] or 0
    for c = 1, #x do sum = sum + (transposed and w[(c - 1) * n + r] or w[(r - 1) * #x + c]) * x[c] end
    y[r] = sum
  end
  return y
end

local function erf(x)
  local sum, term = 0, x
  for n = 0, 200 do
    sum = sum + term / (2 * n + 1)
    term = -term * x * x / (n + 1)
  end
  return 2 / math.sqrt(math.pi) * sum
end

local function sigmoid(x) return 1 / (1 + math.exp(-x)) end

M.sigmoid = sigmoid

M.acts = {
  silu = function(x) return x * sigmoid(x) end,
  gelu_tanh = function(x) return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x ^ 3)) end,
  gelu_erf = function(x) return 0.5 * x * (1 + erf(x / math.sqrt(2))) end,
  sigmoid = sigmoid,
}

return M
