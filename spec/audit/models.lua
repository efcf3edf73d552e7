--- Models of random dimensions: the same bits on every level, with any number of threads, cut into any calls, over several ranks, and
-- in pools; the values of their packages, and those bits too for any cut into calls.
local ane = require "ane"
local core = require "ane.core"
local floats = require "support.floats"
local lowered = require "support.lowered"
local programs = require "support.programs"
local random_model = require "audit.random_model"
local stages = require "support.stages"
local writer = require "support.safetensors_writer"

local M = { cases = 16 }

local CONTEXT = 48
-- What the weights are made before they are used, and how keys and values are kept.
local WEIGHTS = { false, false, "fp16", "int8", "int8-block", "int4-block", "uint4-block", "lut4" }
local KV = { "fp16", "fp32", "int8", "int16" }

local function same(got, want, what)
  local why = floats.difference(got, want)
  if why then error(what .. ": " .. why, 0) end
end

local function feed(s, ids, cuts)
  local out, at = {}, 0
  for i, n in ipairs(cuts) do
    assert(s:feed(programs.slice(ids, at + 1, at + n), "all"))
    out[i], at = programs.rows(s), at + n
  end
  return table.concat(out)
end

-- The rows of ids from `keep` on, after the session went another way and came back: rewound, forked, or saved and restored.
local function returned(d, p, s, ids, keep, kv)
  local cuts = d.cuts(#ids - keep, p:info().chunk)
  assert(s:rewind(keep))
  if d.chance(0.5) then
    local other <close> = assert(s:fork())
    assert(s:feed(d.ids(3, 20), "none"))
    return feed(other, programs.slice(ids, keep + 1, #ids), cuts)
  end
  local file, other <close> = writer.temp(), assert(p:session { context = CONTEXT, kv = kv })
  assert(s:save(file))
  local ok, message = other:restore(file)
  os.remove(file)
  assert(ok, message)
  return feed(other, programs.slice(ids, keep + 1, #ids), cuts)
end

-- bf16 products round as their instruction does, which only some levels have.
local function has_bf16(p)
  for _, m in ipairs(p:info().matrices) do
    if m.act == "bf16" then return true end
  end
  return false
end

local function levels(d, model, ids, o)
  local want, row
  for _, isa in ipairs(core.isa_list()) do
    local threads, manner, chunk = d.between(1, 4), d.one_of { "together", "mixed", "free" }, d.between(3, #ids)
    local p <close> = programs.open(model.path, {
      isa = isa, threads = threads, manner = manner, int8 = o.int8, weights = o.weights or nil, context = CONTEXT, chunk = chunk,
    })
    if has_bf16(p) then want = nil end
    local s <close> = assert(p:session { context = CONTEXT, kv = o.kv })
    local cuts = d.cuts(#ids, chunk)
    local what = ("%s, %d threads, calls of %s, chunk %d"):format(isa, threads, table.concat(cuts, " "), chunk)
    local got = feed(s, ids, cuts)
    want = want or got
    same(got, want, what)
    row = #got // #ids
    local keep = d.between(0, #ids - 1)
    same(returned(d, p, s, ids, keep, o.kv), want:sub(keep * row + 1), what .. ", back to " .. keep)
  end
  return want
end

-- Programs of the parts of a model, whose messages go through queues.
local function ranks(d, model, ids, o, want)
  local graph, source = stages.graph(model.path)
  local steps, cuts = #graph:costs() - 1, {}
  graph:close()
  source:close()
  for at = 1, steps - 1 do
    if d.chance(2 / steps) then cuts[#cuts + 1] = at end
  end
  local line <close> = stages.open(model.path, cuts, { threads = d.between(1, 2), int8 = o.int8, kv = o.kv, context = CONTEXT })
  line:feed(ids, "all", #ids)
  same(line:rows(), want, "ranks cut at " .. table.concat(cuts, " "))
end

-- Replies of sequences in shared steps.
local function pools(d, model)
  local m <close> = assert(ane.load(model.path, { threads = d.between(1, 3), context = CONTEXT }))
  local prompts, opts = {}, { max_tokens = 6, ignore_eos = true, details = true }
  for i = 1, d.between(2, 4) do prompts[i] = d.ids(d.between(1, 12), model.vocab) end
  local all = assert(m:generate_many(prompts, opts))
  for i, prompt in ipairs(prompts) do
    local alone = table.concat(assert(m:generate(prompt, opts)).ids, " ")
    local among = table.concat(all[i].ids, " ")
    if alone ~= among then error(("prompt %d in a pool: %s, alone: %s"):format(i, among, alone), 0) end
  end
end

local function share_of_far(rows, want, width, limit)
  local far = 0
  for t, row in ipairs(rows) do
    local x, y = floats.unpack(row), floats.unpack(want:sub((t - 1) * 4 * width + 1, t * 4 * width))
    for i = 1, width do
      local off = math.abs(x[i] - y[i])
      if off ~= off or off > limit * (1 + math.abs(y[i])) then
        far = far + 1
        break
      end
    end
  end
  return far / #rows
end

-- Two experts with nearly equal scores: which of them is chosen may differ, and with it all that follows. States of recurrences are
-- rounded to fp16 between the calls of a package.
local function has(text, ...)
  for _, op in ipairs { ... } do
    if text:find("= " .. op .. "(", 1, true) then return true end
  end
  return false
end

local function packages(d, model, ids)
  local graph = lowered.graph(model.path)
  local text = graph:dump()
  local experts, recurrent = has(text, "route"), has(text, "ssm_scan", "delta_rule")
  local opts = { layout = d.one_of { "ct1", "c1t" }, norm = d.one_of { "doubled", "fp32" }, context = CONTEXT }
  local whole = { context = CONTEXT, whole = true, fp32 = true, weights = "plain", embed = true, max_t = 8 }
  local exporter, message, code = core.mil_exporter(graph, whole)
  if not exporter then
    graph:close()
    assert(code == "unsupported", message)
    return
  end
  exporter:close()
  local p <close> = lowered.wrap(graph, opts)
  local rows = p:feed_in(ids, d.cuts(#ids, 8))
  p:reset()
  local cuts = d.cuts(#ids, 8)
  local again = p:feed_in(ids, cuts)
  if not recurrent then same(table.concat(again), table.concat(rows), "packages in calls of " .. table.concat(cuts, " ")) end
  local program <close> = programs.open(model.path, { isa = "ref", context = CONTEXT, chunk = #ids })
  local s <close> = assert(program:session { context = CONTEXT, kv = "fp32" })
  local want = feed(s, ids, { #ids })
  local far = share_of_far(rows, want, #rows[1] // 4, recurrent and 3e-2 or 2e-3)
  if far > (experts and 0.5 or 0) then error(("packages are off in %g of the rows"):format(far), 0) end
end

function M.case(d)
  local model <close> = random_model.make(d)
  local ids = d.ids(d.between(8, 30), model.vocab)
  local o = { int8 = d.chance(0.5), weights = d.one_of(WEIGHTS), kv = d.one_of(KV) }
  local function part(name, ...)
    local ok, message = pcall(...)
    if not ok then
      error(("%s (int8 %s, weights %s, kv %s): %s: %s"):format(model.name, o.int8, o.weights, o.kv, name, message), 0)
    end
    return message
  end
  local want = part("levels", levels, d, model, ids, o)
  if not o.weights and want then part("ranks", ranks, d, model, ids, o, want) end
  part("pool", pools, d, model)
  part("packages", packages, d, model, ids)
end

return M
