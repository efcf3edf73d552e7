-- Outputs that cannot be written: the message names the output that was asked for, the file, the reason and the size of the whole.
local command = require "support.command"
local core = require "ane.core"
local tiny = require "support.tiny"

local folder

before_each(function()
  folder = os.tmpname()
  os.remove(folder)
  assert(os.execute("mkdir " .. folder))
end)

after_each(function() os.execute("rm -rf " .. folder) end)

-- What the command says if files may have at most 100 kB.
local function said(words)
  local pipe <close> = assert(io.popen(("ulimit -f 200; %s %s --no-progress 2>&1 >/dev/null"):format(command.path(), words)))
  return pipe:read "a"
end

describe("a file that cannot be written", function()
  it("is named by quantise, with the output and its size", function()
    local out = folder .. "/out.gguf"
    local message = said(("quantise %s %s --weights fp16"):format(tiny.path(), out))
    assert.matches("out%.gguf: cannot write out%.gguf%.%d+%-%d+%.tmp: File too large; .*the whole file has %d+%.%d kB\n$", message)
    assert.is_nil(core.path_kind(out))
  end)

  for _, target in ipairs { "coreml", "coreai", "coreai-sharded" } do
    it("is named by export, with the output: " .. target, function()
      local out = folder .. "/out"
      local message = said(("export %s %s --weights fp16 --context 32 --target %s"):format(tiny.path(), out, target))
      assert.is_truthy(message:find("ane export: " .. out .. ": ", 1, true), message)
      assert.is_truthy(message:find(out .. ".partial/", 1, true), message)
      assert.matches("cannot write[^:]*: File too large", message)
      assert.matches("what is finished stays for the next export\n$", message)
      if target ~= "coreai" then assert.matches("the weights of all have %d+%.%d kB", message) end
      assert.is_nil(core.path_kind(out))
    end)
  end
end)
