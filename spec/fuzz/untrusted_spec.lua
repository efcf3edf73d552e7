-- Attacks that name code, files or addresses: in architecture names, config.json, tokenizer.json and requests. None is followed.
local ane = require "ane"
local core = require "ane.core"
local gguf = require "support.gguf_writer"
local http = require "support.http"
local tiny = require "support.tiny"
local tree = require "support.tree"

local folder
before_each(function() folder = tree.folder() end)
after_each(function() tree.remove(folder) end)

-- The names of the modules that a function requires for the first time.
local function required(fn)
  local names = {}
  table.insert(package.searchers, 1, function(name) names[#names + 1] = name end)
  local ok, message = pcall(fn)
  table.remove(package.searchers, 1)
  assert.is_true(ok, message)
  return names
end

-- A copy of a fixture in which a JSON file is changed.
local function copy(fixture, file, change)
  local path = folder .. "/m" .. #assert(core.list_dir(folder))
  assert(os.execute(("cp -r spec/fixtures/hf/%s '%s'"):format(fixture, path)))
  local value = assert(core.json_decode(assert(core.read_file(path .. "/" .. file))))
  change(value)
  assert(core.write_file(path .. "/" .. file, core.json_encode(value)))
  return path
end

describe("an attack by a model's name or configuration:", function()
  it("an architecture that is a path, has a NUL or is very long", function()
    local names = {
      "../../x", "..", ".", "/etc/passwd", "a/../../b", "llama/../llama", "llama\0", "\0", "llama.lua", "ane.core", "x;os.exit()", "",
      "%s%n", ("a"):rep(65), ("../"):rep(2000) .. "tmp/x", ("a"):rep(60000),
    }
    for _, name in ipairs(names) do
      local path = gguf.write(gguf.temp(), { values = { { "general.architecture", "string", name } }, tensors = {} })
      local loaded = required(function()
        local model, message = ane.load(path, { threads = 1 })
        assert.is_nil(model)
        assert.is_string(message)
      end)
      os.remove(path)
      for _, module in ipairs(loaded) do assert.matches("^[%w_]+[%w_.]*$", module) end
      for _, module in ipairs(loaded) do assert.is_nil(module:find("..", 1, true), module) end
    end
  end)

  it("code that config.json names, here and in another repository (CVE-2025-66448, CVE-2026-22807, CVE-2026-27893)", function()
    local mark = folder .. "/mark"
    local plain <close> = assert(ane.load("spec/fixtures/hf/llama", { threads = 1 }))
    for _, place in ipairs { "modeling_x.X", "owner/name--modeling_x.X", "../modeling_x.X" } do
      local function name_code(config)
        config.trust_remote_code = true
        config.auto_map = { AutoConfig = place, AutoModelForCausalLM = place, AutoTokenizer = { place, place } }
      end
      local path = copy("llama", "config.json", name_code)
      assert(core.write_file(path .. "/modeling_x.py", ("open(%q, 'w')\n"):format(mark)))
      assert(core.write_file(path .. "/modeling_x.lua", ("io.open(%q, 'w')\n"):format(mark)))
      local loaded = required(function()
        local model <close> = assert(ane.load(path, { threads = 1 }))
        local ids = { 1, 5, 9 }
        local want = assert(plain:generate(ids, { max_tokens = 4, ignore_eos = true, details = true })).ids
        assert.same(want, assert(model:generate(ids, { max_tokens = 4, ignore_eos = true, details = true })).ids)
      end)
      for _, module in ipairs(loaded) do assert.is_nil(module:find("hub", 1, true), module) end
      path = copy("llama", "config.json", function(config)
        name_code(config)
        config.model_type, config.architectures = "x_of_nobody", core.json_array { "XOfNobody" }
      end)
      local model, message, code = ane.load(path, { threads = 1 })
      assert.is_nil(model)
      assert.matches("not known", message)
      assert.equal("unsupported", code)
    end
    assert.is_nil((io.open(mark)))
  end)
end)

describe("an attack by a pattern of tokenizer.json:", function()
  it("verbs of PCRE and patterns that backtrack without an end", function()
    local patterns = {
      "(a+)+$", "(a|a)+b", "(a|aa)+$", "(.*)*b", "(*LIMIT_MATCH=4294967295)(a+)+b", "(*LIMIT_DEPTH=4294967295)(a|a)+b",
      "(*LIMIT_HEAP=4294967295)(a+)+b", "(*NO_JIT)(a+)+b", "(*NO_START_OPT)(*NO_AUTO_POSSESS)(a+)+b", "(*UTF)(*UCP)(\\w+)+!", "(?R)*",
      "(a?){60000}", "\\C+",
    }
    local encoded = 0
    for _, pattern in ipairs(patterns) do
      local path = copy("bert", "tokenizer.json", function(t)
        t.pre_tokenizer = { type = "Split", pattern = { Regex = pattern }, behavior = "Isolated", invert = false }
      end)
      local since = os.clock()
      local model = ane.load(path, { threads = 1 })
      if model and model.tokenizer then
        pcall(model.tokenizer.encode, model.tokenizer, ("a"):rep(20000) .. "c")
        encoded = encoded + 1
      end
      if model then model:close() end
      assert.is_true(os.clock() - since < 10, pattern .. " took " .. os.clock() - since)
    end
    assert.is_true(encoded > 3, encoded .. " of the tokenizers load")
  end)
end)

describe("an attack by a request:", function()
  it("a template, deep variables of it, and addresses of images (CVE-2025-61620, CVE-2025-62426)", function()
    if not http.available then return pending "needs lua-socket and libmicrohttpd" end
    local model <close> = tiny.load()
    local server <close> = assert(ane.serve(model, { port = 0, sessions = 1 }))
    local function post(fields, content)
      local body = ('{"messages":[{"role":"user","content":%s}],"max_tokens":1%s}'):format(content or '"a"', fields)
      local since = os.clock()
      local answer = http.post(server, "/v1/chat/completions", body)
      assert.is_true(os.clock() - since < 10)
      return answer.status, type(answer.body) == "table" and core.json_encode(answer.body) or tostring(answer.body)
    end
    local endless = "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}"
    local good, text = post ""
    assert.equal(200, good, text)
    local refused, why = post(',"chat_template":' .. core.json_encode(endless))
    assert.equal(400, refused)
    assert.matches("chat_template", why)
    for _, kwargs in ipairs {
      ('{"a":'):rep(400) .. "1" .. ("}"):rep(400), '{"chat_template":' .. core.json_encode(endless) .. "}", '{"messages":[]}',
      '{"tokenize":true,"chat_template":"x","add_generation_prompt":[]}', '{"bos_token":' .. ("["):rep(300) .. ("]"):rep(300) .. "}",
    } do
      local status = post(',"chat_template_kwargs":' .. kwargs)
      assert.is_true(status == 200 or status >= 400 and status < 500, kwargs:sub(1, 80) .. " gave " .. status)
    end
    for _, url in ipairs { "http://169.254.169.254/latest", "file:///etc/passwd", "http://127.0.0.1:1/x", "data:image/png;base64,AA==" } do
      refused, why = post("", ('[{"type":"image_url","image_url":{"url":"%s"}}]'):format(url))
      assert.equal(400, refused)
      assert.matches("image_url", why)
    end
    assert.equal(200, (post ""))
  end)
end)
