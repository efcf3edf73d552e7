-- Every public function with every wrong value in place of each argument and option. What it says must help: no error of Lua or of the
-- core, no address of a table, no line of this library.
local ane = require "ane"
local tree = require "support.tree"
local wrong = require "support.wrong_values"

local MODEL = "spec/fixtures/gguf/llama-q8_0.gguf"
local PROMPT, SHORT = { 1, 5, 7 }, { max_tokens = 1 }
local MESSAGE = { role = "user", content = "hi" }
local SECONDS = 60 -- no sweep comes near it

local folder, model, encoder, reranker, classifier, base, adapter
setup(function()
  folder = tree.folder()
  model = assert(ane.load(MODEL, { context = 256, threads = 1 }))
  encoder = assert(ane.load("spec/fixtures/hf/bert", { context = 64 }))
  reranker = assert(ane.load("spec/fixtures/hf/cross_encoder", { context = 64 }))
  classifier = assert(ane.load("spec/fixtures/hf/privacy_filter", { context = 64 }))
  base = assert(ane.load("spec/fixtures/hf/llama", { context = 64 }))
  adapter = assert(base:adapter "spec/fixtures/hf/lora_llama")
end)

teardown(function()
  for _, m in ipairs { model, encoder, reranker, classifier, base } do m:close() end
  tree.remove(folder)
end)

-- Calls f, which may yield, and adds what is wrong with what it says to `faults`.
local function try(faults, where, f, ...)
  local results = table.pack(coroutine.wrap(function(...) return pcall(f, ...) end)(...))
  local fault = wrong.judge(table.unpack(results, 1, results.n))
  if fault then faults[#faults + 1] = where .. " " .. fault end
  local made = results[1] and results[2]
  if type(made) == "table" and type(made.close) == "function" and made ~= model then pcall(made.close, made) end
end

-- The names of the options that f takes: its error for an unknown one lists them.
local function options_of(f, args, at)
  local given = table.move(args, 1, at - 1, 1, {})
  given[at] = { ["?"] = 1 }
  local _, message = pcall(f, table.unpack(given, 1, at))
  local names = {}
  for name in tostring(message):match("the options are (.*)$"):gmatch "[%w_]+" do names[#names + 1] = name end
  return names
end

local function with(list, i, value, n)
  local out = table.move(list, 1, n, 1, {})
  out[i] = value
  return out
end

-- Puts each wrong value in the place of each argument, and of each option where `at` is the place of the options.
local function sweep(faults, name, f, args, at)
  local n = math.max(#args, at or 0)
  for i = 1, n do
    for _, v in ipairs(wrong.list) do
      try(faults, ("%s, argument %d = %s:"):format(name, i, v.name), f, table.unpack(with(args, i, v.value, n), 1, n))
    end
  end
  for _, option in ipairs(at and options_of(f, args, at) or {}) do
    for _, v in ipairs(wrong.list) do
      local opts = {}
      for key, value in pairs(args[at] or {}) do opts[key] = value end
      opts[option] = v.value
      try(faults, ("%s, option %s = %s:"):format(name, option, v.name), f, table.unpack(with(args, at, opts, n), 1, n))
    end
  end
end

-- Runs sweeps; none may leave a fault.
local function expect(run)
  local faults, started = {}, os.clock()
  run(function(...) sweep(faults, ...) end, function(...) try(faults, ...) end)
  assert.equal("", table.concat(faults, "\n", 1, math.min(#faults, 20)))
  assert.is_true(os.clock() - started < SECONDS)
end

local function method(object, name)
  return function(...)
    local one = type(object) == "function" and object() or object
    local results = table.pack(load(("local o, a = ... local r = table.pack(o:%s(table.unpack(a, 1, a.n))) return table.unpack(r, 1, r.n)")
      :format(name))(one, table.pack(...)))
    return table.unpack(results, 1, results.n)
  end
end

-- f with paths that lie in the folder, so that no call writes elsewhere.
local function inside(f)
  return function(path, ...)
    if type(path) == "string" and path:find "^[^%z/]+$" then path = folder .. "/" .. path end
    return f(path, ...)
  end
end

local function batch(m, opts)
  local own = opts
  if type(opts) == "table" and type(opts.output) == "string" and opts.output:find "^[^%z]+$" then
    own = {}
    for key, value in pairs(opts) do own[key] = value end
    own.output = folder .. "/" .. opts.output
  end
  local summary, message, code = ane.batch(m, own)
  return summary, message, code
end

-- Never asks the hub.
local function pull(name, opts)
  if opts == nil or type(opts) == "table" and not getmetatable(opts) and not opts.offline then
    local own = { offline = true }
    for key, value in pairs(opts or {}) do own[key] = key == "offline" or value end
    opts = own
  end
  local path, info, code = ane.pull(name, opts)
  return path, info, code
end

describe("wrong values are refused with a message that helps", function()
  it("by the functions of ane", function()
    expect(function(each)
      each("load", ane.load, { MODEL, { context = 32 } }, 2)
      each("pull", pull, { "hf:a/b", { offline = true } }, 2)
      each("drafter", ane.drafter, { { 1, 2 }, { 1 } })
      each("push", method(ane.drafter { 1, 2, 1, 2 }, "push"), { 1 })
      each("draft", method(ane.drafter { 1, 2, 1, 2 }, "draft"), { 1 })
      each("tensor", function(...) local t = ane.tensor(...) return t end, { { 1, 2 }, { 2 } })
      each("check", ane.check, { model, "x", {} }, 3)
      each("calibrate", ane.calibrate, { model, PROMPT, {} }, 3)
      each("tensors", function(path) local t, m, c = ane.tensors(path) return t, m, c end, { "x" })
      each("package", function(...) local p, m, c = ane.package(...) return p, m, c end, { "x", {} }, 2)
      each("serve", ane.serve, { model, { port = 0 } }, 2)
      each("batch", batch, { model, { input = function() end, output = function() end } }, 2)
    end)
  end)

  it("by recipes that are registered", function()
    expect(function(_, one)
      for _, field in ipairs { "architectures", "build", "version", "ignore", "config" } do
        for _, v in ipairs(wrong.list) do
          if v.name ~= "nil" then
            local recipe = { architectures = { "zz" }, build = function() end, [field] = v.value }
            one(("register, %s = %s:"):format(field, v.name), ane.register, recipe)
          end
        end
      end
    end)
  end)

  it("by grammars", function()
    local g = ane.grammar
    expect(function(each, one)
      each("json_schema", function(...) local r, m, c = g.json_schema(...) return r, m, c end, { "{}", {} }, 2)
      each("json", function(...) local r, m, c = g.json(...) return r, m, c end, { {} }, 1)
      each("parts", function(...) local r, m, c = g.parts(...) return r, m, c end, { { { 1, 2, "literal", "a" }, ends = { 2 } }, {} }, 2)
      for _, name in ipairs { "regex", "gbnf", "lark", "rules", "P", "S", "V", "is" } do
        each(name, function(...) local r, m, c = g[name](...) return r, m, c end, { "a" })
      end
      each("choice", function(...) local r, m, c = g.choice(...) return r, m, c end, { { "a" } })
      each("matches", method(assert(g.json()), "matches"), { "1" })
      for _, v in ipairs(wrong.list) do
        for i = 1, 4 do
          local part = { 1, 2, "literal", "a" }
          part[i] = v.value
          one(("parts, %d = %s:"):format(i, v.name), function() local r, m, c = g.parts { part, ends = { 2 } } return r, m, c end)
        end
        one("parts, ends = " .. v.name, function() local r, m, c = g.parts { { 1, 2, "literal", "a" }, ends = v.value } return r, m, c end)
        one("rules, rule = " .. v.name, g.rules, { "a", a = v.value })
        for _, key in ipairs { "properties", "type", "enum", "required", "items", "minimum", "pattern", "anyOf", "const", "$ref" } do
          if v.name ~= "nil" then
            local of = { type = "object", [key] = v.value }
            one(("schema, %s = %s:"):format(key, v.name), function() local r, m, c = g.json_schema(of) return r, m, c end)
          end
        end
      end
    end)
  end)

  it("by calls of tools", function()
    expect(function(each, one)
      each("parse", function(...) local r, m, c = ane.tools.parse(...) return r, m, c end, { "x", { form = "hermes" } }, 2)
      each("arguments", function(...) local r, m, c = ane.tools.arguments(...) return r, m, c end, { {} })
      for _, v in ipairs(wrong.list) do
        local function with_tool(tool)
          return function() return model:generate({ MESSAGE }, { max_tokens = 1, tool_form = "hermes", tools = { tool } }) end
        end
        one("tool = " .. v.name, with_tool(v.value))
        for _, key in ipairs { "name", "parameters", "description" } do
          one(("tool, %s = %s:"):format(key, v.name), with_tool { ["function"] = { name = key ~= "name" and "a" or nil, [key] = v.value } })
        end
      end
    end)
  end)

  it("by generate and stream", function()
    expect(function(each)
      each("generate", method(model, "generate"), { PROMPT, SHORT }, 2)
      each("generate", method(model, "generate"), { { MESSAGE }, SHORT }, 2)
      each("stream", function(...)
        local pieces, message, code = method(model, "stream")(...)
        if pieces then return pieces:finish() end
        return nil, message, code
      end, { PROMPT, SHORT }, 2)
    end)
  end)

  it("by messages", function()
    expect(function(_, one)
      for _, v in ipairs(wrong.list) do
        local function said(messages) return function() return model:generate(messages, SHORT) end end
        one("second message = " .. v.name, said { MESSAGE, v.value })
        one("first message = " .. v.name, said { v.value, MESSAGE })
        for _, key in ipairs { "role", "content", "tool_calls", "name" } do
          local message = { role = "user", content = "a" }
          message[key] = v.value
          one(("message, %s = %s:"):format(key, v.name), said { message })
        end
        one("part = " .. v.name, said { { role = "user", content = { v.value } } })
        one("text of a part = " .. v.name, said { { role = "user", content = { { type = "text", text = v.value } } } })
      end
    end)
  end)

  it("by pools and requests", function()
    local pool = assert(model:pool())
    expect(function(each, one)
      each("pool", method(model, "pool"), { {} }, 1)
      each("add", function(...)
        local request, message, code = method(pool, "add")(...)
        pool:run()
        if request and request.message then error(request.message, 0) end
        return request, message, code
      end, { PROMPT, SHORT }, 2)
      each("save", inside(method(pool, "save")), { folder .. "/pool" })
      each("load", inside(method(pool, "load")), { folder .. "/pool" })
      each("generate_many", method(model, "generate_many"), { { PROMPT }, SHORT }, 2)
      local request, pieces = pool:add(PROMPT, SHORT), model:stream(PROMPT, SHORT)
      for _, v in ipairs(wrong.list) do
        for _, name in ipairs { "add", "step", "run", "idle", "stats", "save", "load", "close" } do
          one("pool." .. name, pool[name], v.value)
        end
        for _, name in ipairs { "next", "poll", "finish", "stop", "close" } do one("request." .. name, request[name], v.value) end
        for _, name in ipairs { "next", "finish", "stop", "close" } do one("pieces." .. name, pieces[name], v.value) end
      end
      pieces:close()
    end)
    pool:close()
  end)

  it("by sessions and chats", function()
    local path = folder .. "/session"
    local session, chat = assert(model:session()), assert(model:chat { max_tokens = 1 })
    local function fresh()
      session:close()
      session = assert(model:session())
      assert(session:feed { 1, 2 })
      return session
    end
    local function new_chat()
      chat:close()
      chat = assert(model:chat { max_tokens = 1 })
      return chat
    end
    expect(function(each, one)
      each("session", method(model, "session"), { {} }, 1)
      each("feed", method(fresh, "feed"), { { 1 }, {} }, 2)
      each("generate", method(fresh, "generate"), { SHORT }, 1)
      for name, args in pairs { logits = { 1 }, argmax = { 1 }, topk = { 1, 1 }, recall = { "last" }, rewind = { 1 }, part = { 1 } } do
        each(name, method(fresh, name), args)
      end
      each("save", inside(method(fresh, "save")), { path, "n" })
      each("restore", inside(method(fresh, "restore")), { path })
      each("chat", method(model, "chat"), { {} }, 1)
      each("say", method(new_chat, "say"), { "a", {} }, 2)
      each("render", method(new_chat, "render"), { {} }, 1)
      each("save", inside(method(new_chat, "save")), { path })
      for _, v in ipairs(wrong.list) do
        one("messages = " .. v.name, function()
          new_chat().messages = v.value
          return chat:say "x"
        end)
        one("messages[1] = " .. v.name, function()
          new_chat().messages[1] = v.value
          local said, message, code = chat:say "x"
          if not said then return nil, message, code end
          return chat:save(path)
        end)
      end
    end)
    session:close()
    chat:close()
  end)

  it("by the other functions of models", function()
    expect(function(each)
      each("adapter", method(model, "adapter"), { "x", {} }, 2)
      each("with", method(adapter, "with"), { 1 })
      each("trace", method(model, "trace"), { PROMPT, "*" })
      each("quantise", inside(method(model, "quantise")), { folder .. "/q.gguf", { weights = "q8_0" } }, 2)
      each("plan", method(model, "plan"), { {} }, 1)
      each("embed", method(encoder, "embed"), { "a", {} }, 2)
      each("similarity", method(encoder, "similarity"), { "a", "b", {} }, 3)
      each("rerank", method(reranker, "rerank"), { "a", { "b" }, {} }, 3)
      each("classify", method(classifier, "classify"), { "a", {} }, 2)
      each("classify_many", method(classifier, "classify_many"), { { "a" }, {} }, 2)
      each("redact", method(classifier, "redact"), { "My name is Ada.", {} }, 2)
    end)
  end)

  it("by tokenizers and tensors", function()
    local tokenizer, t = model.tokenizer, ane.tensor { { 1, 2 }, { 3, 4 } }
    expect(function(each)
      each("encode", method(tokenizer, "encode"), { "a", {} }, 2)
      each("sequence", method(tokenizer, "sequence"), { "a", {} }, 2)
      each("pair", method(tokenizer, "pair"), { "a", "b", {} }, 3)
      each("decode", method(tokenizer, "decode"), { { 1 }, {} }, 2)
      each("stream", method(tokenizer, "stream"), { {} }, 1)
      each("id", method(tokenizer, "id"), { "a" })
      for _, name in ipairs { "token", "piece", "token_type" } do each(name, method(tokenizer, name), { 1 }) end
      each("push", method(tokenizer:stream(), "push"), { 1 })
      for name, args in pairs { get = { 1, 1 }, set = { 1, 1, 2 }, fill = { 1 }, row = { 1 }, slice = { 1, 1, 1 }, reshape = { { 4 } },
        dot = { t }, times = { t:row(1) }, compare = { t }, bins = { 2, 0, 1 }, pool = { 1, 1 }, topk = { 1 } } do
        each(name, method(t, name), args)
      end
      each("histogram", method(t, "histogram"), { {} }, 1)
      each("heat", method(t, "heat"), { {} }, 1)
    end)
  end)
end)
