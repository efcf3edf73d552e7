--- Lists of numbers in configurations, of a length that the model gives.
-- Usage (in a recipe): `local by = lists.numbers(cfg, "ssm_multipliers", 5)`

local M = {}

local function check(key, list, n, wanted)
  if #list ~= n then error(("%s has %d numbers, but must have %s"):format(key, #list, wanted), 0) end
  return list
end

--- A list of n numbers; nil if the configuration has none.
function M.numbers(cfg, key, n)
  local list = cfg.meta(key, "list")
  return list and check(key, list, n, n)
end

--- A list of one number for each layer; nil if the configuration has none.
function M.per_layer(cfg, key)
  local list = cfg.meta(key, "list")
  return list and check(key, list, cfg.n_layer, ("one for each of %d layers"):format(cfg.n_layer))
end

return M
