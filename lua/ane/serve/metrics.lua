--- Counters of a server, and their text for Prometheus.
-- Needs ane.serve.errors. Usage: `local m = metrics.new(); m:add "rejected"; m:answered("/health", 200, 0.001)`

local errors = require "ane.serve.errors"

local M = {}

local Metrics = {}
Metrics.__index = Metrics

--- Makes counters, all 0.
function M.new()
  return setmetatable({
    counts = { rejected = 0, cancelled = 0, prompt_tokens = 0, cached_tokens = 0, reply_tokens = 0, jobs = 0 },
    answers = {}, -- path -> status -> {count, seconds}
    recent = 0,   -- mean seconds of a job, moving
  }, Metrics)
end

--- Adds to a count.
function Metrics:add(name, n) self.counts[name] = self.counts[name] + (n or 1) end

--- Records an answer.
function Metrics:answered(path, status, seconds)
  local of_path = self.answers[path] or {}
  self.answers[path] = of_path
  local row = of_path[status] or { 0, 0 }
  of_path[status] = row
  row[1], row[2] = row[1] + 1, row[2] + seconds
end

--- Records a finished job of generated text.
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

--- Recent mean seconds of a reply.
function Metrics:mean_seconds() return self.recent end

-- ---- GET /metrics --------------------------------------------------------------------------------------------------------

-- name, kind, help, value(server)
local ROWS = {
  { "ane_replies", "gauge", "Replies that are computed or wait.", function(server) return server:stats().replies end },
  { "ane_connections", "gauge", "Open connections.", function(server) return server:stats().connections end },
  { "ane_prompt_tokens_total", "counter", "Tokens of prompts.", function(server) return server.metrics.counts.prompt_tokens end },
  { "ane_cached_tokens_total", "counter", "Tokens of prompts that were not computed again.",
    function(server) return server.metrics.counts.cached_tokens end },
  { "ane_reply_tokens_total", "counter", "Tokens of replies.", function(server) return server.metrics.counts.reply_tokens end },
  { "ane_rejected_total", "counter", "Requests that found the queue full.", function(server) return server.metrics.counts.rejected end },
  { "ane_cancelled_total", "counter", "Replies whose client left.", function(server) return server.metrics.counts.cancelled end },
  { "ane_steps_total", "counter", "Steps of the pool.", function(server) return server.pool and server.pool:stats().steps or 0 end },
  { "ane_step_seconds_total", "counter", "Seconds in steps of the pool.",
    function(server) return server.pool and server.pool:stats().seconds or 0 end },
}

-- Lines of one metric, in Prometheus' text form.
local function head(lines, name, kind, help)
  lines[#lines + 1] = ("# HELP %s %s"):format(name, help)
  lines[#lines + 1] = ("# TYPE %s %s"):format(name, kind)
end

-- Appends a field of the answers (their count, or their seconds) by path and status, sorted.
local function answers(self, lines, name, field)
  local list = {}
  for path, of_path in pairs(self.answers) do
    for status, row in pairs(of_path) do list[#list + 1] = ('%s{path="%s",status="%d"} %.14g'):format(name, path, status, row[field]) end
  end
  table.sort(list)
  table.move(list, 1, #list, #lines + 1, lines)
end

--- GET /metrics, if the option metrics is true.
function M.handle(server, call)
  if not server.opts.metrics then errors.raise(404, "metrics are off: --metrics enables them", { code = "not_found" }) end
  local lines = {}
  for _, row in ipairs(ROWS) do
    head(lines, row[1], row[2], row[3])
    lines[#lines + 1] = ("%s %.14g"):format(row[1], row[4](server))
  end
  head(lines, "ane_requests_total", "counter", "Answers by path and status.")
  answers(server.metrics, lines, "ane_requests_total", 1)
  head(lines, "ane_request_seconds_total", "counter", "Seconds of those.")
  answers(server.metrics, lines, "ane_request_seconds_total", 2)
  call:text(200, "text/plain; version=0.0.4; charset=utf-8", table.concat(lines, "\n") .. "\n")
end

return M
