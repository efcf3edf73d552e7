--- Models of a hub (Hugging Face): fetched by name into the cache that the hub's own programs use.
-- Needs ane.core, ane.hub.choose, ane.hub.http, ane.util.schema. Reads the environment: HF_ENDPOINT, HF_TOKEN, HF_HOME and what else the
-- hub's programs read. Tested against a server that behaves like the hub, never against the hub itself.
-- Usage: `local path = assert(hub.pull "hf:OWNER/NAME:Q4_K_M"); local model = assert(ane.load(path))`

local choose = require "ane.hub.choose"
local core = require "ane.core"
local http = require "ane.hub.http"
local schema = require "ane.util.schema"

local M = {}

local MOST_LISTED = 64 << 20 -- bytes of the list of a repository's files

--- Returns whether this is the name of a model on a hub.
function M.is_name(text) return type(text) == "string" and text:sub(1, 3) == "hf:" end

--- The parts of "hf:OWNER/NAME[@REVISION][:FILE or quantisation]".
-- @return {repo, revision, wanted}; or nil, message, code
function M.parse(name)
  local repo, rest = name:match "^hf:([%w][%w._-]*/[%w_][%w._-]*)(.*)$"
  local revision, wanted = nil, nil
  if repo then
    revision, rest = (rest or ""):match "^@?([%w._/-]*)(.*)$"
    if (revision ~= "") ~= (name:sub(4 + #repo, 4 + #repo) == "@") then repo = nil end
    wanted = rest ~= "" and rest:match "^:(.+)$" or nil
    if rest ~= "" and not wanted then repo = nil end
  end
  if not repo or repo:find("..", 1, true) or (revision or ""):find("..", 1, true) then
    return nil, ("%q is not a name of a model: hf:OWNER/NAME, hf:OWNER/NAME:QUANTISATION or hf:OWNER/NAME:FILE"):format(name), "invalid"
  end
  return { repo = repo, revision = revision ~= "" and revision or "main", wanted = wanted }
end

-- ---- Settings and paths --------------------------------------------------------------------------------------------------

local function set_of(env, name)
  local value = env(name)
  return value ~= "" and value or nil
end

local function home_of(env)
  local base = set_of(env, "HF_HOME")
  if base then return base end
  local cache = set_of(env, "XDG_CACHE_HOME") or (set_of(env, "HOME") or ".") .. "/.cache"
  return cache .. "/huggingface"
end

local function token_of(env)
  local token = set_of(env, "HF_TOKEN") or set_of(env, "HUGGING_FACE_HUB_TOKEN")
  if token then return token:match "^%s*(.-)%s*$" end
  local text = core.read_file(set_of(env, "HF_TOKEN_PATH") or home_of(env) .. "/token")
  text = text and text:match "^%s*(.-)%s*$"
  return text ~= "" and text or nil
end

local TRUE = { ["1"] = true, ON = true, YES = true, TRUE = true }

--- What the environment says.
-- @param env function(name) -> value; default os.getenv
-- @return {endpoint, token, cache (folder of all models), offline}
function M.settings(env)
  env = env or os.getenv
  local home = home_of(env)
  return {
    endpoint = set_of(env, "HF_ENDPOINT") or "https://huggingface.co", token = token_of(env),
    cache = set_of(env, "HF_HUB_CACHE") or set_of(env, "HUGGINGFACE_HUB_CACHE") or home .. "/hub",
    offline = TRUE[(set_of(env, "HF_HUB_OFFLINE") or "0"):upper()] == true,
  }
end

-- A path inside a repository, without parts that lead out of it.
local function is_safe(name)
  if type(name) ~= "string" or name == "" or #name > 1000 or name:find "[%z\1-\31\\]" or name:sub(1, 1) == "/" then return false end
  for part in (name .. "/"):gmatch "(.-)/" do
    if part == "" or part == "." or part == ".." then return false end
  end
  return true
end

local function escape(text)
  return (text:gsub("[^%w%-._~/]", function(c) return ("%%%02X"):format(c:byte()) end))
end

-- ---- The list of files ---------------------------------------------------------------------------------------------------

-- What the hub says of a revision: {commit, files = {name = {size, blob, sha256}}, names}.
local function list_of(client, what)
  local named = what.revision == "main" and what.repo or what.repo .. "@" .. what.revision
  local path = ("/api/models/%s/revision/%s?blobs=true"):format(what.repo, (escape(what.revision):gsub("/", "%%2F")))
  local answer, message, code = client:get(path, { what = named, most = MOST_LISTED })
  if not answer then return nil, message, code end
  local value = core.json_decode(answer.body)
  local function wrong(why) return nil, ("%s: the hub's list of files %s"):format(what.repo, why), "format" end
  if type(value) ~= "table" or type(value.siblings) ~= "table" then return wrong "cannot be read" end
  if type(value.sha) ~= "string" or not value.sha:match "^%x+$" then return wrong "names no commit" end
  local out = { commit = value.sha, files = {}, names = {} }
  for _, entry in ipairs(value.siblings) do
    local name = type(entry) == "table" and entry.rfilename
    if not is_safe(name) then return wrong(("has the name %q"):format(tostring(name))) end
    local lfs = type(entry.lfs) == "table" and entry.lfs or {}
    out.files[name] = {
      size = math.tointeger(lfs.size) or math.tointeger(entry.size),
      sha256 = type(lfs.sha256) == "string" and lfs.sha256:match "^%x+$" and #lfs.sha256 == 64 and lfs.sha256:lower() or nil,
      blob = type(entry.blobId) == "string" and entry.blobId:match "^%x+$" or nil,
    }
    out.names[#out.names + 1] = name
  end
  table.sort(out.names)
  return out
end

-- ---- Files ---------------------------------------------------------------------------------------------------------------

-- "W/"abc"" as abc, where it may be a file's name.
local function etag_of(value)
  local tag = value and value:gsub("^W/", ""):match '^"?([%w._-]+)"?$'
  return tag and not tag:find "^%.+$" and tag or nil
end

-- Do the bytes of a file have the expected size and hash? Otherwise nil, message, code.
local function check(path, name, fact)
  if fact.size and core.file_size(path) ~= fact.size then
    return nil, ("%s: has %d bytes, but must have %d according to the hub"):format(name, core.file_size(path) or 0, fact.size), "format"
  end
  if not fact.sha256 then return true end
  local sum, message, code = core.sha256_file(path)
  if not sum then return nil, message, code end
  if sum ~= fact.sha256 then
    return nil, ("%s: its SHA-256 is %s, but must be %s according to the hub; the file was removed"):format(name, sum, fact.sha256),
      "format"
  end
  return true
end

-- Fetches a file into a blob. @return the blob's name; or nil, message, code
local function fetch_blob(self, name, fact)
  local blobs = self.folder .. "/blobs"
  local known = fact.sha256 or fact.blob
  local part = ("%s/%s.incomplete"):format(blobs, known or "ane-" .. core.sha256(self.list.commit .. "/" .. name))
  local path = ("/%s/resolve/%s/%s"):format(self.repo, self.list.commit, escape(name))
  local answer, message, code = self.client:get(path, {
    what = name, path = part, size = fact.size, on_bytes = function(n) self.progress(name, n, fact.size or 0) end,
  })
  if not answer then return nil, message, code end
  local tag = etag_of(answer.first_header "x-linked-etag" or answer.first_header "etag")
  if not fact.sha256 and tag and #tag == 64 and tag:match "^%x+$" then fact.sha256 = tag:lower() end
  local ok
  ok, message, code = check(part, name, fact)
  if not ok then
    os.remove(part)
    return nil, message, code
  end
  local blob = fact.sha256 or fact.blob or tag
  if not blob then return nil, name .. ": the hub gives no tag for it", "format" end
  ok, message, code = core.move_file(part, blobs .. "/" .. blob)
  if not ok then return nil, message, code end
  return blob
end

-- Adds a file to the snapshot. Nothing is fetched if its blob exists.
local function add_file(self, name)
  local fact, path = self.list.files[name], self.snapshot .. "/" .. name
  local blob = fact.sha256 or fact.blob
  if not blob and core.file_size(path) then return true end
  local there = blob and core.file_size(self.folder .. "/blobs/" .. blob)
  if not there or fact.size and there ~= fact.size then
    local message, code
    blob, message, code = fetch_blob(self, name, fact)
    if not blob then return nil, message, code end
    self.fetched = self.fetched + 1
  end
  local ok, message, code = core.make_folder((path:match "^(.*)/"))
  if not ok then return nil, message, code end
  local depth = select(2, name:gsub("/", ""))
  local target = ("../"):rep(depth + 2) .. "blobs/" .. blob
  if core.link_target(path) == target then return true end -- also where the cache cannot be written
  return core.make_link(target, path)
end

-- ---- Without the hub -----------------------------------------------------------------------------------------------------

-- Names of the files below a folder.
local function files_below(folder, prefix, out)
  for _, name in ipairs(core.list_dir(folder) or {}) do
    local path = folder .. "/" .. name
    local kind = core.path_kind(path)
    if kind == "file" then out[#out + 1] = prefix .. name end
    if kind == "folder" then files_below(path, prefix .. name .. "/", out) end
  end
  return out
end

-- The path of a model in the cache; or nil, message, code.
local function cached(settings, what)
  local folder = ("%s/models--%s"):format(settings.cache, (what.repo:gsub("/", "--")))
  local commit = core.read_file(folder .. "/refs/" .. what.revision) or what.revision
  local snapshot = folder .. "/snapshots/" .. commit:match "^%s*(.-)%s*$"
  local names = files_below(snapshot, "", {})
  if #names == 0 then return nil, ("%s is not in the cache %s"):format(what.repo, settings.cache), "notfound" end
  table.sort(names)
  local list, main, code = choose.files(names, what.wanted)
  if not list then return nil, what.repo .. ", in the cache: " .. main, code end
  return main == "" and snapshot or snapshot .. "/" .. main
end

-- ---- Pulling -------------------------------------------------------------------------------------------------------------

--- Options of pull.
--   progress: function(name, done, total) of bytes
--   waiting: function(why, seconds), called before a request is repeated
--   offline: true: use only the cache; default HF_HUB_OFFLINE
--   fallback: true: use the cache if the hub cannot be reached; default false
--   client: options of ane.hub.http.client beside those of the environment
M.rules = {
  progress = { type = "callable" }, waiting = { type = "callable" }, offline = { type = "boolean" },
  fallback = { type = "boolean", default = false },
  client = { type = "table", internal = true },
}

-- What one pull works with; or nil, message, code.
local function begin(settings, what, opts)
  local client_opts = { endpoint = settings.endpoint, token = settings.token, wait = core.sleep, waiting = opts.waiting }
  for key, value in pairs(opts.client or {}) do client_opts[key] = value end
  local client, message, code = http.client(client_opts)
  if not client then return nil, message, code end
  local list
  -- With the model in the cache, a hub that cannot be reached is asked once.
  local tries = client.tries
  if opts.fallback and cached(settings, what) then client.tries = 1 end
  list, message, code = list_of(client, what)
  client.tries = tries
  if not list then return nil, message, code end
  local names, main
  names, main, code = choose.files(list.names, what.wanted)
  if not names then return nil, what.repo .. ": " .. main, code end
  local folder = ("%s/models--%s"):format(settings.cache, (what.repo:gsub("/", "--")))
  local self = {
    client = client, repo = what.repo, list = list, names = names, main = main, folder = folder, fetched = 0,
    snapshot = folder .. "/snapshots/" .. list.commit, progress = opts.progress or function() end,
  }
  for _, part in ipairs { "/blobs", "/refs", "/snapshots/" .. list.commit } do
    local ok
    ok, message, code = core.make_folder(folder .. part)
    if not ok then return nil, message, code end
  end
  return self
end

local function finish(self, what)
  local ref = self.folder .. "/refs/" .. what.revision
  if what.revision ~= self.list.commit and core.read_file(ref) ~= self.list.commit then
    local ok, message, code = core.make_folder((ref:match "^(.*)/"))
    if ok then ok, message, code = core.write_file(ref, self.list.commit) end
    if not ok then return nil, message, code end
  end
  return self.main == "" and self.snapshot or self.snapshot .. "/" .. self.main
end

--- Fetches a model: all of its files that are missing.
-- @param name "hf:OWNER/NAME[@REVISION][:FILE or quantisation]"
-- @param opts see rules
-- @param level of errors for misuse, as error()'s
-- @return path of the file or folder that load takes; {repo, commit, files, fetched, bytes, cached}; or nil, message, code
function M.pull(name, opts, level)
  level = level or 1
  schema.argument({ type = "path" }, name, "pull: name", level + 1)
  opts = schema.check(M.rules, opts, "pull", level + 1)
  local what, message, code = M.parse(name)
  if not what then return nil, message, code end
  local settings = M.settings()
  local path, self
  if opts.offline or opts.offline == nil and settings.offline then
    path, message, code = cached(settings, what)
    if not path then return nil, message, code end
    return path, { repo = what.repo, cached = true, fetched = 0 }
  end
  self, message, code = begin(settings, what, opts)
  if not self then
    path = opts.fallback and code == "io" and cached(settings, what)
    if path then return path, { repo = what.repo, cached = true, fetched = 0, message = message } end
    return nil, message, code
  end
  local bytes = 0
  for _, file in ipairs(self.names) do
    local ok
    ok, message, code = add_file(self, file)
    if not ok then return nil, message, code end
    bytes = bytes + (core.file_size(self.snapshot .. "/" .. file) or 0)
  end
  path, message, code = finish(self, what)
  if not path then return nil, message, code end
  return path, { repo = what.repo, commit = self.list.commit, files = self.names, fetched = self.fetched, bytes = bytes, cached = false }
end

return M
