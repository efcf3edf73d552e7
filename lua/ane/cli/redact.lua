--- `ane redact`: writes a text with what a classifier finds in it replaced.
-- Needs ane.classify.redact, ane.cli.common and ane.cli.options.

local common = require "ane.cli.common"
local options = require "ane.cli.options"
local redact = require "ane.classify.redact"

local M = {}

M.summary = "Replace labelled spans of a text by [LABEL] or by pseudonyms."

-- Bytes read at a time.
local BLOCK = 1 << 16

function M.options(parser)
  options.model(parser)
  parser:argument("file", "Text file; - is standard input.")
  parser:option("-o --output", "Write to this file instead of standard output."):argname "OUT"
  parser:flag("--pseudonyms", "Replace each distinct original by its own name, as [PERSON_1].")
  parser:option("--key", "Derive names from the original and this secret, so that they are the same in every run."):argname "KEY"
  options.add(parser, "--threshold", "Leave spans with a lower score as they are.", redact.rules.threshold):argname "P"
  options.add(parser, "--window", "Maximum tokens of one run.", redact.rules.window):argname "N"
  parser:flag("--json", "Write one JSON object: the spans and, without --output, the text.")
end

-- Redacts the input through a stream; write(text) gets each part. The list of spans (where keep is true); or nil, message.
local function pump(input, stream, write, keep)
  local spans = {}
  local function take(text, some)
    if not text then return nil, some end
    if keep then table.move(some, 1, #some, #spans + 1, spans) end
    return write(text)
  end
  for block in function() return input:read(BLOCK) end do
    local ok, message = take(stream:push(block))
    if not ok then return nil, message end
  end
  local ok, message = take(stream:finish())
  if not ok then return nil, message end
  return spans
end

-- The input file and the output file (or nil), which is written under another name and renamed when it is whole.
local function open_files(args)
  local input, output, message = io.stdin
  if args.file ~= "-" then
    input, message = io.open(args.file, "rb")
    if not input then return nil, message end
  end
  if args.output then
    output, message = io.open(args.output .. ".part", "wb")
    if not output then return nil, message end
  end
  return input, output
end

local function finish_output(args, output, ok)
  if not output then return true end
  local closed, message = output:close()
  if not ok or not closed then
    os.remove(args.output .. ".part")
    return closed, message
  end
  return os.rename(args.output .. ".part", args.output)
end

function M.run(args)
  local model <close>, message = common.load(args)
  if not model then return nil, message end
  local stream <close>, failed = redact.stream(model, {
    pseudonyms = args.pseudonyms, key = args.key, threshold = args.threshold, window = args.window,
  })
  if not stream then return nil, failed end
  local input, output = open_files(args)
  if not input then return nil, output end
  local parts = {}
  local function write(text)
    if output then return output:write(text) end
    if args.json then parts[#parts + 1] = text else io.stdout:write(text) end
    return true
  end
  local spans
  spans, message = pump(input, stream, write, args.json)
  if input ~= io.stdin then input:close() end
  local ok, why = finish_output(args, output, spans)
  if not spans or not ok then return nil, message or why end
  if not args.json then return true end
  return common.print_json { spans = common.list(spans), text = not output and table.concat(parts) or nil, output = args.output }
end

return M
