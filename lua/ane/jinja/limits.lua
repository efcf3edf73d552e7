--- Faults of a template and the budget of a render.
-- Needs nothing. A chat template is a program that comes with a model file, so each operation pays for its work here:
-- `limits.tick(rt)` for a step, `limits.grow(rt, n)` for a new string, `limits.scan(rt, n)` for reading one.
-- Usage: `local rt = limits.new({ steps = 1000 }); limits.tick(rt); limits.fail("type", "expected %s", "a string")`

local M = {}

--- Default limits of one render: `steps` (statements, iterations, calls, items), `depth` (macro calls, nested data),
-- `output` (bytes of the longest string, the result included).
M.DEFAULTS = { steps = 5000000, depth = 200, output = 8 << 20 }

--- Strings made in the course of a render may add up to this many times the longest one.
M.CHURN = 64

--- The most items a list or range may have; jinja2's sandbox has the same number for ranges.
M.MAX_ITEMS = 100000

--- Raise a fault; `compile` and `render` turn it into nil, message, code.
-- @param code a word: syntax, unsupported, template, undefined, type, value, security, limit, runtime
-- @param fmt a string.format pattern with its arguments
function M.fail(code, fmt, ...)
  local message = select("#", ...) > 0 and fmt:format(...) or fmt
  error({ code = code, message = message }, 0)
end

local fail = M.fail

--- A fresh budget with the given limits over the defaults.
function M.new(limits)
  local given, default = limits or {}, M.DEFAULTS
  local output = given.output or default.output
  return {
    left = given.steps or default.steps, depth = 0, max_depth = given.depth or default.depth, max_string = output,
    room = output * M.CHURN,
    at = false, out = { n = 0, size = 0 },
  }
end

--- Pay for n steps (1 when left out).
function M.tick(rt, n)
  local left = rt.left - (n or 1)
  rt.left = left
  if left < 0 then fail("limit", "the template needs too many steps") end
end

--- Pay for reading n bytes.
function M.scan(rt, n)
  if n > 255 then M.tick(rt, n >> 8) end
end

--- Pay for going through n bytes character by character, in Lua.
function M.walk(rt, n)
  M.tick(rt, 1 + (n >> 1))
end

--- Pay for a new string of n bytes, before it is made.
function M.grow(rt, n)
  if n > rt.max_string then
    fail("limit", "a string of %.0f bytes is longer than the limit of %d", n, rt.max_string)
  end
  local room = rt.room - n
  rt.room = room
  if room < 0 then fail("limit", "the template makes too much text") end
end

--- Pay for a new list of n items, before it is made.
function M.items(rt, n)
  if n > M.MAX_ITEMS then fail("limit", "a list of more than %d items", M.MAX_ITEMS) end
  M.tick(rt, 1 + (n >> 2))
end

--- Pay for finding a needle of m bytes among n: the plain search of the C library may compare each one at each place.
function M.search(rt, n, m)
  if n >= m and n > 64 then M.tick(rt, 1 + ((n - m + 1) * m >> 12)) end
end

--- One level deeper: a macro call, or data in data.
function M.enter(rt)
  local depth = rt.depth + 1
  rt.depth = depth
  if depth > rt.max_depth then fail("limit", "more than %d nested calls", rt.max_depth) end
end

--- Write to the current output.
function M.write(rt, s)
  local out = rt.out
  local n, size = out.n + 1, out.size + #s
  out[n], out.n, out.size = s, n, size
  if size > rt.max_string then fail("limit", "the output is longer than the limit of %d bytes", rt.max_string) end
end

--- Run body(env, rt) and hand back what it wrote, and the loop signal it ended with.
function M.capture(rt, body, env)
  local outer, buffer = rt.out, { n = 0, size = 0 }
  rt.out = buffer
  local signal = body(env, rt)
  rt.out = outer
  M.grow(rt, buffer.size)
  return table.concat(buffer, "", 1, buffer.n), signal
end

return M
