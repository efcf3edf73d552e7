-- Indexes the text files of a folder and finds the passages that answer a question.
-- Usage: lua5.4 examples/search.lua MODEL FOLDER "a question" [RERANKER]
-- MODEL is a folder of sentence-transformers or a GGUF file of an embedding model. RERANKER is a cross-encoder that sorts what was found.

local ane = require "ane"

local WORDS, FOUND = 120, 5 -- maximum words of a passage; number of passages that are shown

if not arg[3] then
  io.stderr:write 'usage: lua5.4 examples/search.lua MODEL FOLDER "a question" [RERANKER]\n'
  os.exit(2)
end

-- Adds the passages of a text to `list`. A passage is a paragraph, with the Markdown headings before it. Long paragraphs are divided.
local function passages(text, name, list)
  local words = {}
  local function finish()
    if #words > 0 then list[#list + 1], words = { file = name, text = table.concat(words, " ") }, {} end
  end
  for paragraph in (text .. "\n\n"):gmatch "(.-)\n%s*\n" do
    for word in paragraph:gmatch "%S+" do
      words[#words + 1] = word
      if #words == WORDS then finish() end
    end
    if not paragraph:find "^%s*#[^\n]*$" then finish() end
  end
  finish()
end

local function read_folder(folder)
  local list = {}
  local names <close> = assert(io.popen(("find '%s' -mindepth 1 -name '.*' -prune -o -type f -print"):format(folder:gsub("'", "'\\''"))))
  for path in names:lines() do
    local file <close> = assert(io.open(path, "rb"))
    local text = file:read "a"
    if utf8.len(text) and not text:find "\0" then passages(text, path, list) end
  end
  return list
end

local model <close> = assert(ane.load(arg[1]))
local list = read_folder(arg[2])
if #list == 0 then error(arg[2] .. " has no texts") end
local texts = {}
for i, passage in ipairs(list) do texts[i] = passage.text end

-- Uses the model's prompt if it has one. Other models take texts unchanged.
local function embed(input, prompt) return model:embed(input, { prompt = prompt }) or assert(model:embed(input)) end

local index = embed(texts, "document")
local likeness = assert(model:similarity(embed(arg[3], "query"), index))[1]:totable()
local order = {}
for i = 1, #texts do order[i] = i end
table.sort(order, function(a, b)
  if likeness[a] ~= likeness[b] then return likeness[a] > likeness[b] end
  return a < b
end)

local best = table.move(order, 1, math.min(FOUND, #order), 1, {})
if arg[4] then
  local reranker <close> = assert(ane.load(arg[4]))
  local found = {}
  for k, i in ipairs(best) do found[k] = texts[i] end
  local _, places = assert(reranker:rerank(arg[3], found))
  for k, place in ipairs(places) do places[k] = best[place] end
  best = places
end
for _, i in ipairs(best) do print(("%.3f  %s: %s"):format(likeness[i], list[i].file, texts[i])) end
