-- Batches: rows in, lines out; what a killed run leaves; shards.
local ane = require "ane"
local core = require "ane.core"
local filter = require "support.filter"
local merge = require "ane.batch.merge"
local tiny = require "support.tiny"
local tree = require "support.tree"

local folder, model

setup(function() model = tiny.load() end)
teardown(function() model:close() end)
before_each(function() folder = tree.folder() end)
after_each(function() tree.remove(folder) end)

local function write(name, text) return tree.write(folder, name, text) end

local function lines_of(text)
  local list = {}
  for line in text:gmatch "([^\n]*)\n" do list[#list + 1] = assert(core.json_decode(line)) end
  return list
end

-- Answers rows (texts or tables). Returns the lines, decoded, and the summary.
local function answers(rows, opts, other)
  opts = opts or {}
  local i, out = 0, {}
  opts.input = function()
    i = i + 1
    return rows[i]
  end
  opts.output = function(line) out[#out + 1] = line end
  if opts.ordered == nil then opts.ordered = true end
  local summary = assert(ane.batch(other or model, opts))
  return lines_of(table.concat(out)), summary
end

local function request(id, url, body) return { custom_id = id, method = "POST", url = url, body = body } end

-- 60 rows of all kinds, as text.
local function corpus()
  local list = {}
  for i = 1, 60 do
    if i % 17 == 0 then list[i] = "{broken"
    elseif i % 13 == 0 then list[i] = ""
    elseif i % 3 == 0 then
      local body = { messages = { { role = "user", content = "Hi " .. i } }, max_tokens = 1 + i % 7 }
      list[i] = core.json_encode(request("r" .. i % 5, "/v1/chat/completions", body))
    else
      list[i] = core.json_encode { id = i, prompt = "Once " .. i, max_tokens = 1 + i % 7 } .. "\r"
    end
  end
  return table.concat(list, "\n")
end

local function run(input, output, opts)
  local all = { input = input, output = output }
  for key, value in pairs(opts or {}) do all[key] = value end
  local summary, message, code = ane.batch(model, all)
  return summary, message, code
end

describe("rows of text", function()
  it("have the answers that the model gives alone", function()
    local lines, summary = answers {
      { id = 1, prompt = "Once upon", max_tokens = 5 },
      { id = "c", messages = { { role = "user", content = "Hi" } }, max_tokens = 4 },
      { text = "Once upon", max_tokens = 5 },
      request("x", "/v1/completions", { prompt = "Once upon", max_tokens = 5, temperature = 0 }),
      { id = "t", task = "chat", text = "Hi", max_tokens = 4 },
    }
    local alone = model:generate("Once upon", { max_tokens = 5 })
    local chat = model:generate({ { role = "user", content = "Hi" } }, { max_tokens = 4 })
    local function clean(text) return (core.json_decode(core.json_encode { text })[1]) end
    assert.equal(clean(alone), lines[1].text)
    assert.equal(clean(chat), lines[2].text)
    assert.equal(3, lines[3].line)
    assert.equal(lines[1].text, lines[3].text)
    assert.equal(200, lines[4].response.status_code)
    assert.equal(lines[1].text, lines[4].response.body.choices[1].text)
    assert.equal(core.null, lines[4].error)
    assert.equal(lines[2].text, lines[5].text)
    assert.equal(5, summary.rows)
    assert.is_true(summary.ok)
    assert.is_true(summary.tokens > 20)
  end)

  it("take fields from `body`, tools and grammars", function()
    local tool = { type = "function", ["function"] = { name = "f", parameters = { type = "object" } } }
    local lines = answers({
      { id = 1, prompt = "x" }, { id = 2, prompt = "x", max_tokens = 2 },
      { id = 3, messages = { { role = "user", content = "x" } }, tools = { tool }, grammar = core.null },
    }, { body = { max_tokens = 6, grammar = 'root ::= "yes" | "no"' } })
    assert.is_truthy(lines[1].text == "yes" or lines[1].text == "no")
    assert.is_true(lines[2].usage.completion_tokens <= 2)
    assert.is_nil(lines[3].error)
  end)

  it("that sample give the same text in each run, and other texts in other rows", function()
    local rows = {}
    for i = 1, 6 do rows[i] = { id = i, prompt = "Once", temperature = 1, max_tokens = 12 } end
    local a, b = answers(rows), answers(rows, { sessions = 2 })
    assert.same(a, b)
    assert.not_equal(a[1].text, a[2].text)
  end)

  it("have ids of their own in the Responses API, whatever else is computed", function()
    local rows = {}
    for i = 1, 3 do rows[i] = request("r" .. i, "/v1/responses", { input = "Hi", max_output_tokens = 10 - 3 * i }) end
    local lines = answers(rows)
    for _, line in ipairs(lines) do
      local body = line.response.body
      assert.equal(body.id:match "%x+$", body.output[1].id:match "%x+$")
    end
    assert.same(answers({ rows[1] })[1], lines[1])
  end)

  it("have the same ids of calls in each run, and different ones of each call", function()
    local other <close> = tiny.load()
    other.tokenizer.chat_templates = { default = [[{% if tools %}{{ tools | tojson }}<tool_call>{"name": .., "arguments": ..}</tool_call>
      {%- endif %}{% for m in messages %}{{ m.content }}{% endfor %}]] }
    local f = { name = "f", parameters = { type = "object", additionalProperties = false } }
    local body = { messages = { { role = "user", content = "x" } }, tools = { { type = "function", ["function"] = f } }, n = 2,
      tool_choice = "required", max_tokens = 90, temperature = 0 }
    local body2 = { input = "x", tools = { { type = "function", name = "f", parameters = f.parameters } }, tool_choice = "required",
      max_output_tokens = 90, temperature = 0 }
    local rows = { request("a", "/v1/chat/completions", body), request("b", "/v1/chat/completions", body),
      request("c", "/v1/responses", body2) }
    local lines, seen = answers(rows, nil, other), {}
    assert.same(lines, (answers(rows, nil, other)))
    local function add(id)
      assert.is_nil(seen[id])
      seen[id] = true
    end
    for i = 1, 2 do
      for _, choice in ipairs(lines[i].response.body.choices) do
        for _, call in ipairs(choice.message.tool_calls) do add(call.id) end
      end
    end
    for _, item in ipairs(lines[3].response.body.output) do
      add(item.id)
      add(item.call_id or item)
    end
    assert.is_true(#lines[3].response.body.output > 1)
  end)

  it("count a field that is null as absent", function()
    local none = core.null
    local hi = { { role = "user", content = "Hi" } }
    local want = answers { { id = 1, prompt = "Once", max_tokens = 6 }, { id = 2, messages = hi, max_tokens = 6 } }
    local lines = answers {
      { id = 1, prompt = "Once", max_tokens = 6, temperature = none, task = none, messages = none, text = none, url = none, body = none },
      { id = 2, messages = hi, max_tokens = 6, prompt = none, temperature = none, custom_id = none },
      { id = 3, text = "Once", prompt = none, max_tokens = 6, n = none },
      { id = 4, prompt = "Once", max_tokens = none, stop = "" },
      { id = 5, prompt = "Once", task = false },
    }
    assert.same({ want[1], want[2], want[1].text }, { lines[1], lines[2], lines[3].text })
    assert.same({ "stop", "task" }, { lines[4].error.param, lines[5].error.param })
    local whole = answers { { id = 1, prompt = "Once", max_tokens = none } }[1]
    assert.is_true(whole.usage.completion_tokens > 16)
  end)

  it("end the run if the output or the progress raises, whatever the task", function()
    local reranker <close> = assert(ane.load "spec/fixtures/hf/cross_encoder")
    for i, row in ipairs { { task = "score", text = "Once" }, { prompt = "Once", max_tokens = 1 }, { query = "q", documents = { "a" } } } do
      for _, name in ipairs { "output", "progress" } do
        local n, opts = 0, { output = function() end }
        opts.input = function()
          n = n + 1
          return n == 1 and row or nil
        end
        opts[name] = function(state) if name == "output" or state.rows == 1 then error "enough" end end
        local ok, raised = pcall(ane.batch, i < 3 and model or reranker, opts)
        assert.is_false(ok)
        assert.matches("enough", raised)
      end
    end
  end)

  it("are written in order where too many fail, also behind one that is not answered", function()
    local lines, summary = answers({
      { id = 1, prompt = "Once", max_tokens = 400, ignore_eos = true }, { id = 2, prompt = "Once", max_tokens = 1 }, { id = 3, wrong = 1 },
      { id = 4, wrong = 1 },
    }, { max_errors = 1, ordered = true })
    assert.is_false(summary.ok)
    assert.equal(summary.rows, #lines)
    assert.same({ 3, 4 }, { lines[#lines - 1].id, lines[#lines].id })
  end)

  it("come from any callable value", function()
    local n, rows, out = 0, { { id = 1, prompt = "Once", max_tokens = 1 } }, {}
    local input = setmetatable({}, { __call = function()
      n = n + 1
      return rows[n]
    end })
    local output = setmetatable({}, { __call = function(_, line) out[#out + 1] = line end })
    assert(ane.batch(model, { input = input, output = output }))
    assert.equal(1, #out)
  end)

  it("have log probabilities with the task score", function()
    local lines = answers { { id = 1, task = "score", prompt = "Once", text = " upon a", logprobs = true } }
    local score = lines[1]
    local ids = model.tokenizer:encode("Once", { eos = false })
    local first = #ids
    for _, id in ipairs(model.tokenizer:encode(" upon a", { bos = false, eos = false })) do ids[#ids + 1] = id end
    local session <close> = assert(model:session())
    assert(session:feed(ids, { want = "all" }))
    local sum = 0.0
    for i = first, #ids - 1 do
      local row, top = session:logits(i):totable(), -math.huge
      for _, x in ipairs(row) do top = math.max(top, x) end
      local total = 0.0
      for _, x in ipairs(row) do total = total + math.exp(x - top) end
      sum = sum + row[ids[i + 1] + 1] - top - math.log(total)
    end
    assert.equal(#ids - first, score.tokens)
    assert.equal(score.tokens, #score.logprobs)
    assert.is_true(math.abs(sum - score.logprob) < 1e-3)
    assert.is_true(math.abs(math.exp(-sum / score.tokens) - score.perplexity) < 0.01 * score.perplexity)
  end)
end)

describe("broken rows", function()
  it("get an error in their own line", function()
    local lines, summary = answers {
      "{bad", "[1]", '{"id":"\xFF"}', "\0", { id = 1, prompt = "a", max_tokens = 1 }, { id = 2, prompt = "a", stream = true },
      { id = 3, prompt = ("word "):rep(3000) }, request("u", "/v1/nope", {}),
      request("m", "/v1/completions", { prompt = "a", best_of = 3 }), { id = 4, prompt = { 1 << 40 } },
      { id = 5, input = "a", task = "embed" }, { id = 6, task = "dance" }, { id = 7, prompt = "a", wat = 1 },
      '{"id":8,"prompt":' .. ("["):rep(5000), { custom_id = "g", url = "/v1/completions", method = "GET", body = { prompt = "a" } },
    }
    assert.equal(15, #lines)
    assert.equal(15, summary.rows)
    assert.equal(14, summary.errors)
    assert.is_true(summary.ok)
    for i, line in ipairs(lines) do assert.equal(i ~= 5, line.error ~= nil and line.error ~= core.null, "row " .. i) end
    assert.equal(3, lines[3].line)
    assert.equal("context_length_exceeded", lines[7].error.code)
    assert.equal("u", lines[8].custom_id)
    assert.equal(400, lines[9].response.status_code)
    assert.matches("best_of", lines[9].error.message)
    assert.matches("wat", lines[13].error.message)
  end)

  it("name the number that is beyond the range of numbers", function()
    local lines = answers { '{"prompt":"a","max_tokens":1e400}', '{"prompt":"a","max_tokens":12345678901234567890}', '{"prompt":1e400}' }
    assert.matches("max_tokens must be an integer, but is inf", lines[1].error.message)
    assert.matches("max_tokens must be an integer of 64 bits, but is 1%.23", lines[2].error.message)
    assert.matches("prompt .* is inf", lines[3].error.message)
  end)

  it("keep their ids as they are written, and refuse ids that are neither strings nor numbers", function()
    local rows = {}
    local ids = {
      "12345678901234567890", "1e400", "0.1", '"x\\u0000"', "null", '{"a":1}', "[1]", "true", "1.50", "-0", "1E+2", "-0.0e0", "100.0", "7",
      "-9223372036854775808",
    }
    for i, id in ipairs(ids) do
      rows[i] = ('{"id":%s,"prompt":"a","max_tokens":1}'):format(id)
    end
    local out, i = {}, 0
    local summary = assert(ane.batch(model, { ordered = true, output = function(line) out[#out + 1] = line end, input = function()
      i = i + 1
      return rows[i]
    end }))
    for n = 1, #ids do
      if n <= 4 or n > 8 then assert.is_truthy(out[n]:find('"id":' .. ids[n] .. ",", 1, true), out[n]) end
    end
    assert.is_truthy(out[5]:find('"line":5', 1, true))
    for n = 6, 8 do
      local line = core.json_decode(out[n])
      assert.equal(n, line.line)
      assert.equal("field id must be a string or a number", line.error.message)
    end
    assert.equal(3, summary.errors)
  end)

  it("keep a number as custom_id of a plain row as it is written", function()
    local lines = {}
    local rows = { '{"custom_id":1.50,"text":"a","max_tokens":1}' }
    assert(ane.batch(model, { ordered = true, output = function(line) lines[#lines + 1] = line end, input = function()
      return table.remove(rows, 1)
    end }))
    assert.is_truthy(lines[1]:find('"id":1.50,', 1, true), lines[1])
  end)

  it("end the run beyond max_errors, and what was done stays", function()
    local path = write("in.jsonl", '{bad\n{"id":1,"prompt":"a","max_tokens":1}\n{bad\n{bad\n')
    local summary = assert(run(path, folder .. "/out", { max_errors = 1 }))
    assert.is_false(summary.ok)
    assert.matches("^2 rows failed, option max_errors is 1$", summary.message)
    assert.is_nil(core.path_kind(folder .. "/out"))
    summary = assert(run(path, folder .. "/out", { resume = true }))
    assert.is_true(summary.ok)
    assert.equal(4, summary.rows)
    assert.equal(3, summary.errors)
    assert.is_true(summary.resumed > 0)
  end)

  it("that are too long are not kept", function()
    local path = write("in.jsonl", ("x"):rep(1 << 20) .. '\n{"id":1,"prompt":"a","max_tokens":1}')
    assert(run(path, folder .. "/out", { max_row = 1000, ordered = true }))
    local lines = lines_of(tree.read(folder .. "/out"))
    assert.equal("row_too_large", lines[1].error.code)
    assert.equal(1, lines[2].id)
  end)
end)

describe("an interrupt", function()
  -- Sends SIGINT to this process, and catches what it raises.
  local function interrupt_and_catch()
    local ran, raised = pcall(function()
      assert(io.popen("kill -INT $PPID")):close()
      while true do end -- until it is raised
    end)
    assert.is_false(ran)
    assert.matches("interrupted!$", raised)
  end

  it("that the code of a row catches ends the run, and the row is computed later", function()
    local path, out, chat = write("in.jsonl", corpus()), folder .. "/out", require "ane.serve.chat"
    assert(run(path, folder .. "/want", { ordered = true }))
    local handle, calls = chat.handle, 0
    local _ <close> = setmetatable({}, { __close = function() chat.handle = handle end })
    chat.handle = function(...)
      calls = calls + 1
      if calls < 4 then return handle(...) end
      interrupt_and_catch()
      require("ane.serve.errors").raise(400, "a message with the caught text")
    end
    local ran, raised = core.interruptible(run, path, out, { ordered = true, sessions = 2 })
    assert.is_false(ran)
    assert.equal("interrupted!", raised)
    assert.is_nil(core.path_kind(out))
    chat.handle = handle
    assert(run(path, out, { ordered = true, resume = true }))
    assert.equal(tree.read(folder .. "/want"), tree.read(out))
  end)

  it("in a chat template is raised again", function()
    local template = assert(require("ane.jinja").compile "{{ f() }}")
    local ran, raised = core.interruptible(function()
      return template:render(setmetatable({}, { __pairs = function()
        assert(io.popen("kill -INT $PPID")):close()
        while true do end
      end }))
    end)
    assert.is_false(ran)
    assert.matches("interrupted!$", raised)
  end)
end)

describe("inputs that are not lines of UTF-8", function()
  for what, start in pairs {
    gzip = "\x1F\x8B\x08\x00", zstd = "\x28\xB5\x2F\xFD", xz = "\xFD7zXZ\0", ["UTF-16"] = "\xFF\xFE{\0",
  } do
    it("are refused as a whole, by name: " .. what, function()
      local path, out = write("in.jsonl", start .. "x\ny\nz\n"), folder .. "/out"
      local summary, message, code = run(path, out)
      assert.is_nil(summary)
      assert.equal("format", code)
      assert.is_truthy(message:find(path .. ": is ", 1, true) and message:find(what, 1, true), message)
      assert.is_nil(core.path_kind(out))
      write("in.jsonl", '{"id":1,"prompt":"a","max_tokens":1}\n')
      assert.equal(1, assert(run(path, out)).rows) -- nothing stands in the way of the mended file
      assert(os.execute(("mkdir '%s/in'"):format(folder)))
      write("in/a.txt", start .. "x")
      assert(run(folder .. "/in", out))
      assert.equal("a.txt" .. message:sub(#path + 1), lines_of(tree.read(out))[1].error.message) -- of a file in a folder
    end)
  end
end)

describe("other models", function()
  it("embed in groups what they embed alone", function()
    local bert <close> = assert(ane.load "spec/fixtures/hf/bert")
    local rows = {}
    for i = 1, 70 do rows[i] = { id = i, text = ("word "):rep(i % 9 + 1) .. i } end
    rows[71] = request("e", "/v1/embeddings", { input = { "a", "b" }, encoding_format = "base64" })
    rows[72] = { id = "no", input = 5 }
    local last = bert.config.vocab_size - 1
    assert.is_true(last > bert.vocab) -- ids are checked by the vocabulary, not by the width of the vectors
    rows[73] = request("ids", "/v1/embeddings", { input = { { 2, last } } })
    rows[74] = request("no ids", "/v1/embeddings", { input = { { 2, last + 1 } } })
    local lines, summary = answers(rows, {}, bert)
    assert.equal(2, summary.errors)
    local given = core.json_decode(core.json_encode(bert:embed({ { 2, last } })[1]:totable()))
    assert.same(setmetatable(given, nil), setmetatable(lines[73].response.body.data[1].embedding, nil))
    assert.matches("is not in 0 .. " .. last, lines[74].error.message)
    for _, i in ipairs { 1, 35, 70 } do
      local want = core.json_decode(core.json_encode(bert:embed(rows[i].text):totable()))
      assert.same(setmetatable(want, nil), setmetatable(lines[i].embedding, nil))
    end
    assert.equal(2, #lines[71].response.body.data)
    assert.is_truthy(lines[72].error)
  end)

  it("that do not support a task give an error, and the message names what was found", function()
    local lines = answers({
      { id = 1, query = "a", documents = { "b" } }, { id = 2, task = "foo", text = "b" },
      { id = 3, method = "GET", url = "/v1/completions", body = { prompt = "a" } },
    }, {})
    assert.equal("the model does not support the task rerank", lines[1].error.message)
    assert.matches('^field task is "foo", which is not a task: choose chat, ', lines[2].error.message)
    assert.equal('field method is supported only as "POST", not as "GET"', lines[3].error.message)
  end)

  it("rerank", function()
    local reranker <close> = assert(ane.load "spec/fixtures/hf/cross_encoder")
    local lines = answers({ { id = 1, query = "q", documents = { "a", "b b b" } } }, {}, reranker)
    local scores = reranker:rerank("q", { "a", "b b b" })
    for _, one in ipairs(lines[1].results) do
      assert.is_true(math.abs(scores[one.index + 1] - one.relevance_score) < 1e-6)
    end
  end)

  it("have pseudonyms as the row says, else as the option says", function()
    local labels <close> = filter.load()
    local text = "Hello, I am Ada. Call 555-1234!"
    local plain, named = labels:redact(text), labels:redact(text, { pseudonyms = true })
    local rows = { { id = 1, text = text }, { id = 2, text = text, pseudonyms = false }, { id = 3, text = text, pseudonyms = true } }
    for _, option in ipairs { true, false } do
      local lines = answers(rows, { pseudonyms = option }, labels)
      assert.same({ option and named or plain, plain, named }, { lines[1].text, lines[2].text, lines[3].text })
    end
  end)

  it("classify and redact as alone, also the files of a folder", function()
    local labels <close> = filter.load()
    local text = "Hello, I am Ada. Call 555-1234!\n"
    local lines = answers({ { id = 1, text = text }, { id = 2, task = "classify", text = text } }, {}, labels)
    local want, spans = labels:redact(text)
    assert.equal(want, lines[1].text)
    assert.equal(#spans, #lines[2].spans)
    assert(os.execute(("mkdir '%s/in' '%s/in/b'"):format(folder, folder)))
    write("in/a.txt", text)
    write("in/b/c.txt", text:rep(300))
    write("in/d.bin", "\xFF\xFE")
    local summary = assert(ane.batch(labels, { input = folder .. "/in", output = folder .. "/in/out.jsonl", ordered = true }))
    assert.equal(3, summary.rows)
    assert.equal(1, summary.errors)
    lines = lines_of(tree.read(folder .. "/in/out.jsonl"))
    assert.same({ "a.txt", "b/c.txt", "d.bin" }, { lines[1].id, lines[2].id, lines[3].id })
    assert.equal(want, lines[1].text)
    assert.equal((labels:redact(text:rep(300))), lines[2].text)
    summary = assert(ane.batch(labels, { input = folder .. "/in", output = folder .. "/in/out.jsonl", ordered = true, resume = true }))
    assert.equal(3, summary.resumed)
  end)

  it("read each file of a folder once, also where links lead back to it; links without a target fail", function()
    assert(os.execute(("mkdir -p '%s/in/b' && ln -s .. '%s/in/b/back' && ln -s . '%s/in/self' && ln -s none '%s/in/lost.txt'"):format(
      folder, folder, folder, folder)))
    write("in/a.txt", "one")
    write("in/b/c.txt", "two")
    assert(os.execute(("ln -s b '%s/in/d'"):format(folder)))
    local opts = { input = folder .. "/in", output = folder .. "/out", ordered = true, body = { max_tokens = 1 } }
    local summary = assert(ane.batch(model, opts))
    local lines, ids = lines_of(tree.read(folder .. "/out")), {}
    for i, line in ipairs(lines) do ids[i] = line.id end
    assert.same({ "a.txt", "b/c.txt", "d/c.txt", "lost.txt" }, ids)
    assert.equal(1, summary.errors)
    assert.matches("No such file", lines[4].error.message)
  end)

  it("report how much of a file they have read", function()
    local path, states = write("in.jsonl", ('{"prompt": "a", "max_tokens": 1}\n'):rep(100)), {}
    assert(ane.batch(model, { input = path, output = folder .. "/out", sessions = 1, progress = function(s) states[#states + 1] = s end }))
    assert.is_true(states[1].done < states[1].total / 2)
    assert.equal(states[100].total, states[100].done)
  end)

  it("refuse tasks that they do not support", function()
    local summary, message, code = run(write("in", "{}"), folder .. "/out", { task = "embed" })
    assert.is_nil(summary)
    assert.equal("unsupported", code)
    assert.matches("does not support the task embed", message)
  end)

  it("refuse options that have no effect on their rows", function()
    local path, bert <close> = write("in.jsonl", '{"id":1,"text":"a"}'), assert(ane.load "spec/fixtures/hf/bert")
    for name, value in pairs { threshold = 0.5, window = 64, pseudonyms = true, key = "k" } do
      local summary, message, code = run(path, folder .. "/out", { [name] = value })
      assert.is_nil(summary)
      assert.equal("invalid", code)
      assert.is_truthy(message:find(("option %s is for token classifiers, not for "):format(name), 1, true), message)
    end
    for name, value in pairs { sessions = 4, step_tokens = 64, memory = 1 << 30, prefix_memory = 1 << 20, temperature = 1 } do
      local summary, message, code = ane.batch(bert, { input = path, output = folder .. "/out", [name] = value })
      assert.is_nil(summary)
      assert.equal("invalid", code)
      assert.is_truthy(message:find(("option %s is for models that generate text, not for "):format(name), 1, true), message)
    end
    assert.is_nil(core.path_kind(folder .. "/out"))
  end)
end)

describe("an output file", function()
  it("is the same for any number of sessions, and after any cut of what a killed run has left", function()
    local path = write("in.jsonl", corpus())
    local out = folder .. "/out"
    local summary = assert(run(path, out, { ordered = true }))
    local want = tree.read(out)
    assert.equal(56, summary.rows)
    assert.equal(3, summary.errors)
    assert(run(path, folder .. "/two", { ordered = true, sessions = 2 }))
    assert.equal(want, tree.read(folder .. "/two"))
    -- a run in the order in which rows end: its journal and lines, cut anywhere, are what a kill leaves
    assert(run(path, folder .. "/raw", { sessions = 3 }))
    local lines, journal = tree.read(folder .. "/raw"), tree.read(folder .. "/raw.journal")
    local head = journal:find "\n" -- it is written before the first line
    for i = 1, 24 do
      local x, y = core.random(7, i)
      write("k.part", lines:sub(1, math.floor(x * (#lines + 1))) .. (i % 5 == 0 and "torn" or ""))
      write("k.journal", journal:sub(1, head + math.floor(y * (#journal - head + 1))))
      os.remove(folder .. "/k")
      local again = assert(run(path, folder .. "/k", { ordered = true, resume = true }))
      assert.equal(56, again.rows)
      assert.equal(want, tree.read(folder .. "/k"))
      assert.is_nil(core.path_kind(folder .. "/k.part"))
    end
  end)

  it("that is complete is not computed again; rows that are new, changed or gone are", function()
    local path, out = write("in.jsonl", corpus()), folder .. "/out"
    assert(run(path, out, { ordered = true }))
    local want = tree.read(out)
    local summary = assert(run(path, out, { ordered = true, resume = true }))
    assert.equal(56, summary.resumed)
    assert.equal(0, summary.tokens)
    assert.equal(want, tree.read(out))
    local changed = corpus():gsub("Once 2\"", "Twice\""):gsub('{[^\n]*Once 4"[^\n]*', "") .. '\n{"id":"new","prompt":"a","max_tokens":1}'
    write("in.jsonl", changed)
    for _, ordered in ipairs { true, false } do
      summary = assert(run(path, out, { ordered = ordered, resume = true }))
      assert(run(path, folder .. "/fresh", { ordered = true, restart = true }))
      assert.equal(56, summary.rows)
      assert.equal(tree.read(folder .. "/fresh"), tree.read(out))
    end
    write("in.jsonl", '{"id":"r","prompt":"a","max_tokens":1}')
    summary = assert(run(path, out, { resume = true }))
    assert.equal(1, summary.rows)
    assert.equal(1, #lines_of(tree.read(out)))
  end)

  it("is not continued with other options, models or tasks", function()
    local path, out = write("in.jsonl", corpus()), folder .. "/out"
    assert(run(path, out))
    local summary, message, code = run(path, out, { resume = true, body = { top_k = 3 } })
    assert.is_nil(summary)
    assert.equal("invalid", code)
    assert.matches("option body is {\"top_k\":3}, was null", message)
    local other <close> = tiny.load("llama-mixed")
    summary, message = ane.batch(other, { input = path, output = out, resume = true })
    assert.is_nil(summary)
    assert.matches("the model's", message)
    assert(run(path, out, { restart = true, body = { top_k = 3 } }))
  end)

  it("of an incomplete run is neither lost nor overwritten", function()
    local path, out = write("in.jsonl", corpus()), folder .. "/out"
    assert(run(path, out, { max_errors = 0 }))
    local summary, message, code = run(path, out)
    assert.is_nil(summary)
    assert.equal("state", code)
    assert.matches("option resume continues it", message)
    assert.equal(56, assert(run(path, out, { restart = true })).rows)
  end)

  it("is not continued without its journal", function()
    local path, out = write("in.jsonl", corpus()), write("out.jsonl", "mine\n")
    local summary, message, code = run(path, out, { resume = true })
    assert.is_nil(summary)
    assert.equal("state", code)
    assert.matches("out.jsonl: has no journal .*out.jsonl.journal.*option restart overwrites it", message)
    assert.equal("mine\n", tree.read(out))
    assert.is_nil(core.path_kind(out .. ".journal"))
    assert.equal(56, assert(run(path, out, { restart = true })).rows)
    assert.equal(56, assert(run(path, out, { resume = true })).resumed)
    write("out.jsonl", "")
    assert(os.remove(out .. ".journal"))
    assert.equal(56, assert(run(path, out, { resume = true })).rows)
  end)

  it("of an incomplete run is neither continued nor overwritten without its journal", function()
    local path, out = write("in.jsonl", corpus()), folder .. "/out"
    assert(run(path, out))
    local lines, head = tree.read(out), tree.read(out .. ".journal"):sub(1, 20)
    assert(os.remove(out))
    for _, journal in ipairs { false, "", head } do
      for _, resume in ipairs { true, false } do
        write("out.part", lines)
        os.remove(out .. ".journal")
        if journal then write("out.journal", journal) end
        local summary, message, code = run(path, out, { resume = resume })
        assert.is_nil(summary)
        assert.equal("state", code)
        assert.matches("out.part: has no journal .*out.journal.*option restart overwrites it", message)
        assert.equal(lines, tree.read(out .. ".part"))
        assert.equal(journal and journal ~= "" and journal or nil, (core.read_file(out .. ".journal")))
      end
      assert.equal(56, assert(run(path, out, { restart = true })).rows)
      assert(os.remove(out))
    end
    write("out.part", "")
    assert(os.remove(out .. ".journal"))
    assert.equal(56, assert(run(path, out, { resume = true })).rows)
  end)

  it("is written by one process at a time", function()
    local path = write("in.jsonl", corpus())
    local lock <close> = assert(core.append(folder .. "/out.journal"))
    local summary, message, code = run(path, folder .. "/out", { resume = true })
    assert.is_nil(summary)
    assert.equal("state", code)
    assert.matches("another process", message)
    assert.equal(0, lock:size())
  end)

  it("is not the input, whatever its name", function()
    local path = write("in.jsonl", corpus())
    assert(os.execute(("cd '%s' && ln -s in.jsonl link && ln in.jsonl hard && ln in.jsonl other.journal"):format(folder)))
    for _, name in ipairs { "in.jsonl", "./in.jsonl", "link", "hard", "other" } do
      local summary, message = run(path, folder .. "/" .. name)
      assert.is_nil(summary)
      assert.matches("is the input", message)
    end
    assert.equal(corpus(), tree.read(path))
  end)

  it("that cannot be written is an error", function()
    local path = write("in.jsonl", corpus())
    for _, out in ipairs { folder, folder .. "/no/out", "/proc/none" } do
      local summary, message, code = run(path, out)
      assert.is_nil(summary)
      assert.equal("io", code)
      assert.is_string(message)
    end
    assert.is_nil((run(folder .. "/none", folder .. "/out")))
  end)

  it("on a device that is full is an error", function()
    if core.path_kind "/dev/full" ~= "other" then return pending "no /dev/full" end
    local summary, message, code = run(write("in.jsonl", corpus()), "/dev/full")
    assert.is_nil(summary)
    assert.equal("io", code)
    assert.matches("^/dev/full: ", message)
    assert.is_nil(core.path_kind "/dev/full.journal")
  end)

  it("goes on after a run where the disk is full", function()
    if not tree.has "prlimit" then pending "no prlimit" end
    local path, out = write("in.jsonl", corpus()), folder .. "/out"
    local script = ([[
      local summary, message, code = require("ane").batch(require("support.tiny").load(), { input = %q, output = %q })
      print(summary, code, message)
    ]]):format(path, out)
    write("full.lua", script)
    local ok, text = tree.run(("LUA_PATH='%s' LUA_CPATH='%s' prlimit --fsize=6000 %s '%s/full.lua'"):format(package.path, package.cpath,
      os.getenv "LUA" or "lua5.4", folder))
    assert.is_true(ok, text)
    assert.matches("^nil\tio\t.*too large", text)
    local summary = assert(run(path, out, { resume = true, ordered = true }))
    assert.is_true(summary.resumed > 5)
    assert(run(path, folder .. "/want", { ordered = true }))
    assert.equal(tree.read(folder .. "/want"), tree.read(out))
  end)
end)

describe("shards", function()
  it("have each row once, and merge into the output of one run", function()
    local path = write("in.jsonl", corpus())
    assert(run(path, folder .. "/want", { ordered = true }))
    local paths, rows = {}, 0
    for i = 1, 3 do
      paths[i] = ("%s/s%d"):format(folder, 4 - i)
      rows = rows + assert(run(path, paths[i], { shard = i .. "/3" })).rows
    end
    assert.equal(56, rows)
    local summary = assert(merge.run({ paths[2], paths[3], paths[1] }, folder .. "/all"))
    assert.equal(56, summary.rows)
    assert.equal(3, summary.errors)
    assert.equal(tree.read(folder .. "/want"), tree.read(folder .. "/all"))
    assert.is_nil((merge.run({ paths[1], paths[2] }, folder .. "/all")))
    assert.matches("shard 3/3 is missing", select(2, merge.run({ paths[1], paths[2] }, folder .. "/all")))
    assert.matches("is shard 1/3, and so is", select(2, merge.run({ paths[1], paths[1], paths[3] }, folder .. "/all")))
    assert.matches("into itself", select(2, merge.run(paths, paths[1])))
    for name, why in pairs { [folder] = "must be the output of a shard, but is a folder", [folder .. "/no"] = "no such file" } do
      local none, message, code = merge.run({ name }, folder .. "/all")
      assert.same({ "io", name .. ": " .. why }, { none or code, message })
    end
  end)

  it("do not merge where the disk is full", function()
    local path = write("in.jsonl", corpus())
    assert(run(path, folder .. "/1", { shard = "1/1" }))
    local script = write("merge.lua", ("print(require('ane.batch.merge').run({ %q }, %q))\n"):format(folder .. "/1", folder .. "/all"))
    -- Files end at 1,024 bytes; the index of 57 rows has 1,392.
    local ok, text = tree.run(("trap '' XFSZ; ulimit -f 2; LUA_PATH='%s' LUA_CPATH='%s' %s '%s'"):format(package.path, package.cpath,
      os.getenv "LUA" or "lua5.4", script))
    assert.is_true(ok, text)
    assert.matches("^nil\t[^\t]*/all.index1: cannot write: .*\tio\n$", text)
    assert.is_nil(core.path_kind(folder .. "/all"))
    assert.is_nil(core.path_kind(folder .. "/all.index1"))
  end)

  it("merge into a pipe, which stays one", function()
    local path, pipe = write("in.jsonl", corpus()), folder .. "/pipe"
    assert(run(path, folder .. "/1", { ordered = true, shard = "1/1" }))
    assert(tree.run(("mkfifo '%s'"):format(pipe)))
    local reader <close> = assert(io.popen(("exec timeout 60 cat '%s'"):format(pipe)))
    assert(merge.run({ folder .. "/1" }, pipe))
    assert.equal(tree.read(folder .. "/1"), reader:read "a")
    assert.equal("other", core.path_kind(pipe))
    assert.is_nil(core.path_kind(pipe .. ".index1"))
  end)

  it("that are incomplete, were changed or were made with other options do not merge", function()
    local path = write("in.jsonl", corpus())
    local paths = { folder .. "/1", folder .. "/2" }
    assert(run(path, paths[1], { shard = "1/2" }))
    assert(run(path, paths[2], { shard = "2/2", max_errors = 0 }))
    assert.is_nil((merge.run(paths, folder .. "/all")))
    assert(run(path, paths[2], { shard = "2/2", restart = true, body = { top_k = 3 } }))
    assert.matches('2: was made with other settings than .*/1: option body is {"top_k":3}, not null$',
      select(2, merge.run(paths, folder .. "/all")))
    assert(run(path, paths[2], { shard = "2/2", restart = true }))
    assert(merge.run(paths, folder .. "/all"))
    write("2", tree.read(paths[2]) .. "x")
    assert.matches("according to its journal", select(2, merge.run(paths, folder .. "/all")))
  end)

  it("are the only one if the journal has no options", function()
    assert(run(write("in.jsonl", corpus()), folder .. "/one"))
    local journal = tree.read(folder .. "/one.journal")
    write("one.journal", '{"ane_batch":1}' .. journal:match "\n.*")
    local summary = assert(merge.run({ folder .. "/one" }, folder .. "/all"))
    assert.equal(56, summary.rows)
  end)

  it("are 1/N to N/N", function()
    for _, shard in ipairs { "0/3", "4/3", "1", "a/b", "1/0" } do
      assert.has_error(function() run("x", "y", { shard = shard }) end)
    end
  end)
end)
