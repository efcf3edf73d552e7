-- Models over the ranks of mpirun, where it and the module ane.mpi are there: bits, commands, and failures that end all ranks.
local command = require "support.command"
local core = require "ane.core"
local tiny = require "support.tiny"
local tree = require "support.tree"

local here = select(2, tree.run "pwd"):gsub("\n", "/")

-- Why it cannot run here; nil: it can.
local function missing()
  if not tree.has "mpirun" then return "mpirun is not installed" end
  if not pcall(require, "ane.mpi") then return "the module ane.mpi is not built: make mpi" end
end

local function path_of(name) return here .. "spec/fixtures/" .. name end

-- Runs `ane` with these words as n ranks. `each` is shell that each rank runs first, with its number in $rank; `beside` is shell that
-- runs beside them.
-- @return did it succeed, standard output, standard error
local function run(n, words, each, beside)
  local folder <close> = setmetatable({ path = tree.folder() }, { __close = function(f) tree.remove(f.path) end })
  local open_mpi = tree.run("mpirun --version | grep -q 'Open MPI'")
  assert(core.write_file(folder.path .. "/rank.sh", ([[
    rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; echo $$ > pid.$rank
    %s
    exec '%s' "$@"
  ]]):format(each or "", here .. command.path())))
  local quoted = {}
  for i, word in ipairs(words) do quoted[i] = "'" .. word:gsub("'", "'\\''") .. "'" end
  local ok = tree.run(([[
    cd '%s'; export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    timeout 400 mpirun %s -n %d sh rank.sh %s > out 2> err < /dev/null & job=$!
    %s
    wait $job
  ]]):format(folder.path, open_mpi and "--oversubscribe --bind-to none" or "", n, table.concat(quoted, " "), beside or ""))
  return ok, tree.read(folder.path .. "/out"), tree.read(folder.path .. "/err")
end

local function json(n, words)
  local all = table.move(words, 1, #words, 1, {})
  all[#all + 1] = "--json"
  local ok, out, err = run(n, all)
  assert(ok, err)
  return core.json_decode(out)
end

local function alone(words) return command.json(words) end

-- A list of ids between commas.
local function ids_of(n)
  local list = {}
  for i = 1, n do list[i] = i * 7 % 37 end
  return table.concat(list, ",")
end

describe("mpirun ane", function()
  -- Dense; windows; shared K and V; a mixture with windows and sinks; recurrent states.
  local MODELS = { "gguf/llama-mixed.gguf", "gguf/gemma3-q8_0.gguf", "hf/gemma3n-odd", "hf/gpt_oss_mxfp4-odd", "hf/qwen3_5-odd" }

  for i, name in ipairs(MODELS) do
    it("has the bits of one process: " .. name, function()
      if missing() then return pending(missing()) end
      local words = { "logits", path_of(name), "--ids", ids_of(5 + 63 * (i % 3)), "--top", "20" }
      local want = alone(words)
      for _, n in ipairs(i == 1 and { 2, 3, 4 } or { 2 + i % 3 }) do assert.same(want, json(n, words)) end
    end)
  end

  -- Dense; windows; state-space layers beside attention; recurrent states; biases; a softcap after the head. Two ranks divide the heads
  -- of the second and the last two.
  local DIVIDED = {
    "gguf/llama-mixed.gguf", "gguf/gemma3-q8_0.gguf", "hf/falcon_h1-odd", "hf/qwen3_5-odd", "gguf/qwen2-q4_0.gguf", "hf/gemma3_softcap",
  }

  for i, name in ipairs(DIVIDED) do
    it("has the bits of one process with matrices divided by rows: " .. name, function()
      if missing() then return pending(missing()) end
      local words = { "logits", path_of(name), "--ids", ids_of(5 + 63 * (i % 3)), "--top", "20" }
      local want = alone(words)
      table.insert(words, "--parallel")
      table.insert(words, "tensor")
      for _, n in ipairs(i == 1 and { 1, 2, 3, 4 } or i > 4 and { 2 } or { 2 + i % 3 }) do assert.same(want, json(n, words)) end
    end)
  end

  it("writes with divided rows what one process writes, greedy and with several threads", function()
    if missing() then return pending(missing()) end
    for _, name in ipairs { "gguf/llama-kquants.gguf", "hf/gemma3_softcap", "gguf/qwen2-q4_0.gguf" } do
      local words = { "run", path_of(name), "--ids", ids_of(40), "-n", "12", "--ignore-eos" }
      local want = alone(words).ids
      for _, word in ipairs { "--parallel", "tensor", "-t", "1" } do table.insert(words, word) end
      for threads = 1, 3 do
        words[#words] = tostring(threads)
        for _, n in ipairs(threads == 1 and { 2, 3, 4 } or { 2 }) do assert.same(want, json(n, words).ids) end
      end
    end
  end)

  it("has these bits however the rows travel: in messages, in shared memory, in parts of it", function()
    if missing() then return pending(missing()) end
    local folder <close> = setmetatable({ path = tree.folder() }, { __close = function(f) tree.remove(f.path) end })
    assert(core.write_file(folder.path .. "/rows.lua", [[
      local path, shared, divide = arg[1], tonumber(arg[2]), arg[3]
      require("ane.pipeline.team").SHARED = shared
      local ane = require "ane"
      if divide and assert(ane.ranks.join()) > 0 then return assert(ane.ranks.work { threads = 1 }) end
      local model = assert(ane.load(path, { ranks = divide and { parallel = "tensor" }, threads = 1 }))
      local session = assert(model:session())
      local ids, sum = {}, {}
      for i = 1, 41 do ids[i] = i * 7 % 37 end
      assert(session:feed(ids, { want = "all" }))
      for i = 1, 41 do sum[i] = session:logits(i):tostring() end
      for i = 1, 3 do
        assert(session:feed({ i }, { want = "argmax" }))
        sum[#sum + 1] = tostring(session:argmax())
      end
      session:close()
      model:close()
      print((table.concat(sum):gsub(".", function(c) return ("%02x"):format(c:byte()) end)))
      ane.ranks.leave()
    ]]))
    local path, cpath = package.path:gsub("%./", here), package.cpath:gsub("%./", here)
    local open_mpi = tree.run("mpirun --version | grep -q 'Open MPI'")
    local start = ("timeout 400 mpirun %s -n "):format(open_mpi and "--oversubscribe --bind-to none" or "")
    local function printed(first, shared, last)
      local ok, out = tree.run(([[
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LUA_PATH='%s' LUA_CPATH='%s'
        %s lua5.4 '%s/rows.lua' '%s' %d %s < /dev/null
      ]]):format(path, cpath, first, folder.path, path_of "gguf/llama-kquants.gguf", shared, last))
      assert(ok, out)
      return out
    end
    local want = printed("", 0, "")
    assert.is_true(#want > 64)
    -- 0: messages. 512: 32 floats fit, the rows of some steps do not. 4096: several parts.
    for _, shared in ipairs { 0, 512, 4096, 1 << 21 } do
      for _, n in ipairs { 2, 3 } do
        assert.is_true(want == printed(start .. n, shared, "divide"), ("%d ranks, %d bytes"):format(n, shared))
      end
    end
  end)

  it("divides weights by rows and states by heads; sampled replies, fp32 activations and saved states are those of one process", function()
    if missing() then return pending(missing()) end
    local folder <close> = setmetatable({ path = tree.folder() }, { __close = function(f) tree.remove(f.path) end })
    local model = path_of "gguf/llama-kquants.gguf" -- of 2 key-value heads
    local ranks = json(2, { "info", model, "--parallel", "tensor" }).ranks
    assert.equal(2, #ranks)
    for i, r in ipairs(ranks) do
      assert.is_true(r.stored_bytes < 1.2 * ranks[3 - i].stored_bytes)
      assert.is_true(r.sends > 0)
      assert.equal(512, r.kv_bytes_per_token) -- 1024 in one process
    end
    for _, r in ipairs(json(2, { "info", path_of "gguf/llama-q8_0.gguf", "--parallel", "tensor" }).ranks) do
      assert.equal(576, r.kv_bytes_per_token) -- rows of k are not divided equally: each rank has all heads
    end
    local words = {
      "run", model, "--ids", "1,2,3,4", "-n", "12", "--temperature", "0.9", "--seed", "5", "--activations", "fp32", "--ignore-eos",
    }
    local want = alone(words)
    for _, word in ipairs { "--parallel", "tensor", "--prompt-cache", folder.path .. "/cache" } do table.insert(words, word) end
    for _ = 1, 2 do
      local got = json(2, words)
      assert.equal(want.text, got.text)
      assert.same(want.ids, got.ids)
    end
  end)

  it("refuses to divide by rows what it cannot", function()
    if missing() then return pending(missing()) end
    local model = path_of "gguf/llama-mixed.gguf"
    for _, case in ipairs {
      { { "run", path_of "hf/gpt_oss_mxfp4-odd", "-p", "x" }, "experts of a mixture" },
      { { "run", model, "-p", "x", "--cut", "1" }, "cut applies to pipelines only" },
      { { "run", model, "-p", "x", "--weights", "int8" }, "--weights applies to pipelines only" },
      { { "run", model, "-p", "x", "--mixed", "*=int8" }, "--mixed applies to pipelines only" },
    } do
      table.insert(case[1], "--parallel")
      table.insert(case[1], "tensor")
      local ok, _, err = run(2, case[1])
      assert.is_false(ok)
      assert.is_truthy(err:find(case[2], 1, true), err)
    end
  end)

  it("writes what one process writes: greedy, sampled, several prompts, a chat", function()
    if missing() then return pending(missing()) end
    local model = path_of "gguf/llama-q8_0.gguf"
    for _, words in ipairs {
      { "run", model, "-p", "The sky", "-n", "20", "--ignore-eos" },
      { "run", model, "-p", "The sky", "-n", "12", "--temperature", "0.9", "--seed", "5", "--ignore-eos" },
      { "run", model, "-p", "One", "-p", "Two and", "-p", "Three", "-n", "9", "--ignore-eos", "--temperature", "1", "--seed", "2" },
    } do
      local want, got = alone(words), json(3, words)
      for _, reply in ipairs(want.replies or { want }) do reply.timings = nil end
      for _, reply in ipairs(got.replies or { got }) do reply.timings = nil end
      assert.same(want, got)
    end
    local words = { "chat", model, "-p", "Hello", "-n", "10" }
    local _, want = command.run(words)
    local ok, out, err = run(2, words)
    assert(ok, err)
    assert.equal(want, out)
  end)

  it("saves and goes on with a prompt, each rank its own part", function()
    if missing() then return pending(missing()) end
    local folder <close> = setmetatable({ path = tree.folder() }, { __close = function(f) tree.remove(f.path) end })
    local cache = folder.path .. "/cache"
    local words = { "run", path_of "hf/qwen3_5-odd", "--ids", ids_of(30), "-n", "8", "--prompt-cache", cache }
    local first = json(2, words)
    assert.is_truthy(tree.read(cache))
    assert.is_truthy(tree.read(cache .. ".rank1"))
    local again = json(2, words)
    assert.same(first.ids, again.ids)
    assert.is_true(again.timings.cached_tokens > 0)
  end)

  it("shows what each rank holds, and cuts where it is told to", function()
    if missing() then return pending(missing()) end
    local info = json(3, { "info", path_of "gguf/llama-mixed.gguf", "--cut", "1,2" })
    assert.equal(3, #info.ranks)
    local stored = 0
    for i, r in ipairs(info.ranks) do
      assert.equal(i - 1, r.rank)
      assert.equal(i - 1, r.first)
      assert.is_true(r.resident > 0)
      stored = stored + r.stored_bytes
    end
    assert.is_true(info.ranks[1].sends > 0)
    assert.equal(0, info.ranks[3].sends)
    assert.is_true(info.ranks[1].stored_bytes < stored / 2)
    local rows = 0
    for _, r in ipairs(info.ranks) do rows = rows + r.head_rows end
    assert.equal(info.vocab or rows, rows)
    assert.is_true(info.ranks[1].head_rows > 0 and info.ranks[3].head_rows > 0)
  end)

  it("says once what is wrong, and ends", function()
    if missing() then return pending(missing()) end
    local model = path_of "gguf/llama-mixed.gguf"
    for _, case in ipairs {
      { { "run", "/no/such/file", "-p", "x" }, "/no/such/file: No such file" },
      { { "run", model, "-p", "x", "--cut", "7" }, "no layer 7" },
      { { "run", model, "-p", "x", "--cut", "1,2" }, "2 layers, but 2 ranks need 1" },
      { { "run", model, "--nonsense" }, "unknown option" },
      { { "run", model, "--ids", "1,99999999" }, "99999999" },
    } do
      local ok, _, err = run(2, case[1])
      assert.is_false(ok)
      local _, count = err:gsub("ane run: ", "")
      assert.equal(1, count, err)
      assert.is_truthy(err:find(case[2], 1, true), err)
    end
  end)

  it("cannot start again in a process where it has ended, and leaves the process alive", function()
    if missing() then return pending(missing()) end
    local code = 'local mpi = require "ane.mpi"; assert(mpi.init()); mpi.finish(); mpi.finish(); local r, m, c = mpi.init(); '
      .. 'print(r, c, m)'
    local pipe <close> = assert(io.popen(("LUA_CPATH='%s' lua5.4 -e '%s' 2>&1"):format(package.cpath, code)))
    assert.equal("nil\tstate\tMPI: has ended in this process and cannot start again\n", pipe:read "a")
  end)

  it("names the rank that has another model, or none", function()
    if missing() then return pending(missing()) end
    for _, case in ipairs {
      { "llama-q8_0.gguf", "has another model than rank 0" },
      { "no-such.gguf", "No such file" },
    } do
      local each = ([[ mkdir -p $rank; cd $rank; ln -s '%s' m.gguf ]])
      local link = ([[ f=llama-mixed.gguf; [ $rank = 1 ] && f=%s; %s ]]):format(case[1], each:format(path_of "gguf" .. "/'$f'"))
      local ok, _, err = run(3, { "run", "m.gguf", "-p", "x" }, link)
      assert.is_false(ok)
      assert.is_truthy(err:find("rank 1 (", 1, true) and err:find(case[2], 1, true), err)
    end
  end)

  it("delivers a large message while its sender computes", function()
    if missing() then return pending(missing()) end
    local folder <close> = setmetatable({ path = tree.folder() }, { __close = function(f) tree.remove(f.path) end })
    local sign = folder.path .. "/sign"
    assert(core.write_file(folder.path .. "/send.lua", ([[
      local mpi, core = require "ane.mpi", require "ane.core"
      local sign, came = %q, false
      if mpi.init() == 0 then
        mpi.send(1, ("x"):rep(1 << 23))
        local started = core.clock()
        repeat came = core.read_file(sign) ~= nil until came or core.clock() - started > 300 -- no call of MPI
        print(came)
      else
        repeat local rank, bytes = mpi.poll(10) until rank
        core.write_file(sign, "came")
      end
      mpi.finish()
    ]]):format(sign)))
    -- Without single copies, as over networks, MPI needs the sender for each part of the message.
    local path, cpath = package.path:gsub("%./", here), package.cpath:gsub("%./", here)
    local open_mpi = tree.run("mpirun --version | grep -q 'Open MPI'")
    local ok, out = tree.run(([[
      export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LUA_PATH='%s' LUA_CPATH='%s'
      timeout 400 mpirun %s -n 2 lua5.4 '%s/send.lua' < /dev/null
    ]]):format(path, cpath, open_mpi and "--oversubscribe --bind-to none --mca btl tcp,self" or "", folder.path))
    assert(ok, out)
    assert.matches("true", out)
  end)

  it("ends where a rank dies", function()
    if missing() then return pending(missing()) end
    local ok = run(3, { "serve", tiny.path():gsub("^", here), "--port", "0" }, nil, [[
      until grep -q "listens on" out || ! kill -0 $job; do sleep 0.1; done
      kill -KILL $(cat pid.1)
    ]])
    assert.is_false(ok)
  end)
end)
