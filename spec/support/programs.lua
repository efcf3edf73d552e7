--- Programs of the fixture models, planned as a spec wants them, and what their sessions give.
--
--   local p <close> = programs.open("llama-mixed", {isa = "avx2", threads = 2})
--   local s <close> = assert(p:session{context = 64, kv = "fp16"})
--   local bits = programs.feed(s, ids, 7)    -- logits of every position, as one string, fed in pieces of 7

local config = require "ane.model.config"
local core = require "ane.core"
local recipe = require "ane.recipe"

local M = {}

M.folder = "spec/fixtures/gguf/"

--- The path of a fixture, or the path itself.
function M.path(name) return name:find "/" and name or M.folder .. name .. ".gguf" end

--- The graph of a model as its recipe builds it. soft: all experts of a mixture run.
-- @return graph, config, source
function M.graph(name, given, soft)
  local source = assert(core.open(M.path(name)))
  local cfg = assert(config.read(source))
  cfg.soft_experts = soft
  local r = given or assert(recipe.find(cfg.architecture))
  return assert(recipe.build(r, cfg, source)), cfg, source
end

--- What make(...) gives, a program whose threads take part in this manner ("together").
function M.made(manner, make, ...)
  core.testing.pool_manner(manner or "together")
  local result = table.pack(pcall(make, ...))
  core.testing.pool_manner "free"
  if not result[1] then error(result[2], 0) end
  return assert(table.unpack(result, 2, result.n))
end

--- A program. o: pipeline ("cpu"), isa, threads (1), int8 (false), weights, mixed, importance, context (512), chunk (512),
-- progress, soft, head; manner ("together": all threads take part in every step, "mixed": others from step to step, "free": as
-- the machine lets them).
function M.open(name, o)
  o = o or {}
  local graph <close> = M.graph(name, nil, o.soft)
  assert(graph:passes(o.pipeline or "cpu"))
  return M.made(o.manner, core.program, graph, {
    isa = o.isa, threads = o.threads or 1, int8 = o.int8 or false, weights = o.weights, context = o.context or 512, chunk = o.chunk or 512,
    progress = o.progress, head = o.head, mixed = o.mixed, importance = o.importance,
  })
end

--- n pseudo-random ids below `vocab`.
function M.ids(n, vocab, seed)
  local x, ids = seed or 1, {}
  for i = 1, n do
    x = (x * 1103515245 + 12345) & 0x7FFFFFFF
    ids[i] = (x >> 8) % vocab
  end
  return ids
end

local function slice(list, from, to) return table.move(list, from, math.min(to, #list), 1, {}) end
M.slice = slice

--- Every row of logits that the session's last feed left, as one string of floats.
function M.rows(session)
  local out = {}
  for i = 1, session:rows() do out[i] = session:logits(i):tostring() end
  return table.concat(out)
end

--- Feeds ids in pieces of `step` (default: whole) and gives the logits of all of them, as one string of floats.
function M.feed(session, ids, step)
  local out = {}
  for from = 1, #ids, step or #ids do
    assert(session:feed(slice(ids, from, from + (step or #ids) - 1), "all"))
    out[#out + 1] = M.rows(session)
  end
  return table.concat(out)
end

--- The n tokens that greedy decoding gives after `ids`.
function M.greedy(session, ids, n)
  local out = {}
  for i = 1, n do
    assert(session:feed(i == 1 and ids or out[i - 1], "argmax"))
    out[i] = session:argmax()
  end
  return out
end

return M
