-- The endpoints beside chats and completions: tokens, embeddings, reranking, labels, responses, llama-server's, metrics, the page.
local ane = require "ane"
local core = require "ane.core"
local filter = require "support.filter"
local hf = require "support.hf"
local http = require "support.http"
local tiny = require "support.tiny"

if not http.available then
  describe("the server's other endpoints", function() pending "needs libmicrohttpd and lua-socket" end)
  return
end

-- Calls f with a model of a fixture and a server of it.
local function with(path, f, opts)
  local model <close> = path == "filter" and filter.load() or path and assert(ane.load("spec/fixtures/hf/" .. path)) or tiny.load()
  opts = opts or {}
  opts.port = 0
  local server <close> = assert(ane.serve(model, opts))
  f(server, model)
end

local function near(a, b) assert.is_true(math.abs(a - b) < 1e-6, ("%g is not %g"):format(a, b)) end

describe("POST /tokenize and /detokenize", function()
  it("are the model's tokenizer", function()
    with(nil, function(server, model)
      local ids = model.tokenizer:encode("Hello world", { bos = false, eos = false })
      assert.same(ids, setmetatable(http.post(server, "/tokenize", { content = "Hello world" }).json.tokens, nil))
      local pieces = http.post(server, "/tokenize", { content = "Hello", with_pieces = true }).json.tokens
      assert.equal("integer", math.type(pieces[1].id))
      assert.equal("Hello world", http.post(server, "/detokenize", { tokens = ids }).json.content)
      assert.equal("tokens[0]", http.post(server, "/detokenize", { tokens = { 1 << 40 } }).json.error.param)
      assert.equal(400, http.post(server, "/v1/embeddings", { input = "a" }).status)
    end)
  end)
end)

describe("POST /v1/embeddings", function()
  it("says how many texts were truncated", function()
    with("bert", function(server)
      local long = ("cat "):rep(2000)
      assert.equal(1, http.post(server, "/v1/embeddings", { input = { long, "a" } }).json.truncated)
      assert.equal(0, http.post(server, "/v1/embeddings", { input = "a" }).json.truncated)
    end)
  end)

  it("names the field at fault", function()
    with("bert", function(server, model)
      local no_prompt = "the model has no prompt 'x'; it has none (option prefix gives one as text)"
      for _, case in ipairs {
        { "dimensions", "field dimensions must be at most 64, the width of the model's vectors, but is 65",
          { input = "a", dimensions = 65 } },
        { "prompt_name", no_prompt, { input = "a", prompt_name = "x" } },
        { "input", "entry 1: id 99999 at place 1 is not in 0 .. 511", { input = { 99999 } } },
        { "input[1]", "field input[1] has no token ids", { input = { { 1 }, {} } } },
      } do
        local error = http.post(server, "/v1/embeddings", case[3]).json.error
        assert.same({ case[1], "invalid_value", case[2] }, { error.param, error.code, error.message })
        local lines = {}
        assert(ane.batch(model, { input = function() return table.remove(case, 3) end, output = function(x) lines[1] = x end }))
        assert.same({ case[1], case[2] }, { core.json_decode(lines[1]).error.param, core.json_decode(lines[1]).error.message })
      end
      local error = http.post(server, "/v1/embeddings", { input = { core.json_array() } }).json.error
      assert.equal("field input has no token ids", error.message)
      local long = {}
      for k = 1, 5000 do long[k] = 1 end
      assert.equal("context_length_exceeded", http.post(server, "/v1/embeddings", { input = long }).json.error.code)
    end)
  end)

  it("gives the vectors of the model, as numbers and as base64", function()
    with("bert", function(server, model)
      local texts = { "a cat", "a dog and a cat" }
      local want = model:embed(texts)
      local answer = http.post(server, "/v1/embeddings", { input = texts }).json
      assert.equal(2, #answer.data)
      for i = 1, 2 do
        for k, x in ipairs(answer.data[i].embedding) do near(want[i][k], x) end
      end
      assert.is_true(answer.usage.prompt_tokens > 5)
      local coded = http.post(server, "/v1/embeddings", { input = texts[1], encoding_format = "base64" }).json.data[1].embedding
      assert.equal(0, #coded % 4)
      local bytes = want[1]:tostring()
      local bits, n, decoded = 0, 0, {}
      for c in coded:gmatch "[%w+/]" do
        local v = ("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):find(c, 1, true) - 1
        bits, n = bits << 6 | v, n + 6
        if n >= 8 then
          n = n - 8
          decoded[#decoded + 1] = string.char(bits >> n & 255)
          bits = bits & ((1 << n) - 1)
        end
      end
      assert.is_true(table.concat(decoded) == bytes)
      assert.equal(400, http.post(server, "/v1/embeddings", { input = texts, dimensions = 100000 }).status)
      local many = {}
      for i = 1, 2049 do many[i] = "a cat" end
      assert.equal("input", http.post(server, "/v1/embeddings", { input = many }).json.error.param)
      many[2049] = nil
      local data = http.post(server, "/v1/embeddings", { input = many }).json.data
      assert.equal(2048, #data)
      near(want[1][1], data[2048].embedding[1])
      assert.equal(400, http.post(server, "/v1/completions", { prompt = "a" }).status)
    end)
  end)
end)

describe("POST /v1/rerank", function()
  it("gives the scores of the model, best first", function()
    with("cross_encoder", function(server, model)
      local documents = { "one", "two words", "three words here" }
      local scores, order = model:rerank("words", documents)
      local body = { query = "words", documents = documents, top_n = 2, return_documents = true }
      local answer = http.post(server, "/v1/rerank", body).json
      local results, total = answer.results, 0
      for _, n in ipairs(model:rerank("words", documents, { details = true }).tokens) do total = total + n end
      assert.same({ total_tokens = total }, answer.usage)
      assert.equal(2, #results)
      for place, result in ipairs(results) do
        assert.equal(order[place] - 1, result.index)
        near(scores[order[place]], result.relevance_score)
        assert.equal(documents[order[place]], result.document.text)
      end
      body.instruction = "Be kind."
      local refused = http.post(server, "/v1/rerank", body)
      assert.same({ 400, "instruction" }, { refused.status, refused.json.error.param })
      assert.matches("^field instruction has no effect: ", refused.json.error.message)
    end)
  end)
end)

describe("POST /v1/rerank with several labels", function()
  it("is refused before anything is computed", function()
    with("bert_labels-odd", function(server)
      local answer = http.post(server, "/v1/rerank", { query = "words", documents = { "one", "two words" } })
      assert.equal(400, answer.status)
      assert.equal("unsupported", answer.json.error.code)
      assert.matches("classifier has several labels, which give documents no order", answer.json.error.message, 1, true)
      assert.equal(0, server:stats().tasks)
    end)
  end)
end)

describe("POST /classify and /redact", function()
  it("are the model's", function()
    with("filter", function(server, model)
      local text = "Write to Alice Smith at alice@example.org today."
      local want = model:classify(text)
      local spans = http.post(server, "/classify", { input = text }).json.spans
      assert.equal(#want, #spans)
      for i, span in ipairs(spans) do assert.equal(want[i].text, text:sub(span.start + 1, span["end"])) end
      assert.equal(model:redact(text), http.post(server, "/redact", { input = text }).json.text)
    end)
  end)
end)

describe("POST /v1/responses", function()
  it("gives the reply of a chat, whole and as events", function()
    with(nil, function(server)
      local want = http.post(server, "/v1/chat/completions", {
        messages = { { role = "system", content = "Be brief." }, { role = "user", content = "Hi" } }, temperature = 0, max_tokens = 9,
      }).json.choices[1].message.content
      local body = { input = "Hi", instructions = "Be brief.", temperature = 0, max_output_tokens = 9 }
      local answer = http.post(server, "/v1/responses", body).json
      assert.equal("response", answer.object)
      assert.equal("incomplete", answer.status)
      assert.equal(want, answer.output[1].content[1].text)
      assert.equal(9, answer.usage.output_tokens)
      body.stream, body.input = true, { { role = "user", content = { { type = "input_text", text = "Hi" } } } }
      local events = http.events(http.post(server, "/v1/responses", body).body)
      local text = ""
      for i, event in ipairs(events) do
        assert.equal(i - 1, event.sequence_number)
        if event.type == "response.output_text.delta" then text = text .. event.delta end
      end
      assert.equal("response.created", events[1].type)
      assert.equal("response.incomplete", events[#events].type)
      assert.equal(want, text)
      assert.equal("previous_response_id", http.post(server, "/v1/responses", { input = "a", previous_response_id = "x" }).json.error.param)
    end)
  end)
end)

describe("POST /completion", function()
  it("answers as llama-server does", function()
    with(nil, function(server)
      local answer = http.post(server, "/completion", { prompt = "Once", n_predict = 7, temperature = 0 }).json
      assert.is_true(answer.stop)
      assert.equal("limit", answer.stop_type)
      assert.equal(7, answer.tokens_predicted)
      local events = http.events(http.post(server, "/completion", { prompt = "Once", n_predict = 7, temperature = 0, stream = true }).body)
      local text = ""
      for _, event in ipairs(events) do text = text .. event.content end
      assert.equal(answer.content, text)
      assert.is_true(events[#events].stop)
    end)
  end)

  it("answers a request whose time is over before it begins", function()
    with(nil, function(server)
      server.opts.time_limit = 1e-9
      local answer = http.post(server, "/completion", { prompt = "Once" })
      assert.equal(200, answer.status)
      assert.same({ "", "limit", 0, 0 },
        { answer.json.content, answer.json.stop_type, answer.json.tokens_predicted, answer.json.tokens_cached })
      local events = http.events(http.post(server, "/completion", { prompt = "Once", stream = true }).body)
      assert.equal("limit", events[1].stop_type)
    end)
  end)
end)

describe("a model with more ids than its tokenizer", function()
  it("repeats prompts that have such ids", function()
    local path <close> = hf.changed "olmo2-odd"
    local file = path.name .. "/tokenizer.json"
    local _ <close> = setmetatable({}, { __close = function() os.remove(file) end })
    assert(core.write_file(file, core.json_encode {
      model = { type = "WordLevel", vocab = { ["<u>"] = 0, a = 1, b = 2 }, unk_token = "<u>" }, decoder = { type = "Fuse" },
    }))
    local model <close> = assert(ane.load(path.name))
    assert.same({ 3, 83 }, { #model.tokenizer, model.vocab })
    local server <close> = assert(ane.serve(model, { port = 0 }))
    for _, stream in ipairs { false, true } do
      local answer = http.post(server, "/v1/completions",
        { prompt = { 1, 80, 2 }, max_tokens = 3, echo = true, logprobs = 1, temperature = 0, ignore_eos = true, stream = stream })
      assert.equal(200, answer.status)
      local choice = (answer.json or http.events(answer.body)[1]).choices[1]
      assert.equal("ab", choice.text:sub(1, 2))
      assert.same({ 0, 1, 1 }, { table.unpack(choice.logprobs.text_offset, 1, 3) })
    end
  end)
end)

describe("a tokenizer that puts several tokens before a text", function()
  it("has none of them in an echo", function()
    local path <close> = hf.changed "olmo2-odd"
    local file, around, added, named = path.name .. "/tokenizer.json", {}, {}, {}
    local _ <close> = setmetatable({}, { __close = function() os.remove(file) end })
    for i, name in ipairs { "<g>", "<s>" } do
      around[i], added[i] = { SpecialToken = { id = name, type_id = 0 } }, { id = 2 + i, content = name, special = true }
      named[name] = { id = name, ids = { 2 + i }, tokens = { name } }
    end
    around[3] = { Sequence = { id = "A", type_id = 0 } }
    assert(core.write_file(file, core.json_encode {
      model = { type = "WordLevel", vocab = { ["<u>"] = 0, a = 1, b = 2, ["<g>"] = 3, ["<s>"] = 4 }, unk_token = "<u>" },
      post_processor = { type = "TemplateProcessing", single = around, pair = core.json_array(), special_tokens = named },
      added_tokens = added,
      pre_tokenizer = { type = "Split", pattern = { Regex = "." }, behavior = "Isolated", invert = false }, decoder = { type = "Fuse" },
    }))
    local model <close> = assert(ane.load(path.name))
    local server <close> = assert(ane.serve(model, { port = 0 }))
    local choice = http.post(server, "/v1/completions", { prompt = "ab", max_tokens = 0, echo = true, logprobs = 0 }).json.choices[1]
    assert.equal("ab", choice.text)
    assert.same({ "a", "b" }, setmetatable(choice.logprobs.tokens, nil))
    assert.same({ 0, 1 }, setmetatable(choice.logprobs.text_offset, nil))
    assert.equal("number", type(choice.logprobs.token_logprobs[1]))
  end)
end)

describe("a model without a tokenizer", function()
  it("writes no text", function()
    local model <close> = assert(ane.load "spec/fixtures/check/gemma3.gguf")
    local server <close> = assert(ane.serve(model, { port = 0 }))
    for path, body in pairs {
      ["/v1/completions"] = { prompt = { 1, 2 }, max_tokens = 2, echo = true }, ["/completion"] = { prompt = { 1, 2 }, n_predict = 2 },
      ["/v1/chat/completions"] = { messages = { { role = "user", content = "a" } } }, ["/v1/responses"] = { input = "a" },
    } do
      local answer = http.post(server, path, body)
      assert.same({ 400, "unsupported" }, { answer.status, answer.json.error.code })
      assert.equal("the model has no tokenizer, so it writes no text", answer.json.error.message)
    end
    local rows, lines = { { prompt = { 1, 2 } } }, {}
    local summary = ane.batch(model, { input = function() return table.remove(rows) end, output = function(x) lines[#lines + 1] = x end })
    assert.equal(1, summary.errors)
    assert.matches("has no tokenizer", lines[1])
  end)
end)

describe("GET /metrics", function()
  it("counts, where it is asked for", function()
    with(nil, function(server) assert.equal(404, http.get(server, "/metrics").status) end)
    with(nil, function(server)
      http.post(server, "/v1/completions", { prompt = { 3, 4 }, max_tokens = 5, ignore_eos = true })
      local answer = http.get(server, "/metrics")
      assert.matches("text/plain", answer.headers["content-type"], 1, true)
      assert.matches("\nane_reply_tokens_total 5\n", answer.body)
      assert.matches("\nane_prompt_tokens_total 2\n", answer.body)
      assert.matches('\nane_requests_total{path="/v1/completions",status="200"} 1\n', answer.body)
    end, { metrics = true })
  end)
end)

describe("GET /", function()
  it("is a page that asks nobody else", function()
    with(nil, function(server)
      local answer = http.get(server, "/")
      assert.equal(200, answer.status)
      assert.matches("default-src 'none'", answer.headers["content-security-policy"], 1, true)
      assert.is_nil(answer.body:find "https?://")
      assert.is_nil(answer.body:find "innerHTML")
      assert.equal(answer.headers["content-length"], http.request(server, "HEAD", "/").headers["content-length"])
    end)
  end)
end)

describe("HTTPS", function()
  it("gives the same", function()
    local made = os.execute "command -v openssl >/dev/null && command -v curl >/dev/null"
    if not made then pending "needs openssl and curl" end
    local folder = os.tmpname()
    os.remove(folder)
    assert(os.execute(("mkdir '%s' && cd '%s' && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key "
      .. "-out cert 2>/dev/null && openssl genrsa -out other 2048 2>/dev/null"):format(folder, folder)))
    with(nil, function(server)
      local fetch = "cd '%s' && (env -u LD_PRELOAD curl -sk --max-time 120 https://127.0.0.1:%d/health > out; echo done > done) &"
      assert(os.execute(fetch:format(folder, server.port)))
      local deadline = core.clock() + 120
      while core.path_kind(folder .. "/done") == nil and core.clock() < deadline do server:turn(0.02) end
      assert.equal('{"status":"ok"}', core.read_file(folder .. "/out"))
      -- Old versions of TLS are refused.
      for version, want in pairs { ["1.1"] = "", ["1.2"] = '{"status":"ok"}' } do
        os.remove(folder .. "/done")
        fetch = "cd '%s' && (env -u LD_PRELOAD curl -sk --ciphers DEFAULT@SECLEVEL=0 --tlsv1.0 --tls-max %s --max-time 60 "
          .. "https://127.0.0.1:%d/health > out; echo done > done) &"
        assert(os.execute(fetch:format(folder, version, server.port)))
        deadline = core.clock() + 120
        while core.path_kind(folder .. "/done") == nil and core.clock() < deadline do server:turn(0.02) end
        assert.equal(want, core.read_file(folder .. "/out"), version)
      end
      local none, message = ane.serve(server.model, {
        port = 0, cert = core.read_file(folder .. "/cert"), key = core.read_file(folder .. "/other"),
      })
      assert.is_nil(none)
      assert.matches("belongs to another certificate", message)
    end, { cert = core.read_file(folder .. "/cert"), key = core.read_file(folder .. "/key") })
    os.execute(("rm -r '%s'"):format(folder))
  end)
end)
