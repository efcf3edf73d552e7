--- Counts of what a server does, and their form for Prometheus.
-- Needs nothing. Usage: `local m = metrics.new(); m:add "rejected"; m:answered("/health", 200, 0.001)`

local M = {}

local Metrics = {}
Metrics.__index = Metrics

function M.new()
  return setmetatable({
    counts = { rejected = 0, cancelled = 0, prompt_tokens = 0, cached_tokens = 0, reply_tokens = 0, jobs = 0 },
    answers = {}, -- path -> status -> {count, seconds}
    recent = 0,   -- seconds of a job, a moving mean
  }, Metrics)
end

--- Adds to a count.
function Metrics:add(name, n) self.counts[name] = self.counts[name] + (n or 1) end

--- Notes an answer.
function Metrics:answered(path, status, seconds)
  local of_path = self.answers[path] or {}
  self.answers[path] = of_path
  local row = of_path[status] or { 0, 0 }
  of_path[status] = row
  row[1], row[2] = row[1] + 1, row[2] + seconds
end

--- Notes a job of generated text that is over.
function Metrics:job(job)
  self:add "jobs"
  for _, r in ipairs(job.requests) do
    local result = r.result
    self:add("reply_tokens", #result.ids)
    self:add("prompt_tokens", #result.prompt_ids)
    self:add("cached_tokens", result.timings and result.timings.cached_tokens or 0)
    if r.ended_at then self.recent = self.recent * 0.9 + (r.ended_at - r.arrived) * 0.1 end
  end
end

--- Seconds of a reply of late.
function Metrics:mean_seconds() return self.recent end

return M
