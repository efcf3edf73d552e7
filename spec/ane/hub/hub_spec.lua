-- Fetching models, from a server on loopback that behaves like the hub (support/hub.py).
local choose = require "ane.hub.choose"
local core = require "ane.core"
local http = require "ane.hub.http"
local hub = require "ane.hub"
local tree = require "support.tree"

local COMMIT = "0123456789abcdef0123456789abcdef01234567"

describe("names of models", function()
  it("have a repository, and may have a revision, a file or a quantisation", function()
    assert.same({ repo = "a/b.c", revision = "main" }, hub.parse "hf:a/b.c")
    assert.same({ repo = "a/b", revision = "main", wanted = "Q4_K_M" }, hub.parse "hf:a/b:Q4_K_M")
    assert.same({ repo = "a/b", revision = "v1", wanted = "x/y.gguf" }, hub.parse "hf:a/b@v1:x/y.gguf")
    for _, name in ipairs { "a/b", "hf:a", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b:", "hf:a/b@../x:y", "hf:a/b c", "hf:/b",
      "hf:a/b@", "hf:a/b@:Q4_0" } do
      local what, message, code = hub.parse(name)
      assert.same({ nil, "invalid" }, { what, code }, name)
      assert.matches("hf:OWNER/NAME:QUANTISATION", message)
    end
  end)
end)

describe("the files of a model", function()
  local NAMES = { "README.md", "config.json", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-IQ4_K_M.gguf", "mmproj-Q4_K_M.gguf",
    "Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf", "x-Q6_K-00001-of-00002.gguf" }

  it("are found by quantisation, whole", function()
    assert.same({ "m-Q4_K_M.gguf" }, choose.files(NAMES, "q4_k_m"))
    assert.same({ "m-IQ4_K_M.gguf" }, choose.files(NAMES, "IQ4_K_M"))
    assert.same({ { "Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf" }, "Q8_0/m-00001-of-00002.gguf" },
      { choose.files(NAMES, "Q8_0") })
    local list, message, code = choose.files(NAMES, "Q5_K")
    assert.same({ nil, "notfound" }, { list, code })
    assert.matches("choose Q8_0/m%-00001%-of%-00002.gguf, m%-IQ4_K_M.gguf", message)
    assert.matches("several files", select(2, choose.files({ "a-Q4_0.gguf", "b-Q4_0.gguf" }, "Q4_0")))
  end)

  it("are found by name", function()
    assert.same({ { "Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf" }, "Q8_0/m-00001-of-00002.gguf" },
      { choose.files(NAMES, "Q8_0/m-00002-of-00002.gguf") })
    assert.matches("part 2 of 2 is not in the repository", select(2, choose.files(NAMES, "x-Q6_K-00001-of-00002.gguf")))
    assert.matches("is not in the repository", select(2, choose.files(NAMES, "m-Q4_K.gguf")))
    assert.same({ "onnx/m.onnx", "onnx/m.onnx_data", "tokenizer.json" },
      choose.files({ "onnx/m.onnx", "onnx/m.onnx_data", "onnx/n.onnx", "tokenizer.json", "a/b.json" }, "onnx/m.onnx"))
  end)

  it("are the only one, or that of Q4_K_M, or a folder", function()
    assert.same({ "m-Q4_K_M.gguf" }, choose.files(NAMES))
    assert.same({ "a.gguf" }, choose.files { "a.gguf", "mmproj-a.gguf", "x.json" })
    assert.same({ "a-Q8_0.gguf" }, choose.files { "a-Q8_0.gguf", "a-mmproj-model-f16.gguf", "a.mmproj-Q8_0.gguf" })
    assert.is_nil((choose.files({ "a-Q8_0.gguf", "a-mmproj-model-f16.gguf" }, "f16")))
    assert.matches("several models are in the repository: name one of", select(2, choose.files { "a-Q5_0.gguf", "a-Q6_K.gguf" }))
    assert.same({ { "1_Pooling/config.json", "config.json", "model.safetensors", "tokenizer.model" }, "" },
      { choose.files { "1_Pooling/config.json", "config.json", "model.safetensors", "tokenizer.model", "README.md", "model.bin",
        "onnx/model.onnx", "original/x.safetensors", "consolidated.safetensors" } })
    assert.matches("no GGUF file", select(2, choose.files { "README.md" }))
    assert.matches("the repository has no files", select(2, choose.files {}))
    assert.matches("no GGUF file is in the repository", select(2, choose.files({ "a/model.onnx", "README.md" }, "onnx")))
  end)

  it("name a missing part of a split model", function()
    for _, wanted in ipairs { false, "Q6_K" } do
      local list, message, code = choose.files({ "README.md", "x-Q6_K-00001-of-00003.gguf", "x-Q6_K-00003-of-00003.gguf" }, wanted or nil)
      assert.same({ nil, "notfound" }, { list, code })
      assert.matches("x%-Q6_K: part 2 of 3 is not in the repository", message)
    end
  end)
end)

describe("redirects", function()
  it("know the origin of an address", function()
    assert.equal("https://a.b:443", (http.origin_of "https://A.b/x"))
    assert.equal("http://a.b:81", (http.origin_of "http://a.b:81?x"))
    for _, url in ipairs { "ftp://a", "file:///etc/passwd", "a", "https://u@a/", "https://a b/" } do
      assert.is_nil((http.origin_of(url)))
    end
  end)
end)

local available = core.fetch_available() and os.execute "command -v python3 >/dev/null"

describe("a hub", function()
  local folder, server, port, cdn, env
  local real = os.getenv
  if not available then
    it("is not tried: no libcurl, or no python3", function() end)
    return
  end

  setup(function()
    folder = tree.folder()
    -- The server ends with its standard input, which is this process's end of a pipe.
    os.execute(("mkfifo '%s/in'"):format(folder))
    os.execute(("python3 spec/support/hub.py '%s/log' <'%s/in' >'%s/ports' 2>'%s/errors' &"):format(folder, folder, folder, folder))
    server = assert(io.open(folder .. "/in", "w"))
    local ports
    local deadline = core.clock() + 120
    repeat
      core.sleep(0.02)
      ports = core.read_file(folder .. "/ports") or ""
    until ports:find "\n" or core.clock() > deadline
    port, cdn = ports:match "(%d+) (%d+)"
    assert(port, core.read_file(folder .. "/errors"))
    env = { HF_ENDPOINT = "http://127.0.0.1:" .. port, HF_HOME = folder .. "/hf", HOME = folder }
    os.getenv = function(name) -- luacheck: ignore 122
      if name:find "^HF_" or name:find "^HUGGING" or name == "HOME" or name == "XDG_CACHE_HOME" then return env[name] end
      return real(name)
    end
  end)
  teardown(function()
    os.getenv = real -- luacheck: ignore 122
    server:close()
    tree.remove(folder)
  end)
  after_each(function() env.HF_TOKEN, env.HF_HUB_OFFLINE = nil, nil end)

  local function no_wait() end
  -- No server that is alive counts as stalled, however busy the machine is.
  local QUICK = { client = { wait = no_wait, stall_s = 120, tries = 4 } }

  local function pull(name, opts)
    local all = { client = QUICK.client }
    for key, value in pairs(opts or {}) do all[key] = value end
    return hub.pull(name, all)
  end

  -- The requests since the last call.
  local seen = 0
  local function requests()
    local list, n = {}, 0
    for line in assert(core.read_file(folder .. "/log")):gmatch "[^\n]+" do
      n = n + 1
      if n > seen then list[#list + 1] = core.json_decode(line) end
    end
    seen = n
    return list
  end

  local function count(list, field, value)
    local n = 0
    for _, r in ipairs(list) do n = n + (r[field] == value and 1 or 0) end
    return n
  end

  local function link_of(path)
    local pipe <close> = assert(io.popen(("readlink '%s'"):format(path)))
    return pipe:read "l"
  end

  it("gives a file in the cache's layout", function()
    requests()
    local progress = {}
    local path, info = assert(pull("hf:org/gguf:q4_k_m", {
      progress = function(name, done, total) progress[#progress + 1] = { name, done, total } end,
    }))
    local base = folder .. "/hf/hub/models--org--gguf"
    assert.equal(base .. "/snapshots/" .. COMMIT .. "/model-Q4_K_M.gguf", path)
    local sum = assert(core.sha256_file(path))
    assert.equal("../../blobs/" .. sum, link_of(path))
    assert.equal(COMMIT, core.read_file(base .. "/refs/main"))
    assert.same({ repo = "org/gguf", commit = COMMIT, files = { "model-Q4_K_M.gguf" }, fetched = 1, bytes = 300000, cached = false }, info)
    assert.same({ "model-Q4_K_M.gguf", 300000, 300000 }, progress[#progress])
    assert.is_nil(core.path_kind(base .. "/blobs/" .. sum .. ".incomplete"))
    -- Once more: nothing is fetched.
    requests()
    local _, again = assert(pull "hf:org/gguf:Q4_K_M")
    assert.equal(0, again.fetched)
    assert.equal(1, #requests())
  end)

  it("gives all parts of a model, and folders", function()
    local path, info = assert(pull "hf:org/gguf:Q2_K")
    assert.matches("/Q2_K/big%-Q2_K%-00001%-of%-00003%.gguf$", path)
    assert.equal(3, info.fetched)
    assert.equal(50003, core.file_size((path:gsub("00001%-of", "00003-of"))))
    assert.equal("../../../blobs/" .. core.sha256_file(path), link_of(path))
    path, info = assert(pull "hf:org/folder@v1")
    assert.same({ "1_Pooling/config.json", "config.json", "empty.json", "model-00001-of-00002.safetensors",
      "model-00002-of-00002.safetensors" }, info.files)
    assert.equal("{}", core.read_file(path .. "/1_Pooling/config.json"))
    assert.equal("", core.read_file(path .. "/empty.json"))
    assert.equal(COMMIT, core.read_file(folder .. "/hf/hub/models--org--folder/refs/v1"))
  end)

  it("goes on where a connection broke", function()
    requests()
    local path = assert(pull "hf:org/breaks")
    assert.equal(300000, core.file_size(path))
    local ranges = {}
    for _, r in ipairs(requests()) do
      if r.where == "cdn" then ranges[#ranges + 1] = r.range == core.null and "" or r.range end
    end
    assert.same({ "", "bytes=70000-", "bytes=140000-", "bytes=210000-", "bytes=280000-" }, ranges)
    assert(pull "hf:org/busy")
    -- Its first answer stops in the middle. A busy machine may stall later ones too.
    assert(pull("hf:org/stalls", { client = { wait = no_wait, stall_s = 1, tries = 100 } }))
    assert(pull "hf:org/norange")
  end)

  it("goes on with what an earlier run has left", function()
    local blobs = folder .. "/hf/hub/models--org--leaves/blobs"
    local path, message, code = pull("hf:org/leaves", { client = { tries = 1 } })
    assert.same({ nil, "io" }, { path, code })
    assert.matches("^only.gguf: .*%(1 try%)", message)
    local part = blobs .. "/" .. core.list_dir(blobs)[1]
    assert.matches("%.incomplete$", part)
    assert.equal(70000, core.file_size(part))
    assert.is_nil(core.path_kind(folder .. "/hf/hub/models--org--leaves/refs/main"))
    requests()
    path = assert(pull "hf:org/leaves")
    assert.equal(300000, core.file_size(path))
    assert.equal(2, count(requests(), "range", "bytes=70000-")) -- of the hub, which redirects, and of the store
    -- A part that is whole, and one that is not what it should be.
    local blob = blobs .. "/" .. core.sha256_file(path)
    assert(os.rename(blob, part))
    assert.equal(1, select(2, assert(pull "hf:org/leaves")).fetched)
    assert(os.rename(blob, part))
    assert(core.write_file(part, ("x"):rep(300001)))
    assert.equal(1, select(2, assert(pull "hf:org/leaves")).fetched)
    assert.equal(300000, core.file_size(path))
    assert(pull "hf:org/stale")
  end)

  it("keeps no file whose size, hash or name is not the promised one", function()
    local path, message, code = pull "hf:org/wrong"
    assert.same({ nil, "format" }, { path, code })
    assert.matches("^only.gguf: its SHA%-256 is %x+, but must be %x+ according to the hub; the file was removed$", message)
    assert.same({}, core.list_dir(folder .. "/hf/hub/models--org--wrong/blobs"))
    path, message = pull "hf:org/long"
    assert.is_nil(path)
    assert.matches("more than the 300000 bytes", message)
    path, message = pull "hf:org/odd"
    assert.is_nil(path)
    assert.matches('has the name "../x.gguf"', message)
    local most = 0
    path, message = pull("hf:org/floods", { progress = function(_, n) most = math.max(most, n) end }) -- its store sends 2 GB
    assert.is_nil(path)
    assert.is_true(most > 300000 and most < 1500000000)
    assert.matches("more than the 300000 bytes", message)
    assert.same({}, core.list_dir(folder .. "/hf/hub/models--org--floods/blobs"))
    assert(pull "hf:org/nolfs") -- the tag of the redirect has the sum
    path, message, code = pull "hf:org/dies"
    assert.same({ nil, "io" }, { path, code })
    assert.matches("%(4 tries%)", message)
  end)

  it("gets the token, and no other server does", function()
    local path, message, code = pull "hf:org/private"
    assert.same({ nil, "notfound" }, { path, code })
    assert.matches("org/private: does not exist, or needs a token %(HF_TOKEN%)", message)
    env.HF_TOKEN = "hf_secret"
    requests()
    assert(pull "hf:org/private")
    for _, r in ipairs(requests()) do
      assert.equal(r.where == "hub" and "Bearer hf_secret" or core.null, r.authorization)
    end
    env.HF_TOKEN = nil
    assert(core.write_file(folder .. "/hf/token", "hf_secret\n"))
    assert(pull "hf:org/private")
    os.remove(folder .. "/hf/token")
    env.HF_TOKEN = " hf_secret\n" -- as the hub's programs read it
    assert(pull "hf:org/private")
    env.HF_TOKEN = "a b"
    assert.matches("characters that no token has", select(2, pull "hf:org/private"))
    env.HF_TOKEN = nil
    for name, want in pairs { gated = "licence may have to be accepted", leaks = "an address that is not HTTP",
      loops = "more than 10 times",
      absent = "org/absent: is not there", ["gguf@v9"] = "org/gguf@v9: is not there", empty = "the repository has no files",
      licence = "only.gguf: needs a token %(HF_TOKEN%) of an account that has accepted its licence",
      partless = "part 2 of 3 is not in the repository", waits = "asks to wait 3600 seconds",
      bare = "no GGUF file", several = "name one of a%-Q5_0.gguf, b%-Q6_K.gguf" } do
      path, message = pull("hf:org/" .. name)
      assert.is_nil(path)
      assert.matches(want, message)
    end
  end)

  it("is not needed for what the cache has", function()
    local path = assert(pull "hf:org/one")
    env.HF_HUB_OFFLINE = "1"
    assert.equal(path, (pull "hf:org/one"))
    assert.matches("is not in the cache", select(2, pull "hf:org/never"))
    env.HF_HUB_OFFLINE = nil
    local old = env.HF_ENDPOINT
    env.HF_ENDPOINT = "http://127.0.0.1:1"
    local none, message, code = pull "hf:org/one"
    assert.same({ nil, "io" }, { none, code })
    assert.matches("org/one: ", message)
    local said = {}
    local function waiting(why, seconds) said[#said + 1] = { why, seconds } end
    pull("hf:org/one", { waiting = waiting })
    assert.equal(3, #said) -- between 4 tries
    assert.matches("^org/one: .*127.0.0.1 port 1", said[1][1])
    assert.equal(2, said[1][2])
    said = {}
    local got, info = pull("hf:org/one", { fallback = true, waiting = waiting })
    assert.same({ path, true }, { got, info.cached })
    assert.same({}, said)
    env.HF_ENDPOINT = "ftp://x"
    assert.matches("HF_ENDPOINT must begin with https://", select(2, pull "hf:org/one"))
    env.HF_ENDPOINT = old
  end)

  it("changes nothing in a cache that has all of a model", function()
    for _, name in ipairs { "hf:org/kept", "hf:org/folder@v1", "hf:org/kept@" .. COMMIT } do assert(pull(name)) end
    local base = folder .. "/hf/hub/models--org--kept"
    assert.is_nil(core.read_file(base .. "/refs/" .. COMMIT)) -- as the hub's programs do: a commit is not a ref
    local real_link, real_write, changes = core.make_link, core.write_file, 0
    core.make_link = function() changes = changes + 1 end
    core.write_file = core.make_link
    local path, info = pull "hf:org/kept"
    local other = pull "hf:org/folder@v1"
    core.make_link, core.write_file = real_link, real_write
    assert.same({ 0, 0 }, { changes, info and info.fetched })
    assert.equal(base .. "/snapshots/" .. COMMIT .. "/only.gguf", path)
    assert.is_string(other)
  end)

  it("serves one fetch of a file at a time", function()
    local part = folder .. "/locked"
    local first <close> = assert(core.fetch("http://127.0.0.1:" .. cdn .. "/org/one/only.gguf", { path = part }))
    local second, message, code = core.fetch("http://127.0.0.1:" .. cdn .. "/org/one/only.gguf", { path = part })
    assert.same({ nil, "state" }, { second, code })
    assert.matches("another process fetches this file", message)
    repeat
      local done = first:step(0.1)
      assert.is_not_nil(done)
    until done
    assert.same({ 200, 1000 }, { first:status(), first:received() })
  end)

  it("is asked by ane pull, and by commands that load hf: names", function()
    local shell = ("HF_ENDPOINT='%s' HF_HOME='%s' HOME='%s' "):format(env.HF_ENDPOINT, env.HF_HOME, folder)
    local function ane(words)
      local ok, text = tree.run(shell .. (os.getenv "ANE_BUILD" or "build/release") .. "/bin/ane " .. words .. " 2>&1")
      return ok, text
    end
    local ok, text = ane "pull hf:org/one --no-progress"
    assert.is_true(ok, text)
    assert.equal(folder .. "/hf/hub/models--org--one/snapshots/" .. COMMIT .. "/only.gguf\n", text)
    ok, text = ane "pull org/gguf:Q8_0 --json"
    assert.is_true(ok, text)
    assert.same({ "model-Q8_0.gguf" }, core.json_decode(text).files)
    ok, text = ane "pull hf:org/gguf:Q3_K"
    assert.is_false(ok)
    assert.matches("^ane pull: org/gguf: no file of the quantisation Q3_K", text)
    ok, text = ane "pull nonsense"
    assert.is_false(ok)
    assert.matches("is not a name of a model", text)
    ok, text = ane "info hf:org/one" -- fetched, and then no model
    assert.is_false(ok)
    assert.matches("only.gguf", text)
  end)
end)
