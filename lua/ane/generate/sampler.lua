--- Chooses the next token from logits: options, seed, and the window of the repetition penalty, around the sampler chain in C.
-- Needs ane.core and ane.util.schema. Order: repeat_penalty, logit_bias, temperature, top_k, top_p, min_p, draw.
-- Usage: `local s = sampler.new {temperature = 0.8, top_p = 0.95, seed = 1}; local id = s:next(logits, position, ids)`

local core = require "ane.core"
local schema = require "ane.util.schema"

local M = {}

local function check_bias(bias)
  for id, value in next, bias do
    if math.type(id) ~= "integer" or id < 0 or type(value) ~= "number" or value ~= value then
      local key = type(id) == "string" and schema.shown(id):sub(2, -2) or schema.shown(id)
      return ("must map token ids to numbers, but has [%s] = %s"):format(key, schema.shown(value))
    end
  end
end

--- Options, as ane.util.schema takes them. temperature 0 (the default) is greedy: it takes the best token, and the lowest id among
-- equals. repeat_penalty applies to the last repeat_window tokens of prompt and reply (0: all). logit_bias maps ids to a value that
-- is added to their logits (-math.huge bans an id). seed is any integer; without one each call draws a new seed.
M.rules = {
  temperature = { type = "number", min = 0, max = 1e6, default = 0 },
  top_k = { type = "integer", min = 0, max = 0x7fffffff, default = 0 },
  top_p = { type = "number", min = 0, max = 1, default = 1 },
  min_p = { type = "number", min = 0, max = 1, default = 0 },
  repeat_penalty = { type = "number", min = 1e-6, max = 1e6, default = 1 },
  repeat_window = { type = "integer", min = 0, default = 64 },
  logit_bias = { type = "table", check = check_bias },
  seed = { type = "integer" },
}

-- Makes a seed that no two calls share. math.random belongs to the program and stays untouched.
local fresh = 0
local function fresh_seed()
  fresh = fresh + 1
  local _, low, high = core.random(os.time() ~ math.floor(core.clock() * 1e9), fresh)
  return (high << 32 | low) & 0x1fffffffffffff -- 53 bits, which a number in JSON holds exactly
end

local Sampler = {}
Sampler.__index = Sampler
Sampler.__name = "ane.sampler.chain"

--- Makes a sampler.
-- @param opts checked options (see rules)
function M.new(opts)
  local random = (opts.temperature or 0) > 0
  local seed = opts.seed or random and fresh_seed() or 0
  local chain = core.sampler {
    temperature = opts.temperature, top_k = opts.top_k, top_p = opts.top_p, min_p = opts.min_p,
    repeat_penalty = opts.repeat_penalty, logit_bias = opts.logit_bias, seed = seed,
  }
  local penalty = (opts.repeat_penalty or 1) ~= 1
  return setmetatable({
    seed = seed, window = penalty and (opts.repeat_window or 64), _chain = chain,
    plain = not random and not penalty and next(opts.logit_bias or {}) == nil, -- the best raw logit is enough
  }, Sampler)
end

-- The tokens to which the repetition penalty applies, or nil.
local function recent(self, ids)
  if not self.window then return nil end
  local n = #ids
  return table.move(ids, self.window == 0 and 1 or math.max(1, n - self.window + 1), n, 1, {})
end

--- Chooses the token for a position.
-- @param logits tensor, one value per token
-- @param position index of the new token in the whole sequence: with the seed it fixes the random number
-- @param ids the tokens before it, for the repetition penalty
-- @return id, its logit after penalty and bias; or nil, message, code
function Sampler:next(logits, position, ids)
  return self._chain:draw(logits, position, recent(self, ids))
end

--- As next, from a row of a session's last feed, which is not copied.
-- @param session of ane.generate.session
-- @param row as session:logits takes it
function Sampler:next_of(session, row, position, ids)
  local drawn = self._drawn
  self._drawn = nil
  if drawn and drawn.position == position then return drawn.id, drawn.value end
  return session:_draw(self._chain, row, position, recent(self, ids))
end

--- What program:draw needs to draw the token of a position together with those of other sessions.
-- @param raw session of ane.core
function Sampler:item(raw, position, ids) return { raw, self._chain, position, recent(self, ids) } end

--- Takes what program:draw has drawn; next_of() returns it for this position.
function Sampler:drawn(position, id, value) self._drawn = { position = position, id = id, value = value } end

--- Computes the log probability of a token and of the `top` best tokens, from raw logits.
-- @return logprob, list of {id, logprob}
function M.logprobs(logits, id, top)
  return core.logprobs(logits, id, top)
end

return M
