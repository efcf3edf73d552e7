-- Damaged templates: compile and render give nil, message, code and never raise, whatever the text is.
local jinja = require "ane.jinja"

local function read(path)
  local file = assert(io.open(path, "rb"))
  local data = file:read "a"
  file:close()
  return data
end

local fixture = assert(jinja.decode(read "spec/fixtures/jinja_cases.json"))
local sources, vars = fixture.map.sources, fixture.map.variables[1]

-- A generator of its own keeps the runs alike on every host.
local state = 20260307
local function random(n)
  state = (state * 1103515245 + 12345) % 2147483648
  return state // 65536 % n + 1
end

local PIECES = {
  "{{", "}}", "{%", "%}", "{#", "#}", "{%-", "-%}", "'", '"', "(", ")", "[", "]", "{", "}", "|", ".", ",", ":", "=", "~", "*", "**", "-",
  "\\", "\n", " ", "\0", "é", "if", "else", "endif", "for", "endfor", "in", "is", "not", "set", "macro", "call", "loop", "recursive",
  "raw", "endraw", "namespace", "1", "9999999999999999999", "1e999", "none", "true", "x", "messages", "range(9)", "|list", "|tojson",
}

local MUTATIONS = {
  function(s) -- drop a stretch
    local at = random(#s + 1)
    return s:sub(1, at - 1) .. s:sub(at + random(8))
  end,
  function(s) -- put a piece in
    local at = random(#s + 1)
    return s:sub(1, at - 1) .. PIECES[random(#PIECES)] .. s:sub(at)
  end,
  function(s) -- repeat a stretch
    local at = random(#s + 1)
    local n = random(30)
    return s:sub(1, at + n) .. s:sub(at)
  end,
  function(s) -- cross over with another one
    local other = sources[random(#sources)]
    return s:sub(1, random(#s + 1)) .. other:sub(random(#other + 1))
  end,
  function(s) return s:sub(1, random(#s + 1)) end,
}

local function attempt(source)
  local template, message, code = jinja.compile(source)
  local text
  if template then text, message, code = template:render(vars, { now = "2026-03-07", limits = { steps = 20000, output = 100000 } }) end
  if not text then assert(type(message) == "string" and type(code) == "string") end
  assert(code ~= "internal", message)
end

describe("damaged templates", function()
  for round = 1, 20 do
    it("never raise, round " .. round, function()
      for _ = 1, 150 do
        local source = sources[random(#sources)]
        for _ = 1, random(4) do source = MUTATIONS[random(#MUTATIONS)](source) end
        local ok, message = pcall(attempt, source)
        assert(ok, ("%q: %s"):format(source, tostring(message)))
      end
    end)
  end

  it("may be cut at any byte", function()
    local longest = ""
    for _, source in ipairs(sources) do
      if #source > #longest and #source < 3000 then longest = source end
    end
    for i = 0, #longest do
      local ok, message = pcall(attempt, longest:sub(1, i))
      assert(ok, ("%d: %s"):format(i, tostring(message)))
    end
  end)
end)
