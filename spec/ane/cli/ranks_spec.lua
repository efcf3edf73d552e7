-- The options of MPI programs in a command that no launcher has started.
local command = require "support.command"
local getenv = os.getenv

local MODEL = "spec/fixtures/gguf/llama-q8_0.gguf"

-- Runs a command line with these variables of launchers and no others.
local function run(words, variables)
  os.getenv = function(name) -- luacheck: ignore
    if name:find "^OMPI" or name:find "^PMI" or name:find "^SLURM" then return variables and variables[name] end
    return getenv(name)
  end
  local ok, code, out, err = pcall(command.run, words)
  os.getenv = getenv -- luacheck: ignore
  assert(ok, code)
  return code, out, err
end

describe("Options of MPI programs", function()
  it("are refused by name where there is one process", function()
    for _, case in ipairs {
      { "--parallel", "tensor" }, { "--cut", "1" }, { "--link", "fp16" }, { "--tail", "1" }, { "--rank-timeout", "9" },
    } do
      local code, out, err = run { "run", MODEL, "-p", "x", "-n", "1", table.unpack(case) }
      assert.equal(2, code)
      assert.equal("", out)
      assert.equal("ane run: " .. case[1] .. " is for the ranks of an MPI program: start the command with mpirun or srun\n", err)
    end
    local code, _, err = run { "batch", MODEL, "no.jsonl", "-o", "-", "--rank-timeout", "9" }
    assert.equal(2, code)
    assert.matches("^ane batch: %-%-rank%-timeout is for the ranks", err)
  end)

  it("are taken where a launcher has started one process", function()
    for _, variables in ipairs { { OMPI_COMM_WORLD_SIZE = "1" }, { PMI_SIZE = "1" }, { PMIX_RANK = "0" } } do
      local code, _, err = run({ "run", MODEL, "-p", "x", "-n", "1", "--parallel", "tensor", "--rank-timeout", "9" }, variables)
      assert.equal(0, code, err)
    end
  end)

  it("of plans over ranks need --ranks or --hosts", function()
    for _, case in ipairs { { "--network", "1" }, { "--latency", "9" }, { "--cut", "1" }, { "--link", "fp16" }, { "--tail", "1" },
      { "--sequences", "3" }, { "--kv", "fp16" } } do
      local code, _, err = run { "plan", MODEL, table.unpack(case) }
      assert.equal(2, code)
      assert.equal("ane plan: " .. case[1] .. " needs --ranks or --hosts\n", err)
    end
  end)
end)
