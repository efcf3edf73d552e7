--- Fixtures of spec/golden/decoders.py: a folder with goldens of transformers, and for some the same weights as GGUF.
-- Usage (in a describe): `for _, case in ipairs(decoders.cases "granite") do it(table.unpack(case)) end`

local ane = require "ane"
local hf = require "support.hf"
local programs = require "support.programs"

local M = {}

local function gguf(name) return programs.folder .. name .. ".gguf" end

-- Logits at all positions and greedy tokens; slack: most that a logit may be off.
local function like_golden(path, name, slack)
  local prompts, tensors = hf.golden(name)
  local model <close> = assert(ane.load(path, { activations = "fp32", threads = 1 }))
  for _, p in ipairs(prompts) do
    local s <close> = assert(model:session())
    assert(s:feed(p.ids, { want = "all" }))
    local rows = {}
    for i = 1, #p.ids do rows[i] = s:logits(i):tostring() end
    local worst = hf.apart(table.concat(rows), tensors[p.name .. ".logits"])
    assert(worst <= slack, ("%s, %s: %g off"):format(path, p.name, worst))
    local reply = assert(model:generate(p.ids, { max_tokens = #p.greedy, ignore_eos = true, details = true }))
    assert(table.concat(p.greedy, " ") == table.concat(reply.ids, " "), ("%s, %s: other greedy tokens"):format(path, p.name))
  end
end

-- The bits of all rows, however the ids come, and after a rewind, a fork and a restore.
local function same_bits(path, isa, int8)
  local ids = programs.ids(41, 70, 3)
  local want
  for _, threads in ipairs { 1, 3 } do
    local p <close> = programs.open(path, { context = 100, threads = threads, isa = isa, int8 = int8 })
    for _, step in ipairs { 41, 1, 7 } do
      local s <close> = assert(p:session { context = 100, kv = "fp16" })
      local bits = programs.feed(s, ids, step)
      want = want or bits
      assert(want == bits, ("%s: other bits in steps of %d with %d threads"):format(path, step, threads))
      local row = #want // #ids
      for _, keep in ipairs { 40, 33, 2, 0 } do
        assert(s:rewind(keep))
        local f <close> = assert(s:fork())
        local rest = want:sub(keep * row + 1)
        assert(programs.feed(f, programs.slice(ids, keep + 1, #ids), 5) == rest, "a fork at " .. keep)
        assert(programs.feed(s, programs.slice(ids, keep + 1, #ids)) == rest, "a rewind to " .. keep)
      end
    end
  end
  return want
end

local function restored(path)
  local ids, file = programs.ids(30, 70, 4), os.tmpname()
  local p <close> = programs.open(path, { context = 100 })
  local s <close> = assert(p:session { context = 100, kv = "fp16" })
  assert(s:feed(programs.slice(ids, 1, 20), "last"))
  assert(s:save(file))
  local want = programs.feed(s, programs.slice(ids, 21, 30))
  local other <close> = assert(p:session { context = 100, kv = "fp16" })
  assert(other:restore(file))
  assert(want == programs.feed(other, programs.slice(ids, 21, 30), 3))
  os.remove(file)
end

-- Greedy tokens of its packages, run op by op.
local function exported(path, name)
  local prompts, out = hf.golden(name), os.tmpname()
  os.remove(out)
  local model <close> = assert(ane.load(path, { threads = 1 }))
  assert(model:export(out, { weights = "fp16", context = 64 }))
  do
    local packages <close> = assert(ane.load(out, { threads = 2, engine = "graph" }))
    local p = prompts[1]
    local reply = assert(packages:generate(p.ids, { max_tokens = #p.greedy, ignore_eos = true, details = true }))
    assert(table.concat(p.greedy, " ") == table.concat(reply.ids, " "), path .. ": other greedy tokens of its packages")
  end
  assert(os.execute(("rm -r '%s'"):format(out)))
end

--- The cases that every decoder must pass.
-- @param name of the fixture without "-odd"
-- @param opts folder_only (true: there is no GGUF file), plan (false: it cannot be planned for export)
-- @return list of {title, function}
function M.cases(name, opts)
  opts = opts or {}
  local fixture, list = name .. "-odd", {}
  local path = hf.path(fixture)
  local function add(title, fn) list[#list + 1] = { title .. ": " .. name, fn } end
  add("gives the logits and greedy tokens of transformers", function() like_golden(path, fixture, 2e-3) end)
  if not opts.folder_only then
    add("gives them from GGUF", function() like_golden(gguf(fixture), fixture, 2e-2) end) -- weights in fp16
  end
  add("gives the same bits, however the tokens come", function()
    local level = ane.info().isa_list[2] or "ref" -- the first with vectors: avx2 or neon
    assert(same_bits(path, "ref") == same_bits(path, level), "other bits in ref and " .. level)
    same_bits(path, nil, true)
    restored(path)
  end)
  if opts.plan ~= false then
    add("gives its greedy tokens as packages", function() exported(path, fixture) end)
    add("is planned from its config.json alone", function()
      local report = assert(require("ane.coreml.plan").of_path(path .. "/config.json"))
      assert(tostring(report):find "layer_", "no shard of layers")
    end)
  end
  return list
end

--- Checks a changed fixture: its logits after 40 fixed tokens against those of transformers for the same change.
-- @param change as for support.hf's `changed`
-- @param want the first logits
function M.like_changed(name, change, want)
  local path <close> = hf.changed(name .. "-odd", change)
  local model <close> = assert(ane.load(path.name, { activations = "fp32", threads = 1 }))
  local s <close>, ids = assert(model:session()), {}
  for i = 1, 40 do ids[i] = (7 * (i - 1) + 3) % 71 end
  assert(s:feed(ids))
  local got = s:logits():totable()
  for i, x in ipairs(want) do
    assert(math.abs(got[i] - x) <= 2e-3 * (1 + math.abs(x)), ("logit %d is %g, expected %g"):format(i, got[i], x))
  end
end

--- Checks that a fixture without a key of its config.json gives the same logits.
function M.same_without(name, key)
  local function last(path)
    local model <close> = assert(ane.load(path, { threads = 1 }))
    local s <close> = assert(model:session())
    assert(s:feed { 5, 9, 30, 7 })
    return s:logits():tostring()
  end
  local path <close> = hf.changed(name .. "-odd", function(cfg)
    assert(cfg[key] ~= nil, key)
    cfg[key] = nil
  end)
  assert(last(hf.path(name .. "-odd")) == last(path.name), ("%s without %s: other logits"):format(name, key))
end

--- The message of a load that fails, with the code before it; change as for support.hf's `changed`.
function M.refusal(name, change)
  local path <close> = hf.changed(name .. "-odd", change)
  local model, message, code = ane.load(path.name)
  assert(not model, "it loads")
  return code .. ": " .. message:gsub("^.-: ", "", 1)
end

return M
