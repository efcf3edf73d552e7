--- `ane tokenize`: text on standard input to token ids, and back.
-- Needs ane.cli.common, ane.cli.options, ane.core, ane.coreml.set and ane.tokenizer; no weights are loaded.

local common = require "ane.cli.common"
local core = require "ane.core"
local options = require "ane.cli.options"

local M = {}

M.summary = "Turn the text on standard input into token ids, or ids into text."
M.needs = { { "ids", "decode" } }
M.excludes = { { "no_bos", "decode" } }

function M.options(parser)
  parser:argument("model", "GGUF file, Hugging Face folder, package set, or tokenizer.json.")
  parser:flag("--special", "Read the spellings of control tokens in the text as those tokens; of --decode: show control tokens.")
  parser:flag("--no-bos", "Add no tokens before or after the text.")
  parser:flag("--decode", "Turn the ids of --ids, or of standard input, into text. Standard input may have numbers, or the output of this "
    .. "command with or without --json.")
  options.add(parser, "--ids", "Token ids for --decode: 1,2,3.", options.ids):argname "IDS"
  options.json(parser)
end

--- The tokenizer of a model file, of a folder or package set, of a tokenizer.json or tokenizer.model.
-- @return it; or nil, message, code
function M.tokenizer(path)
  local set = require "ane.coreml.set"
  if set.find(path) then return set.tokenizer(path) end
  if core.path_kind(path) == "folder" or path:match "%.json$" or path:match "%.model$" then return require("ane.tokenizer").new(path) end
  local source, message, code = core.open(path)
  if not source then return nil, message, code end
  local tokenizer
  tokenizer, message, code = require("ane.tokenizer").new(source)
  source:close()
  if not tokenizer then return nil, message or path .. ": the model has no tokenizer", code or "unsupported" end
  return tokenizer
end

-- The list in a JSON text: the ids themselves, or an object with them. nil, message if there is none.
local function ids_of_json(text)
  local value, message = core.json_decode(text)
  if value == nil then return nil, message end
  local list = type(value) == "table" and (value.ids or value)
  for _, id in ipairs(type(list) == "table" and list or { "" }) do
    if math.type(id) ~= "integer" or id < 0 then return nil, "must be a list of token ids, or an object with such a list as \"ids\"" end
  end
  return list
end

--- Token ids of a text: numbers between blanks or commas; lines of a number and a quoted text; a JSON list, or an object with `ids`.
-- @return list of ids; or nil, message
function M.ids(text)
  if text:find "^%s*[%[{]" then return ids_of_json(text) end
  local list = {}
  for line in text:gmatch "[^\n]+" do
    line = line:match '^%s*(%d+)%s+"' or line
    for word in line:gmatch "[^%s,]+" do
      local id = math.tointeger(tonumber(word))
      if not id or id < 0 then return nil, ("'%s' is not a token id"):format(word) end
      list[#list + 1] = id
    end
  end
  return list
end

local function decode(tokenizer, args)
  local ids, fault = args.ids, nil
  local text, message
  if not ids then
    text, message = common.read "-"
    if not text then return nil, message end
    ids, fault = M.ids(text)
  end
  if not ids then return nil, "standard input: " .. fault end
  text, message = tokenizer:decode(ids, { skip_special = not args.special })
  if not text then return nil, message end
  if args.json then return common.print_json { text = text } end
  io.stdout:write(text, "\n")
  return true
end

function M.run(args)
  local tokenizer, message = M.tokenizer(args.model)
  if not tokenizer then return nil, message end
  if args.decode then return decode(tokenizer, args) end
  local opts = { special = args.special }
  if args.no_bos then opts.bos, opts.eos = false, false end
  local text, ids
  text, message = common.read "-"
  if not text then return nil, message end
  ids, message = tokenizer:encode(text, opts)
  if not ids then return nil, message end
  if args.json then return common.print_json { ids = common.list(ids) } end
  for _, id in ipairs(ids) do io.stdout:write(("%8d  %s\n"):format(id, common.quote(tokenizer:token(id) or ""))) end
  return true
end

return M
