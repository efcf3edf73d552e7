-- Hashes, and folders that are written over several runs.
local core = require "ane.core"

describe("sha256", function()
  it("gives the digests of FIPS 180-4 and of sha256sum", function()
    assert.equal("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", core.sha256 "")
    assert.equal("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", core.sha256 "abc")
    assert.equal("248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
      core.sha256 "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")
    assert.equal("cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", core.sha256(("a"):rep(1000000)))
    local path = os.tmpname()
    for n = 50, 130, 7 do
      core.write_file(path, ("x"):rep(n))
      local pipe <close> = assert(io.popen("sha256sum " .. path))
      assert.equal(pipe:read "a":match "^%x+", (core.sha256_file(path)))
    end
    os.remove(path)
  end)
end)

-- Words of eight bytes through FNV-1a's step with a shift, then the size and the end of MurmurHash3.
local function hash64(text)
  local function step(sum, word)
    sum = (sum ~ word) * 0x100000001b3
    return sum ~ sum >> 32
  end
  local sum, whole = 0, #text // 8 * 8
  for at = 1, whole, 8 do sum = step(sum, ("<i8"):unpack(text, at)) end
  sum = step(step(sum ~ 0xcbf29ce484222325, (("<i8"):unpack(text:sub(whole + 1) .. ("\0"):rep(8)))), #text)
  sum = (sum ~ sum >> 33) * 0xff51afd7ed558ccd
  sum = (sum ~ sum >> 33) * 0xc4ceb9fe1a85ec53
  return ("%016x"):format(sum ~ sum >> 33)
end

describe("hash64", function()
  it("gives 16 digits that depend on all bytes", function()
    local seen = {}
    for n = 0, 40 do
      local text = ("some bytes of a state, \0\255"):rep(2):sub(1, n)
      assert.equal(hash64(text), core.hash64(text))
      seen[core.hash64(text)] = true
    end
    local count = 0
    for _ in pairs(seen) do count = count + 1 end
    assert.equal(41, count)
  end)
end)

describe("folder", function()
  local function temp()
    local path = os.tmpname()
    os.remove(path)
    return path
  end

  it("goes if nothing was written", function()
    local path = temp()
    do
      local f <close> = assert(core.folder(path))
      assert.equal("folder", core.path_kind(f:path()))
    end
    assert.is_nil(core.path_kind(path .. ".partial"))
    local f, message, code = core.folder(path .. "/none/out")
    assert.same({ nil, path .. "/none/out: cannot create: No such file or directory", "io" }, { f, message, code })
  end)

  it("stays where it was left, and goes on there", function()
    local path = temp()
    local f = assert(core.folder(path))
    core.write_file(f:path() .. "/a", "one")
    assert(f:make "inner")
    core.write_file(f:path() .. "/inner/b", "two")
    local other, message, code = core.folder(path)
    assert.same({ nil, "state" }, { other, code })
    assert.matches("another process", message)
    f:leave()
    assert.is_nil(core.path_kind(path))
    f = assert(core.folder(path))
    assert.equal("one", core.read_file(f:path() .. "/a"))
    assert(f:remove "inner")
    assert(f:remove "not there")
    assert.is_nil((f:remove ".."))
    assert.is_nil((f:remove "a/b"))
    assert(f:commit())
    assert.equal("one", core.read_file(path .. "/a"))
    assert.is_nil(core.path_kind(path .. "/inner"))
    assert.is_nil(core.path_kind(path .. ".partial"))
    assert.error_matches(function() f:commit() end, "folder is closed")
    local g = assert(core.folder(path))
    core.write_file(g:path() .. "/c", "three")
    assert(g:commit()) -- the folder as a whole takes the old one's place
    assert.same({ "c" }, core.list_dir(path))
    os.execute(("rm -rf '%s'"):format(path))
  end)

  it("goes where it is abandoned", function()
    local path = temp()
    local f = assert(core.folder(path))
    f:abandon()
    assert.is_nil(core.path_kind(path .. ".partial"))
  end)
end)
