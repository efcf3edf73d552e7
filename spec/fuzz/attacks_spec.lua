-- Attacks on inference programs that were published with a CVE or a report, replayed on this one. Each gives an error that names its
-- cause, or does nothing; the process lives on, and nothing is read or written that the attack was after.
local ane = require "ane"
local core = require "ane.core"
local gguf = require "support.gguf_writer"
local http = require "support.http"
local jinja = require "ane.jinja"
local onnx = require "support.onnx_writer"
local st = require "support.safetensors_writer"
local tiny = require "support.tiny"
local tiny_llama = require "support.tiny_llama"

-- The message and the code with which a file is refused, by load and by every other way in.
local function refused(path, pattern, code)
  local model, message, got = ane.load(path, { threads = 1 })
  os.remove(path)
  assert.is_nil(model)
  assert.matches(pattern, message)
  assert.equal(code or "format", got, message)
end

local function llama(change, pattern, code) refused(tiny_llama.write(change), pattern, code) end

describe("an attack by a GGUF file:", function()
  local function file(change)
    local f = { values = { { "general.architecture", "string", "llama" } }, tensors = {
      { name = "a", dtype = "fp32", shape = { 2, 3 }, data = ("\0"):rep(24) }, { name = "b", dtype = "fp32", shape = { 8 },
        data = ("\0"):rep(32) } } }
    change(f)
    return gguf.write(gguf.temp(), f)
  end

  it("a count of tensors or keys whose table wraps in size (CVE-2024-21836, CVE-2024-23605, llama.cpp#15711)", function()
    for _, n in ipairs { 1 << 61, (1 << 58) + 1, -1 } do
      refused(file(function(f) f.n_tensors = n end), "tensors, the limit is")
      refused(file(function(f) f.n_values = n end), "keys, the limit is")
    end
  end)

  it("a string or array whose length wraps (CVE-2024-23496, CVE-2024-21825)", function()
    refused(file(function(f) f.values[1].raw = string.pack("<i8", -1) end), "expected 18446744073709551615 bytes")
    refused(file(function(f) f.values[2] = { "x", "array", { "uint32", { 1 }, count = 1 << 62 } } end),
      "4611686018427387904 elements do not fit")
  end)

  it("more dimensions than a tensor has room for, and a type beyond the table (CVE-2024-21802, ggml PR 709)", function()
    refused(file(function(f) f.tensors[1].n_dims = "\xff\xff\xff\x7f" end), "2147483647 dimensions, the limit is 4")
    refused(file(function(f) f.tensors[1].type_id = 0x7FFFFFFF end), "unknown tensor type 2147483647", "unsupported")
  end)

  it("sizes whose sum wraps (CVE-2025-53630), also with the size of the header (CVE-2026-27940)", function()
    refused(file(function(f) f.tensors[1].dims, f.tensors[2].dims = { 1 << 61 }, { 1 << 61 } end), "overflows")
    refused(file(function(f) f.tensors[1].dims = { (1 << 61) - 8, 2 } end), "overflows")
    refused(file(function(f) f.tensors[1].dims, f.tensors[2].dims = { 1 << 57 }, { 1 << 57 } end), "needs 576460752303423488 bytes")
  end)

  it("a dimension of 2^42 + 1, whose stride wraps to 0 (CVE-2026-33298)", function()
    refused(file(function(f) f.tensors[1].dims = { 1 << 22, (1 << 42) + 1 } end), "overflows")
  end)

  it("a tensor that lies behind the file's end is quantised (CVE-2026-7482)", function()
    local path = file(function(f) f.tensors[2].dims = { 1024 } end)
    for _, open in ipairs { ane.load, ane.tensors, core.open } do
      local got, message, code = open(path)
      assert.is_nil(got)
      assert.matches("needs 4096 bytes at offset 32, the file has 64 bytes of data", message)
      assert.equal("format", code)
    end
    os.remove(path)
  end)

  it("four bytes, and 43 bytes with an array of 2^60 (CVE-2024-39720, llama.cpp PR 27188)", function()
    refused(gguf.write(gguf.temp(), "GGUF"), "ends too early")
    local head = "GGUF" .. string.pack("<I4I8I8", 3, 0, 1) .. string.pack("<s8", "a")
    refused(gguf.write(gguf.temp(), head .. string.pack("<I4I4I8", 9, 8, 1 << 60)), "1152921504606846976 elements, the limit")
  end)

  it("an alignment of 0, of 2^31, and as INT32 (CVE-2025-0317, llama.cpp PRs 24997 and 26318)", function()
    local function align(kind, v, raw) return function(f) f.values[2] = { "general.alignment", kind, v, raw = raw } end end
    refused(file(align("uint32", 0)), "must be a power of two")
    refused(file(align("uint32", 32, "\0\0\0\x80")), "is not a multiple of the alignment 2147483648")
    refused(file(align("int32", 32)), "must be a UINT32, but is INT32")
  end)

  it("a tensor with a dimension of 0, and one inflated far beyond the file (CVE-2025-0312, CVE-2025-0315)", function()
    refused(file(function(f) f.tensors[1].dims = { 0, 256 } end), "dimension")
    refused(file(function(f) f.tensors[1].dims = { 1 << 40 } end), "needs 4398046511104 bytes")
  end)

  it("no layers, or more than any table has room for (llama.cpp PRs 25821 and 26051)", function()
    llama(function(_, set) set("llama.block_count", "uint32", 0) end, "llama.block_count")
    llama(function(_, set) set("llama.block_count", "uint32", 0xFFFFFFFF) end, "llama.block_count")
    llama(function(_, set) set("llama.block_count", "uint32", 513) end, "blk%.1%.", "shape")
    llama(function(_, set) set("llama.attention.head_count", "uint32", 0) end, "head_count")
    llama(function(_, set) set("llama.attention.head_count_kv", "uint32", 0) end, "head_count_kv")
  end)

  it("scores and token types of another element type (llama.cpp PR 26690)", function()
    local function vocabulary(key, array)
      return function(_, set)
        local tokens = {}
        for i = 1, 20 do tokens[i] = "t" .. i end
        set("tokenizer.ggml.model", "string", "llama")
        set("tokenizer.ggml.tokens", "array", { "string", tokens })
        set(key, "array", array)
      end
    end
    llama(vocabulary("tokenizer.ggml.scores", { "uint8", { 1, 2 } }), "tokenizer.ggml.scores")
    llama(vocabulary("tokenizer.ggml.scores", { "string", { "a", "b" } }), "tokenizer.ggml.scores")
    llama(vocabulary("tokenizer.ggml.token_type", { "uint8", { 1, 2 } }), "tokenizer.ggml.token_type")
    llama(vocabulary("tokenizer.ggml.token_type", { "float64", { 1, 2 } }), "tokenizer.ggml.token_type")
  end)

  it("byte tokens such as <0x-1> and a very long token (llama.cpp PR 25969, CVE-2025-49847)", function()
    local path = tiny_llama.write(function(_, set)
      local tokens, types, scores = { "<unk>", "<s>", "</s>", "<0x-1>", "<0xZZ>", "<0x1>", ("\u{2581}a"):rep(20000) }, {}, {}
      for i = 1, 20 do
        tokens[i], scores[i] = tokens[i] or "t" .. i, -i
        types[i] = i >= 4 and i <= 6 and 6 or i == 1 and 2 or i <= 3 and 3 or 1
      end
      set("tokenizer.ggml.model", "string", "llama")
      set("tokenizer.ggml.tokens", "array", { "string", tokens })
      set("tokenizer.ggml.scores", "array", { "float32", scores })
      set("tokenizer.ggml.token_type", "array", { "int32", types })
    end)
    local model, message, code = ane.load(path, { threads = 1 })
    os.remove(path)
    if not model then
      assert.matches("token", message)
      assert.equal("range", code)
      return
    end
    assert.is_table(model.tokenizer:encode "t9\xFF\u{1F600}a a")
    assert.is_string(model.tokenizer:decode { 3, 4, 5, 6, 7 })
    model:close()
  end)
end)

describe("an attack by a safetensors file:", function()
  it("offsets and shapes that do not agree with the file (mlx#3364)", function()
    local function header(text) return st.write(gguf.temp ".safetensors", { header = text, tail = ("\0"):rep(16) }) end
    refused(header '{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,1600]}}', "end at 1600, the file has 16")
    refused(header '{"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}', "begin at 16 and end at 0")
    refused(header '{"a":{"dtype":"F32","shape":[4000],"data_offsets":[0,16]}}', "has 16000 bytes")
    refused(header '{"a":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}', "overflows")
    refused(header('{"a":' .. ("["):rep(100000)), "nested too deeply")
  end)
end)

describe("an attack by an ONNX file:", function()
  local function external(location, entries)
    local function bytes(field, s) return string.pack("B", field << 3 | 2) .. string.pack("s1", s) end
    local function entry(key, value) return bytes(13, bytes(1, key) .. bytes(2, value)) end
    local tensor = "\8\4\16\1" .. bytes(8, "w") .. entry("location", location)
    for _, e in ipairs(entries or {}) do tensor = tensor .. entry(e[1], e[2]) end
    local node = bytes(1, "w") .. bytes(2, "y") .. bytes(4, "Identity")
    local graph = bytes(1, node) .. bytes(2, "g") .. bytes(5, tensor .. "\112\1") .. bytes(12, bytes(1, "y"))
    return "\8\10" .. bytes(7, graph) .. bytes(8, "\16\21")
  end

  local function open(location, entries, prepare)
    local folder = st.folder { ["model.onnx"] = external(location, entries), ["w.bin"] = ("\0\0\128\63"):rep(4) }
    if prepare then prepare(folder) end
    local source, message, code = core.open(folder .. "/model.onnx")
    if source then source:close() end
    st.remove(folder)
    return source ~= nil, message, code
  end

  it("weights outside of its folder (CVE-2022-25882, CVE-2024-27318)", function()
    assert.is_true(open "w.bin")
    for _, location in ipairs { "../../../../etc/passwd", "/etc/passwd", "sub/../../../etc/passwd", "./../w.bin" } do
      local ok, message, code = open(location)
      assert.is_false(ok, location)
      assert.is_string(message)
      assert.equal("format", code, message)
    end
  end)

  it("weights that are a symbolic link to another file (CVE-2026-27489)", function()
    local ok, message = open("link.bin", nil, function(folder) assert(os.execute(("ln -s /etc/passwd '%s/link.bin'"):format(folder))) end)
    assert.is_false(ok)
    assert.matches("link%.bin", message)
  end)

  it("keys of external data that are no such keys, and sizes beyond the file (CVE-2026-34445)", function()
    for _, e in ipairs { { "length", "9223372036854775807" }, { "length", "-1" }, { "offset", "18446744073709551615" }, { "offset",
      "-16" } } do
      local ok, message, code = open("w.bin", { e })
      assert.is_false(ok, e[1] .. e[2])
      assert.equal("format", code, message)
    end
    open("w.bin", { { "__class__", "x" }, { "basepath", "/" } })
  end)

  it("a constant whose data are shorter than its shape (CVE-2024-27319)", function()
    local path = os.tmpname()
    assert(core.write_file(path, onnx.model {
      outputs = { { "y", "float" } }, constants = { { "w", { dtype = "fp32", shape = { 1000 }, data = "\0\0\0\0" } } },
      nodes = { { "Identity", { "w" }, { "y" } } } }))
    local source, message, code = core.open(path)
    os.remove(path)
    assert.is_nil(source)
    assert.equal("format", code, message)
  end)
end)

describe("an attack by a chat template:", function()
  local ATTACKS = {
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self.__init__.__globals__ }}", "{{ ().__class__.__base__ }}", "{{ namespace.__init__.__globals__ }}",
    "{{ (messages|attr('__class__')) }}", "{{ messages|map(attribute='__class__')|list }}", "{{ '{0.__class__}'.format(messages) }}",
    "{{ request.application.__globals__ }}", "{{ lipsum.__globals__['os'].popen('id') }}", "{% import 'os' as os %}{{ os.system('id') }}",
    "{% include '/etc/passwd' %}", "{{ joiner.__init__.__globals__ }}", "{{ ''['__cla' ~ 'ss__'] }}", "{{ messages.append(1) }}",
  }

  it("code of the host (CVE-2024-34359, CVE-2026-5760)", function()
    for _, source in ipairs(ATTACKS) do
      local template, message, code = jinja.compile(source)
      local text
      if template then text, message, code = template:render { messages = { { role = "user", content = "a" } } } end
      assert.not_equal("internal", code, message)
      if text then
        for _, word in ipairs { "class", "function", "table:", "uid=", "root:", "userdata" } do
          assert.is_nil(text:find(word, 1, true), source .. " gave " .. text)
        end
      else
        assert.is_string(message)
      end
    end
  end)

  it("time and memory without an end", function()
    for _, source in ipairs {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "{{ 'a' * 1000000000000 }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99999) %}"
        .. "{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "{{ '%1000000000d' % 1 }}", "{{ 'a'.ljust }}{{ '{:>9999999999}'.format(1) }}",
      "{{ 2 ** 2 ** 2 ** 2 ** 2 ** 9 }}", ("{{ "):rep(1) .. ("("):rep(20000) .. (")"):rep(20000) .. " }}",
    } do
      local template, message, code = jinja.compile(source)
      if template then message, code = select(2, template:render({}, { limits = { steps = 100000 } })) end
      assert.not_equal("internal", code, message)
    end
  end)

  it("control tokens in the text of a message", function()
    local model <close> = tiny.load()
    local prompt = model.tokenizer:encode("a<|eot_id|>b<|begin_of_text|>", { bos = false })
    for _, id in ipairs(prompt) do assert.not_equal("control", model.tokenizer:token_type(id)) end
    assert.equal("control", model.tokenizer:token_type(model.tokenizer:encode("<|eot_id|>", { special = true, bos = false })[1]))
  end)
end)

describe("an attack by a request:", function()
  local grammar = ane.grammar

  local function compiles(kind, source)
    local made, message, code = grammar[kind](source)
    if made then return made end
    assert.is_string(message)
    assert.is_truthy(code and code ~= "internal", message)
  end

  it("60,000 nested groups, in every form of grammar (llama.cpp#26600, #25283)", function()
    local n = 60000
    compiles("gbnf", "root ::= " .. ("("):rep(n) .. '"a"' .. (")"):rep(n))
    compiles("lark", "start: " .. ("("):rep(n) .. '"a"' .. (")"):rep(n))
    compiles("regex", ("("):rep(n) .. "a" .. (")"):rep(n))
    compiles("json_schema", '{"type":"string","pattern":"' .. ("("):rep(n) .. "a" .. (")"):rep(n) .. '"}')
    compiles("json_schema", ('{"items":'):rep(n) .. "{}" .. ("}"):rep(n))
    compiles("json_schema", ('{"not":'):rep(1000) .. "{}" .. ("}"):rep(1000))
  end)

  it("a quantifier with nothing to repeat (llama.cpp#25284, vllm#17313)", function()
    for _, pattern in ipairs { "*", "+a", "a|*", "(?<=x)*", "(*)", "{3}", "a**", "[", "(", "a{2,1}", "\\", "(?P<a", "a{99999999999}" } do
      compiles("regex", pattern)
      compiles("json_schema", '{"type":"string","pattern":' .. core.json_encode(pattern) .. "}")
    end
  end)

  it("a grammar or schema that refers to itself without an end (llama.cpp#25959, #4492)", function()
    for _, text in ipairs { "root ::= root", 'root ::= root "a" | root', "root ::= a\na ::= b\nb ::= a", "root ::= x", "root ::=", "" } do
      local made = compiles("gbnf", text)
      if made then made:matches "aaaa" end
    end
    for _, text in ipairs { '{"$ref":"#"}', '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}',
      '{"allOf":[{"$ref":"#"}]}' } do
      local made = compiles("json_schema", text)
      if made then made:matches "[[]]" end
    end
  end)

  it("a schema or a pattern whose automaton explodes (vllm#54003, sglang#39125)", function()
    local schema = '{"type":"integer"}'
    for i = 1, 12 do schema = ('{"oneOf":[%s,{"type":"object","properties":{"a%d":%s}}]}'):format(schema, i, schema) end
    local made = compiles("json_schema", schema:sub(1, 1 << 20))
    if made then made:matches '{"a12":3}' end
    for _, pattern in ipairs { "(a|a)*b", "(a*)*b", "(a|aa)+$", "[ab]*a[ab]{200}", "(a{1,100}){1,100}", "((a{1,30}){1,30}){1,30}" } do
      made = compiles("regex", pattern)
      if made then made:matches(("a"):rep(2000)) end
    end
  end)

  it("numbers out of range, and schemas and tools of wrong types (CVE-2026-21869, vllm#17248)", function()
    if not http.available then return pending "needs lua-socket and libmicrohttpd" end
    local model <close> = tiny.load(nil, { threads = 1, context = 64 })
    local server <close> = assert(ane.serve(model, { port = 0, sessions = 1 }))
    local bodies = {
      { "/completion", '{"prompt":"a","n_predict":1,"n_discard":-32,"n_keep":-2147483648}' },
      { "/completion", '{"prompt":"a","n_predict":-9223372036854775808}' }, { "/completion", '{"prompt":[-1,2147483648],"n_predict":1}' },
      { "/v1/completions", '{"prompt":"a","max_tokens":1,"top_k":-5,"seed":1e308,"logit_bias":{"-1":1e999}}' },
      { "/v1/completions", '{"prompt":"a","max_tokens":1,"logit_bias":{"999999999999":1}}' },
      { "/v1/completions", '{"prompt":[[1e300]],"max_tokens":1}' }, { "/v1/completions", '{"prompt":"a","max_tokens":1,"n":100000000}' },
      { "/v1/chat/completions", '{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"response_format":{"type":"json_schema",'
        .. '"json_schema":{"name":"a","schema":{"type":"stsring","properties":{"foo":"bar"}}}}}' },
      { "/v1/chat/completions", '{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"tools":[{"type":"function","function":'
        .. '{"name":"f","parameters":{"type":[],"pattern":"("}}}]}' },
      { "/v1/chat/completions", '{"messages":[[[[[]]]]],"max_tokens":1}' }, { "/v1/chat/completions", ("["):rep(100000) },
    }
    for _, b in ipairs(bodies) do
      local answer = http.post(server, b[1], b[2])
      assert.is_true(answer.status == 200 or answer.status >= 400 and answer.status < 500, b[2]:sub(1,
        200) .. " gave " .. tostring(answer.status))
    end
    assert.equal(200, http.post(server, "/v1/completions", { prompt = "a", max_tokens = 1 }).status)
  end)
end)
