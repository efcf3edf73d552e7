local stops = require "ane.generate.stops"

-- What comes out of a watcher for these pieces, piece by piece, and the stop string it found.
local function outputs(strings, pieces)
  local watch, out = stops.watch(strings), {}
  for _, piece in ipairs(pieces) do
    local text, found = watch:push(piece)
    out[#out + 1] = text
    if found then return out, found end
  end
  out[#out + 1] = watch:flush()
  return out
end

local function run(strings, pieces)
  local out, found = outputs(strings, pieces)
  return table.concat(out), found
end

describe("stop strings", function()
  it("are found wherever the pieces are cut", function()
    local text = "one two END three"
    for size = 1, #text do
      local pieces = {}
      for at = 1, #text, size do pieces[#pieces + 1] = text:sub(at, at + size - 1) end
      assert.same({ "one two ", "END" }, { run({ "END" }, pieces) }, nil, size)
    end
  end)

  it("let nothing through that may be the start of one", function()
    assert.same({ "a", "", "##b", "", "" }, (outputs({ "###" }, { "a#", "#", "b", "##", "#x" })))
  end)

  it("give back what was held when the text ends", function()
    assert.equal("a##", (run({ "###" }, { "a", "##" })))
  end)

  it("take the earliest of several", function()
    assert.same({ "x", "bc" }, { run({ "cd", "bc" }, { "xbcd" }) })
    assert.same({ "x", "abc" }, { run({ "abc", "ab" }, { "xabc" }) }) -- at one place: the one named first
  end)

  it("are plain text, and overlap with themselves", function()
    assert.same({ "a", "%d" }, { run({ "%d" }, { "a%", "d" }) })
    assert.same({ "a", "aab" }, { run({ "aab" }, { "a", "a", "a", "b" }) })
    assert.same({ "x", "\xC3\xA9" }, { run({ "\xC3\xA9" }, { "x\xC3", "\xA9" }) })
  end)

  it("cost nothing when there are none", function()
    assert.same({ "abc" }, { run({}, { "a", "bc" }) })
  end)
end)

describe("repeated n-grams", function()
  local function first_repeat(size, times, ids)
    local counter, list = stops.repeats(size, times), {}
    for i, id in ipairs(ids) do
      list[i] = id
      if counter:push(list) then return i end
    end
  end

  it("are reported when one has come so many times", function()
    assert.equal(6, first_repeat(2, 3, { 1, 2, 1, 2, 1, 2, 1, 2 }))
    assert.equal(5, first_repeat(3, 3, { 7, 7, 7, 7, 7, 7 }))
    assert.equal(2, first_repeat(1, 2, { 4, 4 }))
    assert.is_nil(first_repeat(2, 3, { 1, 2, 1, 2, 1, 3, 1, 4 }))
  end)

  it("do not take 1, 23 for 12, 3", function()
    assert.is_nil(first_repeat(2, 2, { 1, 23, 12, 3 }))
  end)
end)
