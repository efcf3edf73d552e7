-- One contestant of bench/embeddings.py: embeds all texts of a file whenever a line comes in on standard input.
-- usage: lua5.4 bench/embeddings.lua MODEL TEXTS THREADS [WEIGHTS]      (after `make`, from the root of the tree)
-- Prints "ready", then for each line the seconds of model:embed, tokenizing and pooling included.

package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
package.cpath = "build/release/?.so;" .. package.cpath
table.insert(package.searchers, 2, function(name)
  local own = name:match "^ane%.models%.([%w_]+)$"
  return own and loadfile(("models/%s.lua"):format(own)) or nil
end)

local ane = require "ane"
local core = require "ane.core"

local path, file, threads, weights = ...
local texts = {}
for line in io.lines(file) do texts[#texts + 1] = line end
local model = assert(ane.load(path, { threads = math.tointeger(tonumber(threads)), weights = weights }))
assert(model:embed { texts[1], texts[2] })
io.stdout:setvbuf "line"
print "ready"
for _ in io.lines() do
  local start = core.clock()
  assert(model:embed(texts))
  print(("%.4f"):format(core.clock() - start))
end
