local bioes = require "ane.classify.bioes"

local LABELS = { "O", "B-a", "I-a", "E-a", "S-a", "B-b", "I-b", "E-b", "S-b" }
local CLASS = {}
for i, label in ipairs(LABELS) do CLASS[label] = i end

local function grammar(labels) return assert(bioes.grammar(labels or LABELS)) end

-- Rows of logits in which the label of each token is larger than the others by `strength`.
local function rows_of(labels, strength)
  local rows = {}
  for t, label in ipairs(labels) do
    rows[t] = {}
    for class = 1, #LABELS do rows[t][class] = class == CLASS[label] and (strength or 5) or 0 end
  end
  return rows
end

local function random_rows(n, seed, width)
  math.randomseed(seed)
  local rows = {}
  for t = 1, n do
    rows[t] = {}
    for class = 1, width or #LABELS do rows[t][class] = (math.random() - 0.5) * 8 end
  end
  return rows
end

local function names(path, n)
  local list = {}
  for t = 1, n do list[t] = LABELS[path[t]] end
  return table.concat(list, " ")
end

-- The same rules written a second time: pairs of labels that may follow each other.
local function may_follow(a, b)
  local inside = a:match "^[BI]%-(.*)"
  if inside then return b == "I-" .. inside or b == "E-" .. inside end
  return b == "O" or b:match "^[BS]" ~= nil
end

-- The best path of all, by trying each.
local function brute_force(rows)
  local best, at = -math.huge, nil
  local function go(t, path, sum)
    if t > #rows then
      if not path[#path]:match "^[BI]" and sum > best then best, at = sum, table.concat(path, " ") end
      return
    end
    local z = 0
    for class = 1, #LABELS do z = z + math.exp(rows[t][class]) end
    for class, label in ipairs(LABELS) do
      if may_follow(path[t - 1] or "O", label) then
        path[t] = label
        go(t + 1, path, sum + rows[t][class] - math.log(z))
        path[t] = nil
      end
    end
  end
  go(1, {}, 0)
  return at
end

describe("BIOES decoding", function()
  it("gives the spans of a legal path", function()
    local spans = bioes.decode(grammar(), rows_of { "O", "B-a", "I-a", "E-a", "S-b", "O" })
    local p = math.exp(5) / (math.exp(5) + 8)
    assert.equal(2, #spans)
    assert.same({ "a", 2, 4 }, { spans[1].label, spans[1].first, spans[1].last })
    assert.same({ "b", 5, 5 }, { spans[2].label, spans[2].first, spans[2].last })
    assert.near(p, spans[1].score, 1e-12)
  end)

  it("finds the path that trying all of them finds", function()
    for seed = 1, 60 do
      local rows = random_rows(1 + seed % 5, seed)
      local _, path = bioes.decode(grammar(), rows)
      assert.equal(brute_force(rows), names(path, #rows))
    end
  end)

  it("repairs an illegal path at the least cost", function()
    local _, path = bioes.decode(grammar(), rows_of { "B-a", "I-b", "E-a" })
    assert.equal("B-a I-a E-a", names(path, 3))
    _, path = bioes.decode(grammar(), rows_of { "I-a" })
    assert.is_nil(names(path, 1):match "^[BIE]")
    local spans = bioes.decode(grammar(), rows_of { "O", "B-a" })
    assert.is_true(#spans == 0 or spans[1].first == 2 and spans[1].last == 2)
  end)

  it("scores by the mean probability of the path's labels", function()
    local rows = random_rows(6, 5)
    local spans, path = bioes.decode(grammar(), rows)
    for _, span in ipairs(spans) do
      local sum = 0
      for t = span.first, span.last do
        local z = 0
        for class = 1, #LABELS do z = z + math.exp(rows[t][class]) end
        sum = sum + math.exp(rows[t][path[t]]) / z
      end
      assert.near(sum / (span.last - span.first + 1), span.score, 1e-12)
    end
    assert.is_true(#spans > 0)
  end)

  it("gives the same spans piece by piece, and holds back no more than the span that is open", function()
    local rows = random_rows(400, 9)
    local want, path = bioes.decode(grammar(), rows)
    local d, got, classes, most = bioes.decoder(grammar()), {}, {}, 0
    for t, row in ipairs(rows) do
      d:push(row)
      if t % 7 == 0 then
        local spans, decided, some = d:take()
        table.move(spans, 1, #spans, #got + 1, got)
        for i = #classes + 1, decided do classes[i] = some[i] end
        most = math.max(most, t - decided)
        assert.is_nil(d.back[decided])
      end
    end
    local spans, decided, some = d:finish()
    table.move(spans, 1, #spans, #got + 1, got)
    for i = #classes + 1, decided do classes[i] = some[i] end
    assert.same(want, got)
    assert.same(path, classes)
    assert.is_true(most < 40, "held " .. most)
  end)

  it("knows BIO and BILOU", function()
    local bio = { "O", "B-a", "I-a" }
    local spans = bioes.decode(grammar(bio), { { 0, 9, 0 }, { 0, 0, 9 }, { 0, 9, 0 }, { 9, 0, 0 }, { 0, 9, 0 } })
    local list = {}
    for i, s in ipairs(spans) do list[i] = s.first .. "-" .. s.last end
    assert.same({ "1-2", "3-3", "5-5" }, list)
    local bilou = { "O", "B-a", "I-a", "L-a", "U-a" }
    spans = bioes.decode(grammar(bilou), { { 0, 9, 0, 0, 0 }, { 0, 0, 0, 9, 0 }, { 0, 0, 0, 0, 9 } })
    assert.same({ 2, 2, 3 }, { #spans, spans[1].last, spans[2].first })
  end)

  it("survives logits that are not finite", function()
    local nan, inf = 0 / 0, math.huge
    local rows = { { nan, nan, nan, nan, nan, nan, nan, nan, nan }, { inf, -inf, 0, 0, inf, 0, 0, 0, 0 },
      { -inf, -inf, 3, 3, -inf, 3, 3, 3, 3 } }
    local _, path = bioes.decode(grammar(), rows)
    assert.equal(3, #path)
  end)

  it("takes an empty text", function()
    assert.same({}, (bioes.decode(grammar(), {})))
    assert.same({}, (bioes.decoder(grammar()):take()))
  end)

  it("refuses labels that do not describe spans", function()
    local g, message, code = bioes.grammar { "O", "positive" }
    assert.is_nil(g)
    assert.matches("label 'positive'", message)
    assert.equal("unsupported", code)
    g, message = bioes.grammar { "S-a" }
    assert.is_nil(g)
    assert.matches("no label O", message)
  end)

  it("decodes 4096 tokens of 33 labels in no time", function()
    local labels = { "O" }
    for i = 1, 8 do
      for _, mark in ipairs { "B", "I", "E", "S" } do labels[#labels + 1] = mark .. "-" .. i end
    end
    local rows = random_rows(4096, 3, 33)
    local started = os.clock()
    bioes.decode(grammar(labels), rows)
    assert.is_true(os.clock() - started < 2)
  end)
end)
