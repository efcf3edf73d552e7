--- `ane tokenize`: text on standard input to token ids, and back.
-- Needs ane.cli.common, ane.core and ane.tokenizer; no weights are loaded.

local common = require "ane.cli.common"
local core = require "ane.core"

local M = {}

M.summary = "Turn the text on standard input into token ids, or ids into text."

function M.options(parser)
  parser:argument("model", "GGUF file, Hugging Face folder, package set, or tokenizer.json.")
  parser:flag("--special", "Control tokens spelled in the text are those tokens.")
  parser:flag("--no-bos", "Add no token that is not in the text, neither before nor after.")
  parser:flag("--decode", "Turn --ids into text.")
  parser:option("--ids", "Token ids for --decode: 1,2,3."):convert(common.ids):argname "IDS"
  parser:flag("--json", "Write one JSON object.")
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

local function decode(tokenizer, args)
  if not args.ids then return nil, "--decode needs --ids" end
  local text, message = tokenizer:decode(args.ids, { skip_special = not args.special })
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
  local ids
  ids, message = tokenizer:encode(io.stdin:read "a", opts)
  if not ids then return nil, message end
  if args.json then return common.print_json { ids = common.list(ids) } end
  for _, id in ipairs(ids) do io.stdout:write(("%8d  %s\n"):format(id, common.quote(tokenizer:token(id) or ""))) end
  return true
end

return M
