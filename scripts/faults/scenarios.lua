--- What is done while calls fail. Each scenario has
--   prepare()                          -> a thing; without faults
--   run(thing)                         -> true; or nil, message, code; may raise
--   check(thing, ok, value, message, code) -> nil; or what is wrong. ok: run returned; without faults. Closes what prepare opened.
--   writes                             the code of a failed system call is "io" and its message names a path in the folder
-- Usage: `local list = require("scenarios")(folder)`; the folder is used and emptied by the scenarios.

local ane = require "ane"
local core = require "ane.core"

local MODEL = "spec/fixtures/gguf/llama-odd.gguf"
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

-- Faults while a file or folder OUT is written: it is whole or as before, and nothing lies beside it.
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
  for i = 1, 3 do
    replies[i], message, code = pool:add({ 1, 17, 30 + i }, { max_tokens = 3 + i, ignore_eos = true })
    if not replies[i] then return nil, message, code end
  end
  pool:run()
  for _, reply in ipairs(replies) do
    if reply.error then return nil, reply.error, reply.code end
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

local function serve_scenario()
  return {
    prepare = function() return { model = load(WORDS) } end,
    run = function(thing)
      local server, message, code = ane.serve(thing.model, { port = 0 })
      thing.server = server
      return server and true, message, code
    end,
    check = function(thing)
      if thing.server then thing.server:close() end
      local server, message = ane.serve(thing.model, { port = 0 })
      local problem = not server and "cannot be started again: " .. message or nil
      if server then server:close() end
      problem = problem or usable(thing.model, WORDS)
      thing.model:close()
      return problem
    end,
  }
end

return function(folder)
  local list = {
    load = load_scenario(MODEL, 1),
    load_words = load_scenario(WORDS, 2),
    load_folder = load_scenario("spec/fixtures/hf/llama", 2),
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
    save = session_scenario(folder, false, function(thing) return thing.session:save(thing.path, "note") end),
    restore = session_scenario(folder, true, function(thing) return thing.session:restore(thing.path) end),
    batch = batch_scenario(folder),
    serve = serve_scenario(),
  }
  return list
end
