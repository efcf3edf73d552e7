local core = require "ane.core"

local function row(values) return core.tensor({ #values }, values) end

local function softmax(values, temperature)
  local max, sum, out = -math.huge, 0, {}
  for _, v in ipairs(values) do max = math.max(max, v) end
  for i, v in ipairs(values) do
    out[i] = math.exp((v - max) / temperature)
    sum = sum + out[i]
  end
  for i, v in ipairs(out) do out[i] = v / sum end
  return out
end

-- How often each id is drawn.
local function histogram(opts, values, n)
  local sampler, logits, counts = core.sampler(opts), row(values), {}
  for i = 1, #values do counts[i] = 0 end
  for position = 1, n do
    local id = sampler:draw(logits, position)
    counts[id + 1] = counts[id + 1] + 1
  end
  return counts
end

local function drawn(counts)
  local set = {}
  for i, count in ipairs(counts) do
    if count > 0 then set[#set + 1] = i - 1 end
  end
  return set
end

local values = { 1.0, 3.0, 2.0, -1.0, 2.5 } -- best first: ids 1, 4, 2, 0, 3

describe("softmax and log probabilities", function()
  it("agree with the definition in double precision", function()
    local big = {}
    for i = 1, 1003 do big[i] = (core.random(1, i) - 0.5) * 60 end
    local got, want = core.softmax(row(big), 0.7), softmax(big, 0.7)
    for i = 1, #big do assert.near(want[i], got:get(i), 1e-5 * want[i] + 1e-30) end
    local logprob, top = core.logprobs(row(big), 17, 5)
    assert.near(math.log(softmax(big, 1)[18]), logprob, 1e-5)
    assert.equal(5, #top)
    assert.near(math.log(softmax(big, 1)[top[1][1] + 1]), top[1][2], 1e-5)
  end)

  it("survive extreme rows", function()
    assert.same({ 0.5, 0.5, 0.0 }, core.softmax(row { 1e30, 1e30, -1e30 }):totable())
    assert.same({ 0.0, 1.0, 0.0 }, core.softmax(row { 1, math.huge, -math.huge }):totable())
    assert.same({ 0.0, 0.0 }, core.softmax(row { -math.huge, 0 / 0 }):totable())
    assert.equal(0.0, (core.logprobs(row { -3 }, 0)))
  end)
end)

describe("the sampler", function()
  it("is greedy without temperature", function()
    assert.same({ 1, 3.0 }, { core.sampler({}):draw(row(values), 0) })
    assert.equal(0, (core.sampler({ temperature = 0, seed = 5 }):draw(row { 2, 2, 2 }, 9)))
  end)

  it("draws with the probabilities of the softmax", function()
    for _, temperature in ipairs { 0.5, 1, 3 } do
      local n, want = 20000, softmax(values, temperature)
      local counts, chi = histogram({ temperature = temperature, seed = 11 }, values, n), 0
      for i, count in ipairs(counts) do chi = chi + (count - n * want[i]) ^ 2 / (n * want[i]) end
      assert.is_true(chi < 18.5) -- 4 degrees of freedom, p = 0.001
    end
  end)

  it("draws with these probabilities from a large flat vocabulary, beyond the tokens it ranks first", function()
    local n, flat, counts = 5000, {}, {}
    for i = 1, n do flat[i] = (i % 7) * 0.01 end
    local sampler, logits = core.sampler { temperature = 1, seed = 2 }, row(flat)
    for position = 1, 4000 do
      local id = sampler:draw(logits, position)
      local bin = id * 8 // n
      counts[bin] = (counts[bin] or 0) + 1
    end
    local chi = 0
    for bin = 0, 7 do chi = chi + (counts[bin] - 500) ^ 2 / 500 end
    assert.is_true(chi < 24.3) -- 7 degrees of freedom, p = 0.001
  end)

  it("keeps what top_k, top_p and min_p say", function()
    local p = softmax(values, 1) -- ids 1: .459, 4: .278, 2: .169, 0: .062, 3: .008
    assert.same({ 1, 4 }, drawn(histogram({ temperature = 1, top_k = 2 }, values, 500)))
    assert.same({ 1 }, drawn(histogram({ temperature = 1, top_k = 1 }, values, 50)))
    assert.same({ 1, 4 }, drawn(histogram({ temperature = 1, top_p = p[2] + p[5] - 0.01 }, values, 500)))
    assert.same({ 1, 2, 4 }, drawn(histogram({ temperature = 1, top_p = p[2] + p[5] + 0.01 }, values, 500)))
    assert.same({ 1 }, drawn(histogram({ temperature = 1, top_p = 0 }, values, 50)))
    assert.same({ 1, 2, 4 }, drawn(histogram({ temperature = 1, min_p = p[3] / p[2] - 0.01 }, values, 500)))
    assert.same({ 1, 4 }, drawn(histogram({ temperature = 1, min_p = p[3] / p[2] + 0.01 }, values, 500)))
    -- top_p is a share of what top_k left: of ids 1 and 4, id 1 alone holds 0.62
    assert.same({ 1 }, drawn(histogram({ temperature = 1, top_k = 2, top_p = 0.6 }, values, 200)))
    assert.same({ 0, 1, 2, 3, 4 }, drawn(histogram({ temperature = 1, top_k = 5, top_p = 1 }, values, 5000)))
  end)

  it("finds the edge of top_p beyond the tokens it ranks first", function()
    local flat = {}
    for i = 1, 1000 do flat[i] = -i * 1e-4 end
    local sampler, logits = core.sampler { temperature = 1, top_p = 0.5, seed = 4 }, row(flat)
    local most = 0
    for position = 1, 3000 do
      local id = sampler:draw(logits, position)
      most = math.max(most, id)
    end
    local mass, edge = 0, 0
    for i, share in ipairs(softmax(flat, 1)) do
      if mass >= 0.5 then break end
      mass, edge = mass + share, i - 1
    end
    assert.is_true(most <= edge and most > edge - 10)
  end)

  -- The part of [0, 1) whose random numbers draw each token: ranks all tokens, applies the filters and adds up. id -> {from, to}
  local function parts_of(list, opts)
    local weights, order, total = softmax(list, opts.temperature), {}, 0
    for i, v in ipairs(list) do
      if v == v and v > -math.huge then
        order[#order + 1] = i
        total = total + weights[i]
      end
    end
    table.sort(order, function(a, b) return list[a] == list[b] and a < b or list[a] > list[b] end)
    local parts, sum = {}, 0
    for rank, i in ipairs(order) do
      local p = weights[i] / total
      if rank > 1 and (p < (opts.min_p or 0) * weights[order[1]] / total or sum >= (opts.top_p or 1)) then break end
      parts[i - 1] = { sum, sum + p }
      sum = sum + p
    end
    for _, part in pairs(parts) do part[1], part[2] = part[1] / sum, part[2] / sum end
    return parts
  end

  it("draws the token at the random number in order of rank, however deep", function()
    local function rows(n, spread, special)
      local list = {}
      for i = 1, n do list[i] = (core.random(n, i) + core.random(n, i + n) + core.random(n, i + 2 * n) - 1.5) * spread end
      for i = 5, special and n or 0, 7 do list[i] = i % 2 == 0 and 0 / 0 or -math.huge end
      return list
    end
    local deep = 0
    for _, list in ipairs { rows(3001, 4), rows(777, 30), rows(2000, 0), rows(1500, 9, true), rows(65, 1) } do
      for _, opts in ipairs {
        { temperature = 1 }, { temperature = 2.5 }, { temperature = 1, top_p = 0.90625 }, { temperature = 1, top_p = 1 - 2 ^ -14 },
        { temperature = 1, min_p = 0.25 }, { temperature = 1.5, min_p = 2 ^ -20 }, { temperature = 0.7, top_p = 0.96875, min_p = 2 ^ -6 },
      } do
        local copy = {}
        for i, v in ipairs(list) do copy[i] = v == v and v or -math.huge end
        local parts, logits, ranked_first = parts_of(copy, opts), row(list), {}
        for _, one in ipairs(select(2, core.logprobs(logits, 0, 64))) do ranked_first[one[1]] = true end
        opts.seed = 5
        local sampler = core.sampler(opts)
        for position = 1, 25 do
          local id, u = sampler:draw(logits, position), core.random(5, position)
          local part = parts[id] or error(("%d is not kept"):format(id))
          assert.is_true(u > part[1] - 1e-6 and u < part[2] + 1e-6)
          if not ranked_first[id] then deep = deep + 1 end
        end
      end
    end
    assert.is_true(deep > 50)
  end)

  it("gives the same token for a seed and position, whatever was drawn before", function()
    local first, second = {}, {}
    local a, b = core.sampler { temperature = 1, seed = 3 }, core.sampler { temperature = 1, seed = 3 }
    for position = 1, 50 do first[position] = a:draw(row(values), position) end
    for position = 50, 1, -1 do second[position] = b:draw(row(values), position) end
    assert.same(first, second)
    local other, c = {}, core.sampler { temperature = 1, seed = 4 }
    for position = 1, 50 do other[position] = c:draw(row(values), position) end
    assert.not_same(first, other)
  end)

  it("adds biases; infinite ones ban and force", function()
    local function best(bias) return core.sampler({ logit_bias = bias }):draw(row(values), 0) end
    assert.equal(3, (best { [3] = 5 }))
    assert.equal(4, (best { [1] = -math.huge }))
    assert.equal(3, (best { [3] = math.huge }))
    assert.equal(1, (best { [99] = 5 })) -- no such token here
    local forced = drawn(histogram({ temperature = 1, logit_bias = { [0] = math.huge } }, values, 50))
    assert.same({ 0 }, forced)
  end)

  it("penalises recent tokens once each", function()
    local s = core.sampler { repeat_penalty = 2 }
    assert.same({ 4, 2.5 }, { s:draw(row(values), 0, { 1 }) })
    assert.same({ 4, 2.5 }, { s:draw(row(values), 0, { 1, 1, 1 }) })
    assert.same({ 0, -1.0 }, { s:draw(row { -1.0, -0.75 }, 0, { 1 }) }) -- -0.75 * 2 = -1.5
    assert.same({ 1, 3.0 }, { s:draw(row(values), 0, { 77 }) })
  end)

  it("says so when nothing is left", function()
    local ban = core.sampler { logit_bias = { [0] = -math.huge, [1] = -math.huge } }
    local id, message, code = ban:draw(row { 1, 2 }, 0)
    assert.is_nil(id)
    assert.matches("banned", message)
    assert.equal("invalid", code)
    assert.is_nil((core.sampler({ temperature = 1 }):draw(row { 0 / 0, 0 / 0 }, 0)))
  end)

  it("never draws NaN or banned tokens", function()
    local counts = histogram({ temperature = 2 }, { 0 / 0, 1, -math.huge, 2 }, 500)
    assert.same({ 1, 3 }, drawn(counts))
  end)

  it("refuses wrong options", function()
    assert.error_matches(function() core.sampler { temperature = -1 } end, "temperature")
    assert.error_matches(function() core.sampler { top_p = 2 } end, "top_p")
    assert.error_matches(function() core.sampler { logit_bias = { x = 1 } } end, "logit_bias")
    assert.error_matches(function() core.sampler({}):draw(row(values), 0, { -1 }) end, "id")
    assert.error_matches(function() core.sampler({}):draw(core.tensor { 0 }, 0) end, "element")
  end)
end)
