local ane = require "ane"
local bioes = require "ane.classify.bioes"
local classify = require "ane.classify"
local command = require "support.command"
local core = require "ane.core"
local filter = require "support.filter"
local hf = require "support.hf"
local safetensors = require "support.safetensors"
local tiny = require "support.tiny"

local TEXT = "Hello, I am Ada L\u{F6}vlace. Call 555-1234!\nOr write to ada@x.org, cafe\u{301} \u{1F600} street."

local function ids_of(n, seed)
  math.randomseed(seed or 3)
  local ids = {}
  for i = 1, n do ids[i] = math.random(0, 511) end
  return ids
end

describe("classify", function()
  local model = filter.load { activations = "fp32" }
  local golden = assert(core.json_decode(assert(core.read_file(filter.path .. "/golden.json"))))

  teardown(function() model:close() end)

  it("gives the reference's logits and best labels", function()
    local tensors = safetensors.open(filter.path .. "/golden.safetensors")
    for _, prompt in ipairs(golden.prompts) do
      local ids = {}
      for i, id in ipairs(prompt.input_ids) do ids[i] = math.tointeger(id) end
      local result = assert(model:classify(ids, { details = true }))
      local want = core.tensor({ #ids, 33 }, tensors[prompt.name .. ".logits"].data)
      assert.is_true(result.logits:compare(want).max_scaled <= 2e-3)
      if prompt.min_margin > 0.01 then assert.same(prompt.argmax_labels, result.labels) end
      assert.same(golden.labels, model.config.labels)
    end
  end)

  it("gives the spans of the best legal path", function()
    local result = assert(model:classify(ids_of(40), { details = true }))
    local rows = {}
    for t = 1, 40 do rows[t] = result.logits[t]:totable() end
    local want, path = bioes.decode(assert(bioes.grammar(golden.labels)), rows)
    for t = 1, 40 do assert.equal(golden.labels[path[t]], result.path[t]) end
    assert.same(want, result.spans)
    assert.is_true(#want > 0)
  end)

  it("gives bytes of the text as it was given", function()
    local spans = assert(model:classify(TEXT))
    assert.is_true(#spans > 10)
    local used = 0
    for _, span in ipairs(spans) do
      assert.equal(TEXT:sub(span.start, span.stop), span.text)
      assert.is_truthy(utf8.len(span.text))
      assert.is_nil(span.text:match "^%s+%S" or span.text:match "%S%s+$")
      assert.is_true(span.start > used)
      assert.is_true(span.score > 0 and span.score <= 1)
      used = span.stop
    end
  end)

  it("gives the bits of one run in windows that leave room for a tile of the attention, however the tokens come", function()
    local ids = ids_of(700, 5)
    table.move(ids, 100, 100, 101) -- runs of one token, where every rounding would be a tie broken otherwise
    for i = 300, 420 do ids[i] = 7 end
    local whole = assert(model:classify(ids, { details = true, window = 1000 }))
    for _, case in ipairs { { 129, 700 }, { 150, 13 }, { 333, 1 }, { 699, 700 } } do
      local other = {}
      local run <close> = assert(classify.run(model, { window = case[1], each = function(t, row) other[t] = row:tostring() end }))
      for at = 1, #ids, case[2] do assert(run:push(table.move(ids, at, math.min(at + case[2] - 1, #ids), 1, {}))) end
      assert(run:finish())
      assert.equal(#ids, #other)
      for t = 1, #ids do assert.is_true(other[t] == whole.logits[t]:tostring(), case[1] .. ", token " .. t) end
    end
  end)

  it("begins a part of a sequence only in models that see a limited past, and below 2^24", function()
    local session <close> = assert(model:session())
    assert.is_true(session:part(64))
    local ok, message, code = session:part(1 << 24)
    assert.is_nil(ok)
    assert.matches("a part begins at 16777216", message)
    assert.equal("range", code)
    local llama <close> = assert(ane.load("spec/fixtures/hf/qwen3-odd", { threads = 1 }))
    local other <close> = assert(llama:session())
    ok, message, code = other:part(64)
    assert.is_nil(ok)
    assert.matches("this model sees all of the past", message)
    assert.equal("unsupported", code)
  end)

  it("forks a part of a sequence with its beginning", function()
    local first <close> = assert(model:session())
    local part <close> = assert(model:session())
    assert(part:part(128))
    local fork <close> = assert(part:fork())
    local ids = ids_of(20)
    for _, session in ipairs { first, part, fork } do assert(session:feed(ids, { want = "all" })) end
    local moved = 0
    for i = 1, #ids do
      assert.equal(0, part:logits(i):compare(fork:logits(i)).max_abs)
      moved = math.max(moved, part:logits(i):compare(first:logits(i)).max_abs)
    end
    assert.is_true(moved > 0) -- other angles of rope: the same numbers but for their rounding
  end)

  it("gives the same for windows as for one run", function()
    local ids = ids_of(700)
    local whole = assert(model:classify(ids, { details = true }))
    for _, window in ipairs { 65, 100, 333, 699 } do
      local cut = assert(model:classify(ids, { details = true, window = window }))
      assert.is_true(whole.logits:compare(cut.logits).max_scaled < 2e-3, window)
      assert.same(whole.path, cut.path)
      for i, span in ipairs(whole.spans) do
        assert.near(span.score, cut.spans[i].score, 1e-3)
        assert.same({ span.label, span.first, span.last }, { cut.spans[i].label, cut.spans[i].first, cut.spans[i].last })
      end
    end
  end)

  it("leaves out spans below the threshold", function()
    local all, some = model:classify(TEXT), model:classify(TEXT, { threshold = 0.5 })
    local likely = {}
    for _, span in ipairs(all) do likely[#likely + 1] = span.score >= 0.5 and span or nil end
    assert.is_true(#likely > 0 and #likely < #all)
    assert.same(likely, some)
  end)

  it("classifies lists, several in a run, and gives each what it has alone", function()
    local inputs = { TEXT, "", ids_of(40), TEXT:sub(1, 30), { 99999999 }, ids_of(3, 8) }
    for i = 7, 50 do inputs[i] = ids_of(1 + i % 9, i) end
    local all, failed = model:classify_many(inputs, { threshold = 0.1 })
    for i, input in ipairs(inputs) do
      if i == 5 then
        assert.is_false(all[i])
        assert.equal("range", failed[i][2])
      else
        assert.same(model:classify(input, { threshold = 0.1 }), all[i])
      end
    end
    inputs[5] = "Ada"
    all, failed = model:classify_many(inputs)
    assert.is_nil(failed)
    for i, input in ipairs(inputs) do assert.same(model:classify(input), all[i]) end
    assert.same(model:classify(TEXT, { details = true }).path, model:classify_many({ TEXT }, { details = true })[1].path)
  end)

  it("takes empty texts", function()
    assert.same({}, model:classify "")
    assert.same({}, model:classify {})
  end)

  it("takes many sequences at once", function()
    local sequences = {}
    for i = 1, 23 do sequences[i] = ids_of(1 + (7 * i) % 40, i) end
    local batch <close> = assert(classify.batch(model, 5))
    local got = assert(batch:spans(sequences))
    for i, ids in ipairs(sequences) do assert.same(model:classify(ids), got[i]) end
    assert.same(got[3], assert(batch:spans { sequences[3] })[1])
    local none, message = batch:spans { { 1 }, { 512 } }
    assert.is_nil(none)
    assert.matches("id 512", message)
  end)

  it("finds the bytes of tokens, whole characters only, without spaces around", function()
    --                 1234567 8
    local text = "a b\u{E9}\u{20AC} c"
    local function bytes(first, last, pairs_, base, held, used)
      local starts, stops = {}, {}
      for t, pair in ipairs(pairs_) do starts[t], stops[t] = pair[1], pair[2] end
      return { classify.bytes(first, last, starts, stops, held or text, base or 0, used) }
    end
    assert.same({ 3, 5 }, bytes(1, 1, { { 2, 4 } }))          -- " b" and half of the next character
    assert.same({ 4, 8 }, bytes(1, 1, { { 5, 6 } }))          -- the second half of one, the first of another
    assert.same({ 10, 10 }, bytes(1, 2, { { 9, 9 }, { 10, 10 } }))
    assert.same({ 2, 2 }, bytes(1, 1, { { 2, 2 } }))          -- nothing but a space
    assert.same({}, bytes(1, 1, { { 1, 0 } }))                -- a token that stands for no bytes
    assert.same({ 103, 105 }, bytes(1, 1, { { 102, 104 } }, 100))
    -- A character that the span before has, and a space: nothing is left, whether the text before is still held or not.
    assert.same({}, bytes(1, 1, { { 8, 9 } }, 0, text, 8))
    assert.same({}, bytes(1, 1, { { 8, 9 } }, 8, text:sub(9), 8))
    assert.same({ 10, 10 }, bytes(1, 1, { { 8, 10 } }, 0, text, 8))
    assert.same({ 10, 10 }, bytes(1, 1, { { 8, 10 } }, 8, text:sub(9), 8))
  end)

  it("says what it cannot do", function()
    local spans, message, code = model:classify(ids_of(100), { window = 64 })
    assert.is_nil(spans)
    assert.equal("option window must be 65 or more for 100 tokens, but is 64", message)
    assert.equal("range", code)
    local small <close> = assert(ane.load(hf.path "privacy_filter", { context = 64 }))
    spans, message = small:classify(ids_of(100))
    assert.is_nil(spans)
    assert.matches("^100 tokens need windows of 65 tokens or more .*, but a run takes 64: load the model with a larger context$", message)
    local path <close> = hf.changed("privacy_filter-odd", function(cfg) cfg.id2label = nil end)
    local unlabelled <close> = assert(ane.load(path.name))
    spans, message, code = unlabelled:classify { 1, 2, 3 }
    assert.is_nil(spans)
    assert.matches("has 33 labels %(id2label of config.json%), but its head gives 3 scores per token", message)
    assert.equal("format", code)
    local llama <close> = tiny.load()
    spans, message, code = llama:classify "text"
    assert.is_nil(spans)
    assert.matches("not a token classifier", message)
    assert.equal("unsupported", code)
    local bare <close> = assert(ane.load(filter.path))
    spans, message = bare:classify "text"
    if not bare.tokenizer then
      assert.is_nil(spans)
      assert.matches("no tokenizer", message)
    end
    spans, message = model:classify { 512 }
    assert.is_nil(spans)
    assert.matches("id 512 .*0 %.%. 511", message)
    assert.error_matches(function() model:classify(7) end, "the input must be a text or a list of token ids, but is a number")
    assert.error_matches(function() model:classify("a", { treshold = 1 }) end, "unknown option \"treshold\"")
  end)
end)

describe("ane bench", function()
  it("gives sentences a second of a classifier", function()
    local args = { "bench", filter.path, "--sentence-tokens", "9", "-b", "4", "-r", "2" }
    local out = command.json(args)
    assert.equal(2, #out.sentences)
    assert.is_true(out.sentences[1] > 0)
    assert.same({ 9, 4 }, { out.sentence_tokens, out.batch })
    local code, text = command.run(args)
    assert.equal(0, code)
    assert.matches("sentences of 9 tokens, 4 a run: .* sentences/s", text)
    for _, key in ipairs { "model", "limits", "kernel", "peak_rss_mb" } do assert.truthy(out[key], key) end
  end)

  it("writes every form for a classifier, too", function()
    local function lines(form)
      local code, text = command.run { "bench", filter.path, "--sentence-tokens", "9", "-b", "4", "-r", "2", "--no-limits", "-o", form }
      assert.equal(0, code)
      local list = {}
      for line in text:gmatch "[^\n]+" do list[#list + 1] = line end
      return list
    end
    local csv = lines "csv"
    assert.same({ "model,kernel,threads,sentence_tokens,batch,mean,stddev", 2 }, { csv[1], #csv })
    assert.matches(",9,4,%d+%.%d+,%d+%.%d+$", csv[2])
    local md = lines "md"
    assert.equal(3, #md)
    assert.matches("| 9 | 4 | %d+%.%d+ %+%- %d", md[3])
    assert.matches('^{.*"sentences":%[', lines "json"[1])
  end)
end)

describe("ane classify", function()
  it("labels ids", function()
    local out = command.json { "classify", filter.path, "--ids", "78,222,108,49,480", "--activations", "fp32" }
    assert.same({ "E-private_person", "B-account_number", "S-private_email", "B-private_date", "I-private_email" }, out.labels)
    assert.same({ 5, 33 }, { #out.logits, #out.logits[1] })
    assert.equal(5, #out.path)
    local code, text = command.run { "classify", filter.path, "--ids", "78,222,108,49,480", "--activations", "fp32" }
    assert.equal(0, code)
    assert.matches("      78  E%-private_person", text)
  end)

  it("finds spans in a text", function()
    local load = require("ane.model").load
    finally(function() require("ane.model").load = load end)
    require("ane.model").load = function(path, opts)
      local model = assert(load(path, opts))
      model.tokenizer = filter.tokenizer()
      return model
    end
    local out = command.json({ "classify", filter.path, "--activations", "fp32" }, TEXT)
    local model <close> = filter.load { activations = "fp32" }
    local want = assert(model:classify(TEXT))
    assert.equal(#want, #out.spans)
    assert.equal(want[3].text, out.spans[3].text)
    assert.equal(want[3].start, out.spans[3].start)
    local code, text = command.run({ "classify", filter.path, "--activations", "fp32" }, TEXT)
    assert.equal(0, code)
    assert.matches(want[1].label, text, 1, true)
  end)
end)
