-- Finding recipes where no file can be opened; the lines of recipes in messages.
local ane = require "ane"
local core = require "ane.core"
local tree = require "support.tree"

describe("a recipe", function()
  it("that cannot be opened for want of open files is told from one that is not there, by the file's name", function()
    local script = os.tmpname()
    assert(core.write_file(script, [[
      local recipe = require "ane.recipe"
      local paths, files = package.path, {}
      while true do
        local file = io.open "/dev/null"
        if not file then break end
        files[#files + 1] = file
      end
      print(select(2, recipe.find "llama"), select(3, recipe.find "llama"))
      package.path = "/nowhere/?.lua"
      print(recipe.find "llama")
      package.path = paths
      for _, file in ipairs(files) do file:close() end
      print(type(recipe.find "llama"))
    ]]))
    local ok, text = tree.run(("ulimit -n 32; LUA_PATH='%s' LUA_CPATH='%s' %s '%s'"):format(package.path, package.cpath,
      os.getenv "LUA" or "lua5.4", script))
    os.remove(script)
    assert.is_true(ok, text)
    local full, missing, free = text:match "^(.-)\n(.-)\n(.-)\n$"
    assert.matches("/ane/models/llama.lua: cannot be opened, because there is no memory or too many files are open\tio$", full)
    assert.equal("nil\tno recipe can be read: ane.models.llama is not below package.path\tio", missing)
    assert.equal("table", free)
  end)

  describe("with an error", function()
    local MODEL = "spec/fixtures/check/llama.gguf"
    local llama = assert(core.read_file "models/llama.lua")
    local path

    before_each(function() path = os.tmpname() end)
    after_each(function() os.remove(path) end)

    -- The message of a load by models/llama.lua with `from` replaced, the number of the line with `from`.
    local function broken(from, to)
      local before, after = llama:match("^(.-)" .. from:gsub("%p", "%%%0") .. "(.*)$")
      assert(core.write_file(path, before .. to .. after))
      local model, message = ane.load(MODEL, { recipe = path })
      assert.is_nil(model)
      return message, select(2, before:gsub("\n", "")) + 1
    end

    for _, case in ipairs {
      { "b:rms_norm(x, \"attn_norm\")", "b:rms_nrm(x)", "layers.0: attempt to call a nil value (method 'rms_nrm')" },
      { "b:rms_norm(x, \"attn_norm\")", "b:rms_norm(x, \"attn_norm\", { ep = 1 })", "layers.0: rms_norm: unknown option \"ep\"" },
      { "b:rms_norm(x, \"attn_norm\")", "error 'here'", "layers.0: here" },
      { "b:embed \"token_embd\"", "b:embd \"token_embd\"", "attempt to call a nil value (method 'embd')" },
    } do
      it("names its line: " .. case[2], function()
        local message, line = broken(case[1], case[2])
        local place = (" (%s:%d)"):format(path, line)
        assert.equal(MODEL .. ": " .. case[3], message:sub(1, #MODEL + 2 + #case[3]))
        assert.equal(place, message:sub(-#place))
        assert.equal(1, select(2, message:gsub(":" .. line, ""))) -- once
      end)
    end

    it("names the lines of build for an error in a tail call, which leaves no trace of its own line", function()
      local message, wrong = broken("return head.lm(b, x)", "return head.lm(b, x, { sofcap = 1 })")
      local first, last = message:match("%(" .. path:gsub("%p", "%%%0") .. ":(%d+)%-(%d+)%)$")
      assert.is_truthy(first, message)
      assert.is_true(tonumber(first) < wrong and wrong < tonumber(last))
      local recipe = { architectures = { "tail-call-of-a-recipe" }, build = function(b) return b:embed("token_embd", { bye = 1 }) end }
      local line = debug.getinfo(recipe.build, "S").linedefined
      message = select(2, ane.load(MODEL, { recipe = recipe }))
      assert.matches(("recipe/init_spec.lua:%d%%-%d%%)$"):format(line, line), message)
    end)

    it("names its line in a program, and that of no recipe of ane.models", function()
      local recipe = { architectures = { "line-of-a-recipe" }, build = function(b) return b:embd "token_embd", 1 end }
      local line = debug.getinfo(recipe.build, "S").linedefined
      local _, message = ane.load(MODEL, { recipe = recipe })
      assert.matches("recipe/init_spec.lua:" .. line .. "%)$", message)
      local text = assert(core.read_file(MODEL)):gsub("blk%.1%.attn_q%.weight", "blk.1.attn_p.weight")
      assert(core.write_file(path, text))
      _, message = ane.load(path)
      assert.matches("layers.1: no tensor blk.1.attn_q.weight in [^%s]+$", message)
    end)
  end)
end)
