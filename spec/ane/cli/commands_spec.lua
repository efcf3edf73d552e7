-- The forms that programs rely on, and what people see.
local ane = require "ane"
local core = require "ane.core"
local command = require "support.command"
local tiny = require "support.tiny"

local path, bare = tiny.path(), tiny.path "llama-kquants"

-- A file with this text, gone after the spec.
local files = {}
local function file(text)
  local name = os.tmpname()
  files[#files + 1] = name
  local f = assert(io.open(name, "w"))
  f:write(text)
  f:close()
  return name
end

teardown(function()
  for _, name in ipairs(files) do os.remove(name) end
end)

describe("ane run", function()
  it("writes one object", function()
    local r = command.json { "run", path, "--prompt", "Hello", "--max-tokens", "4", "--ignore-eos" }
    local model <close> = tiny.load()
    assert.same(model.tokenizer:encode "Hello", { table.unpack(r.prompt_ids) })
    assert.equal(4, #r.ids)
    assert.equal("length", r.stop)
    assert.is_string(r.text)
    for _, key in ipairs { "load_s", "prefill_s", "decode_s" } do assert.is_number(r.timings[key]) end
    assert.same({ #r.prompt_ids, 4 }, { r.timings.prompt_tokens, r.timings.tokens })
  end)

  it("continues ids, without a tokenizer too", function()
    local r = command.json { "run", bare, "--ids", "1,2,3", "-n", "5", "--activations", "fp32", "-t", "1" }
    assert.equal(core.null, r.text)
    assert.equal(5, #r.ids)
    assert.same({ 1, 2, 3 }, { table.unpack(r.prompt_ids) })
    local code, out = command.run { "run", bare, "--ids", "1,2,3", "-n", "5", "--activations", "fp32" }
    assert.equal(0, code)
    assert.equal(table.concat(r.ids, " "), (out:gsub("%s+$", "")))
    r = command.json { "run", bare, "--ids", "1", "-n", "0" }
    assert.equal(0, #r.ids)
  end)

  it("puts messages through the template", function()
    local messages = file '[{"role": "user", "content": "Hi"}]'
    local object = file '{"messages": [{"role": "user", "content": "Hi"}], "tools": null, "date_string": "now"}'
    local model <close> = tiny.load()
    local want = model:generate({ { role = "user", content = "Hi" } }, { max_tokens = 1, details = true }).prompt_ids
    assert.same(want, { table.unpack(command.json({ "run", path, "--messages", messages, "-n", "1" }).prompt_ids) })
    want = model:generate({ { role = "user", content = "Hi" } },
      { max_tokens = 1, details = true, template_vars = { date_string = "now" } }).prompt_ids
    assert.same(want, { table.unpack(command.json({ "run", path, "--messages", object, "-n", "1" }).prompt_ids) })
    local tools = '{"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": {%s}}]}'
    assert.is_true(#command.json({ "run", path, "--messages", file(tools:format '"name": "f"'), "-n", "1" }).prompt_ids > #want)
    local code, _, err = command.run { "run", path, "--messages", file(tools:format ""), "-n", "1" }
    assert.same({ 1, "ane run: tools: entry 1 has no name\n" }, { code, err })
    -- Numbers of schemas are read as they are written: 2^64 - 1, and bounds that are equal as floats.
    local number = '{"type": "number", "minimum": %s, "maximum": %s}'
    local schema = '"name": "f", "parameters": {"properties": {"x": ' .. number .. '}, "required": ["x"]}'
    local most = "18446744073709551615"
    local exact = { "run", path, "--messages", file(tools:format(schema:format(most, most))), "-n", "1" }
    assert.is_true(#command.json(exact).prompt_ids > #want)
    exact[4] = file(tools:format(schema:format("0.30000000000000000002", "0.30000000000000000001")))
    code, _, err = command.run(exact)
    assert.equal(1, code)
    assert.is_truthy(err:find("tools: f: parameters: #: no value fulfils the schema", 1, true), err)
  end)

  it("samples by a seed, stops at texts, gives log probabilities", function()
    local args = { "run", path, "-p", "Hello", "-n", "12", "--temperature", "2", "--seed", "7", "--ignore-eos" }
    local first = command.json(args)
    assert.same(first.ids, command.json(args).ids)
    assert.equal(7, first.seed)
    local plain = command.json { "run", path, "-p", "Hello", "-n", "12", "--ignore-eos" }
    local stop = plain.text:sub(4, 5)
    local r = command.json { "run", path, "-p", "Hello", "-n", "12", "--ignore-eos", "--stop", stop, "--logprobs", "2" }
    assert.same({ "stop", plain.text:sub(1, plain.text:find(stop, 1, true) - 1) }, { r.stop, r.text })
    assert.same({ #r.ids, 2 }, { #r.logprobs, #r.logprobs[1].top })
  end)

  it("takes its prompt from a file or from standard input, without a last newline", function()
    local want = command.json { "run", path, "-p", "Hello", "-n", "2" }
    for _, case in ipairs { { "-p", "-" }, { "-f", file "Hello\n" }, { "--file", "-" } } do
      local r = command.json({ "run", path, "-n", "2", table.unpack(case) }, "Hello\n")
      assert.same(want.ids, r.ids)
      assert.same(want.prompt_ids, r.prompt_ids)
    end
    local tree = require "support.tree"
    local ok, text = tree.run(("echo Hello | %s run %s -n 2 --json 2>&1"):format(command.path(), path))
    assert.is_true(ok, text)
    assert.same(want.prompt_ids, core.json_decode(text).prompt_ids)
  end)

  it("puts a prompt behind a system message", function()
    local messages = file '[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]'
    local want = command.json { "run", path, "--messages", messages, "-n", "1" }
    local got = command.json { "run", path, "--system", "Be brief.", "-p", "Hi", "-n", "1" }
    assert.same(want.prompt_ids, got.prompt_ids)
    assert.same(want.prompt_ids, command.json({ "run", path, "-s", "Be brief.", "-p", "-", "-n", "1" }, "Hi\n").prompt_ids)
  end)

  it("says where a reply is cut off by the end of the context", function()
    local code, _, err = command.run { "run", path, "--ids", "1,2", "-c", "8", "--ignore-eos" }
    assert.equal(0, code)
    assert.matches("^ane run: the reply is cut off: the context of 8 tokens is full; %-%-context gives up to %d+\n$", err)
    code, _, err = command.run { "run", path, "--ids", "1,2", "-c", "8", "-n", "2", "--ignore-eos" }
    assert.same({ 0, "" }, { code, err })
    code, _, err = command.run { "chat", path, "-p", "Hi", "-c", "200" }
    assert.equal(0, code)
    assert.matches("ane chat: the reply is cut off: the context of 200 tokens is full", err)
  end)

  it("says where the context is longer than the model's own", function()
    local own = command.json({ "info", path }).config.context_length
    local code, _, err = command.run { "run", path, "-p", "Hello", "-c", tostring(own + 1), "-n", "1" }
    assert.equal(0, code)
    assert.matches(("^ane run: a context of %d tokens is longer than the %d"):format(own + 1, own), err)
    code, _, err = command.run { "run", path, "-p", "Hello", "-c", tostring(own), "-n", "1" }
    assert.same({ 0, "" }, { code, err })
    for _, words in ipairs { { "plan", path, "-c", own + 1 }, { "size", path, "--tiers", own + 1, "-c", own + 2 } } do
      for i, word in ipairs(words) do words[i] = tostring(word) end
      code, _, err = command.run(words)
      assert.equal(0, code, err)
      assert.matches("is longer than the " .. own, err)
    end
  end)

  it("streams text and, with --timings, shows the speed", function()
    local r = command.json { "run", path, "-p", "Hello", "-n", "4", "--ignore-eos" }
    local code, out, err = command.run {
      "run", path, "-p", "Hello", "-n", "4", "--ignore-eos", "--timings", "--no-progress", "--head", "pruned",
    }
    assert.equal(0, code)
    assert.equal(r.text .. "\n", (out:gsub("[\x80-\xff]", function(c) return utf8.len(out) and c or "\u{FFFD}" end)))
    assert.matches("^%[prompt %d+ tokens, .*reply 4 tokens, .* ended by length; %d+ %% of the head read in 3 steps%]\n$", err)
  end)
end)

describe("ane run --profile", function()
  it("shows prefill and decoding apart, also where the reply has no text", function()
    local args = { "run", path, "-p", "Hello", "-n", "3", "--ignore-eos", "--profile" }
    local code, text, err = command.run(args)
    assert.equal(0, code)
    assert.matches("^prefill\nblock .-\ntotal .-\ndecode\nblock .-\ntotal ", err)
    table.move({ "--stop", text:sub(1, 1) }, 1, 2, #args + 1, args)
    code, text, err = command.run(args)
    assert.same({ 0, "\n" }, { code, text })
    assert.matches("^prefill\nblock .-attn_output.-\ntotal .-\ndecode\nblock ", err)
    code, text, err = command.run { "run", path, "-p", "Hello", "--profile", "--json" }
    assert.same({ 2, "", "ane run: --profile cannot be combined with --json\n" }, { code, text, err })
  end)
end)

describe("--head", function()
  it("says how greedy decoding reads an 8-bit head, with the same tokens", function()
    local args = { "run", path, "-p", "Hello", "-n", "12", "--ignore-eos" }
    local function timed(head)
      return command.json(table.move({ "--head", head }, 1, 2, #args + 1, table.move(args, 1, #args, 1, {})))
    end
    local searched, whole = timed "pruned", timed "full"
    assert.truthy(searched.timings.head)
    assert.is_nil(whole.timings.head)
    assert.same(searched.ids, whole.ids)
    local function bytes(...)
      return command.json({ "bench", path, "-p", "0", "-n", "8", "-r", "1", "--no-limits", ... }).tests[1].bytes
    end
    assert.not_equal(bytes("--head", "pruned"), bytes("--head", "full"))
    assert.not_equal(bytes("--head", "search"), bytes("--head", "full")) -- the old name of pruned
    local code, _, err = command.run { "run", path, "-p", "Hello", "--head", "half" }
    assert.equal(2, code)
    assert.matches('%-%-head is "half": choose auto, pruned, full', err)
    assert.equal(bytes(), bytes("--head", "full")) -- a head this small
  end)
end)

describe("ane logits", function()
  it("gives the best at each position, the same however it is fed", function()
    local ids = "1,2,3,4,5,6,7,8,9,10"
    local whole = command.json { "logits", path, "--ids", ids, "--top", "3" }
    assert.equal(10, #whole.positions)
    assert.equal(3, #whole.positions[1])
    assert.is_true(whole.positions[1][1][2] >= whole.positions[1][2][2])
    for _, chunk in ipairs { "1", "3", "10", "512" } do
      assert.same(whole.positions, command.json({ "logits", path, "--ids", ids, "--top", "3", "--chunk", chunk, "-t", "1" }).positions)
    end
    local model <close> = tiny.load()
    local s <close> = model:session()
    s:feed({ 1, 2, 3 }, { want = "all" })
    local want = s:logits(3)
    local all = command.json { "logits", path, "--ids", "1,2,3", "--top", "1024" }
    assert.equal(1024, #all.positions[3])
    for _, pair in ipairs(all.positions[3]) do
      assert.equal(want:get(pair[1] + 1), string.unpack("<f", string.pack("<f", pair[2])))
    end
  end)

  it("shows them as text", function()
    local code, out = command.run { "logits", path, "-p", "Hello", "--top", "2" }
    assert.equal(0, code)
    assert.matches("1: token 1000 ", out)
  end)
end)

describe("ane tokenize", function()
  it("turns text into ids and back", function()
    local model <close> = tiny.load()
    local tokenizer = model.tokenizer
    local text = "Hello <|eot_id|> wörld\n"
    local function ids(...) return { table.unpack(command.json({ "tokenize", path, ... }, text).ids) } end
    assert.same(tokenizer:encode(text), ids())
    assert.same(tokenizer:encode(text, { bos = false }), ids "--no-bos")
    assert.same(tokenizer:encode(text, { bos = false, special = true }), ids("--no-bos", "--special"))
    local r = command.json { "tokenize", path, "--decode", "--ids", table.concat(tokenizer:encode(text, { bos = false }), ",") }
    assert.equal(text, r.text)
    local plain = tokenizer:encode(text, { bos = false })
    local _, listed = command.run({ "tokenize", path, "--no-bos" }, text)
    for _, input in ipairs {
      table.concat(plain, "\n"), table.concat(plain, ", "), "[" .. table.concat(plain, ",") .. "]",
      core.json_encode { ids = plain }, listed,
    } do
      assert.equal(text, command.json({ "tokenize", path, "--decode" }, input).text)
    end
    assert.equal("", command.json({ "tokenize", path, "--decode" }, "").text)
    for _, wrong in ipairs { "1 x", "-1", '{"ids": ["x"]}', "[1", "[1.5]" } do
      local status, shown, fault = command.run({ "tokenize", path, "--decode" }, wrong)
      assert.same({ 1, "" }, { status, shown })
      assert.matches("^ane tokenize: standard input: ", fault)
    end
    local empty = command.json({ "tokenize", path, "--no-bos" }, "")
    assert.equal("[]", core.json_encode(empty.ids))
    local code, out = command.run({ "tokenize", path, "--no-bos" }, "Hello")
    assert.equal(0, code)
    assert.matches("^%s+%d+  \"", out)
  end)
end)

describe("ane render", function()
  it("renders with the variables of a file, at a given time", function()
    local template = file "{{ greeting }}{% for k, v in d.items() %} {{ k }}={{ v }}{% endfor %} {{ strftime_now('%Y-%m-%d') }}"
    local vars = file '{"greeting": "Hi", "d": {"z": 1, "a": null}}'
    assert.equal("Hi z=1 a=None 2026-03-07", command.json({ "render", template, vars, "--now", "2026-03-07T14:05:09" }).text)
    assert.same({ 0, "Hi", "" }, { command.run({ "render", file "{{ x }}", "-" }, '{"x": "Hi"}') })
    local code, _, err = command.run { "render", file "{{ x", vars }
    assert.equal(1, code)
    assert.matches(":1:", err)
    code, _, err = command.run { "render", template, file "{" }
    assert.equal(1, code)
    assert.matches("line 1", err)
  end)
end)

describe("--prompt-cache", function()
  it("keeps the session for the next run, and is named and not used where it does not fit", function()
    local cache = os.tmpname()
    os.remove(cache)
    local args = { "run", path, "-p", "Once upon a time there was", "-n", "4", "--prompt-cache", cache }
    local first = command.json(args)
    assert.equal(0, first.timings.cached_tokens)
    local again = command.json(args)
    assert.same(first.ids, again.ids)
    assert.equal(#first.prompt_ids - 1, again.timings.cached_tokens)
    local bytes = assert(core.read_file(cache))
    local _, plain = command.run { "run", path, "-p", "Once upon a time there was", "-n", "4" }
    for _, broken in ipairs { bytes:sub(1, -3), bytes:sub(1, 60) .. "x" .. bytes:sub(62) } do
      assert(core.write_file(cache, broken))
      local code, out, err = command.run { "run", path, "-p", "Once upon a time there was", "-n", "4", "--prompt-cache", cache }
      assert.same({ 0, plain }, { code, out })
      assert.is_truthy(err:find(cache, 1, true) and err:find("not used", 1, true), err)
      assert.equal(bytes, core.read_file(cache)) -- and replaced
    end
    os.remove(cache)
    assert.equal(2, (command.run { "run", path, "-p", "a", "-p", "b", "--prompt-cache", cache }))
    for _, name in ipairs { "run", "chat" } do
      local code, out, err = command.run { name, path, "-p", "Once", "-n", "2", "--prompt-cache", cache .. "-none/x" }
      assert.same({ 1, "", ("ane %s: --prompt-cache %s-none/x: there is no folder %s-none\n"):format(name, cache, cache) },
        { code, out, err })
      code, out, err = command.run { name, path, "-p", "Once", "-n", "2", "--prompt-cache", "spec/support" }
      local fault = "spec/support: is not a saved session, and --prompt-cache would replace it; name another file"
      assert.same({ 1, "", ("ane %s: %s\n"):format(name, fault) }, { code, out, err })
    end
  end)

  it("does not replace a file that is no saved session", function()
    local cache = os.tmpname()
    for _, name in ipairs { "run", "chat" } do
      assert(core.write_file(cache, "my notes"))
      local code, out, err = command.run { name, path, "-p", "Once", "-n", "2", "--prompt-cache", cache }
      assert.same({ 1, "" }, { code, out })
      assert.is_truthy(err:find(cache .. ": is not a saved session", 1, true), err)
      assert.equal("my notes", core.read_file(cache))
    end
    assert(core.write_file(cache, ""))
    assert.equal(0, (command.run { "run", path, "-p", "Once", "-n", "2", "--prompt-cache", cache }))
    assert.equal("ANESTATE", core.read_file(cache):sub(1, 8))
    os.remove(cache)
  end)
end)

describe("ane bench", function()
  it("measures as many times as asked", function()
    local r = command.json { "bench", path, "-p", "16", "-n", "4", "-t", "2", "-r", "3", "--no-limits" }
    assert.same({ 3, 3, 2 }, { #r.pp, #r.tg, r.threads })
    for _, key in ipairs { "load_s", "first_token_s", "peak_rss_mb", "model_bytes" } do assert.is_true(r[key] > 0, key) end
    assert.equal(ane.info().isa, r.kernel)
    assert.equal(290816, r.model_bytes)
    assert.same({ 0, 3 }, { #command.json({ "bench", path, "-p", "0", "-n", "2", "-r", "3", "--no-limits" }).pp, #r.tg })
  end)

  it("measures at depths, beside what is read and computed and what the machine can", function()
    local r = command.json { "bench", path, "-p", "8", "-n", "3", "-r", "2", "-d", "0,100", "-t", "1" }
    local what = {}
    for i, t in ipairs(r.tests) do what[i] = ("%s%d@%d x%d"):format(t.test, t.tokens, t.depth, #t.rates) end
    assert.same({ "pp8@0 x2", "tg3@0 x2", "pp8@100 x2", "tg3@100 x2" }, what)
    assert.same({ 2, r.tests[1].rates[1] }, { #r.pp, r.pp[1] })
    local near, far = r.tests[2], r.tests[4]
    assert.is_true(near.bytes > 0.9 * r.weight_bytes and near.bytes < 1.5 * r.weight_bytes)
    assert.is_true(far.ops > near.ops and far.bytes > near.bytes)
    assert.is_true(near.matrix_ops > 0 and r.limits.read > 1e8)
  end)

  it("gives a token classifier the context of its sentences", function()
    local r = command.json { "bench", "spec/fixtures/hf/privacy_filter", "-r", "1", "--sentence-tokens", "600", "-b", "1", "--no-limits" }
    assert.equal(600, r.sentence_tokens)
    assert.equal(1, #r.sentences)
  end)

  it("takes lists, and options several times, as llama-bench does", function()
    local r = command.json {
      "bench", path, "-p", "16,0", "-n", "2", "-d", "0,8", "-p", "5", "-n", "3,4", "-r", "1", "--depth", "4", "--no-limits",
    }
    local what = {}
    for i, t in ipairs(r.tests) do what[i] = ("%s%d@%d"):format(t.test, t.tokens, t.depth) end
    local want = {}
    for _, depth in ipairs { 0, 8, 4 } do
      for _, test in ipairs { "pp16", "pp5", "tg2", "tg3", "tg4" } do want[#want + 1] = test .. "@" .. depth end
    end
    assert.same(want, what)
    assert.same({ r.tests[1].rates, r.tests[3].rates }, { r.pp, r.tg }) -- of the first of each
    for _, flag in ipairs { "-p", "-n", "-d" } do
      for _, wrong in ipairs { "16,x", "-1", "1.5", "," } do
        local code, _, err = command.run { "bench", path, flag .. wrong }
        assert.same({ 2, flag .. wrong }, { code, flag .. wrong })
        assert.matches(wrong == "," and "has a comma without a number of tokens" or "is not a number of tokens", err)
      end
    end
  end)

  it("serves requests with a pool", function()
    local r = command.json { "bench", path, "--pool", "--requests", "6", "-p", "80", "--shared", "70", "-n", "3", "--no-limits" }
    local t = r.tests[1]
    assert.same({ "pool", 6, 80, 70, 3 }, { t.test, t.requests, t.prompt, t.shared, t.tokens })
    for _, key in ipairs { "seconds", "requests_s", "reply_s", "first_median_s", "first_p99_s", "between_median_s", "lua" } do
      assert.is_true(t[key] > 0, key)
    end
    assert.is_true(t.first_p99_s >= t.first_median_s and t.cached_tokens >= 5 * 64)
    for _, form in ipairs { "text", "md", "csv" } do
      local code, text = command.run { "bench", path, "--pool", "--requests", "3", "-p", "4", "-n", "2", "--rate", "500", "--no-limits",
        "-o", form }
      assert.equal(0, code)
      assert.matches("3", text)
    end
    assert.equal(2, (command.run { "bench", path, "--pool", "--sequences", "2" }))
    assert.equal(2, (command.run { "bench", path, "--pool", "-p", "0" }))
    local function wrong(what, ...)
      local code, _, message = command.run { "bench", path, "--pool", "--requests", "3", "-p", "4", "-n", "2", "--no-limits", ... }
      assert.equal(2, code)
      assert.truthy(message:find(what, 1, true), message)
    end
    wrong("--shared must be below --prompt-tokens (4), but is 4", "--shared", "4")
    wrong("--pool-sessions must be 1 .. 1024", "--pool-sessions", "1025")
    wrong("--context 5 is too small: the tests need 6 tokens", "--context", "5")
    local _, text = command.run { "bench", path, "--pool", "--requests", "2", "-p", "4", "-n", "1", "--no-limits" }
    assert.not_matches("between tokens", text) -- a reply of one token has no time between tokens
  end)

  it("writes text, Markdown and CSV", function()
    local function out(...)
      local code, text = command.run { "bench", path, "-p", "16", "-n", "2", "-r", "1", "--no-limits", "-d", "0,8", ... }
      assert.equal(0, code)
      return text
    end
    assert.matches("prefill of 16: .- tokens/s.-\ndecode of 2: .-\nprefill of 16 at depth 8: ", out())
    local md = out("--output", "md")
    assert.matches("| tg2 @ d8 | ", md, 1, true)
    local columns
    for line in md:gmatch "[^\n]+" do
      local _, n = line:gsub("|", "")
      columns = columns or n
      assert.equal(columns, n)
    end
    local csv = out("-o", "csv", "--greedy")
    assert.matches("^model,kernel,", csv)
    assert.matches(",tg,2,8,%d+%.%d+,0%.000,", csv)
    assert.equal(2, (command.run { "bench", path, "-d", "1,x" }))
    local code, text, err = command.run { "bench", path, "-o", "csv", "--json" }
    assert.same({ 2, "" }, { code, text })
    assert.matches("can not be used together", err)
  end)

  it("refuses a context beyond the model's own, unless it is asked for", function()
    local own = command.json({ "info", path }).config.context_length
    local code, out, err = command.run { "bench", path, "-p", tostring(own + 1), "-n", "0", "-r", "1", "--no-limits" }
    assert.same({ 2, "" }, { code, out })
    assert.matches(("^ane bench: the tests need a context of %d tokens, but the model's own is %d: give %%-%%-context %d\n$")
      :format(own + 1, own, own + 1), err)
    code, out, err = command.run {
      "bench", path, "-p", tostring(own + 1), "-n", "0", "-r", "1", "--no-limits", "-c", tostring(own + 1),
    }
    assert.equal(0, code)
    assert.matches("prefill of " .. own + 1, out)
    assert.matches("is longer than the " .. own, err)
  end)

  it("refuses to run if there is nothing to measure", function()
    local code, text, err = command.run { "bench", path, "-p", "0", "-n", "0", "-o", "csv" }
    assert.same({ 2, "", "ane bench: nothing to measure: give one of --prompt-tokens, --gen-tokens\n" }, { code, text, err })
  end)
end)

describe("ane info", function()
  it("tells what a file holds and how it runs", function()
    local r = command.json { "info", path }
    assert.same({ "llama", "gguf", 31 }, { r.architecture, r.format, r.n_tensors })
    assert.is_true(#r.kernels > 0)
    assert.is_true(r.memory.peak > 0)
    local code, out = command.run { "info", path, "--keys" }
    assert.not_matches("\n  tensors  ", out)
    assert.equal(0, code)
    assert.matches("architecture: llama", out)
    assert.not_matches("{}", out, 1, true)
    assert.matches("q8_0 +%d+ tensors", out)
    assert.matches("runs with: ", out)
    assert.matches("general.architecture", out)
  end)

  it("describes files that nothing here can run", function()
    local code, out = command.run { "info", "spec/fixtures/gguf/kv-types.gguf" }
    assert.equal(0, code, out)
    assert.matches("does not run here: ", out)
  end)

  it("describes the machine", function()
    assert.equal(ane._VERSION, command.json({ "info" }).version)
    local code, out = command.run { "info" }
    assert.equal(0, code)
    assert.matches("^ane 0.1.0; .* cores; kernels ", out)
  end)
end)

describe("ane chat", function()
  it("refuses unknown slash commands, and takes texts that begin with two slashes", function()
    local code, _, err = command.run({ "chat", path, "-n", "2" }, "/foo bar\n")
    assert.equal(1, code)
    assert.equal("ane chat: there is no command '/foo': choose /help, /reset, /undo, /save, /load, /prompt, /quit "
      .. "(a text that begins with a slash is written with two)\n", err)
    for line, fault in pairs { ["/save"] = "/save needs a FILE", ["/reset x"] = "/reset takes no argument" } do
      code, _, err = command.run({ "chat", path, "-n", "2" }, line)
      assert.same({ 1, "ane chat: " .. fault .. "\n" }, { code, err })
    end
    local other = os.tmpname()
    for _, name in ipairs { other, other .. ".json" } do
      assert(core.write_file(name, "something else"))
      code, _, err = command.run({ "chat", path, "-n", "2" }, "/save " .. name .. "\n")
      assert.same({ 1, ("ane chat: %s: is not a conversation, and would be overwritten; name another file\n"):format(name) }, { code, err })
      assert.equal("something else", core.read_file(name))
      os.remove(name)
      for _ = 1, 2 do -- a new file, and then its own
        assert.equal(0, (command.run({ "chat", path, "-n", "2" }, "Hi\n/save " .. name .. "\n")))
      end
      os.remove(name)
    end
    local out
    code, out = command.run({ "chat", path, "-n", "2" }, "//foo\n/prompt\n")
    assert.equal(0, code)
    assert.matches("\n/foo", out)
  end)

  it("forgets the oldest turns at the end of the context and says so, or refuses", function()
    local lines = ("This is a question.\n"):rep(12)
    local code, _, err = command.run({ "chat", path, "-n", "4", "-c", "300", "--system", "S" }, lines)
    assert.equal(0, code, err)
    assert.matches("^ane chat: the context is full: the oldest %d+ messages are forgotten\n", err)
    code, _, err = command.run({ "chat", path, "-n", "4", "-c", "300", "--overflow", "error" }, lines)
    assert.equal(1, code)
    assert.matches("the conversation has %d+ tokens, but the context has room for 300: remove messages", err)
  end)

  it("saves a conversation and goes on with it", function()
    local saved = file ""
    local function talk(...)
      local lines = { ... }
      local code, out, err = command.run({ "chat", path, "-n", "2", "--timings" }, table.concat(lines, "\n"))
      assert.equal(0, code, err)
      return out, err
    end
    local code, whole, err = command.run({ "chat", path, "-n", "2", "--system", "S" }, "Hi\n/save " .. saved .. "\nAnd?\n/prompt\n")
    assert.equal(0, code, err)
    local resumed, timings = talk("/load " .. saved, "And?", "/prompt")
    assert.equal(resumed, whole:sub(-#resumed))
    assert.matches("prompt %d+ tokens", timings)
    local status, _, fault = command.run({ "chat", path, "-n", "2" }, "/load " .. path .. "\n")
    assert.equal(1, status)
    assert.matches("llama%-q8_0", fault)
  end)

  it("saves messages as JSON, and goes on with them", function()
    local saved = file "" .. ".json"
    files[#files + 1] = saved
    local code, _, err = command.run({ "chat", path, "-n", "2", "--system", "S" }, "Hi\n/save " .. saved .. "\n")
    assert.equal(0, code, err)
    local roles = {}
    for i, m in ipairs(core.json_decode(core.read_file(saved)).messages) do roles[i] = m.role end
    assert.same({ "system", "user", "assistant" }, roles)
    local _, first = command.run({ "chat", path, "-n", "2" }, "/load " .. saved .. "\n/prompt\n")
    local _, second = command.run({ "chat", path, "-n", "2", "--system", "S" }, "Hi\n/prompt\n")
    assert.equal(first, (second:match "(<|.*)$"))
    local list = file '[{"role": "user", "content": "Hi"}]'
    assert.equal(0, (command.run({ "chat", path, "-n", "2" }, "/load " .. list)))
    for _, wrong in ipairs { "[1]", "[", '{"messages": 1}' } do
      local name = file(wrong)
      code, _, err = command.run({ "chat", path, "-n", "2" }, "/load " .. name)
      assert.equal(1, code, wrong .. err)
      assert.matches(name, err, 1, true)
    end
  end)

  it("sends one message with --prompt", function()
    local code, out = command.run { "chat", path, "-p", "Hi", "-n", "3" }
    assert.equal(0, code)
    assert.matches("\n$", out)
  end)

  it("reads turns from its input", function()
    local code, out, err = command.run({ "chat", path, "-n", "2", "--system", "S", "--timings" },
      "Hi\n\nmore\\\nlines\n/prompt\n/undo\n/prompt\n/clear\n/prompt\n/help\n/quit\nnever\n")
    assert.equal(0, code, err)
    local _, replies = err:gsub("%[prompt", "")
    assert.equal(2, replies)
    assert.matches("more\nlines", out)
    local _, users = out:gsub("<|start_header_id|>user", "")
    assert.equal(3, users) -- two in the first prompt, one after /undo, none after /clear
    assert.matches("forget the conversation", out)
  end)
end)

describe("ane repl", function()
  it("evaluates lines, and goes on after errors", function()
    local code, out, err = command.run({ "repl", path }, table.concat({
      "1 + 1", "=2 * 3", "x = 5", "x, nil, 'a'", "for i = 1, 2 do", "print(i)", "end", "error('no')", "1 +* 2", "model",
      "ane.tensor{1, 2}", "{a = 1, [2] = {}}", "#model.tokenizer",
    }, "\n"))
    assert.equal(0, code)
    assert.equal(table.concat({
      "2", "6", "5\tnil\ta", "1", "2", "model (llama, " .. path .. ")", "tensor [2] {1, 2}", "{[2] = {}, a = 1}", "1024", "",
    }, "\n"), out)
    assert.matches("repl:1: no\n", err)
    assert.matches("unexpected symbol", err)
  end)

  it("runs code that is given", function()
    assert.same({ 0, "3\n", "" }, { command.run { "repl", "-e", "1 + 2" } })
    assert.equal(1, (command.run { "repl", "-e", "error 'x'" }))
    assert.equal(1, (command.run { "repl", "-e", "1 +" }))
  end)

  it("completes names", function()
    local repl = require "ane.cli.repl"
    local model <close> = tiny.load()
    local env = setmetatable({ ane = ane, model = model }, { __index = _G })
    assert.same({ "model" }, repl.complete("mod", env))
    assert.same({ "ane.load" }, repl.complete("ane.lo", env))
    assert.same({ "string.format" }, repl.complete("string.form", env))
    assert.same({ "model:generate", "model:generate_many" }, repl.complete("model:gen", env))
    assert.same({ "model.tokenizer:encode" }, repl.complete("model.tokenizer:enc", env))
    assert.same({}, repl.complete("nothing.here", env))
  end)
end)
