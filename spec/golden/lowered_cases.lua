-- Writes the lowered graphs of some fixtures as packages, and the inputs of a sequence of calls to each as JSON, for
-- lowered_values.py. Run from the top folder, with spec/ on the path of Lua: lowered_cases.lua OUT

local core = require "ane.core"
local lowered = require "support.lowered"
local programs = require "support.programs"

local OUT = assert(arg[1], "lowered_cases.lua OUT")
local MODELS = {
  ["lfm2_moe-odd"] = { steps = { 1, 4, 3, 1 } },
  ["qwen2_moe_window-odd"] = { steps = { 4, 5 }, layout = "c1t", norm = "fp32" },
  ["zaya-odd"] = { steps = { 2, 1, 6 }, rope = "constants" },
  ["privacy_filter-odd"] = { steps = { 9 }, fixed_t = 9, context = 9 },
}

local function numbers(v)
  if type(v) == "userdata" then return { dtype = "float32", shape = v:shape(), bytes = v:tostring() } end
  return { dtype = v.dtype, shape = v.shape, bytes = v.data }
end

local function hex(s) return (s:gsub(".", function(c) return ("%02x"):format(c:byte()) end)) end

for name, o in pairs(MODELS) do
  local p <close> = lowered.open("spec/fixtures/hf/" .. name, o)
  local piece, calls, ids, at = p.shards[1], {}, programs.ids(9, 40, 7), 0
  local program = piece.program
  piece.program = {
    run = function(_, inputs, state)
      local call = {}
      for key, value in pairs(inputs) do
        call[key] = numbers(value)
        call[key].bytes = hex(call[key].bytes)
      end
      calls[#calls + 1] = call
      return program:run(inputs, state)
    end,
    close = function() program:close() end,
  }
  for _, n in ipairs(o.steps) do
    p:run(programs.slice(ids, at + 1, at + n))
    at = at + n
  end
  assert(os.execute(("mkdir -p '%s' && cp -r '%s' '%s/%s.mlpackage'"):format(OUT, piece.folder, OUT, name)))
  assert(core.write_file(("%s/%s.json"):format(OUT, name), assert(core.json_encode { steps = o.steps, calls = calls })))
end
