--- Package sets: a folder with runtime_meta.json, Core ML packages and the table of embeddings, as `ane export` writes it.
-- Needs ane.core, ane.coreml.package, ane.coreml.calls, ane.coreml.files, ane.coreml.session, ane.tokenizer and ane.util.failure.
-- Packages are run by roles; no architecture is known here.
-- Usage: `local bundle = assert(require("ane.coreml.set").load("out/", opts))`
--
-- runtime_meta.json, an object with these keys (more may stand there):
--   format_version      1
--   kind                "causal" or "token_classifier"
--   model_family, model_name, d_model, n_layers, vocab_size, max_seq_len (positions of the states, or the columns of a call
--                       where there are none), n_heads, n_kv_heads, d_head, weights: facts, shown by info
--   embed_bin           file of fp16 rows [vocab_size, d_model]; embed_scale: a factor for them, default 1; absent where a
--                       package has an input of role ids
--   labels, reach       of token classifiers: names; columns on each side that a label depends on
--   eos_ids, bos_id     tokenizer: file of the tokenizer where it is not the folder itself
--   ropes               list of {inv_freq = list, magnitude}; with long_freq and original these are used instead, for all
--                       positions, once the sequence is longer than `original`
--   packages            in the order of calls, each {path, kind, bytes (of all its files), sha256, inputs, outputs, states}
--     kind = "layers"   start, end: layers, both included; part, parts: of one layer, from 0, one after the other
--     kind = "experts"  start, end: the layer; experts = [from, to), of a mixture
--     kind = "head"     vocab_start, vocab_end: rows [start, end) (of a token classifier: of the labels)
--     kind = "whole"    everything
--     inputs            {name, role, ...}, role one of hidden, edge (edge: name of the value), position, rope_cos, rope_sin
--                       (rope: number from 0), mask (window, ahead), ids
--     outputs           {name, role, ...}: hidden, edge (edge), logits, argmax, max, labels
--     states            {name, shape, role}: keys, values or columns (of convolutions)
--     functions         where a package has several, which share weights and states: {name, context (positions that attention sees:
--                       masks have so many keys), inputs, outputs, states}; those above are the default one's. A call takes in
--                       each package the function for its columns that sees the fewest positions
--   profiles            other sets of packages that do the same, each {fixed_t, max_seq_len, packages}: with option context those
--                       with the least max_seq_len that holds it are opened
--   files               {path = {bytes, sha256}} of all files but this one; with option verify they are hashed
-- A hidden or edge input that no package before has given is the embedding.

local calls = require "ane.coreml.calls"
local core = require "ane.core"
local failure = require "ane.util.failure"
local files = require "ane.coreml.files"
local package = require "ane.coreml.package"

local M = {}

M.META = "runtime_meta.json"

local refuse = failure.raise -- caught by load

--- The folder of a set, with a slash behind; nil where the path is none.
function M.find(path)
  if core.path_kind(path) == "folder" then
    local folder = path:sub(-1) == "/" and path or path .. "/"
    return core.path_kind(folder .. M.META) == "file" and folder or nil
  end
  if path:sub(-#M.META) ~= M.META or core.path_kind(path) ~= "file" then return nil end
  return path:sub(1, -#M.META - 1) == "" and "./" or path:sub(1, -#M.META - 1)
end

-- ---- Reading ------------------------------------------------------------------------------------------------------------

local KINDS = { layers = true, experts = true, head = true, whole = true }
local INPUTS = { hidden = true, edge = true, position = true, rope_cos = true, rope_sin = true, mask = true, ids = true }
local OUTPUTS = { hidden = true, edge = true, logits = true, argmax = true, max = true, labels = true }

local function whole(v, low)
  local n = type(v) == "number" and math.tointeger(v)
  return n and n >= low and n <= 1 << 40 and n or nil
end

-- A whole number of at least `low` under a key; raises otherwise.
local function integer(t, key, low, where)
  return whole(t[key], low) or refuse("format", "%s: %s is %s, wanted a whole number of at least %d", where, key, tostring(t[key]), low)
end

local function list(t, key, where, may)
  if t[key] == nil and may then return {} end
  if type(t[key]) ~= "table" then refuse("format", "%s: %s is no list", where, key) end
  return t[key]
end

-- A path inside the folder: relative, with no part that leads out of it.
local function inside(path, where)
  if not files.is_inside(path) then refuse("format", "%s: path %q leaves the folder", where, tostring(path)) end
  return path
end

local function read_port(port, roles, where)
  if type(port) ~= "table" or type(port.name) ~= "string" then refuse("format", "%s has no name", where) end
  if not roles[port.role] then refuse("format", "%s (%s): role is %s", where, port.name, tostring(port.role)) end
  return port
end

-- What a function takes, gives and keeps; a package with one function is its own list of it.
local function read_function(f, where)
  for k, port in ipairs(list(f, "inputs", where)) do read_port(port, INPUTS, ("%s: input %d"):format(where, k)) end
  for k, port in ipairs(list(f, "outputs", where)) do read_port(port, OUTPUTS, ("%s: output %d"):format(where, k)) end
  f.states = list(f, "states", where, true)
  for k, state in ipairs(f.states) do
    if type(state) ~= "table" or type(state.name) ~= "string" then refuse("format", "%s: state %d has no name", where, k) end
  end
end

local function read_functions(p, where)
  if p.functions == nil then
    p.functions = { { inputs = p.inputs, outputs = p.outputs, states = p.states } }
    return
  end
  if #list(p, "functions", where) == 0 then refuse("format", "%s: functions is empty", where) end
  for k, f in ipairs(p.functions) do
    if type(f) ~= "table" or type(f.name) ~= "string" then refuse("format", "%s: function %d has no name", where, k) end
    if f.context ~= nil then f.context = integer(f, "context", 1, ("%s: function %s"):format(where, f.name)) end
    read_function(f, ("%s: function %s"):format(where, f.name))
  end
end

local function read_package(p, where)
  if type(p) ~= "table" then refuse("format", "%s is no object", where) end
  inside(p.path, where)
  where = ("%s (%s)"):format(where, p.path)
  if not KINDS[p.kind] then refuse("format", "%s: kind is %s", where, tostring(p.kind)) end
  if p.kind == "layers" or p.kind == "experts" then
    p.start, p["end"] = integer(p, "start", 0, where), integer(p, "end", 0, where)
    if p["end"] < p.start then refuse("format", "%s: end is before start", where) end
  end
  if p.kind == "layers" and p.parts ~= nil then
    p.part, p.parts = integer(p, "part", 0, where), integer(p, "parts", 1, where)
    if p.part >= p.parts or p.start ~= p["end"] then refuse("format", "%s: part %d of %d of a layer cannot be", where, p.part, p.parts) end
  end
  if p.kind == "experts" then
    local e = list(p, "experts", where)
    if not whole(e[1], 0) or not whole(e[2], 1) or e[2] <= e[1] then refuse("format", "%s: experts are no range", where) end
  end
  if p.kind == "head" and integer(p, "vocab_end", 1, where) <= integer(p, "vocab_start", 0, where) then
    refuse("format", "%s: vocab_end is not behind vocab_start", where)
  end
  integer(p, "bytes", 1, where)
  read_function(p, where)
  read_functions(p, where)
end

-- Each of [0, total) once: ranges in the order of the packages, `to` not included.
local function check_cover(what, ranges, total)
  local at = 0
  for _, r in ipairs(ranges) do
    if r.from > at then refuse("format", "%s: %s %d to %d are in no package", r.path, what, at, r.from - 1) end
    if r.from < at then refuse("format", "%s: %s %d to %d are in two packages", r.path, what, r.from, math.min(at, r.to) - 1) end
    at = r.to
  end
  if total and at < total then refuse("format", "%s %d to %d are in no package", what, at, total - 1) end
  if total and at > total then refuse("format", "%s %d to %d are beyond the model's %d", what, total, at - 1, total) end
end

-- Adds the layers of a package; parts of one when the last is there. before: the part that came last, if the layer has more.
local function add_layers(layers, p, before)
  if before and (p.parts ~= before.parts or p.start ~= before.start or p.part ~= before.part + 1) then
    refuse("format", "%s: layer %d goes on in another package than part %d", p.path, before.start, before.part + 1)
  end
  if not p.parts then
    layers[#layers + 1] = { from = p.start, to = p["end"] + 1, path = p.path }
    return nil
  end
  if not before and p.part ~= 0 then refuse("format", "%s: part 0 of layer %d is in no package before", p.path, p.start) end
  if p.part == 0 then layers[#layers + 1] = { from = p.start, to = p.start + 1, path = p.path } end
  return p.part + 1 < p.parts and p or nil
end

local function check_ranges(meta, rows)
  local layers, head, experts, order, whole_set, unfinished = {}, {}, {}, {}, false, nil
  for _, p in ipairs(meta.packages) do
    if unfinished and p.kind ~= "layers" then
      refuse("format", "%s: stands before part %d of layer %d", p.path, unfinished.part + 1, unfinished.start)
    end
    if p.kind == "layers" then unfinished = add_layers(layers, p, unfinished)
    elseif p.kind == "head" then head[#head + 1] = { from = p.vocab_start, to = p.vocab_end, path = p.path }
    elseif p.kind == "experts" then
      local key = ("%d %s"):format(p.start, tostring(p.mixture or 0))
      if not experts[key] then experts[key], order[#order + 1] = {}, key end
      table.insert(experts[key], { from = p.experts[1], to = p.experts[2], path = p.path })
    else whole_set = true end
  end
  if unfinished then refuse("format", "part %d of layer %d is in no package", unfinished.part + 1, unfinished.start) end
  if whole_set and #meta.packages > 1 then refuse("format", "a package of the whole model stands beside others") end
  if whole_set then return end
  check_cover("layers", layers, meta.n_layers)
  check_cover("rows", head, rows)
  for _, key in ipairs(order) do check_cover("experts", experts[key], whole(meta.n_experts, 1)) end
end

local function read_ropes(meta)
  for i, rope in ipairs(list(meta, "ropes", "ropes", true)) do
    local where = ("ropes[%d]"):format(i)
    if type(rope) ~= "table" then refuse("format", "%s is no object", where) end
    for k, f in ipairs(list(rope, "inv_freq", where)) do
      if type(f) ~= "number" or f ~= f then refuse("format", "%s: inv_freq %d is no number", where, k) end
    end
    if rope.long_freq ~= nil then
      if #list(rope, "long_freq", where) ~= #rope.inv_freq then refuse("format", "%s: long_freq and inv_freq differ in length", where) end
      for k, f in ipairs(rope.long_freq) do
        if type(f) ~= "number" or f ~= f then refuse("format", "%s: long_freq %d is no number", where, k) end
      end
      rope.original = integer(rope, "original", 1, where)
    end
    if rope.magnitude ~= nil and type(rope.magnitude) ~= "number" then refuse("format", "%s: magnitude is no number", where) end
  end
end

local function read_profiles(meta)
  for i, profile in ipairs(list(meta, "profiles", "the set", true)) do
    local where = ("profiles[%d]"):format(i)
    if type(profile) ~= "table" then refuse("format", "%s is no object", where) end
    if profile.max_seq_len ~= nil then profile.max_seq_len = integer(profile, "max_seq_len", 1, where) end
    for k, p in ipairs(list(profile, "packages", where)) do read_package(p, ("%s.packages[%d]"):format(where, k)) end
  end
end

-- The packages of the profile with the least context that holds the one asked for; of equal ones the last.
local function choose_profile(meta, context)
  local best
  for _, profile in ipairs(context and meta.profiles or {}) do
    local held = profile.max_seq_len
    if held and held >= context and #profile.packages > 0 and (not best or held <= best.max_seq_len) then best = profile end
  end
  if best then meta.packages, meta.max_seq_len = best.packages, best.max_seq_len end
end

-- The object of runtime_meta.json with all its numbers and names in range. context: positions asked for, or nil.
local function read_meta(folder, context)
  local text, message, code = core.read_file(folder .. M.META)
  if not text then refuse(code, "%s", message) end
  local meta, fault = core.json_decode(text)
  if type(meta) ~= "table" then refuse("format", "%s", fault or "holds no object") end
  if meta.format_version ~= 1 then refuse("unsupported", "format_version is %s, known is 1", tostring(meta.format_version)) end
  if meta.kind ~= "causal" and meta.kind ~= "token_classifier" then refuse("format", "kind is %s", tostring(meta.kind)) end
  for _, key in ipairs { "d_model", "vocab_size", "max_seq_len" } do meta[key] = integer(meta, key, 1, "the model") end
  meta.n_layers = integer(meta, "n_layers", 0, "the model")
  local rows = meta.vocab_size
  if meta.kind == "token_classifier" then
    rows = #list(meta, "labels", "the model")
    for i, label in ipairs(meta.labels) do
      if type(label) ~= "string" then refuse("format", "label %d is no text", i) end
    end
  end
  if #list(meta, "packages", "the set") == 0 then refuse("format", "packages is empty") end
  for i, p in ipairs(meta.packages) do read_package(p, ("packages[%d]"):format(i)) end
  read_profiles(meta)
  choose_profile(meta, context)
  check_ranges(meta, rows)
  read_ropes(meta)
  meta.rows = rows
  return meta, text
end

-- ---- Packages -----------------------------------------------------------------------------------------------------------

local function feature(features, name)
  for _, f in ipairs(features) do
    if f.name == name then return f end
  end
end

-- Ports of the meta file against the features of the package; each gets its `shape` (-1: columns of the call).
local function check_ports(p, ports, features, what, all)
  local seen = {}
  for _, port in ipairs(ports) do
    local f = feature(features, port.name)
    if not f then refuse("format", "%s: the package has no %s %s", p.path, what, port.name) end
    port.shape, port.range, port.dtype = f.shape, f.range, f.dtype
    seen[port.name] = true
  end
  for _, f in ipairs(all and features or {}) do
    if not seen[f.name] then refuse("format", "%s: nothing says what the %s %s is", p.path, what, f.name) end
  end
end

-- Columns that a port takes: least, most (nil: any number).
local function columns_of(port)
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

-- Columns where nothing bounds them.
local UNBOUNDED = 64

-- `low` and `high` of each function: the columns of a call that it takes.
local function set_columns(f)
  f.low, f.high = 1, math.huge
  for _, port in ipairs(f.inputs) do
    if port.role == "hidden" or port.role == "edge" or port.role == "ids" then
      local least, most = columns_of(port)
      f.low, f.high = math.max(f.low, least), math.min(f.high, most or math.huge)
    end
  end
end

-- Columns of a call: sizes that all packages take, the least and the most of them.
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
    refuse("format", "the packages take different numbers of columns: %d at least, %d at most", low, high)
  end
  meta.low, meta.high = meta.sizes[1].low, meta.sizes[#meta.sizes].high
end

-- The value that a port carries from package to package.
local function edge_of(port) return port.edge or (port.role == "hidden" and "hidden" or port.name) end

local function check_rope(meta, p, port)
  local rope = whole(port.rope, 0) and meta.ropes and meta.ropes[port.rope + 1]
  if not rope then refuse("format", "%s: input %s: there is no rope %s", p.path, port.name, tostring(port.rope)) end
  if port.shape[2] ~= #rope.inv_freq then
    refuse("format", "%s: input %s has %s channels, rope %d has %d", p.path, port.name, port.shape[2], port.rope, #rope.inv_freq)
  end
end

local function check_mask(meta, p, f, port)
  port.window, port.ahead = whole(port.window or 0, 0), whole(port.ahead or 0, 0)
  if not port.window or not port.ahead then refuse("format", "%s: input %s: window and ahead are no numbers", p.path, port.name) end
  local keys, held = port.shape[4], f.context or meta.max_seq_len
  if #port.shape ~= 4 or keys ~= held and #f.states > 0 then
    refuse("format", "%s: input %s has the shape of %s keys, the states hold %d", p.path, port.name, tostring(keys), held)
  end
end

-- What goes into a function has come out before, or is the embedding, whose name it gives where it is the first to take it.
local function check_inputs(meta, p, f, made, embedding)
  for _, port in ipairs(f.inputs) do
    if port.role == "hidden" or port.role == "edge" then
      port.edge = edge_of(port)
      local width = port.shape[2]
      if not made[port.edge] then
        if not embedding and width == meta.d_model then embedding = port.edge
        elseif embedding ~= port.edge then refuse("format", "%s: no package before gives %s (input %s)", p.path, port.edge, port.name) end
      elseif made[port.edge] ~= width then
        refuse("format", "%s: input %s has %s channels, %s has %s", p.path, port.name, width, port.edge, made[port.edge])
      end
    elseif port.role == "rope_cos" or port.role == "rope_sin" then
      check_rope(meta, p, port)
    elseif port.role == "mask" then
      check_mask(meta, p, f, port)
    end
  end
  return embedding
end

-- Names of values. Functions of a package take and give the same ones.
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
          if k > 1 and made[port.edge] ~= width then refuse("format", "%s: function %s gives another %s", p.path, f.name, port.edge) end
          made[port.edge], count = width, count + 1
        end
      end
      given = given or count
      if count ~= given then refuse("format", "%s: function %s gives other values than the first one", p.path, f.name) end
    end
  end
  return embedding
end

-- States as the runtime needs them: which forget (columns), and where positions lie.
local function check_states(meta, p, f, features)
  check_ports(p, f.states, features, "state", true)
  if f.context and f.context > meta.max_seq_len then
    refuse("format", "%s: function %s sees %d positions, max_seq_len is %d", p.path, f.name, f.context, meta.max_seq_len)
  end
  for _, s in ipairs(f.states) do
    s.columns = s.role == "columns" or s.role == nil and s.shape[3] ~= meta.max_seq_len
    if not s.columns and s.shape[3] ~= meta.max_seq_len then
      refuse("format", "%s: state %s has %s positions, max_seq_len is %d", p.path, s.name, tostring(s.shape[3]), meta.max_seq_len)
    end
  end
end

local function check_head(meta, p, f)
  local has = {}
  for _, port in ipairs(f.outputs) do
    if port.role == "labels" then port.role = "logits" end
    has[port.role] = port
  end
  if p.kind ~= "head" and p.kind ~= "whole" then return end
  if not has.logits and not (has.argmax and has.max) then refuse("format", "%s: gives neither logits nor argmax and max", p.path) end
  local rows = p.kind == "head" and p.vocab_end - p.vocab_start or meta.rows
  if has.logits and has.logits.shape[2] ~= rows then
    refuse("format", "%s: output %s has %s rows, wanted %d", p.path, has.logits.name, tostring(has.logits.shape[2]), rows)
  end
  meta.argmax = meta.argmax or not has.logits
end

-- The functions of a package against what the set says of them.
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
    set_columns(f)
    for _, s in ipairs(f.states) do
      if not feature(p.states, s.name) then table.insert(p.states, s) end
    end
  end
end

local function open_packages(folder, meta, opts)
  local opened, first, total = {}, nil, #meta.packages
  meta.opened = opened
  for i, p in ipairs(meta.packages) do
    local pkg, message, code = package.open(folder .. p.path, {
      precision = opts.precision, threads = opts.threads, isa = opts.isa, backend = opts.backend, pool_of = first,
    })
    if not pkg then refuse(code, "%s", message) end
    opened[i] = pkg
    p.package = pkg
    open_functions(meta, p, pkg:info())
  end
  meta.embedding = check_edges(meta)
  set_sizes(meta)
  for i, p in ipairs(meta.packages) do -- packing comes after all checks
    local program, message, code = p.package:program(p.functions[1].name) -- others when they are called
    if not program then refuse(code, "%s", message) end
    p.program, first = program, first or program
    if i == 1 then
      for k = 2, total do opened[k]._opts.pool_of = program end
    end
    if opts.progress then opts.progress("load", i, total) end
  end
end

local function open_embedding(folder, meta)
  if not meta.embedding then return nil end
  if not meta.embed_bin then refuse("format", "embed_bin is missing, and a package needs the embedding as %s", meta.embedding) end
  inside(meta.embed_bin, "embed_bin")
  local table_, message, code = core.embedding(folder .. M.META, meta.embed_bin, meta.vocab_size, meta.d_model)
  if not table_ then refuse(code, "%s", message) end
  return table_
end

-- ---- The bundle ---------------------------------------------------------------------------------------------------------

local function find_tokenizer(folder, meta)
  local from = folder
  if meta.tokenizer ~= nil then
    from = folder .. inside(meta.tokenizer, "tokenizer")
    if from:match "%.gguf$" then
      local source, message, code = core.open(from)
      if not source then refuse(code, "%s", message) end
      from = source
    end
  end
  local called, tokenizer, message, code = pcall(require("ane.tokenizer").new, from)
  if not called then return nil, tostring(tokenizer) end
  if tokenizer then return tokenizer end
  if code == "notfound" or code == "unsupported" then return nil, message end
  refuse(code, "%s", message)
end

local function config_of(folder, meta)
  return {
    architecture = meta.model_family or "package", labels = meta.labels,
    kind = meta.kind == "token_classifier" and "token_classifier" or nil,
    reach = whole(meta.reach, 0), context_length = meta.max_seq_len, vocab_size = meta.vocab_size, n_layer = meta.n_layers,
    d_model = meta.d_model, n_head = whole(meta.n_heads, 1), n_head_kv = whole(meta.n_kv_heads, 1), head_dim = whole(meta.d_head, 1),
    folder = folder,
  }
end

-- Names of a package's functions, where it has several.
local function function_names(p)
  if not p.functions[1].name then return nil end
  local names = {}
  for i, f in ipairs(p.functions) do names[i] = f.name end
  return names
end

-- Each package once, for info.
local function listed(meta)
  local out, seen = {}, {}
  for _, p in ipairs(meta.packages) do
    if not seen[p.path] then out[#out + 1] = { path = p.path, kind = p.kind, bytes = p.bytes, functions = function_names(p) } end
    seen[p.path] = true
  end
  return out
end

-- What ane.model asks of a source.
local function source_of(folder, meta)
  local bytes = 0
  for _, p in ipairs(meta.packages) do bytes = bytes + p.bytes end
  return {
    path = function() return folder end, format = function() return "package set" end, bytes = function() return bytes end,
    tensors = function() return {} end,
  }
end

local function check_options(opts)
  if opts.weights and opts.weights ~= "file" then
    refuse("unsupported", "option weights is %s: packages run with the weights that they hold", opts.weights)
  end
  if opts.recipe or opts.engine then refuse("unsupported", "options recipe and engine have no meaning for a package set") end
end

local function load(folder, opts)
  check_options(opts)
  local meta, text = read_meta(folder, opts.context)
  if opts.context and opts.context > meta.max_seq_len then
    refuse("unsupported", "option context is %d, the states hold %d positions", opts.context, meta.max_seq_len)
  end
  local whole_set, message, code = files.check(folder, meta, opts)
  if not whole_set then refuse(code, "%s", message) end
  local tokenizer, tokenizer_error = find_tokenizer(folder, meta)
  local ok, failed = pcall(function()
    open_packages(folder, meta, opts)
    meta.table = open_embedding(folder, meta)
  end)
  if not ok then
    for _, pkg in ipairs(meta.opened or {}) do pkg:close() end
    error(failed, 0)
  end
  local cfg = config_of(folder, meta)
  local eos = type(meta.eos_ids) == "table" and #meta.eos_ids > 0 and meta.eos_ids or tokenizer and tokenizer.eos_ids or {}
  if tokenizer then tokenizer.eos_ids = eos end
  opts.kv, opts.activations = "fp32", "fp32" -- what this engine has, whatever was asked for: info tells
  local context = opts.context or meta.max_seq_len
  local program = require("ane.coreml.session").program(meta, { context = context, text = text, opts = opts })
  return {
    program = program, source = source_of(folder, meta), config = cfg, tokenizer = tokenizer, tokenizer_error = tokenizer_error,
    eos_ids = eos, architecture = cfg.architecture, engine = "packages", bytes = 0, context = context,
    packages = listed(meta),
  }
end

-- f's results; or nil, message, code: what it refused, with the file that says so.
local function caught(folder, f, ...)
  local result, message, code = failure.catch(f, ...)
  if result ~= nil or not message then return result, message, code end
  local names_file = message:sub(1, #folder) == folder
  return nil, names_file and message or folder .. M.META .. ": " .. message, code
end

--- The tokenizer of a set; nothing else of it is opened.
-- @param path the folder, or its runtime_meta.json
-- @return it; or nil, message, code: "notfound" where the set has none
function M.tokenizer(path)
  local folder = M.find(path)
  if not folder then return nil, path .. ": there is no " .. M.META, "notfound" end
  local tokenizer, message, code = caught(folder, function() return find_tokenizer(folder, (read_meta(folder))) end)
  return tokenizer, message, code or not tokenizer and "notfound" or nil
end

--- Opens a set: all of it is checked before anything runs.
-- @param path the folder, or its runtime_meta.json
-- @param opts threads, isa, context, precision, backend, progress, verify (true: hashes of all files); weights only "file". kv and
-- activations become "fp32"
-- @return a bundle for ane.model; or nil, message, code: gaps, overlaps, missing or resized files, paths that leave the folder
function M.load(path, opts)
  local folder = M.find(path)
  if not folder then return nil, path .. ": there is no " .. M.META, "notfound" end
  return caught(folder, load, folder, opts)
end

return M
