--- Checks how graphs are partitioned into shards, against the text form of the graph.
-- Usage: `local plan, slices = partition.check("name", graph, { weights = "fp16", target = 20000 })`

local assert = require "luassert"
local core = require "ane.core"

local M = {}

-- Nodes of the text form in order: {name, op, inputs, attributes}; and the shapes of constants.
local function parse(g)
  local nodes, consts = {}, {}
  for line in g:dump():gmatch "[^\n]+" do
    local name, shape = line:match "^%s*const (%S+): [%w_]+%[(.-)%]"
    if name then
      local dims = {}
      for d in shape:gmatch "%d+" do dims[#dims + 1] = tonumber(d) end
      consts[name] = dims
    end
    local out, op, inputs, rest = line:match "^%s*(%S+) = (%S+)(%b())(.*)$"
    if out then
      local list = {}
      for v in (inputs:sub(2, -2) .. ", "):gmatch "(.-), " do list[#list + 1] = v end
      nodes[#nodes + 1] = { name = out, op = op, inputs = list, attrs = rest:match "{(.-)}" or "" }
    end
  end
  return nodes, consts
end

--- The plan of a graph whose dead nodes are removed first.
function M.cut(g, opts)
  assert(g:pass "dead_code")
  local plan, message = core.mil_plan(g, opts)
  assert(plan, message)
  return plan
end

--- The names of a list as a set.
function M.set(list)
  local out = {}
  for _, x in ipairs(list) do out[x.name] = true end
  return out
end

local function keys(t)
  local out = {}
  for k in pairs(t) do out[#out + 1] = k end
  table.sort(out)
  return out
end

local HOST = { embed = true, rope_table = true }

-- What the graph's text says of a list of node names: used values made elsewhere (all embeddings count as the first one), ropes, constants.
local function needs(nodes, consts, piece)
  local mine, made, by, first = M.set(piece.nodes), {}, {}, nil
  for _, n in ipairs(nodes) do
    by[n.name] = n
    if n.op == "embed" and n.inputs[1] == "ids" then first = first or n.name end
  end
  local ins, ropes, used = {}, {}, {}
  for _, n in ipairs(nodes) do
    if mine[n.name] then
      for j, v in ipairs(n.inputs) do
        local e = (j - 3) // 6
        local taken = not (piece.kind == "experts" and n.name == piece.split) or j < 3 or (e >= piece.from and e < piece.to)
        if taken and by[v] and by[v].op == "rope_table" then ropes[v] = true
        elseif taken and by[v] and by[v].op == "embed" and by[v].inputs[1] == "ids" then ins[first] = true
        elseif taken and by[v] and not made[v] then ins[v] = true
        elseif taken and consts[v] then used[v] = true end
      end
      made[n.name] = true
    end
  end
  if piece.kind == "experts" and piece.from > 0 then ins[piece.split] = true end
  return ins, ropes, used
end

local function bytes_fp16(piece, consts, used, nodes)
  local by, sum = {}, 0
  for _, n in ipairs(nodes) do by[n.name] = n end
  for name in pairs(used) do
    local n = 1
    for _, d in ipairs(consts[name]) do n = n * d end
    if piece.kind == "head" and piece.split and (by[piece.split].inputs[2] == name or by[piece.split].inputs[3] == name) then
      n = n // consts[name][1] * (piece.to - piece.from)
    end
    sum = sum + 2 * n
  end
  return sum
end

--- Plans a graph and checks that each node is in one shard, that slices follow each other without a gap, and that each shard takes what
-- others give. The graph loses its dead nodes.
-- @param name for messages
-- @param g unfused graph
-- @param opts of core.mil_plan; weights "fp16": the bytes of each shard are counted, too
-- @return plan; the end of the last slice of each node that is sliced, by its name
function M.check(name, g, opts)
  local plan = M.cut(g, opts)
  local nodes, consts = parse(g)
  local place, slices, available = {}, {}, {}
  for _, n in ipairs(nodes) do
    if n.op == "embed" then available[n.name] = true end
  end
  for i, p in ipairs(plan.shards) do
    for _, n in ipairs(p.nodes) do
      assert.is_true(place[n.name] == nil or p.kind ~= "layers", name .. ": twice " .. n.name)
      place[n.name] = i
    end
    local ins, ropes, used = needs(nodes, consts, p)
    assert.same(keys(ins), keys(M.set(p.ins)), name .. ": ins of piece " .. i)
    assert.same(keys(ropes), keys(M.set(p.ropes)), name .. ": ropes of piece " .. i)
    for _, v in ipairs(p.ins) do assert.is_true(available[v.name], ("%s: piece %d takes %s, which nobody gave"):format(name, i, v.name)) end
    for _, v in ipairs(p.outs) do available[v.name] = true end
    if opts.weights == "fp16" then assert.equal(bytes_fp16(p, consts, used, nodes), p.bytes, name .. ": bytes of piece " .. i) end
    if p.split then
      slices[p.split] = slices[p.split] or 0
      assert.equal(slices[p.split], p.from)
      assert.is_true(p.to > p.from)
      slices[p.split] = p.to
    end
  end
  for _, n in ipairs(nodes) do assert.equal(not HOST[n.op], place[n.name] ~= nil, name .. ": " .. n.name) end
  local given = g:dump():match "give (%S+)"
  for _, p in ipairs(plan.shards) do
    if p.kind == "head" then assert.same({ [given] = true }, M.set(p.outs)) end
  end
  return plan, slices
end

return M
