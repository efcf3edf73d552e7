-- Objects that are dropped or closed in any order, in coroutines and callbacks, and in several Lua states and threads at once.
local ane = require "ane"
local core = require "ane.core"
local draws = require "support.draws"
local hf = require "support.hf"
local tiny = require "support.tiny"
local tree = require "support.tree"

local PATH = tiny.path "llama-odd"
local PROMPT = { 1, 17, 30 }
local OPTS = { max_tokens = 3, ignore_eos = true, details = true }

local function ids_of(model) return table.concat(assert(model:generate(PROMPT, OPTS)).ids, " ") end

local want
setup(function()
  local model <close> = assert(ane.load(PATH))
  want = ids_of(model)
end)

-- Everything that hangs on a model: name, the object, a use of it that returns what must stay the same.
local function family()
  local model = assert(ane.load(PATH, { threads = 2, context = 64 }))
  local session = assert(model:session())
  assert(session:feed(PROMPT))
  local logits = session:logits(-1)
  local pool = assert(model:pool { sessions = 2 })
  local request = assert(pool:add(PROMPT, { max_tokens = 3, ignore_eos = true }))
  return {
    { model, function(m) return ids_of(m) end },
    { session, function(s) return s:argmax() end },
    { session:fork(), function(s) return s.length end },
    { logits, function(t) return t:totable()[1] end },
    { pool, function(p) return p:stats() ~= nil end },
    { request, function(r) return r.ids ~= nil end },
  }
end

local function shuffled(random, list)
  for i = #list, 2, -1 do
    local k = 1 + random(i)
    list[i], list[k] = list[k], list[i]
  end
  return list
end

describe("objects of a model", function()
  it("live as long as they are held, whatever is collected before them", function()
    for seed = 1, 12 do
      local list = shuffled(draws.numbers(seed), family())
      local before = {}
      for i, entry in ipairs(list) do before[i] = entry[2](entry[1]) end
      for i = 1, #list do
        list[i][1] = nil
        collectgarbage()
        collectgarbage()
        for k = i + 1, #list do assert.equal(before[k], list[k][2](list[k][1]), ("seed %d: %d after %d"):format(seed, k, i)) end
      end
    end
  end)

  it("raise or fail with a message after the model was closed, in any order of closing", function()
    for seed = 1, 12 do
      local list = shuffled(draws.numbers(seed), family())
      for _, entry in ipairs(list) do
        local close = type(entry[1]) ~= "number" and entry[1].close
        if close then
          close(entry[1])
          close(entry[1]) -- twice is fine
        end
        for _, other in ipairs(list) do pcall(other[2], other[1]) end
      end
      collectgarbage()
    end
  end)

  it("may be closed in a callback of their own run: the run ends, the process does not", function()
    for _, what in ipairs { "model", "session" } do
      local model = assert(ane.load(PATH))
      local held = what == "session" and assert(model:session()) or model
      local seen = 0
      pcall(model.generate, model, PROMPT, { max_tokens = 5, ignore_eos = true, session = what == "session" and held or nil,
        logits_processor = function()
          seen = seen + 1
          held:close()
        end })
      assert.is_true(seen > 0, what)
      model:close()
    end
  end)

  it("may be closed in a callback that reports the progress of many runs: the call fails", function()
    local ids, lists, texts = {}, {}, {}
    for i = 1, 300 do ids[i] = i % 100 end
    for i = 1, 70 do lists[i], texts[i] = ids, ("moon "):rep(40) end
    local text = ("Hello world, this is a text. "):rep(20)
    local other <close> = assert(tiny.load())
    for what, case in pairs {
      classify = { hf.path "privacy_filter", function(m, f) return m:classify(ids, { window = 70, progress = f }) end },
      classify_many = { hf.path "privacy_filter", function(m, f) return m:classify_many(lists, { progress = f }) end },
      embed = { hf.path "bert", function(m, f) return m:embed(texts, { progress = f }) end },
      rerank = { hf.path "cross_encoder", function(m, f) return m:rerank("a cat", texts, { progress = f }) end },
      gate = { tiny.path(), function(m, f) return ane.gate(m, other, text, { progress = f, chunk = 64 }) end },
      calibrate = { tiny.path(), function(m, f) return ane.calibrate(m, { samples = 100 }, { progress = f }) end },
      sensitivity = { tiny.path(), function(m, f) return ane.sensitivity(m, { samples = 100 }, { progress = f }) end },
      gate_hidden = { tiny.path(), function(m, f) return ane.gate(other, m, text, { hidden = f }) end },
    } do
      local model <close> = assert(ane.load(case[1]))
      local result, message, code = case[2](model, function() model:close() end)
      assert.same({ "nil", "the model was closed by a callback", "state" }, { tostring(result), message, code }, what)
    end
  end)

  it("may be dropped with a coroutine that never ends", function()
    for _ = 1, 5 do
      local step = coroutine.wrap(function()
        local model = assert(ane.load(PATH))
        for piece in assert(model:stream(PROMPT, { max_tokens = 8, ignore_eos = true })) do coroutine.yield(piece) end
      end)
      step()
      step = nil -- luacheck: ignore 311
      collectgarbage()
      collectgarbage()
    end
  end)

  it("leave no file open and no thread after many loads", function()
    if core.path_kind "/proc/self/fd" ~= "folder" then return pending "open files cannot be counted here" end
    local function count() return #core.list_dir "/proc/self/fd", #core.list_dir "/proc/self/task" end
    collectgarbage()
    local files, threads = count()
    for _ = 1, 60 do
      local model = assert(ane.load(PATH, { threads = 2 }))
      assert(model:generate(PROMPT, { max_tokens = 1 }))
      model:close()
    end
    local files_after, threads_after = count()
    assert.same({ files, threads }, { files_after, threads_after })
  end)
end)

describe("Lua states in threads of their own", function()
  it("load, run and close models at the same time", function()
    local folder = tree.folder()
    local built, text = tree.run(("gcc -O1 -o %s/states spec/support/states.c -I/usr/include/lua5.4 -llua5.4 -lpthread"):format(folder))
    if not built then
      tree.remove(folder)
      return pending("needs a compiler and the library of Lua: " .. text:sub(1, 60))
    end
    assert(core.write_file(folder .. "/program.lua", ([[
      package.path, package.cpath = %q, %q
      local ane = require "ane"
      for i = 1, 6 do
        local model = assert(ane.load(%q, { threads = 1 + (i + THREAD) %% 2 }))
        local ids = assert(model:generate({ 1, 17, 30 }, { max_tokens = 3, ignore_eos = true, details = true })).ids
        assert(table.concat(ids, " ") == %q, table.concat(ids, " "))
        if i %% 2 == 0 then model:close() end
      end
    ]]):format(package.path, package.cpath, PATH, want)))
    local ok
    ok, text = tree.run(folder .. "/states 4 " .. folder .. "/program.lua")
    tree.remove(folder)
    assert.is_true(ok, text)
  end)
end)
