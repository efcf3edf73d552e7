--- The weights of an export, with their rounding errors.
-- Needs ane.coreml.plan.coreai. Usage: `local weights = {}; exporter:write(i, path, errors.collect(weights))`

local rules = require "ane.coreml.plan.coreai"

local M = {}

--- A function that takes what the core says of a written weight, and appends {name, from, to, form, bytes, max_abs, snr_db (nil: exact,
-- or all weights are 0)} to `list`.
function M.collect(list)
  return function(w)
    local snr = w.error > 0 and w.signal > 0 and 10 * math.log(w.signal / w.error, 10) or nil
    list[#list + 1] = { name = w.name, from = w.from, to = w.to, form = w.form, bytes = w.bytes, max_abs = w.max_abs, snr_db = snr }
  end
end

--- What the reader of a report should know of its weights: those in another scheme than the one asked for, because their shape does not
-- fit; what is known against the scheme on the Neural Engine.
-- @param weights of collect
-- @param opts weights, mixed
-- @param assets true: of Core AI
-- @return list of texts
function M.warnings(weights, opts, assets)
  local list, others, used, risk = {}, {}, false, assets and rules.risk_of(opts.weights)
  for _, w in ipairs(weights) do
    used = used or w.form == opts.weights
    if w.form ~= opts.weights and not opts.mixed then others[w.form] = (others[w.form] or 0) + 1 end
  end
  for form, n in pairs(others) do
    list[#list + 1] = ("%d of %d weights are stored as %s: the shape does not fit %s"):format(n, #weights, form, opts.weights)
  end
  table.sort(list)
  if risk and used then list[#list + 1] = ("%s: %s (%s)"):format(opts.weights, risk.text, risk.source) end
  return list
end

return M
