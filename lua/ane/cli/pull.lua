--- `ane pull`: fetches a model by name. Needs ane.cli.common, ane.cli.options, ane.hub and ane.util.units.

local common = require "ane.cli.common"
local hub = require "ane.hub"
local options = require "ane.cli.options"

local M = {}

M.summary = "Download a model from the Hugging Face hub to its cache, and show the path."

function M.options(parser)
  parser:argument("name", "hf:OWNER/NAME; with :QUANTISATION (Q4_K_M) or :FILE if there are several models, @REVISION "
    .. "for another revision than main.")
    :argname "NAME"
  parser:flag("--offline", "Use only the cache.")
  parser:flag("--no-progress", "Show no progress.")
  options.json(parser)
  parser:epilog("HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_CACHE are read as by the hub's own programs.")
end

function M.run(args)
  local name = hub.is_name(args.name) and args.name or "hf:" .. args.name
  local what, message = hub.parse(name)
  if not what then return options.wrong("%s", (message:gsub("^%b\"\"", function() return ("%q"):format(args.name) end))) end
  local path, info, code = hub.pull(name, {
    progress = common.progress(args), waiting = common.waiting(args), offline = args.offline or nil,
  })
  if not path then return nil, info, code end
  if args.json then
    return common.print_json {
      path = path, repo = info.repo, commit = info.commit, files = common.list(info.files or {}), fetched = info.fetched,
      bytes = info.bytes, cached = info.cached,
    }
  end
  if not args.no_progress and info.bytes then
    common.remark(args, "%s: %d file%s, %s, %d fetched", info.repo, #info.files, #info.files == 1 and "" or "s",
      common.bytes(info.bytes), info.fetched)
  end
  io.stdout:write(path, "\n")
  return true
end

return M
