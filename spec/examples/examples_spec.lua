-- Each example runs on a tiny model.
local core = require "ane.core"
local hf = require "support.hf"
local tiny = require "support.tiny"
local tree = require "support.tree"

-- Runs an example; what it wrote.
local function run(name, args, input)
  local parts, at = {}, 0
  local lines = input or {}
  local function write(...)
    parts[#parts + 1] = table.concat({ ... })
    return true
  end
  local fake_io = setmetatable({
    write = write, flush = function() end,
    read = function()
      at = at + 1
      return lines[at]
    end,
  }, { __index = io })
  local env = setmetatable({
    arg = args, io = fake_io,
    print = function(...)
      local texts = table.pack(...)
      for i = 1, texts.n do texts[i] = tostring(texts[i]) end
      write(table.concat(texts, "\t"), "\n")
    end,
  }, { __index = _G })
  assert(loadfile("examples/" .. name .. ".lua", "t", env))()
  return table.concat(parts)
end

describe("examples", function()
  it("say how they are called where arguments are missing", function()
    for _, path in ipairs(tree.files("examples", "lua")) do
      local lua = ("LUA_PATH='%s' LUA_CPATH='%s' lua5.4"):format(package.path, package.cpath)
      local ok, text = tree.run(("%s %s 2>&1; test $? = 2"):format(lua, path))
      assert.is_true(ok, path)
      assert.matches("^usage: lua5.4 " .. path:gsub("%p", "%%%0") .. " %u", text)
    end
  end)

  it("hello", function()
    local out = run("hello", { tiny.path(), "Hello" })
    assert.matches("^model %(llama", out)
    assert.matches("\nHello", out)
    assert.matches("ended by %a+\n$", out)
  end)

  it("agent", function()
    local folder = tree.folder()
    assert(core.write_file(folder .. "/notes.txt", "Ada comes on Tuesday.\nBuy milk.\n"))
    local script = tree.read "examples/agent.lua"
    -- The tiny model's template takes no tools: its calls are those of a script.
    local said = {
      { nil, { { id = "1", ["function"] = { name = "calculate", arguments = '{"expression": "2^3 * (1 + 2)"}' } },
        { id = "2", ["function"] = { name = "search", arguments = '{"text": "ada"}' } },
        { id = "3", ["function"] = { name = "calculate", arguments = '{"expression": "os.exit()"}' } } } },
      { "Done." },
    }
    local results
    local chat = setmetatable({ say = function(_, what)
      if type(what) == "table" then results = what end
      local turn = table.remove(said, 1)
      return turn[1] or "", turn[2]
    end }, { __close = function() end })
    local model = setmetatable({ chat = function() return chat end }, { __close = function() end })
    local out = {}
    local env = setmetatable({
      arg = { "model", folder, "Now?" },
      io = setmetatable({ write = function(...) out[#out + 1] = table.concat { ... } end }, { __index = io }),
      require = function() return { load = function() return model end, tools = require "ane.tools" } end,
    }, { __index = _G })
    assert(load(script, "agent", "t", env))()
    assert.matches('calculate {"expression": "2^3 %* %(1 %+ 2%)"} %-> 24', table.concat(out))
    assert.matches("Done.\n$", table.concat(out))
    assert.equal(folder .. "/notes.txt: Ada comes on Tuesday.", results[2].content)
    assert.matches("^only numbers", results[3].content)
    tree.remove(folder)
  end)

  it("luv", function()
    local there, uv = pcall(require, "luv")
    if not there then
      print "examples/luv.lua is not run: there is no luv (Debian: lua-luv)"
      return
    end
    local out = uv.new_pipe()
    local env = { "LUA_PATH=" .. package.path, "LUA_CPATH=" .. package.cpath }
    for _, name in ipairs { "PATH", "LD_PRELOAD", "ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS" } do -- the sanitizers' among them
      if os.getenv(name) then env[#env + 1] = name .. "=" .. os.getenv(name) end
    end
    local process = assert(uv.spawn("lua5.4", {
      args = { "examples/luv.lua", tiny.path() }, stdio = { nil, out, nil }, env = env,
    }, function() end))
    local port, replies, ended, stuck = nil, {}, 0, uv.new_timer()
    local in_pieces = false -- did a part of a reply come before its end?
    -- A client that says its lines and waits for the end of the replies, or leaves at the first piece.
    local function talk(i, lines, leaves)
      local client = uv.new_tcp()
      replies[i] = ""
      client:connect("127.0.0.1", port, function(failed)
        assert(not failed, failed)
        client:write(lines, function() if not leaves then client:shutdown() end end)
        client:read_start(function(_, bytes)
          if bytes then
            in_pieces = in_pieces or i > 1 and not leaves and replies[i] ~= "" and bytes ~= "\n"
            replies[i] = replies[i] .. bytes
            if not leaves then return end
          end
          client:close()
          ended = ended + 1
          if ended < 4 then return end
          if in_pieces then return uv.stop() end
          talk(ended + 1, "Once more\n") -- this process may have slept while the replies were made
        end)
      end)
    end
    out:read_start(function(_, bytes)
      port = port or bytes and tonumber(bytes:match "port (%d+)")
      if not port or replies[1] then return end
      talk(1, "Once upon a time\nThe end\n")
      talk(2, "The sky\n")
      talk(3, "One, two")
      talk(4, "Gone\n", true)
    end)
    stuck:start(300000, 0, function() uv.stop() end)
    uv.run()
    process:kill "sigint"
    out:close()
    stuck:close()
    uv.run()
    assert(ended >= 4, ended .. " of 4 clients have their replies")
    for i = 1, 3 do assert.matches("\n$", replies[i]) end
    assert.is_true(in_pieces, "the replies came in one piece")
  end)

  it("search", function()
    local folder = tree.folder()
    assert(core.write_file(folder .. "/a.txt", "The cat sat on the mat.\n\nParis is the capital of France.\n"))
    assert(core.write_file(folder .. "/b.txt", "Rain falls from clouds."))
    local question = "Paris is the capital of France."
    local out = run("search", { hf.path "bert", folder, question })
    assert.matches("^1.000  " .. folder:gsub("%p", "%%%0") .. "/a.txt: Paris is the capital of France.\n", out)
    local ranked = run("search", { hf.path "bert", folder, question, hf.path "cross_encoder" })
    local function lines(text)
      local list = {}
      for line in text:gmatch "[^\n]+" do list[#list + 1] = line end
      table.sort(list)
      return list
    end
    assert.equal(3, #lines(out))
    assert.same(lines(out), lines(ranked))
    tree.remove(folder)
  end)

  it("many", function()
    local out = run("many", { tiny.path(), "2" })
    for _, name in ipairs { "Ada", "Ivy" } do
      for turn = 1, 2 do assert.matches(("%s, turn %d: "):format(name, turn), out) end
    end
    assert.matches("%d+ steps, %d+ tokens of prompts computed and [1-9]%d* known already", out)
  end)

  it("stream", function()
    local out = run("stream", { tiny.path() })
    assert.matches("^Once upon a time", out)
    assert.matches("\n%[%a+%]\n", out)
    assert.matches("\nb: ", out)
  end)

  it("speculate", function()
    assert.matches("\n%[64 tokens in %d+ calls%]\n$", run("speculate", { tiny.path() }))
    local lines = 0
    for line in io.lines "examples/speculate.lua" do
      lines = lines + (line:find "%S" and not line:find "^%-%-" and 1 or 0)
    end
    assert.is_true(lines <= 31)
  end)

  it("port_a_model", function()
    local out = run("port_a_model", { "spec/fixtures/check/gemma" })
    assert.matches("== as llama.-cause: embedding scale.-sqrt%(d_model%).-not ok", out)
    assert.matches("== with the embedding scaled.-cause: norm convention.-not ok", out)
    assert.matches("== with norms by 1 %+ w.-\nok\n", out)
    assert.matches("tensor %[3, 32%]", out)
  end)

  it("make_golden.py is a page", function()
    local lines = 0
    for line in io.lines "examples/make_golden.py" do
      lines = lines + 1
      assert.is_true(#line <= 140)
    end
    assert.is_true(lines <= 30)
  end)

  it("chat", function()
    local out = run("chat", { tiny.path(), "Be brief." }, { "Hi", "" })
    assert.matches("^> ", out)
    assert.matches("3 messages; of the last prompt's %d+ tokens 0 were known\n$", out)
  end)
end)
