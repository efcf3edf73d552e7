--- The work during which calls fail. Calls fail in run() only. Each scenario has
--   prepare()                          -> a thing
--   run(thing)                         -> true; or nil, message, code; may raise
--   check(thing, ok, value, message, code) -> nil; or what is wrong. ok: run returned. Closes what prepare opened.
--   finish()                           ends what prepare started for all runs, or nil
--   without                            {kind = why it is left out}, or nil
--   keeps                              the driver's message about memory that a library keeps until the process ends, or nil
--   writes                             the code of a failed system call is "io" and its message names a path in the folder
-- Usage: `local list = require("scenarios")(folder)`; the folder is used and emptied by the scenarios.

local ane = require "ane"
local compare = require "ane.evaluate.compare"
local core = require "ane.core"
local grammar = require "ane.grammar"
local hub = require "ane.hub"
local package_of = require("ane.coreml.package").open
local ranks = require "ane.pipeline.plan"
local notes = require "ane.quantise.resume"
local schema = require "ane.util.schema"
local tune = require "ane.quantise.tune"

local MODEL = "spec/fixtures/gguf/llama-odd.gguf"
local ROTATABLE, EMBEDDING = "spec/fixtures/hf/llama", "spec/fixtures/hf/bert"
local WORDS = "spec/fixtures/gguf/llama-q8_0.gguf" -- has a tokenizer
local PROMPT = { 1, 17, 30, 5, 9, 2 }

-- Every path below the folder, in order.
local function tree(folder)
  local list = {}
  local function walk(path)
    for _, name in ipairs(core.list_dir(path) or {}) do
      local full = path .. "/" .. name
      list[#list + 1] = full
      if core.path_kind(full) == "folder" then walk(full) end
    end
  end
  walk(folder)
  table.sort(list)
  return list
end

local function remove(folder)
  local list = tree(folder)
  for i = #list, 1, -1 do os.remove(list[i]) end
end

-- The files and their bytes, as one text.
local function contents(folder)
  local out = {}
  for _, path in ipairs(tree(folder)) do
    if core.path_kind(path) == "file" then out[#out + 1] = path:sub(#folder + 1) .. "\n" .. assert(core.read_file(path)) end
  end
  return table.concat(out, "\n")
end

-- What a model answers, as a text; or nil, what is wrong.
local function answer(model)
  if model:info().architecture == "bert" then
    local vectors, message = model:embed { PROMPT }
    if not vectors then return nil, "the model cannot be used: " .. message end
    return vectors:tostring()
  end
  local result, message = model:generate(PROMPT, { max_tokens = 4, ignore_eos = true, details = true })
  if not result then return nil, "the model cannot be used: " .. message end
  return table.concat(result.ids, " ")
end

-- What the untouched model answers, computed once.
local wanted = {}
local function want(path)
  if not wanted[path] then
    local model <close> = assert(ane.load(path, { threads = 1 }))
    wanted[path] = assert(answer(model))
  end
  return wanted[path]
end

local function usable(model, path)
  local got, problem = answer(model)
  if not got then return problem end
  if got ~= want(path) then return ("answers %s, wanted %s"):format(got, want(path)) end
end

local function load(path, threads) return assert(ane.load(path, { threads = threads or 1, context = 64 })) end

-- Faults while a model is used: it must answer as before.
local function with_model(path, run, threads)
  return {
    prepare = function() return load(path, threads) end,
    run = run,
    check = function(model)
      local problem = usable(model, path)
      model:close()
      return problem
    end,
  }
end

-- Faults while a file or folder OUT is written. OUT must be complete or as before, and nothing may be left beside it.
-- opts.resumes: a failed run may leave files that the next one continues; opts.before(model): an interrupted run, which `run` continues
local function with_output(folder, path, run, opts)
  opts = opts or {}
  local whole
  local function prepare()
    remove(folder)
    local model = load(path)
    if not whole then -- the first call, before any fault
      assert(run(model))
      whole = contents(folder)
      remove(folder)
    end
    if opts.before then opts.before(model) end
    return model
  end
  local function check(model, ok, value)
    local done = ok and value
    local got = contents(folder)
    local problem
    if done and got ~= whole then problem = "the output differs from that of an undisturbed run"
    elseif not done and not opts.resumes and got ~= whole and got ~= "" then
      problem = "left behind: " .. table.concat(tree(folder), ", ")
    end
    if not problem and not done then -- again, undisturbed
      local again, message = run(model)
      if not again then problem = "cannot be repeated: " .. message
      elseif contents(folder) ~= whole then problem = "repeated, the output differs: " .. table.concat(tree(folder), ", ") end
    end
    problem = problem or usable(model, path)
    model:close()
    return problem
  end
  return { prepare = prepare, run = run, check = check, warm = prepare, writes = true }
end

local function load_scenario(path, threads)
  return {
    prepare = function() return {} end,
    run = function(thing)
      local model, message, code = ane.load(path, { threads = threads, context = 64 })
      thing.model = model
      return model and true, message, code
    end,
    check = function(thing)
      local model = thing.model or load(path)
      local problem = usable(model, path)
      model:close()
      return problem
    end,
    writes = true,
  }
end

local function run_pool(model)
  local pool, message, code = model:pool { sessions = 2 }
  if not pool then return nil, message, code end
  local replies = {}
  for i = 1, 3 do -- two of them are sampled together
    local opts = { max_tokens = 3 + i, ignore_eos = true, temperature = i < 3 and 1 or 0, seed = i }
    replies[i], message, code = pool:add({ 1, 17, 30 + i }, opts)
    if not replies[i] then return nil, message, code end
  end
  pool:run()
  for _, reply in ipairs(replies) do
    if reply.message then return nil, reply.message, reply.code end
  end
  pool:close()
  return true
end

local function session_scenario(folder, prepare_file, run)
  local path = folder .. "/saved"
  local function feed(session)
    assert(session:feed(PROMPT))
    return session
  end
  return {
    prepare = function()
      remove(folder)
      local model = load(MODEL)
      local session = feed(assert(model:session { context = 32 }))
      if prepare_file then assert(session:save(path, "note")) end
      return { model = model, session = session, path = path }
    end,
    run = run,
    check = function(thing, ok, value)
      local problem
      local left = tree(folder)
      if #left > 1 or left[1] and left[1] ~= path then problem = "left behind: " .. table.concat(left, ", ") end
      if ok and value and not left[1] then problem = "nothing was written" end
      if not problem and left[1] then
        local fresh = assert(thing.model:session { context = 32 })
        local restored, message = fresh:restore(path)
        if not restored then problem = "the file cannot be restored: " .. message
        elseif fresh.length ~= #PROMPT then problem = "the restored session has another length" end
        fresh:close()
      end
      if not problem then
        local session = thing.session
        if not prepare_file and session.length ~= #PROMPT then problem = "the session has another length" end
        session:rewind(0)
        feed(session)
      end
      problem = problem or usable(thing.model, MODEL)
      thing.model:close()
      return problem
    end,
    writes = true,
  }
end

local function batch_scenario(folder)
  local input, output = folder .. "/in.jsonl", folder .. "/out.jsonl"
  local function run(model, resume)
    return ane.batch(model, { input = input, output = output, ordered = true, resume = resume })
  end
  local rows = {}
  for i = 1, 3 do rows[i] = ('{"id": %d, "prompt": "Once %d", "max_tokens": 2}\n'):format(i, i) end
  local scenario = { run = run, writes = true }
  local function fill() assert(core.write_file(input, table.concat(rows))) end
  local first = true
  scenario.prepare = function()
    if first then
      first = false
      remove(folder)
      fill()
      local model = load(WORDS)
      assert(run(model))
      scenario.whole = assert(core.read_file(output))
      model:close()
    end
    remove(folder)
    fill()
    return load(WORDS)
  end
  scenario.check = function(model)
    local problem
    collectgarbage() -- where even the call of a finaliser had no memory, a lock ends now
    local done, message = run(model, core.path_kind(output .. ".journal") == "file") -- ends what is left to do
    if not done then problem = "cannot be resumed: " .. message
    else
      local ids, text, rest = {}, assert(core.read_file(output)), scenario.whole
      for line in text:gmatch "[^\n]+" do
        local row = core.json_decode(line)
        if not row then problem = "a line is no JSON" else ids[#ids + 1] = tostring(row.id or row.line) end
        if row and row.error then -- of a row that had no memory; the others are as without faults
          if not row.error.message:find "memory" then problem = "a row failed: " .. line end
          text = text:gsub("[^\n]+\n", function(l) return l == line .. "\n" and "" or nil end)
          rest = rest:gsub("[^\n]+\n", function(l) return core.json_decode(l).id == (row.id or row.line) and "" or nil end)
        end
      end
      if not problem and table.concat(ids, ",") ~= "1,2,3" then problem = "has rows " .. table.concat(ids, ",") end
      if not problem and text ~= rest then problem = "resumed, its lines differ: " .. text end
    end
    problem = problem or usable(model, WORDS)
    model:close()
    return problem
  end
  return scenario
end

-- @param tls over HTTPS, with a certificate that is made once
local function serve_scenario(tls)
  local cert, key
  local function make()
    local pipe = assert(io.popen "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout - -out - 2>/dev/null")
    local text = pipe:read "a"
    pipe:close()
    local function part(name) return text:match(("%%-+BEGIN %s%%-+\n.-END %s%%-+\n"):format(name, name)) end
    key, cert = part "PRIVATE KEY", part "CERTIFICATE"
    assert(key and cert, "no openssl")
  end
  local function options() return { port = 0, cert = cert, key = key } end
  return {
    start = function(model) return ane.serve(model, options()) end, -- for handshake_scenario
    without = tls and { alloc = "GnuTLS 3.7, libtasn1 and GMP crash or end the process where malloc fails" } or nil,
    prepare = function()
      if tls and not key then make() end
      return { model = load(WORDS) }
    end,
    run = function(thing)
      local server, message, code = ane.serve(thing.model, options())
      thing.server = server
      return server and true, message, code
    end,
    check = function(thing)
      if thing.server then thing.server:close() end
      local server, message = ane.serve(thing.model, options())
      local problem = not server and "cannot be started again: " .. message or nil
      if server then server:close() end
      problem = problem or usable(thing.model, WORDS)
      thing.model:close()
      return problem
    end,
  }
end

-- A request over HTTPS while calls fail: the handshake, the reply and the turns of the server. The client is another process, which waits
-- until the faults have begun. Whatever happens to its connection, the next client must be answered.
local function handshake_scenario(folder)
  local made = serve_scenario(true)
  local function client(wait)
    local url = ("https://127.0.0.1:%d/v1/models"):format(wait.server.port)
    os.remove(wait.done)
    os.execute(("(sleep 0.03; curl -sk --max-time 5 -o '%s' %s; : > '%s') &"):format(wait.answer, url, wait.done))
  end
  local function turns(wait)
    local deadline = core.clock() + 20
    while not core.path_kind(wait.done) and core.clock() < deadline do wait.server:turn(0.005) end
    return core.path_kind(wait.done) ~= nil
  end
  return {
    without = made.without,
    keeps = "3 allocations of 208 bytes are left", -- the random numbers of GnuTLS for the thread of the sockets
    prepare = function()
      local wait = made.prepare()
      remove(folder)
      wait.server = assert(made.start(wait.model))
      wait.answer, wait.done = folder .. "/answer", folder .. "/done"
      client(wait)
      return wait
    end,
    run = turns,
    check = function(wait)
      local problem = not turns(wait) and "the client waits on" or nil
      os.remove(wait.answer)
      client(wait)
      if not turns(wait) then problem = problem or "the next client waits on"
      else
        local reply = core.json_decode(core.read_file(wait.answer) or "")
        if not reply or reply.object ~= "list" then problem = problem or "the next client is not answered" end
      end
      wait.server:close()
      problem = problem or usable(wait.model, WORDS)
      wait.model:close()
      return problem
    end,
  }
end

-- Faults in a call whose result is a value. `tell` turns the value into a text. A call without faults must give the same text as the first.
-- @param open function() -> what prepare gives, with close()
-- @param run function(opened) -> value; or nil, message, code
local function with_value(open, run, tell)
  local first
  return {
    prepare = function()
      local opened = open()
      first = first or tell(assert(run(opened)))
      return opened
    end,
    run = run,
    check = function(opened, ok, value)
      local again, message = run(opened)
      local problem = not again and "cannot be repeated: " .. message or nil
      if again and tell(again) ~= first then problem = "repeated, it gives " .. tell(again) end
      if ok and value and tell(value) ~= first then problem = "it gives " .. tell(value) end
      opened:close()
      return problem
    end,
  }
end

local NOTHING = { close = function() end }

-- Runs a Core ML package with a loop, and a Core AI asset with states, each opened anew.
local function predict()
  local flow, message, code = package_of("spec/fixtures/mlpackage/flow.mlpackage", { threads = 1 })
  if not flow then return nil, message, code end
  local asset, states, looped, step
  looped, message, code = flow:predict { x = { 1, 2, 3 }, least = { 20 }, n = { shape = { 1 }, dtype = "int32", data = { 3 } } }
  if not looped then return nil, message, code end
  asset, message, code = package_of("spec/fixtures/aimodel/apple.aimodel", { threads = 1 })
  if not asset then return nil, message, code end
  states, message, code = asset:state()
  if not states then return nil, message, code end
  local function ids(a, b) return { shape = { 1, 2 }, dtype = "int32", data = { a, b } } end
  for i = 0, 2, 2 do
    step, message, code = asset:predict({ input_ids = ids(3 + i, 4 + i), pos = ids(i, i + 1) }, states)
    if not step then return nil, message, code end
  end
  return looped.y:tostring() .. step.logits:tostring()
end

-- Weights of a small matrix.
local PLAIN = {}
for i = 1, 64 do PLAIN[i] = math.sin(i * i) end

local FOLDER, ADAPTER = "spec/fixtures/hf/llama", "spec/fixtures/hf/lora_llama"

-- Loads a model with an adapter beside its weights or merged into them.
local function adapter_scenario(merge)
  local function load_with()
    return ane.load(FOLDER, { threads = 1, context = 64, adapters = ADAPTER, merge = merge })
  end
  local scenario = with_value(function() return NOTHING end, function()
    local model <close>, message, code = load_with()
    if not model then return nil, message, code end
    local result
    result, message, code = model:generate(PROMPT, { max_tokens = 4, ignore_eos = true, details = true })
    return result and result.ids, message, code
  end, function(ids) return table.concat(ids, " ") end)
  scenario.writes = true
  return scenario
end

-- Makes a grammar of each kind and matches a text with it.
local function make_grammars()
  local out = {}
  for _, one in ipairs {
    { "json_schema", '{"type":"object","properties":{"a":{"type":"integer","minimum":3},"b":{"enum":["x",null]}},"required":["a"]}',
      '{"a": 30}' },
    { "regex", "(a|b)+[0-9]{2,5}\\p{L}*", "ab123z" }, { "gbnf", 'root ::= "a" (x | root)\nx ::= [b-z]{2}', "aabc" },
    { "lark", 'start: WORD ("," WORD)*\nWORD: /[a-z]+/', "a,bc" },
  } do
    local g, message, code = grammar[one[1]](one[2])
    if not g then return nil, message, code end
    local taken
    taken, message, code = g:matches(one[3])
    if taken == nil then return nil, message, code end
    out[#out + 1] = tostring(taken)
  end
  return out
end

-- The vectors of two texts.
local function embed(model)
  local result, message, code = model:embed({ "a cat on the mat", "the moon" }, { details = true })
  return result and result.embeddings, message, code
end

local function joined(list) return table.concat(list, " ") end

local function open_model(path)
  return function() return assert(ane.load(path, { threads = 1 })) end
end

-- Fetches a file from a hub on loopback (spec/support/hub.py), which ends with this process. What a failed call has left, the next one
-- continues or removes.
local function pull_scenario(folder)
  local port, input
  local function start()
    local ports = os.tmpname()
    input = assert(io.popen(("exec python3 spec/support/hub.py /dev/null >'%s' 2>/dev/null"):format(ports), "w"))
    local deadline = core.clock() + 120
    repeat
      core.sleep(0.02)
      port = assert(core.read_file(ports)):match "^(%d+) %d+\n"
    until port or core.clock() > deadline
    os.remove(ports)
    local env = { HF_HOME = folder .. "/hf", HOME = folder, HF_ENDPOINT = "http://127.0.0.1:" .. assert(port, "no hub") }
    os.getenv = function(name) return env[name] end -- luacheck: ignore 122
  end
  local function run()
    return hub.pull("hf:org/one", { client = { wait = function() end, tries = 2 } })
  end
  return {
    prepare = function()
      if not input then start() end
      remove(folder)
      return NOTHING
    end,
    run = run,
    check = function(_, ok, value)
      collectgarbage() -- where even the call of a finaliser had no memory, a lock ends now
      local path, message = run()
      if not path then return "cannot be repeated: " .. message end
      if ok and value and value ~= path then return "it gives " .. value end
      for _, name in ipairs(tree(folder)) do
        if name:find "incomplete$" then return "left behind: " .. name end
      end
      if core.file_size(path) ~= 1000 then return "the file has another length" end
    end,
    finish = function() if input then input:close() end end,
  }
end

-- A compensated quantisation whose notes and states are kept; `ends` raises where half of the tensors are written.
local function quantise_noted(path, ends)
  local options = { weights = "q8_0", method = "gptq", transform = "rotate", resume = true }
  options.calibrate = { { 1, 5, 9, 17, 3, 8, 2, 4 }, { 6, 7, 11 } }
  options.progress = ends and function(stage, done, of)
    if stage == "quantise" and done * 2 > of then error("ended", 0) end
  end
  return function(model)
    notes.INTERVAL, notes.PAUSE = 0, 0 -- a state after each window
    return model:quantise(path, options)
  end
end

-- A quantisation whose norms are tuned on few and short windows.
local function quantise_tuned(path)
  local list = {}
  for i = 1, 8 do list[i] = { i, 5, 9, 17, 3, 8 + i, 2, 4 } end
  return function(model)
    tune.WINDOW, tune.BATCH, tune.MOST, tune.HELD, tune.LEAST, tune.FURTHER, tune.RATE = 4, 2, 6, 2, 4, 24, 0.0001
    local options = { weights = "int4-block", method = "gptq", tune = "norms", tokens = 24, calibrate = list }
    local report, message, code = model:quantise(path, options)
    assert(not report or report.tuned.changed)
    return report, message, code
  end
end

return function(folder)
  local list = {
    load = load_scenario(MODEL, 1),
    load_words = load_scenario(WORDS, 2),
    load_folder = load_scenario("spec/fixtures/hf/llama", 2),
    load_onnx = load_scenario("spec/fixtures/onnx/odd", 1),
    predict = with_value(function() return NOTHING end, predict, tostring),
    generate = with_model(MODEL, function(model)
      return model:generate(PROMPT, { max_tokens = 4, ignore_eos = true })
    end),
    generate_threads = with_model(WORDS, function(model)
      return model:generate("Once upon", { max_tokens = 4, temperature = 0.8, seed = 1, stop = { "zz" } })
    end, 2),
    pool = with_model(MODEL, run_pool),
    quantise = with_output(folder, MODEL, function(model)
      return model:quantise(folder .. "/out.gguf", { weights = "q8_0" })
    end),
    export = with_output(folder, MODEL, function(model)
      return model:export(folder .. "/out", { weights = "int8", layers = 4, context = 64 })
    end, { resumes = true }),
    export_coreai = with_output(folder, MODEL, function(model)
      return model:export(folder .. "/out", { weights = "int8", target = "coreai", context = 16, fixed_t = { 4 } })
    end, { resumes = true }),
    quantise_rotated = with_output(folder, ROTATABLE, function(model)
      local options = { weights = "q8_0", method = "gptq", transform = "rotate", calibrate = { { 1, 5, 9, 17, 3, 8, 2, 4 }, { 6, 7, 11 } } }
      return model:quantise(folder .. "/out.gguf", options)
    end, { resumes = true }),
    quantise_tuned = with_output(folder, WORDS, quantise_tuned(folder .. "/out.gguf"), { resumes = true }),
    quantise_resumed = with_output(folder, ROTATABLE, quantise_noted(folder .. "/out.gguf"), {
      resumes = true,
      before = function(model)
        local ok, message = pcall(quantise_noted(folder .. "/out.gguf", true), model)
        assert(not ok and message == "ended", message)
        assert(core.path_kind(folder .. "/out.gguf.journal") and core.path_kind(folder .. "/out.gguf.part.state"))
      end,
    }),
    export_embedding = with_output(folder, EMBEDDING, function(model)
      return model:export(folder .. "/out", { weights = "int8", context = 16 })
    end, { resumes = true }),
    compare = with_value(function()
      local a, b = load(MODEL), load(MODEL)
      return { a = a, b = b, close = function() a:close() b:close() end }
    end, function(models)
      return compare.run(models.a, models.b, { 1, 17, 30, 5, 9, 2, 8, 3 }, { chunk = 4 })
    end, function(report) return joined { report.tokens, report.kl.mean, report.top1, report.perplexity.a } end),
    save = session_scenario(folder, false, function(thing) return thing.session:save(thing.path, "note") end),
    restore = session_scenario(folder, true, function(thing) return thing.session:restore(thing.path) end),
    batch = batch_scenario(folder),
    serve = serve_scenario(false),
    serve_tls = serve_scenario(true),
    serve_handshake = handshake_scenario(folder),
    adapter = adapter_scenario(false),
    adapter_merged = adapter_scenario(true),
    embed = with_value(open_model "spec/fixtures/hf/bert", embed, function(vectors) return vectors:tostring() end),
    rerank = with_value(open_model "spec/fixtures/hf/cross_encoder", function(model)
      return model:rerank("a cat", { "the moon", "a cat on the mat" })
    end, joined),
    grammar = with_value(function() return NOTHING end, make_grammars, joined),
    constrained = with_model(WORDS, function(model)
      local g, message, code = grammar.regex "[a-z]{2,6} [0-9]+"
      if not g then return nil, message, code end
      return model:generate("Once", { max_tokens = 4, grammar = g })
    end),
    weights = with_value(function() return NOTHING end, function()
      return core.testing.encode_weights("int4-block", "fp32", ("<f"):rep(64):pack(table.unpack(PLAIN)), 2, 32)
    end, function(w) return w.payload .. w.scales .. w.values end),
    plan_ranks = with_value(function()
      remove(folder)
      assert(core.write_file(folder .. "/hosts", "here slots=2 read=10 compute=100\n")) -- so that nothing is measured
      return NOTHING
    end, function()
      return ranks.of_path(MODEL, schema.check(ranks.rules, { hosts = folder .. "/hosts" }, "plan", 2))
    end, function(plan) return joined { plan.weights, plan.state, plan.ranks[2].weights } end),
    pull = pull_scenario(folder),
  }
  return list
end
