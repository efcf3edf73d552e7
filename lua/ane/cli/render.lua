--- `ane render`: puts variables through a chat template.
-- Needs ane.cli.common, ane.cli.options, ane.jinja and ane.jinja.clock.

local common = require "ane.cli.common"
local options = require "ane.cli.options"

local M = {}

M.summary = "Render a Jinja chat template with variables from a JSON file."

-- For options.add: a time.
local function time(text)
  if text == "" then return text end
  local _, message = require("ane.jinja.clock").parse(text)
  if message then return nil, (message:gsub("^now: ", "")) end
  return text
end

function M.options(parser)
  options.file(parser, "template", "Template file.")
  options.file(parser, "vars", "JSON file: an object whose keys are the template's variables; - is standard input.")
  options.add(parser, "--now", "Time that strftime_now returns, as 2026-03-07T14:05:09; default: now.", time):argname "TIME"
  options.json(parser)
end

function M.run(args)
  local jinja = require "ane.jinja"
  local source, message = common.read(args.template)
  if not source then return nil, message end
  local text, vars, template, code, place, _
  text, message = common.read(args.vars)
  if not text then return nil, message end
  vars, message = jinja.decode(text)
  if vars == nil then return nil, common.name_of(args.vars) .. ": " .. message end
  if type(vars) ~= "table" or vars.kind ~= "dict" then return nil, common.name_of(args.vars) .. ": is not a JSON object" end
  template, message = jinja.compile(source, { name = common.name_of(args.template) })
  if not template then return nil, message end
  local now = args.now ~= "" and args.now or nil
  text, message, code, _, place = template:render(vars, { now = now })
  if not text then return nil, code == "template" and ("%s: the template raises: %s"):format(place, message) or message end
  if args.json then return common.print_json { text = text } end
  io.stdout:write(text)
  return true
end

return M
