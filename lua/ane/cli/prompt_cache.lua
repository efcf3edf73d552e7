--- `--prompt-cache FILE`: keeps the session of a run or a conversation in a file, for the next one with the same beginning.
-- Needs ane.cli.common, ane.cli.options, ane.core and ane.util.paths. The file is that of session:save: it names model, options and
-- arithmetic, has a checksum and appears whole or not at all. One that does not fit or is damaged is named on standard error and not used.
-- Usage: `local session = assert(cache.open(args, model)); ...; cache.save(args, session)`

local common = require "ane.cli.common"
local core = require "ane.core"
local options = require "ane.cli.options"
local paths = require "ane.util.paths"

local M = {}

-- The first bytes of a saved session (csrc/session/saved.c).
local MAGIC = "ANESTATE"

--- Adds the option.
function M.option(parser)
  options.add(parser, "--prompt-cache", "Keep the session in FILE. The next command with FILE reuses the cached tokens with which its "
    .. "prompt begins.", options.text):argname "FILE"
end

--- Is it a folder, or a file that holds something other than a saved session, whole or cut short?
function M.is_foreign(path)
  local kind = core.path_kind(path)
  if kind == "folder" then return true end
  local file <close> = kind == "file" and io.open(path, "rb") or nil
  local head = file and file:read(#MAGIC)
  return head ~= nil and head ~= MAGIC:sub(1, #head)
end

--- Opens a session with the contents of the file.
-- @return a session; false without the option; or nil, message, code: "invalid" for a folder, or a file of another kind, which the
-- session would replace; "io" if the file's folder does not exist
function M.open(args, model)
  local path = args.prompt_cache
  if not path then return false end
  if M.is_foreign(path) then
    return nil, path .. ": is not a saved session, and --prompt-cache would replace it; name another file", "invalid"
  end
  local folder = paths.folder_of(path)
  if folder ~= "" and core.path_kind(folder) ~= "folder" then
    return nil, ("--prompt-cache %s: there is no folder %s"):format(path, folder), "io"
  end
  local session, message, code = model:session()
  if not session then return nil, message, code end
  if core.path_kind(path) then
    local ok, why = session:restore(path)
    if not ok then common.remark(args, "%s (the prompt cache is not used)", why) end
  end
  return session
end

--- Writes the contents of the session.
-- @return true; or nil, message, code
function M.save(args, session)
  if not args.prompt_cache or not session or session.closed or session.length == 0 then return true end
  return session:save(args.prompt_cache)
end

return M
