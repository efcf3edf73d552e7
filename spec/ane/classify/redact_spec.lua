local command = require "support.command"
local core = require "ane.core"
local filter = require "support.filter"
local redact = require "ane.classify.redact"
local tree = require "support.tree"

local PARAGRAPH = "Hello, I am Ada L\u{F6}vlace. Call 555-1234!\nOr write to ada@x.org, cafe\u{301} \u{1F600} street.\n\n"

describe("redact", function()
  local model = filter.load { activations = "fp32" }
  local long = PARAGRAPH:rep(60)

  teardown(function() model:close() end)

  it("puts [LABEL] in the place of each span, and leaves the rest", function()
    local text, spans = model:redact(PARAGRAPH)
    local want = model:classify(PARAGRAPH)
    assert.equal(#want, #spans)
    local built, at = {}, 1
    for _, span in ipairs(want) do
      built[#built + 1] = PARAGRAPH:sub(at, span.start - 1) .. "[" .. span.label:upper() .. "]"
      at = span.stop + 1
    end
    assert.equal(table.concat(built) .. PARAGRAPH:sub(at), text)
  end)

  it("gives one original one pseudonym", function()
    local _, spans = model:redact(long, { pseudonyms = true })
    local names, originals = {}, {}
    for _, span in ipairs(spans) do
      local id = span.label .. " " .. span.text
      assert.equal(names[id] or span.replacement, span.replacement)
      assert.equal(originals[span.replacement] or id, id)
      names[id], originals[span.replacement] = span.replacement, id
      assert.matches("^%[[%u_]+_%d+%]$", span.replacement)
    end
  end)

  it("refuses an empty key: anybody could make its names", function()
    assert.has_error(function() model:redact(PARAGRAPH, { key = "" }) end, "redact: option key is empty")
    for _, name in ipairs { "redact", "batch" } do
      local code, out, err = command.run { name, "model", "in", "-o", "out", "--key", "" }
      assert.same({ 2, "" }, { code, out })
      assert.matches("^ane " .. name .. ": %-%-key is empty ", err)
    end
  end)

  it("makes names of a key that are the same in each run, and others for other keys", function()
    local a, b, c = model:redact(PARAGRAPH, { key = "x" }), model:redact(PARAGRAPH, { key = "x" }), model:redact(PARAGRAPH, { key = "y" })
    assert.equal(a, b)
    assert.not_equal(a, c)
    assert.matches("_%x%x%x%x%x%x%x%x%x%x%x%x%]", a)
  end)

  it("asks a function for the replacement, if one is given", function()
    local text = model:redact(PARAGRAPH, { replace = function(span) return "<" .. #span.text .. ">" end })
    assert.matches("<%d+>", text)
    assert.is_nil(text:find("[", 1, true))
  end)

  it("leaves spans below the threshold", function()
    assert.equal(PARAGRAPH, (model:redact(PARAGRAPH, { threshold = 1 })))
  end)

  it("gives the text of one run whatever the pieces, segments and windows", function()
    local want, spans = model:redact(long)
    for _, case in ipairs { { 7, 64, 80 }, { 1000, 300, 100 }, { 100, 5000, 70 }, { 4096, 16, 1000 } } do
      local stream <close> = assert(redact.stream(model, { segment = case[2], window = case[3] }))
      local parts, starts, held = {}, {}, 0
      local function take(text, some)
        parts[#parts + 1] = assert(text, some)
        for _, span in ipairs(some) do
          starts[#starts + 1] = span.start
          assert.equal(long:sub(span.start, span.stop), span.text)
        end
      end
      for at = 1, #long, case[1] do
        take(stream:push(long:sub(at, at + case[1] - 1)))
        held = math.max(held, #stream.text + stream.size)
      end
      take(stream:finish())
      assert.equal(want, table.concat(parts))
      assert.equal(#spans, #starts)
      assert.is_true(held < math.max(3 * case[2] + case[1], 2500), "held " .. held)
    end
  end)

  it("is bounded by the text where there is no place to cut", function()
    local text = ("\u{1F600}"):rep(300)
    assert.equal((model:redact(text)), (model:redact(text, { segment = 16, window = 100 })))
    assert.equal("", (model:redact ""))
  end)

  it("takes broken UTF-8 as it is", function()
    local text = "Ada\xFF\xFE x \xC3" .. ("y\x80 "):rep(50)
    local out, spans = model:redact(text, { replace = function(span) return span.text end, segment = 16 })
    assert.equal(text, out)
    assert.is_true(#spans > 0)
  end)

  it("says what it needs", function()
    local bare <close> = assert(require("ane").load(filter.path))
    bare.tokenizer = nil
    local text, message, code = bare:redact "x"
    assert.is_nil(text)
    assert.matches("no tokenizer", message)
    assert.equal("unsupported", code)
    assert.error_matches(function() model:redact(7) end, "redact: text must be a string")
    assert.error_matches(function() model:redact("x", { label = 1 }) end, "unknown option \"label\"")
  end)
end)

describe("ane redact", function()
  local load = require("ane.model").load
  local folder

  setup(function()
    folder = tree.folder()
    require("ane.model").load = function(path, opts)
      local model = assert(load(path, opts))
      model.tokenizer = filter.tokenizer()
      return model
    end
    assert(core.write_file(folder .. "/in.txt", PARAGRAPH))
  end)

  teardown(function()
    require("ane.model").load = load
    tree.remove(folder)
  end)

  local function names()
    local list = core.list_dir(folder)
    table.sort(list)
    return list
  end

  after_each(function() os.remove(folder .. "/out.txt") end)

  it("writes to standard output or a file, and says as JSON what it replaced", function()
    local model <close> = filter.load { activations = "fp32" }
    local want, spans = model:redact(PARAGRAPH)
    local args = { "redact", filter.path, folder .. "/in.txt", "--activations", "fp32" }
    local code, out = command.run(args)
    assert.equal(0, code)
    assert.equal(want, out)
    local json = command.json(args)
    assert.equal(want, json.text)
    assert.equal(#spans, #json.spans)
    assert.equal(spans[2].replacement, json.spans[2].replacement)
    for _, more in ipairs { { "-o", "-" }, { "-o", "-", "--json" } } do
      local plain = table.move(more, 1, #more, #args + 1, { table.unpack(args) })
      code, out = command.run(plain)
      assert.same({ 0, want }, { code, more[3] and core.json_decode(out).text or out })
      assert.is_nil(core.path_kind "-")
    end
    table.move({ "-o", folder .. "/out.txt" }, 1, 2, #args + 1, args)
    code, out = command.run(args)
    assert.equal(0, code)
    assert.equal("", out)
    assert.equal(want, core.read_file(folder .. "/out.txt"))
    assert.same({ "in.txt", "out.txt" }, names())
  end)

  it("leaves nothing behind where it fails", function()
    local code, _, err = command.run { "redact", filter.path, folder .. "/none.txt", "-o", folder .. "/gone.txt" }
    assert.equal(1, code)
    assert.matches("none.txt", err)
    code, _, err = command.run { "redact", filter.path, folder .. "/in.txt", "-o", folder .. "/gone.txt", "--window", "5" }
    assert.equal(2, code)
    assert.matches("^ane redact: %-%-window must be 65 or more for ", err)
    code, _, err = command.run { "redact", filter.path, folder, "-o", folder .. "/gone.txt" }
    assert.equal(1, code)
    assert.matches("cannot read: Is a directory", err)
    assert.same({ "in.txt" }, names())
  end)
end)
