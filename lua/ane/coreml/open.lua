--- Opens the packages of a set and checks them against runtime_meta.json: ports, shapes, states, values from package to package.
-- Needs ane.core, ane.coreml.calls, ane.coreml.meta, ane.coreml.package, ane.util.failure and ane.util.paths.
-- Usage: `open.packages(folder, set, opts); local table = open.embedding(folder, set)`; both raise {message, code}

local calls = require "ane.coreml.calls"
local core = require "ane.core"
local failure = require "ane.util.failure"
local meta_file = require "ane.coreml.meta"
local package = require "ane.coreml.package"
local paths = require "ane.util.paths"

local M = {}

local refuse, whole = failure.raise, meta_file.whole

local function feature(features, name)
  for _, f in ipairs(features) do
    if f.name == name then return f end
  end
end

-- Checks ports of the meta file against the features of the package. Sets the shape (-1: the tokens of the call), range and dtype
-- of each.
local function check_ports(p, ports, features, what, all)
  local seen = {}
  for _, port in ipairs(ports) do
    local f = feature(features, port.name)
    if not f then refuse("format", "%s: the package has no %s %s", p.path, what, port.name) end
    port.shape, port.range, port.dtype = f.shape, f.range, f.dtype
    seen[port.name] = true
  end
  for _, f in ipairs(all and features or {}) do
    if not seen[f.name] then refuse("format", "%s: %s does not list the %s %s", p.path, meta_file.NAME, what, f.name) end
  end
end

-- Returns the minimum and the maximum tokens of a port (nil: no limit).
local function tokens_of(port)
  if port.role == "ids" then
    if port.shape[2] ~= -1 then return port.shape[2], port.shape[2] end
    return port.range and port.range[2][1] or 1, port.range and port.range[2][2] or nil
  end
  for axis = 3, 4 do -- [1, C, T, 1] or [1, C, 1, T]
    if port.shape[axis] == -1 and port.range then return port.range[axis][1], port.range[axis][2] end
  end
  local least = math.max(port.shape[3] or 1, port.shape[4] or 1)
  return least, least
end

-- The maximum tokens of a call if nothing else limits them.
local UNBOUNDED = 64

-- Sets low and high of a function, the range of tokens that a call of it may have.
local function set_range(f)
  f.low, f.high = 1, math.huge
  for _, port in ipairs(f.inputs) do
    if port.role == "hidden" or port.role == "edge" or port.role == "ids" then
      local least, most = tokens_of(port)
      f.low, f.high = math.max(f.low, least), math.min(f.high, most or math.huge)
    end
  end
end

-- Sets the sizes of calls that all packages take, and their minimum and maximum.
local function set_sizes(meta)
  local bounded = {}
  for _, p in ipairs(meta.packages) do
    for _, f in ipairs(p.functions) do bounded[#bounded + 1] = f.high < math.huge and f.high or nil end
  end
  for _, p in ipairs(meta.packages) do
    for _, f in ipairs(p.functions) do
      if f.high == math.huge then f.high = #bounded > 0 and math.max(table.unpack(bounded)) or UNBOUNDED end
    end
  end
  meta.sizes = calls.sizes(meta.packages)
  if #meta.sizes == 0 then
    local low, high = 0, math.huge
    for _, p in ipairs(meta.packages) do
      local least, most = math.huge, 0
      for _, f in ipairs(p.functions) do least, most = math.min(least, f.low), math.max(most, f.high) end
      low, high = math.max(low, least), math.min(high, most)
    end
    refuse("format", "no number of tokens fits all packages: one takes %d or more, another %d or fewer", low, high)
  end
  meta.low, meta.high = meta.sizes[1].low, meta.sizes[#meta.sizes].high
end

-- The value that a port carries from package to package.
local function edge_of(port) return port.edge or (port.role == "hidden" and "hidden" or port.name) end

local function check_rope(meta, p, port)
  local rope = whole(port.rope, 0) and meta.ropes and meta.ropes[port.rope + 1]
  if not rope then refuse("format", "%s: input %s: there is no rope %s", p.path, port.name, tostring(port.rope)) end
  if port.shape[2] ~= #rope.inv_freq then
    refuse("format", "%s: input %s has %s channels, but rope %d has %d", p.path, port.name, port.shape[2], port.rope, #rope.inv_freq)
  end
end

local function check_mask(meta, p, f, port)
  port.window, port.ahead = whole(port.window or 0, 0), whole(port.ahead or 0, 0)
  if not port.window or not port.ahead then refuse("format", "%s: input %s: window and ahead are not numbers", p.path, port.name) end
  local keys, held = port.shape[4], f.context or meta.max_seq_len
  if #port.shape ~= 4 or keys ~= held and #f.states > 0 then
    refuse("format", "%s: input %s has the shape of %s keys, but the states hold %d", p.path, port.name, tostring(keys), held)
  end
end

-- Every input of a function must be an output of an earlier package or the embedding. The first port that takes the embedding
-- gives it its name.
-- @return name of the embedding
local function check_inputs(meta, p, f, made, embedding)
  for _, port in ipairs(f.inputs) do
    if port.role == "hidden" or port.role == "edge" then
      port.edge = edge_of(port)
      local width = port.shape[2]
      if not made[port.edge] then
        if not embedding and width == meta.d_embed then embedding = port.edge
        elseif embedding ~= port.edge then refuse("format", "%s: no earlier package gives %s (input %s)", p.path, port.edge, port.name) end
      elseif made[port.edge] ~= width then
        refuse("format", "%s: input %s has %s channels, but %s has %s", p.path, port.name, width, port.edge, made[port.edge])
      end
    elseif port.role == "rope_cos" or port.role == "rope_sin" then
      check_rope(meta, p, port)
    elseif port.role == "mask" then
      check_mask(meta, p, f, port)
    end
  end
  return embedding
end

-- Names every value. All functions of a package take and give the same values.
-- @return name of the embedding
local function check_edges(meta)
  local made, embedding = {}, nil
  for _, p in ipairs(meta.packages) do
    for _, f in ipairs(p.functions) do embedding = check_inputs(meta, p, f, made, embedding) end
    local given
    for k, f in ipairs(p.functions) do
      local count = 0
      for _, port in ipairs(f.outputs) do
        if port.role == "hidden" or port.role == "edge" then
          port.edge = edge_of(port)
          local width = port.shape[2] or -1
          if k > 1 and made[port.edge] ~= width then
            refuse("format", "%s: function %s gives %s, which the first function does not give in this width", p.path, f.name, port.edge)
          end
          made[port.edge], count = width, count + 1
        end
      end
      given = given or count
      if count ~= given then
        refuse("format", "%s: function %s gives %d values, but the first function gives %d", p.path, f.name, count, given)
      end
    end
  end
  return embedding
end

-- Checks states, and distinguishes rings (which keep the last positions only) from states that grow.
local function check_states(meta, p, f, features)
  check_ports(p, f.states, features, "state", true)
  if f.context and f.context > meta.max_seq_len then
    refuse("format", "%s: function %s sees %d positions, but max_seq_len is %d", p.path, f.name, f.context, meta.max_seq_len)
  end
  for _, s in ipairs(f.states) do
    s.is_ring = s.role == "columns" or s.role == "recurrent" or s.role == nil and s.shape[3] ~= meta.max_seq_len
    if not s.is_ring and s.shape[3] ~= meta.max_seq_len then
      refuse("format", "%s: state %s has %s positions, but max_seq_len is %d", p.path, s.name, tostring(s.shape[3]), meta.max_seq_len)
    end
  end
end

local function check_head(meta, p, f)
  local has = {}
  for _, port in ipairs(f.outputs) do
    if meta_file.results[port.role] then port.role = "logits" end
    has[port.role] = port
  end
  if p.kind ~= "head" and p.kind ~= "whole" then return end
  if not has.logits and not (has.argmax and has.max) then refuse("format", "%s: gives neither logits nor argmax and max", p.path) end
  local rows = p.kind == "head" and p.vocab_end - p.vocab_start or meta.rows
  if has.logits and has.logits.shape[2] ~= rows then
    refuse("format", "%s: output %s has %s rows, but must have %d", p.path, has.logits.name, tostring(has.logits.shape[2]), rows)
  end
  meta.argmax = meta.argmax or not has.logits
end

-- Checks the functions of a package against the set's description.
local function open_functions(meta, p, info)
  local by = {}
  for _, f in ipairs(info.functions) do by[f.name] = f end
  p.states = {}
  for _, f in ipairs(p.functions) do
    local there = by[f.name or info.default_function]
    if not there then refuse("format", "%s: the package has no function %s", p.path, f.name) end
    check_ports(p, f.inputs, there.inputs, "input", true)
    check_ports(p, f.outputs, there.outputs, "output", false)
    check_states(meta, p, f, there.states)
    check_head(meta, p, f)
    set_range(f)
    for _, s in ipairs(f.states) do
      if not feature(p.states, s.name) then table.insert(p.states, s) end
    end
  end
end

--- Opens the packages of a set, checks them against runtime_meta.json, then packs their weights.
-- @param folder with a trailing slash
-- @param meta of ane.coreml.meta; gets opened (list), embedding, sizes, low, high, and for each package: package, program, states
-- @param opts precision, threads, isa, backend, run_memory (of all packages together), progress
-- @raise {message, code}
function M.packages(folder, meta, opts)
  local opened, first, total = {}, nil, #meta.packages
  meta.opened = opened
  for i, p in ipairs(meta.packages) do
    if paths.is_linked(folder, p.path) then refuse("format", "%s: is a symbolic link", p.path) end
    local pkg, message, code = package.open(folder .. p.path, {
      precision = opts.precision, threads = opts.threads, isa = opts.isa, backend = opts.backend, pool_of = first,
      run_memory = opts.run_memory, memory_of = opened[1],
    })
    if not pkg then refuse(code, "%s", message) end
    opened[i] = pkg
    p.package = pkg
    open_functions(meta, p, pkg:info())
  end
  meta.embedding = check_edges(meta)
  set_sizes(meta)
  for i, p in ipairs(meta.packages) do -- packing follows all checks
    local program, message, code = p.package:program(p.functions[1].name) -- the others are made at their first call
    if not program then refuse(code, "%s", message) end
    p.program, first = program, first or program
    if i == 1 then
      for k = 2, total do opened[k]._opts.pool_of = program end
    end
    if opts.progress then opts.progress("load", i, total) end
  end
end

--- The table of embeddings; nil if no package needs it.
-- @raise {message, code}
function M.embedding(folder, meta)
  if not meta.embedding then return nil end
  if not meta.embed_bin then refuse("format", "embed_bin is missing, and a package needs the embedding as %s", meta.embedding) end
  meta_file.inside(meta.embed_bin, "embed_bin")
  local table_, message, code = core.embedding(folder .. meta_file.NAME, meta.embed_bin, meta.vocab_size, meta.d_embed)
  if not table_ then refuse(code, "%s", message) end
  return table_
end

return M
