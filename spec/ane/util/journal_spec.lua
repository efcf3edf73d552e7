-- Journals that do not describe their output: the lines up to the first wrong record are kept.
local journal = require "ane.util.journal"
local st = require "support.safetensors_writer"

-- A record: row, key, bytes, flags, check.
local RECORD = "<i8i8I4I4i8"

-- The most memory the process has mapped, in MB; nil where the system does not tell.
local function peak()
  local file <close> = io.open "/proc/self/status"
  local kb = file and file:read("a"):match "VmPeak:%s+(%d+)"
  return kb and tonumber(kb) / 1024
end

describe("a journal", function()
  local LINE = '{"a":1}\n'

  -- Checks a journal of two rows; the second has this number of bytes and this row number (2).
  local function check(bytes, row)
    local folder = st.folder {
      journal = '{"ane_batch":1}\n' .. RECORD:pack(1, 7, #LINE, 0, journal.hash(LINE))
        .. RECORD:pack(row or 2, 8, bytes, 0, journal.hash(LINE)),
      output = LINE .. LINE,
    }
    local found = assert(journal.check(folder .. "/journal", "batch", folder .. "/output"))
    st.remove(folder)
    return found
  end

  it("holds no rows beyond any corpus", function()
    assert.equal(1 << 32, check(#LINE, 1 << 32).last)
    assert.equal(1, check(#LINE, (1 << 32) + 1).last)
  end)

  it("names lines of its output", function()
    assert.equal(2, check(#LINE).records)
    for _, bytes in ipairs { 0, 1, #LINE - 1, #LINE + 1, 0xFFFFFFFF } do
      local found = check(bytes)
      assert.equal(1, found.records, bytes)
      assert.equal(#LINE, found.bytes)
    end
  end)

  it("begins with the settings of a batch", function()
    local path = os.tmpname()
    for _, head in ipairs { "1", "[]", "{}", '{"ane_batch":1,"options":"x"}', '{"ane_batch":1,"model":[1]}', '{"ane_batch":1,"model":null}',
      '{"ane_batch":1,"options":{"shard":3}}', '{"ane_batch":1,"options":{"shard":"a"}}' } do
      st.write(path, head .. "\n")
      local reader, message, code = journal.read(path, "batch")
      assert.is_nil(reader, head)
      assert.equal(path .. ": is not a journal of ane batch", message)
      assert.equal("format", code)
    end
    os.remove(path)
  end)

  it("takes no memory for a line that is longer than its output", function()
    local before = peak()
    if not before then return pending "needs /proc" end
    check(0x7FFFFFFF)
    assert.is_true(peak() - before < 1024)
  end)
end)
