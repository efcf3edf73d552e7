--- `ane redact`: writes a text with what a classifier finds in it replaced.
-- Needs ane.classify.redact, ane.cli.common, ane.cli.options, ane.core and ane.util.output.

local common = require "ane.cli.common"
local core = require "ane.core"
local options = require "ane.cli.options"
local output = require "ane.util.output"
local redact = require "ane.classify.redact"

local M = {}

M.in_place = "file"
M.summary = "Replace labelled spans of a text with [LABEL] or with pseudonyms."
M.writes = "output"

-- Bytes read at a time.
local BLOCK = 1 << 16

function M.options(parser)
  options.model(parser)
  options.file(parser, "file", "Text file; - is standard input.")
  options.add(parser, "-o --output", "Write to this file; - is standard output, the default.", options.path):argname "OUT"
  parser:flag("--pseudonyms", "Replace each distinct text of a span by a pseudonym of its own, such as [PERSON_1].")
  options.add(parser, "--key", "Derive pseudonyms from the replaced text and this secret, so that they are the same in every run.",
    redact.rules.key):argname "KEY"
  options.add(parser, "--threshold", "Leave spans with a lower score as they are.", redact.rules.threshold):argname "P"
  options.add(parser, "--window", "Maximum tokens of one run.", redact.rules.window):argname "N"
  parser:flag("--json", "Write one JSON object: the spans and, without --output, the text.")
end

-- Redacts the input through a stream; write(text) gets each part.
-- @param name of the input, for messages
-- @param keep whether the spans are wanted
-- @return the list of spans, empty without keep; or nil, message
local function pump(input, name, stream, write, keep)
  local spans = {}
  local function take(text, some)
    if not text then return nil, some end
    if keep then table.move(some, 1, #some, #spans + 1, spans) end
    return write(text)
  end
  while true do
    if input == io.stdin then core.wait_input(0) end -- a signal ends this wait, even where it comes just before
    local block, failed = input:read(BLOCK)
    if failed then return nil, ("%s: cannot read: %s"):format(name, failed) end
    local ok, message
    if block then ok, message = take(stream:push(block)) else ok, message = take(stream:finish()) end
    if not ok then return nil, message end
    if not block then return spans end
  end
end

-- The input file, and its name for messages; or nil, message.
local function open_input(path)
  if path == "-" then return io.stdin, "standard input" end
  local file, message = io.open(path, "rb")
  if not file then return nil, message end
  return file, path
end

-- Redacts the file. The texts of the result are in `parts` where args.json has no output file.
-- @param out writer of ane.util.output, or nil
-- @return the list of spans; or nil, message
local function redact_file(args, stream, out, parts)
  local input, name = open_input(args.file)
  if not input then return nil, name end
  local function write(text)
    if out then return out:write(text) end
    if args.json then parts[#parts + 1] = text else io.stdout:write(text) end
    return true
  end
  local spans, message = pump(input, name, stream, write, args.json)
  if input ~= io.stdin then input:close() end
  if not spans then return nil, message end
  local ok = true
  if out then ok, message = out:commit() end
  return ok and spans, message
end

function M.run(args)
  if args.output == "-" then args.output = nil end
  local model <close>, message, code = common.load(args)
  if not model then return nil, message, code end
  local stream <close>, failed = redact.stream(model, {
    pseudonyms = args.pseudonyms, key = args.key, threshold = args.threshold, window = args.window,
  })
  if not stream then return nil, failed end
  local out, spans
  if args.output then
    out, message = output.open(args.output)
    if not out then return nil, message end
  end
  local _ <close> = out
  local parts = {}
  spans, message = redact_file(args, stream, out, parts)
  if not spans then return nil, message end
  if not args.json then return true end
  return common.print_json { spans = common.list(spans), text = not out and table.concat(parts) or nil, output = args.output }
end

return M
