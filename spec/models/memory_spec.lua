-- What a process holds at most, with real models: while loading 1.3 x the file, from the first token on 1.15 x the file, both plus the
-- state that positions have touched and 64 MB. A large matrix is not held twice while it is packed. Each measurement has its own process.
local core = require "ane.core"
local floats = require "support.floats"
local tiny_llama = require "support.tiny_llama"
local tree = require "support.tree"

local models = { "SmolLM2-135M-Instruct.Q4_1.gguf", "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf" }

local function find(name)
  for _, folder in ipairs { os.getenv "ANE_MODEL_CACHE" or false, "models-cache" } do
    local path = folder and folder .. "/" .. name
    if path and core.path_kind(path) == "file" then return path end
  end
end

-- Loads, feeds a prompt, then searches, samples and fills 1,100 positions; prints the peaks of both parts and the touched state. A peak
-- begins anew where the system lets a process say so; where not, the second is that of all.
local child = [[
  local ane, core = require "ane", require "ane.core"
  local path, head = arg[1], arg[2]
  local model = assert(ane.load(path, { threads = 2, context = 2048, head = head }))
  local s = model:session()
  assert(s:feed({ 1, 2, 3, 4, 5, 6, 7, 8 }, { want = "argmax" }))
  local loading = core.memory().peak
  local refs = io.open("/proc/self/clear_refs", "w")
  local anew = refs and refs:write "5" and refs:close() or false
  local ids, seed = {}, 7
  for i = 1, 1024 do
    seed = (seed * 1103515245 + 12345) % 2147483648
    ids[i] = seed % 40000
  end
  assert(s:feed(ids, { want = "none" }))
  for _, want in ipairs { "argmax", "last", "all" } do
    for i = 1, 8 do assert(s:feed(ids[i], { want = want })) end
  end
  local cfg = model.config
  local kv = cfg.n_layer * cfg.n_head_kv * cfg.head_dim * 2 * 2 * s.length
  print(loading, anew and core.memory().peak or "all", kv)
]]

-- What a process of its own prints that runs `code`.
local function run(code, ...)
  local script = os.tmpname()
  local out = assert(io.open(script, "w"))
  assert(out:write("package.path, package.cpath = ", ("%q, %q\n"):format(package.path, package.cpath), code))
  out:close()
  local ok, text = tree.run(("lua5.4 '%s' '%s'"):format(script, table.concat({ ... }, "' '")))
  os.remove(script)
  return ok and text, text
end

describe("memory", function()
  it("does not hold a large matrix twice while it is packed", function()
    if core.memory().peak == 0 then return pending "this system does not tell a process's peak" end
    local rows, cols = 2 ^ 20 | 0, 16
    local path = tiny_llama.write(function(file, set)
      set("llama.vocab_size", "uint32", rows)
      local piece = floats.uniform(1024 * cols, 7, 0.4)
      file.tensors[1] = { name = "token_embd.weight", dtype = "fp32", shape = { rows, cols }, data = piece:rep(rows // 1024) }
    end)
    local text, why = run([[
      local ane, core = require "ane", require "ane.core"
      local before = core.memory().resident
      local model = assert(ane.load(arg[1], { threads = 2, context = 32 }))
      print(core.memory().peak - before)
    ]], path)
    os.remove(path)
    local peak = tonumber(text and text:match "^%d+")
    assert(peak, why)
    local held = rows * cols * 4 -- the head is this matrix as well
    assert(peak >= held, peak)
    assert(peak <= 1.5 * held, ("%d, the matrix takes %d"):format(peak, held))
  end)

  for _, name in ipairs(models) do
    for _, head in ipairs { "pruned", "full" } do
      it(("of %s, head %s, stays near the size of the file"):format(name, head), function()
        local path = find(name)
        if not path then return pending(name .. " is neither in $ANE_MODEL_CACHE nor in models-cache") end
        if core.memory().peak == 0 then return pending "this system does not tell a process's peak" end
        local f = assert(io.open(path, "rb"))
        local size = f:seek "end"
        f:close()
        local text, why = run(child, path, head)
        local loading, steady, kv = (text or ""):match "^(%d+)\t(%w+)\t(%d+)%s*$"
        assert(loading, why)
        loading, kv = tonumber(loading), tonumber(kv)
        local more = kv + 64 * 2 ^ 20
        assert(loading <= 1.3 * size + more, ("loading: %d, file %d, state %d"):format(loading, size, kv))
        if steady == "all" then return pending "the peak cannot begin anew here" end
        assert(tonumber(steady) <= 1.15 * size + more, ("steady: %s, file %d, state %d"):format(steady, size, kv))
      end)
    end
  end
end)
