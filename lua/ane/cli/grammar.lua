--- `ane grammar`: checks texts against a grammar, and measures the time of its masks.
-- Needs ane.cli.common, ane.cli.options, ane.cli.tokenize, ane.core, ane.evaluate.quantiles and ane.grammar; no weights are loaded.

local common = require "ane.cli.common"
local core = require "ane.core"
local grammar = require "ane.grammar"
local options = require "ane.cli.options"
local quantiles = require "ane.evaluate.quantiles"

local M = {}

M.summary = "Check texts against a JSON Schema, a regular expression or a grammar, or measure the time of its masks."
M.needs = { { "time", "model" }, { "model", "time" }, { "lenient", "json_schema" }, { "blanks", "json_schema" } }

function M.options(parser)
  options.add(parser, "--json-schema", "JSON Schema file.", options.path):argname "FILE"
  parser:option("--regex", "Regular expression (ECMA-262) that must match the whole text."):argname "PATTERN"
  options.add(parser, "--gbnf", "GBNF grammar, as in llama.cpp.", options.path):argname "FILE"
  options.add(parser, "--lark", "Lark grammar.", options.path):argname "FILE"
  options.add(parser, "--instances", "File with one text to check in each line, as a JSON string; default: standard input is "
    .. "one text, without its last newline.", options.path):argname "FILE"
  parser:option("--model", "Model, tokenizer.json or folder whose tokens --time uses."):argname "MODEL"
  parser:flag("--time", "Measure the time of the mask at each token of the texts.")
  parser:flag("--lenient", "Ignore unknown values of the keyword format.")
  options.add(parser, "--blanks", "Maximum white space at each place where JSON allows it; default: one space after commas and colons.",
    options.natural)
    :argname "N"
  options.json(parser)
end

-- Returns a function that makes the grammar; or nil, message, code.
local function maker(args)
  local given, count = nil, 0
  for _, name in ipairs { "json_schema", "regex", "gbnf", "lark" } do
    if args[name] then given, count = name, count + 1 end
  end
  if count ~= 1 then return options.wrong "give one of --json-schema, --regex, --gbnf, --lark" end
  if given == "regex" then
    local made, message = grammar.regex(args.regex)
    if not made then return options.wrong("--regex: %s", message) end
    return function() return grammar.regex(args.regex) end
  end
  local path = args[given]
  local text, failed = core.read_file(path)
  if not text then return nil, failed end
  local opts = given == "json_schema" and { strict = not args.lenient, blanks = args.blanks } or nil
  return function()
    local made, message, code = grammar[given](text, opts)
    if not made then return nil, path .. ": " .. message:gsub("strict = false passes", "--lenient passes"), code end
    return made
  end
end

-- The texts of a file of JSON strings, in which empty lines are skipped; without a path, standard input as one text.
local function read_texts(path)
  if not path then
    local text, message = common.read_text "-"
    return text and { text }, message
  end
  local all, message = common.read(path)
  if not all then return nil, message end
  local list, number = {}, 0
  for line in (all .. "\n"):gmatch "(.-)\n" do
    number = number + 1
    if line:find "%S" then
      local text
      text, message = core.json_decode(line)
      if type(text) ~= "string" then
        return nil, ("%s: line %d: %s"):format(common.name_of(path), number, message or "must be a JSON string")
      end
      list[#list + 1] = text
    end
  end
  return list
end

-- Adds the microseconds of each mask along a text.
local function time_text(matcher, tree, tokenizer, text, times)
  local ids, message = tokenizer:encode(text, { bos = false, eos = false })
  if not ids then return nil, message end
  for _, id in ipairs(ids) do
    local started = core.clock()
    local n
    n, message = matcher:count(tree)
    if not n then return nil, message end
    times[#times + 1] = (core.clock() - started) * 1e6
    local taken
    taken, message = matcher:push(tokenizer:token(id) or "")
    if taken == nil then return nil, message end
    if not taken then return true end
  end
  return true
end

local function summary(times)
  local sum = 0
  table.sort(times)
  for _, us in ipairs(times) do sum = sum + us end
  return {
    mean = sum / math.max(1, #times), p50 = quantiles.percentile(times, 0.5) or 0, p99 = quantiles.percentile(times, 0.99) or 0,
    masks = #times,
  }
end

-- Returns {mask_us = summary of the times of masks, first_mask_us = time from the grammar's text to the first mask}, in microseconds.
local function time(args, make, texts)
  local tokenizer, message = require("ane.cli.tokenize").tokenizer(args.model)
  if not tokenizer then return nil, message end
  local tree
  tree, message = core.token_tree(tokenizer._raw)
  if not tree then return nil, message end
  local started = core.clock()
  local g = assert(make())
  local matcher = assert(g:matcher())
  local n
  n, message = matcher:count(tree)
  if not n then return nil, message end
  local first = (core.clock() - started) * 1e6
  local times = {}
  for _, text in ipairs(texts) do
    matcher:rewind(0)
    local ok
    ok, message = time_text(matcher, tree, tokenizer, text, times)
    if not ok then return nil, message end
  end
  return { mask_us = summary(times), first_mask_us = first }
end

function M.run(args)
  local make, message, code = maker(args)
  if not make then return nil, message, code end
  local g
  g, message = make()
  if not g then return nil, message end
  local texts
  texts, message = read_texts(args.instances)
  if not texts then return nil, message end
  local out = { ok = true, accepted = common.list {} }
  if args.time then
    local timed
    timed, message, code = time(args, make, texts)
    if not timed then return nil, message, code end
    out.mask_us, out.first_mask_us = timed.mask_us, timed.first_mask_us
  end
  for i, text in ipairs(texts) do
    local taken
    taken, message = g:matches(text)
    if taken == nil then return nil, ("text %d: %s"):format(i, message) end
    out.accepted[i] = taken
  end
  if args.json then return common.print_json(out) end
  for i, taken in ipairs(out.accepted) do io.stdout:write(("%8d  %s\n"):format(i, taken and "accepted" or "not accepted")) end
  if out.mask_us then
    io.stdout:write(("first mask %.0f us; masks: mean %.0f us, p50 %.0f us, p99 %.0f us\n"):format(out.first_mask_us, out.mask_us.mean,
      out.mask_us.p50, out.mask_us.p99))
  end
  return true
end

return M
