--- Template faults, and the budget of one render.
-- Needs nothing. A chat template is a program from a model file, so every operation pays before it works. Two counters limit a
-- render: `steps` limits time, `memory` limits bytes. A step is at most about 0.4 microseconds of one core of 2024, so a render
-- under the default limits takes at most about 2 seconds and 256 MB. The price of n bytes depends on the work: scan (memcmp,
-- memcpy), read (patterns, UTF-8 decoding), walk (Lua code per character). spec/ane/jinja/budget_spec.lua holds every operation
-- to its price. The budget `rt` may be nil in `make`: compiling and converting are limited by the size of their input.
-- Usage: `local rt = limits.new({ steps = 1000 }); limits.tick(rt); limits.fail("type", "expected %s", "a string")`

local M = {}

--- Default limits of one render: `steps` (statements, iterations, calls, items), `depth` (macro calls, nested data),
-- `output` (bytes of the longest string, the result included), `memory` (bytes of all values made, freed or not).
M.DEFAULTS = { steps = 5000000, depth = 200, output = 8 << 20, memory = 192 << 20 }

--- A larger output limit raises the default memory limit to this multiple of itself.
M.MEMORY_PER_OUTPUT = 24

--- The maximum items of a list or range. The sandbox of jinja2 has the same limit for ranges.
M.MAX_ITEMS = 100000

--- Bytes charged for one object, one list item, and one dict entry, growth of the table included.
M.OBJECT, M.ITEM, M.ENTRY = 96, 32, 96

--- Raises a fault; `compile` and `render` turn it into nil, message, code.
-- @param code one of syntax, unsupported, template, undefined, type, value, security, limit, runtime
-- @param fmt a string.format pattern with its arguments
function M.fail(code, fmt, ...)
  local message = select("#", ...) > 0 and fmt:format(...) or fmt
  error({ code = code, message = message }, 0)
end

local fail = M.fail

--- A new budget. `limits` overrides the defaults. A running template also keeps here: `out`, its current output; `at`, the byte
-- of the source it is at; `position`, the position of the tracked item it is at (see init.lua); `resolve`, for names.
function M.new(limits)
  local given, default = limits or {}, M.DEFAULTS
  local output = given.output or default.output
  return {
    left = given.steps or default.steps, depth = 0, max_depth = given.depth or default.depth, max_string = output,
    room = given.memory or math.max(default.memory, output * M.MEMORY_PER_OUTPUT),
    at = false, out = { n = 0, size = 0 },
  }
end

--- Pays for n steps (default 1).
function M.tick(rt, n)
  local left = rt.left - (n or 1)
  rt.left = left
  if left < 0 then fail("limit", "the template needs too many steps") end
end
local tick = M.tick

--- Pays for n bytes that memcmp, memchr or memcpy reads.
function M.scan(rt, n)
  if n > 255 then tick(rt, n >> 8) end
end

--- Pays for n bytes that a Lua pattern or a UTF-8 decoder reads.
function M.read(rt, n)
  if n > 63 then tick(rt, n >> 6) end
end

--- Pays for n bytes that Lua code reads character by character.
function M.walk(rt, n)
  tick(rt, 1 + (n >> 1))
end

--- Pays for a plain search for m bytes among n. string.find compares at each occurrence of the first byte.
function M.search(rt, n, m)
  if n >= m and n > 63 then tick(rt, (n >> 6) + ((n - m + 1) * m >> 12)) end
end

--- Pays for n bytes of memory. rt may be nil.
function M.make(rt, n)
  if not rt then return end
  local room = rt.room - n
  rt.room = room
  if room < 0 then fail("limit", "the template needs too much memory") end
end
local make = M.make

--- Checks that n bytes of working memory fit. They are freed when the operation ends, so they are not charged.
function M.spare(rt, n)
  if n > rt.room then fail("limit", "the template needs too much memory") end
end

--- Pays for a new string of n bytes, before it exists.
function M.grow(rt, n)
  if n > rt.max_string then
    fail("limit", "a string of %.0f bytes is longer than the limit of %d", n, rt.max_string)
  end
  make(rt, n + 32)
end

--- Pays for a new table of n items, before it exists.
function M.table(rt, n)
  tick(rt, 1 + (n >> 2))
  make(rt, M.OBJECT + n * M.ITEM)
end

--- Pays for a new list of n items whose length the template chooses.
function M.items(rt, n)
  if n > M.MAX_ITEMS then fail("limit", "a list of more than %d items", M.MAX_ITEMS) end
  M.table(rt, n)
end

--- A string made of parts: add(s) appends and pays, finish() returns the whole.
function M.buffer(rt)
  local parts, n, size = {}, 0, 0
  local function add(s)
    n, size = n + 1, size + #s
    parts[n] = s
    if size > rt.max_string then M.grow(rt, size) end
    make(rt, #s + M.ITEM)
  end
  local function finish()
    M.grow(rt, size)
    return table.concat(parts)
  end
  return add, finish
end

--- Goes one level deeper: a macro call, or data within data.
function M.enter(rt)
  local depth = rt.depth + 1
  rt.depth = depth
  if depth > rt.max_depth then fail("limit", "more than %d nested calls", rt.max_depth) end
end

--- Writes to the current output.
function M.write(rt, s)
  local out = rt.out
  local n, size = out.n + 1, out.size + #s
  out[n], out.n, out.size = s, n, size
  if size > rt.max_string then fail("limit", "the output is longer than the limit of %d bytes", rt.max_string) end
  make(rt, M.ITEM)
end

--- Runs body(env, rt). Returns what it wrote, and the loop signal it ended with.
function M.capture(rt, body, env)
  local outer, buffer = rt.out, { n = 0, size = 0 }
  rt.out = buffer
  local signal = body(env, rt)
  rt.out = outer
  M.grow(rt, buffer.size)
  return table.concat(buffer, "", 1, buffer.n), signal
end

return M
