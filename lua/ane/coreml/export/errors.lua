--- The weights of an export, with their rounding errors.
-- Needs nothing. Usage: `local weights = {}; exporter:write(i, path, errors.collect(weights))`

local M = {}

--- A function that takes what the core says of a written weight, and appends {name, from, to, form, bytes, max_abs, snr_db (nil: exact,
-- or all weights are 0)} to `list`.
function M.collect(list)
  return function(w)
    local snr = w.error > 0 and w.signal > 0 and 10 * math.log(w.signal / w.error, 10) or nil
    list[#list + 1] = { name = w.name, from = w.from, to = w.to, form = w.form, bytes = w.bytes, max_abs = w.max_abs, snr_db = snr }
  end
end

return M
