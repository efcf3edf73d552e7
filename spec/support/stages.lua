--- Pipelines of stages in one process, for specs: the messages go through queues.
-- Usage: `local line <close> = stages.open(path, { 5, 9 }); line:feed({ 1, 2, 3 }, "all"); local bits = line:rows()`

local core = require "ane.core"
local cut = require "ane.pipeline.cut"
local head = require "ane.pipeline.head"
local loader = require "ane.model.loader"
local recipe = require "ane.recipe"

local M = {}

local Line = {}
Line.__index = Line

--- The graph of a model after the passes, and its source.
function M.graph(path)
  local source = assert(core.open(path))
  local r, cfg = assert(loader.identify(source, path, {}))
  local graph = assert(recipe.build(r, cfg, source))
  assert(graph:passes "cpu")
  return graph, source
end

-- Opens the parts of a divided head.
local function open_heads(self, path, steps, opts)
  self.heads = {}
  for i = 1, opts.heads do
    local graph <close>, source = M.graph(path)
    local found = assert(graph:head())
    local ranks = {}
    for j = 1, opts.heads do ranks[j] = { speed = j } end
    local parts = cut.divide(found, ranks) or { 0, found.rows }
    local options = { threads = 1, int8 = opts.int8 ~= false, isa = opts.isa, context = 64, chunk = 64 }
    local part = { from = parts[i], to = parts[i + 1], steps = steps, fp16 = opts.fp16 }
    if part.from < part.to then self.heads[#self.heads + 1] = assert(head.open(graph, options, part)) end
    self.sources[i] = source
  end
end

--- A pipeline of a model.
-- @param path a model
-- @param cuts body steps before which it is cut, ascending; {}: one stage
-- @param opts of core.program; fp16: messages in fp16; kv; heads: parts into which the head is divided, which the feeds of all use
function M.open(path, cuts, opts)
  local graph <close>, source = M.graph(path)
  local steps = #graph:costs() - 1
  opts = opts or {}
  local self = setmetatable({ source = source, programs = {}, sessions = {}, queues = {}, sources = {} }, Line)
  local from = 0
  for i = 1, #cuts + 1 do
    local to = cuts[i] or steps
    local before, after = {}, {}
    if i > 1 then before = self.queues[i - 1] end
    self.queues[i] = after
    local options = {
      threads = opts.threads or 1, int8 = opts.int8 ~= false, context = opts.context or 256, chunk = opts.chunk or 64, isa = opts.isa,
      stage = {
        from = from, to = to, fp16 = opts.fp16,
        receive = function() return table.remove(before, 1) end,
        send = function(bytes)
          after[#after + 1] = bytes
          return true
        end,
      },
    }
    if opts.whole then options.stage = nil end
    if opts.heads and i == #cuts + 1 then options.stage.tail = "no-head" end
    self.programs[i] = assert(core.program(graph, options))
    self.sessions[i] = assert(self.programs[i]:session { context = options.context, kv = opts.kv })
    from = to
  end
  if opts.heads then open_heads(self, path, steps, opts) end
  return self
end

--- Does the same call on the sessions of all stages.
function Line:each(name, ...)
  for _, s in ipairs(self.sessions) do assert(s[name](s, ...)) end
end

--- Feeds ids, at most `chunk` of them a run.
function Line:feed(ids, want, chunk)
  chunk = chunk or #ids
  for first = 1, #ids, chunk do
    local n, values = math.min(chunk, #ids - first + 1), self.queues[#self.queues]
    self:each("feed", table.move(ids, first, math.min(first + chunk - 1, #ids), 1, {}), want, self.sessions[1]:length() + #ids - first + 1)
    if self.heads and #values > 0 then self:compute_heads(table.remove(values, 1), want == "last" and 1 or n) end
  end
end

-- Computes the rows of a run by the parts of the head.
function Line:compute_heads(values, n)
  local parts, keeps = {}, {}
  for i = 1, n do keeps[i] = true end
  for i, part in ipairs(self.heads) do parts[i] = assert(part:rows(values, keeps)) end
  self.joined = head.join(parts)
end

--- The bits of the logits of all rows of the last feed.
function Line:rows()
  if self.heads then
    local list = {}
    for i, row in ipairs(self.joined) do list[i] = row.logits end
    return table.concat(list)
  end
  local s, list = self.sessions[#self.sessions], {}
  for i = 1, s:rows() do list[i] = s:logits(i):tostring() end
  return table.concat(list)
end

--- Bytes that the stages have sent in the last feeds and nobody has received.
function Line:left()
  local n = 0
  for _, queue in ipairs(self.queues) do n = n + #queue end
  return n
end

function Line:__close()
  for i, s in ipairs(self.sessions) do
    s:close()
    self.programs[i]:close()
  end
  for _, part in ipairs(self.heads or {}) do part:close() end
  for _, source in ipairs(self.sources) do source:close() end
  self.source:close()
end

return M
