-- Words that docs/glossary.md has replaced do not come back: in identifiers, and in comments and messages, of C and Lua.
local tree = require "support.tree"

local FOLDERS = { "csrc", "lua", "models", "bench", "examples" }

-- What stands for each retired word. code: as a whole part of an identifier; text: in comments and messages (as Lua patterns, lower
-- case, whole words). only: the folders that it is retired in.
local RETIRED = {
  { term = "fused attention", code = { "attend", "attends", "attended", "attending" }, text = { "attends?" } },
  { term = "residency rule, size limit", code = { "law", "laws" }, text = { "laws?" } },
  { term = "pruned head", text = { "head search", "search of the head" } },
  { term = "gather", code = { "early_take", "op_take" }, text = { "early take" } },
  { term = "split layout", code = { "p8" }, text = { "p8" } },
  { term = "barrier", code = { "meeting" }, text = { "meetings?" } },
  { term = "outlier block, residual code", code = { "wide_block", "wide_blocks", "high_code", "high_codes" },
    text = { "wide blocks?", "high codes?" } },
  { term = "output rows", code = { "wanted_rows", "wanted_positions" } },
  { term = "partition", code = { "cut_graph", "graph_cut" }, only = { "csrc/mil", "lua/ane/coreml" } },
  { term = "task, chunk; rotate, transpose", code = { "turn", "turns", "turned", "turning" }, text = { "turned" },
    only = { "csrc/exec", "csrc/prim", "csrc/interp", "csrc/mil", "csrc/quant", "csrc/tensor", "csrc/graph", "csrc/passes", "lua/ane/onnx",
      "lua/ane/recipe", "models" } },
  { term = "tokens", text = { "columns of tokens", "token columns?" } },
}

-- Places where such a word is right: path (or folder) and word, with the reason.
local ALLOWED = {
  { "lua/ane/coreml/plan", "laws?", "keys of --json, and option law, the old name of size_limit" },
  { "lua/ane/cli/plan.lua", "laws?", "keys of --json" },
  { "lua/ane/cli/packages.lua", "law", "--law, the old name of --size-limit" },
  { "csrc/binding/coreml/lua_plan.c", "laws?", "keys of --json" },
  { "csrc/mil/residency.def", "laws?", "a source is called so" },
  { "csrc/kernels/vec/attention_vec.h", "attend", "the loop over queries and keys, not an op" },
}

local function allowed(path, word)
  for _, a in ipairs(ALLOWED) do
    if path:sub(1, #a[1]) == a[1] and word:find("^" .. a[2] .. "$") then return true end
  end
end

local function within(path, folders)
  for _, folder in ipairs(folders or FOLDERS) do
    if path:sub(1, #folder + 1) == folder .. "/" then return true end
  end
end

-- Adds path:line: word for each retired word in a text. Words of code stand between underscores or at the ends of an identifier.
local function check(path, text, bad)
  for _, r in ipairs(RETIRED) do
    if within(path, r.only) then
      local patterns = {}
      local function add(word, before, behind)
        local plain = word:gsub("s%?$", "") -- a search for it without patterns is much quicker, and most files have none
        if plain:find "[^%w_ ]" or text:find(plain, 1, true) then patterns[#patterns + 1] = before .. word .. behind end
      end
      for _, word in ipairs(r.code or {}) do add(word, "%f[%w]", "%f[%W]") end
      for _, word in ipairs(r.text or {}) do add(word, "%f[%w_]", "%f[^%w_]") end
      for _, pattern in ipairs(patterns) do
        local from, to = text:find(pattern)
        while from do
          local word = text:sub(from, to)
          if not allowed(path, word) and not bad[path .. from] then
            local _, line = text:sub(1, from):gsub("\n", "")
            bad[#bad + 1] = ("%s:%d: %s (docs/glossary.md: %s)"):format(path, line + 1, word, r.term)
            bad[path .. from] = true
          end
          from, to = text:find(pattern, to + 1)
        end
      end
    end
  end
end

-- The text of a file in lower case, without the signs that begin the lines of a comment: what spans two lines is one phrase.
local function plain(path)
  local text = tree.read(path):lower()
  return (text:gsub("\n[ \t]*%*[ ]", "\n "):gsub("\n[ \t]*%-%-%-?[ ]", "\n "))
end

describe("words", function()
  it("that the glossary has replaced do not come back", function()
    local bad, seen = {}, {}
    for _, folder in ipairs(FOLDERS) do
      for _, extension in ipairs { "[chm]", "def", "lua" } do
        for _, path in ipairs(tree.files(folder, extension)) do
          if not seen[path] and not path:find "%.pb%-c%." then
            seen[path] = true
            check(path, plain(path), bad)
          end
        end
      end
    end
    local list = table.move(bad, 1, #bad, 1, {})
    table.sort(list)
    assert.same({}, list)
  end)

  it("are found in identifiers and in phrases, and nowhere else", function()
    local function words(path, text)
      local bad = {}
      check(path, text:lower(), bad)
      return #bad
    end
    assert.equal(1, words("csrc/exec/x.c", "static void attend_range(void);"))
    assert.equal(1, words("csrc/mil/x.c", "/* by the laws of the engine */"))
    assert.equal(1, words("lua/ane/x.lua", "-- the head search skips rows"))
    assert.equal(1, words("csrc/prim/x.c", "bool turned = true;"))
    assert.equal(0, words("lua/ane/generate/chat.lua", "-- the last turn stays"))
    assert.equal(0, words("csrc/exec/x.c", "/* flaws, attendance, exacts, lawn */ int returned, facts;"))
    assert.equal(0, words("lua/ane/cli/plan.lua", "out.laws = plan.laws"))
  end)
end)
