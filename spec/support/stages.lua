--- Pipelines of stages in one process, for specs: the messages go through queues.
-- Usage: `local line <close> = stages.open(path, { 5, 9 }); line:feed({ 1, 2, 3 }, "all"); local bits = line:rows()`

local core = require "ane.core"
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

--- A pipeline of a model.
-- @param path a model
-- @param cuts body steps before which it is cut, ascending; {}: one stage
-- @param opts of core.program; fp16: messages in fp16; kv
function M.open(path, cuts, opts)
  local graph <close>, source = M.graph(path)
  local steps = #graph:costs() - 1
  opts = opts or {}
  local self = setmetatable({ source = source, programs = {}, sessions = {}, queues = {} }, Line)
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
    self.programs[i] = assert(core.program(graph, options))
    self.sessions[i] = assert(self.programs[i]:session { context = options.context, kv = opts.kv })
    from = to
  end
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
    self:each("feed", table.move(ids, first, math.min(first + chunk - 1, #ids), 1, {}), want, self.sessions[1]:length() + #ids - first + 1)
  end
end

--- The bits of the logits of all rows of the last feed.
function Line:rows()
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
  self.source:close()
end

return M
