--- The waiting requests of a pool, by rank: a binary heap. Adding and taking one takes logarithmic time, removing one constant time on
-- average.
-- Needs nothing. Usage: `local q = queue.new(before); q:push(r); local first = q:pop(); q:remove(r); local rest = q:list()`

local M = {}

local Queue = {}
Queue.__index = Queue

--- @param before function(a, b): does a come before b? No two requests have the same rank
function M.new(before)
  return setmetatable({ before = before, heap = {}, held = {}, count = 0 }, Queue)
end

local function rise(self, i)
  local heap, before = self.heap, self.before
  local r = heap[i]
  while i > 1 and before(r, heap[i // 2]) do
    heap[i], i = heap[i // 2], i // 2
  end
  heap[i] = r
end

local function sink(self, i)
  local heap, before = self.heap, self.before
  local r, n = heap[i], #heap
  while 2 * i <= n do
    local child = 2 * i
    if child < n and before(heap[child + 1], heap[child]) then child = child + 1 end
    if not before(heap[child], r) then break end
    heap[i], i = heap[child], child
  end
  heap[i] = r
end

--- Adds a request. It must not be in the queue.
function Queue:push(r)
  local heap = self.heap
  heap[#heap + 1], self.held[r], self.count = r, true, self.count + 1
  rise(self, #heap)
end

--- Takes the first request; nil: there is none.
function Queue:pop()
  local heap = self.heap
  while #heap > 0 do
    local first, last = heap[1], table.remove(heap)
    if #heap > 0 then
      heap[1] = last
      sink(self, 1)
    end
    if self.held[first] then -- the others were removed
      self.held[first], self.count = nil, self.count - 1
      return first
    end
  end
end

--- Removes a request. It stays in the heap until pop() meets it, or until more than half of the heap consists of removed requests.
function Queue:remove(r)
  if not self.held[r] then return end
  self.held[r], self.count = nil, self.count - 1
  if 2 * self.count >= #self.heap then return end
  self.heap = {}
  for other in pairs(self.held) do
    self.heap[#self.heap + 1] = other
  end
  for i = #self.heap // 2, 1, -1 do sink(self, i) end
end

--- The requests as a list, in no order.
function Queue:list()
  local out = {}
  for r in pairs(self.held) do out[#out + 1] = r end
  return out
end

return M
