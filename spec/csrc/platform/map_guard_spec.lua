-- Mapped files that another program truncates: an error that names the file, and a process that lives on.
local core = require "ane.core"
local tiny = require "support.tiny"
local tree = require "support.tree"

local folder
before_each(function() folder = tree.folder() end)
after_each(function() tree.remove(folder) end)

-- Runs a program in its own process, with `path` a copy of the tiny model. Returns whether it ended well, and what it wrote.
local function run(code, more)
  local path, script = folder .. "/model.gguf", folder .. "/program.lua"
  assert(core.write_file(path, tree.read(tiny.path())))
  assert(core.write_file(script, ([[
    package.path, package.cpath = %q, %q
    local ane, core = require "ane", require "ane.core"
    local path, folder = %q, %q
    local function truncate() assert(io.open(path, "wb")):close() end -- in place: the mapping loses its pages
    local function said(message, code)
      assert(code == "io" and message:find(path, 1, true) and message:find "was truncated", tostring(message))
    end
  ]]):format(package.path, package.cpath, path, folder) .. code))
  return tree.run((more or "") .. (os.getenv "LUA" or "lua5.4") .. " " .. script)
end

local function holds(code)
  local ok, text = run(code .. '\nprint "lived on"')
  assert(ok and text == "lived on\n", text)
end

describe("a model file that is truncated in place", function()
  it("while the model is used, ends the run and every later one; other models are not touched", function()
    holds [[
      local other = assert(ane.load(path:gsub("model", "copy") and "spec/fixtures/gguf/llama-odd.gguf"))
      local model = assert(ane.load(path, { threads = 2 }))
      local want = assert(other:generate({ 1, 2, 3 }, { max_tokens = 3, details = true })).ids
      truncate()
      for i = 1, 2 do
        local result, message, code = model:generate("Once", { max_tokens = 2 })
        assert(result == nil)
        said(message, code)
      end
      local got = assert(other:generate({ 1, 2, 3 }, { max_tokens = 3, details = true })).ids
      assert(table.concat(got, " ") == table.concat(want, " "))
      local written, message, code = core.write_file(folder .. "/out", "x") -- may come from the broken file
      assert(written == nil)
      said(message, code)
      model:close()
      assert(core.write_file(folder .. "/out", "x"))
    ]]
  end)

  it("while it is loaded, ends the load", function()
    holds [[
      local model, message, code = ane.load(path, { progress = function() truncate() end })
      assert(model == nil)
      said(message, code)
      collectgarbage()
      assert(ane.load "spec/fixtures/gguf/llama-odd.gguf"):close()
    ]]
  end)

  it("while it is quantised or exported, leaves no output", function()
    holds [[
      local model = assert(ane.load(path))
      local ok, message, code = model:quantise(folder .. "/out.gguf", { weights = "q8_0", progress = function() truncate() end })
      assert(ok == nil)
      said(message, code)
      ok, message, code = model:export(folder .. "/set", {})
      assert(ok == nil)
      said(message, code)
      assert(not core.path_kind(folder .. "/out.gguf") and not core.path_kind(folder .. "/set"))
    ]]
  end)
end)

describe("a model file that is truncated while an asset is exported", function()
  it("leaves nothing that the next export takes over", function()
    holds [[
      local text = assert(core.read_file(path))
      local exporter = require "ane.coreml.export"
      local function export(out, progress)
        return exporter.of_path(path, folder .. "/" .. out, { target = "coreai", context = 16, progress = progress })
      end
      local calls = 0
      local ok = pcall(export, "set", function()
        calls = calls + 1
        if calls == 2 then truncate() end
        if calls == 6 then error "stop" end
      end)
      assert(not ok or calls < 6)
      collectgarbage()
      local f = assert(io.open(path, "wb"))
      f:write(text)
      f:close()
      local again, clean = assert(export "set"), assert(export "clean")
      assert(again.kept == 2, again.kept)
      assert(core.read_file(again.path .. "/main.mlirb") == core.read_file(clean.path .. "/main.mlirb"))
    ]]
  end)
end)

describe("a model file that is truncated while it is quantised", function()
  it("leaves nothing that a later run takes over", function()
    holds [[
      local text = assert(core.read_file(path))
      local function quantise(out, progress)
        local source <close> = assert(core.open(path))
        local opts = { weights = "q4_0", resume = true, progress = progress }
        return require "ane.quantise".run(source, folder .. "/" .. out, opts)
      end
      local calls = 0
      assert(not pcall(quantise, "a.gguf", function()
        calls = calls + 1
        if calls == 2 then truncate() end
        if calls == 6 then error "stop" end
      end) or calls < 6)
      collectgarbage()
      local f = assert(io.open(path, "wb"))
      f:write(text)
      f:close()
      assert(quantise "a.gguf")
      assert(quantise "b.gguf")
      assert(core.read_file(folder .. "/a.gguf") == core.read_file(folder .. "/b.gguf"))
    ]]
  end)
end)

describe("the handler of SIGBUS", function()
  it("is there only while files are mapped, and leaves other faults to the host", function()
    if core.path_kind "/proc/self/status" ~= "file" then return pending "handlers cannot be read here" end
    if tree.emulator() then return pending(tree.emulator() .. " handles all signals itself") end
    holds [[
      local function caught()
        for line in io.lines "/proc/self/status" do
          local set = line:match "^SigCgt:%s*(%x+)"
          if set then return tonumber(set, 16) >> 6 & 1 == 1 end
        end
      end
      assert(not caught())
      local a, b = assert(ane.load(path)), assert(ane.load(path))
      assert(caught())
      a:close()
      assert(caught())
      b:close()
      collectgarbage()
      assert(not caught())
    ]]
    local ok, text = run [[
      local model = assert(ane.load(path))
      local pid = io.open "/proc/self/stat":read "n"
      os.execute("kill -BUS " .. pid)
      print "lived on"
    ]]
    assert(not ok and not text:find "lived on", text)
  end)
end)
