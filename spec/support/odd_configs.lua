--- Configurations with one fault each: every key of config.json missing, or replaced by something odd.
--
--   for _, c in ipairs(odd.changes(cfg)) do ... c.change(copy) ... end   -- c.where: "rope_scaling.factor = 1e308"
--   odd.try(bad, c.where, load, path)

local core = require "ane.core"

local M = {}

-- Values of a wrong type or size. The huge numbers overflow a size or an exponent.
M.values = {
  { "null", core.null }, { "false", false }, { "true", true }, { '""', "" }, { '"x"', "x" }, { "[]", {} }, { "[1]", { 1 } },
  { '["x"]', { "x" } }, { '{"a":1}', { a = 1 } }, { "-1", -1 }, { "0", 0 }, { "1", 1 }, { "3", 3 }, { "0.5", 0.5 }, { "-0.5", -0.5 },
  { "65537", 65537 }, { "2147483647", 2147483647 }, { "2147483648", 2147483648 }, { "1e308", 1e308 }, { "1e-308", 1e-308 },
}

-- Keys that the file may lack and readers ask for.
M.absent = {
  "head_dim", "sliding_window", "partial_rotary_factor", "rope_theta", "rope_local_base_freq", "layer_types", "norm_eps",
  "attention_bias", "original_max_position_embeddings", "eos_token_id", "hidden_activation", "rope_parameters", "quantization_config",
}

local function collect(t, path, list)
  for key, value in pairs(t) do
    if type(key) == "string" then
      local at = table.move(path, 1, #path, 1, {})
      at[#at + 1] = key
      list[#list + 1] = at
      if type(value) == "table" and value ~= core.null and #value == 0 then collect(value, at, list) end
    end
  end
end

local function set(cfg, path, value)
  for i = 1, #path - 1 do cfg = cfg[path[i]] end
  cfg[path[#path]] = value
end

--- All changes of a configuration, in an order that does not change: list of {where, change}.
function M.changes(cfg)
  local paths, out = {}, {}
  collect(cfg, {}, paths)
  for _, key in ipairs(M.absent) do
    if cfg[key] == nil then paths[#paths + 1] = { key } end
  end
  table.sort(paths, function(a, b) return table.concat(a, ".") < table.concat(b, ".") end)
  for _, path in ipairs(paths) do
    local name = table.concat(path, ".")
    out[#out + 1] = { where = name .. " missing", change = function(c) set(c, path, nil) end }
    for _, v in ipairs(M.values) do
      out[#out + 1] = { where = name .. " = " .. v[1], change = function(c) set(c, path, v[2]) end }
    end
  end
  return out
end

--- Calls a way in and adds what is wrong with it to the list: it raised, it gave no code, it took longer than 10 s.
-- @return what fn returned; nothing where it raised
function M.try(bad, where, fn, ...)
  local started = os.clock()
  local called, result, message, code = pcall(fn, ...)
  local seconds = os.clock() - started
  if not called then bad[#bad + 1] = ("%s: raised %s"):format(where, result)
  elseif result == nil and (type(message) ~= "string" or type(code) ~= "string") then
    bad[#bad + 1] = ("%s: no message and code: %s, %s"):format(where, message, code)
  elseif result == nil and (message:find "%.lua:%d" or message:find("attempt to", 1, true)) then
    bad[#bad + 1] = ("%s: an error of Lua as message: %s"):format(where, message)
  end
  if seconds > 10 then bad[#bad + 1] = ("%s: %.1f s"):format(where, seconds) end
  if called then return result, message, code end
end

return M
