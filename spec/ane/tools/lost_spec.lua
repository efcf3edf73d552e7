-- What is no call is text of the reply: calls that are cut off or malformed, and what stands around them. The same holds for replies in
-- pieces of any size.
local core = require "ane.core"
local forms = require "ane.tools.forms"
local reader = require "ane.tools.reader"
local tools = require "ane.tools"

-- The calls and the text of a reply, which comes in pieces of a size.
local function read(form, text, size)
  local r, said = reader.new(form), {}
  for at = 1, #text, size do said[#said + 1] = r:push(text:sub(at, at + size - 1)) end
  local rest, of_call = r:finish()
  local names = {}
  for i, call in ipairs(r.calls) do names[i] = call["function"].name .. call["function"].arguments end
  return table.concat(said) .. rest .. of_call, table.concat(names, " "), r
end

local SIZES = { math.maxinteger // 2, 7, 2, 1 }

local function expect(form, text, said, names)
  for _, size in ipairs(SIZES) do
    local got, called = read(form, text, size)
    assert.same({ said, names }, { got, called }, ("%s, %q in pieces of %d"):format(form.name, text, size))
  end
end

local function form_of(name) return forms.with_names(forms.named(name), { "get", "put" }) end

-- Arguments as a form writes them: {"a": "x{1"}.
local function arguments_of(form)
  if form.arguments == "json" then return '{"a": "x{1"}' end
  if form.arguments == "tagged" then return form.member[1] .. "a" .. form.member[2] .. "x{1" .. form.member[3] end
  if form.arguments == "python" then return 'a="x{1"' end
  return "{a:" .. form.quote .. "x{1" .. form.quote .. "}"
end

local function call(form, name, arguments)
  local fields = { name = name, id = "a1B2c3D4e", arguments = arguments or arguments_of(form) }
  return (form.call:gsub("{(%l+)}", fields))
end

local GOT = '{"a": "x{1"}'

-- A text before calls, as it is written, and as it is read.
local function preface(form)
  if form.at_start then return "", "" end
  if not form.channels then return "Well. ", "Well. " end
  return "<|channel|>commentary<|message|>Well. <|end|><|start|>assistant", "Well. "
end

describe("text that is no call", function()
  for _, name in ipairs(forms.names()) do
    local form = form_of(name)
    local before, shown = preface(form)

    it("stays where a reply ends within a call: " .. name, function()
      local whole = before .. form.first .. call(form, "get")
      for stop = #before, #whole - 1 do
        -- A header of gpt-oss is no text until it is known to begin a call.
        if not form.channels or stop >= #before + #"<|channel|>commentary to=functions." then
          expect(form, whole:sub(1, stop), shown .. whole:sub(#before + 1, stop), "")
        end
      end
      expect(form, whole .. form.last, shown, "get" .. GOT)
      if not form.between then return end
      local both = whole .. form.between .. call(form, "put")
      for stop = #whole + 1, #both - 1 do
        local rest = both:sub(#whole + 1, stop)
        expect(form, both:sub(1, stop), shown .. (form.last:sub(1, #rest) == rest and "" or rest), "get" .. GOT)
      end
      expect(form, both .. form.last, shown, "get" .. GOT .. " put" .. GOT)
    end)

    it("stays where a call is malformed, and the calls around it are read: " .. name, function()
      local good = form.first .. call(form, "get") .. form.last
      for _, bad in ipairs {
        form.first .. call(form, "get", "@!"), form.first .. call(form, "@"), form.first .. call(form, ""),
      } do
        if not form.tools or not bad:find("@\n", 1, true) then
          expect(form, before .. bad, shown .. bad, "")
          if not form.at_start and not form.channels then
            expect(form, before .. bad .. " And " .. good, shown .. bad .. " And ", "get" .. GOT)
            expect(form, good .. " then " .. bad .. " and " .. good .. "!", " then " .. bad .. " and !", ("get%s get%s"):format(GOT, GOT))
          end
        end
      end
    end)

    it("is no reason to refuse a name that no tool has: " .. name, function()
      if form.tools then return end
      expect(form, before .. form.first .. call(form, "unknown.tool-1") .. form.last, shown, "unknown.tool-1" .. GOT)
    end)
  end

  it("stays where JSON is no object, or is not JSON", function()
    local form = forms.named "hermes"
    for _, arguments in ipairs {
      "1", '"x"', "[1]", "null", "{", '{"a": 01}', '{"a": 1.}', '{"a": 1e}', '{"a": -}', '{"a": tru}', '{"a": nulL}', "{a: 1}", '{"a" 1}',
      '{"a": 1,}', '{"a": [1,]}', '{"a": [1}', '{"a": "x\ny"}', '{"a": "\\x"}', '{"a": "\\u12g4"}', '{"a": "\\ud800"}', "{'a': 1}",
      '{"a": 1, "a": 2}', '{"a": \f1}', '{"a": ' .. ("["):rep(600), '{"a": "x}}\n</tool_call>', "",
    } do
      local text = call(form, "get", arguments)
      expect(form, "Well. " .. text .. "\n" .. call(form, "put", "{}"), "Well. " .. text .. "\n", "put{}")
    end
  end)

  it("is no part of JSON that is written in an unusual way", function()
    local form = forms.named "deepseek-v3.1"
    for _, arguments in ipairs {
      "{}", "{ }", ' {"a" : [ ] , "b":{ } }', '{"a": [[], {}, [0, -0.5e+10, 1E9]]}',
      '{"": "\\"}{\\\\", "\\u00e9\\ud83d\\ude00": "\u{e9}\u{1f600}\x7f"}',
      '{"a": [true, false, null], "b": ' .. ("9"):rep(400) .. "}", '{"a": ' .. ("["):rep(500) .. ("]"):rep(500) .. "}",
    } do
      assert.is_table(core.json_decode(arguments, { exact = true }))
      local text = form.first .. call(form, "get", arguments) .. form.last
      for _, size in ipairs(SIZES) do
        local said, called = read(form, text, size)
        assert.same({ "", "get" .. arguments:match "^%s*(.*)" }, { said, (called:gsub("^get%s*", "get")) })
      end
    end
  end)

  it("stays where Python or Gemma's notation is not closed", function()
    local python, gemma = forms.named "lfm2", forms.named "gemma4"
    for _, arguments in ipairs { "a='x", 'a="x\\"', "a=[1", "a=(1]", "a=f(1)", "a=1 b=2", "a", "a=1, a=2" } do
      local text = python.first .. call(python, "get", arguments) .. python.last
      expect(python, "Well. " .. text, "Well. " .. text, "")
    end
    for _, arguments in ipairs { '{a:<|"|>x}', "{a:[1}", "[1]", "{a:x}", "{a:1,a:2}", "{a:1" } do
      local text = call(gemma, "get", arguments)
      expect(gemma, "Well. " .. text, "Well. " .. text, "")
    end
  end)

  it("stays where tags are not closed, or names are not names", function()
    local form = forms.named "qwen3-coder"
    for _, arguments in ipairs {
      "<parameter=a>\nx",
      "x", "<parameter=>\nx\n</parameter>\n", "<parameter=a\n>\nx\n</parameter>\n", "<parameter=a<b>\nx\n</parameter>\n",
      "<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>\n",
    } do
      local text = call(form, "get", arguments)
      expect(form, "Well. " .. text, "Well. " .. text, "")
    end
  end)

  it("stays where an identifier is too short", function()
    local form = forms.named "mistral-v11"
    local text = '[TOOL_CALLS]get[CALL_ID]abc[ARGS]{"a": "x{1"}'
    expect(form, "Well. " .. text, "Well. " .. text, "")
    expect(form, text .. "[TOOL_CALLS]get[CALL_ID]a1B2c3D4e[ARGS]{}", text, "get{}")
  end)

  it("is returned by parse", function()
    local text, found = tools.parse('One.\n<tool_call>\n{"name": "get", "arguments": {"a": "1', { form = "hermes" })
    assert.same({ 'One.\n<tool_call>\n{"name": "get", "arguments": {"a": "1', {} }, { text, found })
    text, found = tools.parse("a <tool_call> is a tag", { form = "hermes" })
    assert.same({ "a <tool_call> is a tag", {} }, { text, found })
  end)

  it("leaves what is known of a call in which the reply ends", function()
    local _, _, r = read(forms.named "hermes", '<tool_call>\n{"name": "get", "arguments": {"a": "1', 3)
    assert.same({ "get", '{"a": "1' }, { r.cut["function"].name, r.cut["function"].arguments })
    _, _, r = read(forms.named "hermes", 'Well. <tool_call>\n{"name": "ge', 3)
    assert.same({ "", '<tool_call>\n{"name": "ge' }, { r.cut["function"].name, r.cut.text })
  end)
end)
