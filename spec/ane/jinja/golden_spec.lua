-- Every case of chat_template_golden.json, rendered by jinja2 with transformers' settings, byte for byte.
local jinja = require "ane.jinja"

local function read(path)
  local file = assert(io.open(path, "rb"))
  local data = file:read "a"
  file:close()
  return data
end

-- A field of a decoded object.
local function field(dict, name)
  return dict.map[name]
end

local golden = assert(jinja.decode(read "spec/fixtures/chat_template_golden.json"))

-- The variables of a case over the special tokens.
local function variables(case)
  local all = {}
  for _, source in ipairs { field(golden, "special_tokens"), field(case, "vars") } do
    for _, key in ipairs(source.keys) do all[#all + 1] = { key, source.map[key] } end
  end
  return jinja.dict(all)
end

local function check(template, case)
  local text, message, code = template:render(variables(case), { now = field(golden, "now") })
  local want = field(case, "error")
  if not want then
    assert.are.equal(field(case, "output"), text, message)
    return
  end
  assert.is_nil(text)
  if want == "TemplateError" then
    assert.are.equal("template", code)
    assert.are.equal(field(case, "message"), message)
  else
    assert.are.equal("type", code)
    assert.matches("^golden:%d+:%d+: ", message)
  end
end

describe("golden chat templates", function()
  for _, entry in ipairs(field(golden, "templates")) do
    local name = field(entry, "name")
    local template, message = jinja.compile(field(entry, "template"), { name = "golden" })
    it("compiles " .. name, function() assert.is_truthy(template, message) end)
    for _, case in ipairs(field(entry, "cases")) do
      it(name .. ": " .. field(case, "name"), function() check(template, case) end)
    end
  end
end)
