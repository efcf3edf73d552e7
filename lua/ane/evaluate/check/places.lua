--- Maps the names of a golden (hidden.0, hidden.1, ...) to values of a model.
-- Needs nothing. Usage: `local places = places.find(program:values(), cfg)`

local M = {}

--- Finds the residual stream among the values of a program.
-- @param values list of {name, channels}, in the order in which they are computed
-- @param cfg d_model, n_layer
-- @return table: hidden.0 .. hidden.<n_layer>, hidden.final -> name of a value (the last of the right width before the
-- first layer, in each layer, after the last one); logits -> the last value
function M.find(values, cfg)
  local places, layer = {}, -1
  for i, value in ipairs(values) do
    local inside = math.tointeger(tonumber(value.name:match "^layers%.(%d+)%."))
    layer = inside or layer
    if value.channels == cfg.d_model then
      if inside then places["hidden." .. inside + 1] = value.name
      elseif layer < 0 then places["hidden.0"] = value.name
      elseif i < #values then places["hidden.final"] = value.name end
    end
  end
  places.logits = #values > 0 and values[#values].name or nil
  return places
end

return M
