---@meta ane
-- Types of sessions: the cached past of one sequence. See types/ane.lua.

--- The cached past of one sequence. Sessions of all engines answer alike: results, messages and codes are the same.
---@class ane.session
---@field length integer tokens cached
---@field ids integer[] a copy
---@field context integer
---@field n_ids integer ids 0 .. n_ids - 1 may be fed
---@field exact boolean logits do not depend on how tokens are cut into feeds
---@field switch_at? integer sequences longer than this have other rope factors
---@field stopping boolean stop was called and no feed has seen it yet
---@field adapters_key? string tells sessions with other adapters apart; nil: the model's own
---@field closed boolean
local session = {}

--- Computes tokens behind those that are cached. Nothing is fed where an id is no token or the context is full ("range").
---@param ids integer|integer[]
---@param opts? { want?: "last"|"all"|"argmax"|"none", chunk?: integer, progress?: ane.progress, each?: fun(s: ane.session, first: integer, count: integer) }
---@return boolean? ok
---@return string? message
---@return ane.code? code
function session:feed(ids, opts) end

--- Output rows of the last feed: how many can be asked for.
---@return integer
function session:rows() end

--- Logits of an output row, a value for each token id, as a copy.
---@param row? integer default -1, the last
---@return ane.tensor
function session:logits(row) end

--- The best token of an output row; the lowest id where several are equal.
---@param row? integer
---@return integer id
---@return number logit
function session:argmax(row) end

--- The k best tokens of an output row.
---@param k integer
---@param row? integer
---@return number[][] list of {id, logit}, best first
function session:topk(k, row) end

--- Makes the row of the last token available as row -1: nothing is computed where the last feed has left it, else (after rewind, in a fork,
--- after want = "none") the last token is fed again.
---@param want? "last"|"argmax" argmax: the best token will do; default "last", logits
---@return boolean? ok
---@return string? message
---@return ane.code? code
function session:recall(want) end

--- Continues from what is cached, fed or restored. The session then holds the reply too, so that the next call goes on from there.
--- ```lua
--- assert(s:feed(model.tokenizer:encode "The sky is"))
--- print(s:generate { max_tokens = 8 }, s:generate { max_tokens = 8, temperature = 0.8 })
--- ```
---@param opts? ane.generate_options
---@return string|integer[]|ane.result|nil reply
---@return string? message
---@return ane.code? code
function session:generate(opts) end

--- The same piece by piece.
---@param opts? ane.generate_options
---@return ane.pieces? pieces
---@return string? message
---@return ane.code? code
function session:stream(opts) end

--- Forgets all tokens from position n on. The output rows are gone.
---@param n integer the length to go back to; negative: so many tokens fewer
---@return boolean? ok
---@return string? message
---@return ane.code? code
function session:rewind(n) end

---Forgets all; what is fed next stands behind n tokens of a longer sequence. For models that see tokens on both sides.
---@param n integer
---@return true?, string? message, string? code
function session:part(n) end

--- Writes tokens, states and the logits of the last token (where the last feed has kept them) to a file, whole or not at all.
---@param path string
---@param note? string a text of the caller's that is kept with them
---@return boolean? ok
---@return string? message
---@return ane.code? code
function session:save(path, note) end

--- Reads what save wrote with the same model and options; the row of the last token is then at hand. A failure leaves the session as it was.
--- Code "state": a file of another model, option, engine or version of the arithmetic; "format": damaged, or no saved session; "range": longer
--- than the context.
---@param path string
---@return boolean? ok
---@return string? note or the message
---@return ane.code? code
function session:restore(path) end

--- A second session with the same past, without its rows.
---@return ane.session? session
---@return string? message
---@return ane.code? code
function session:fork() end

--- Ends the feed in progress before its next chunk, or the next feed, with nil, message, "stopped".
function session:stop() end

--- Takes back a stop that no feed has seen yet.
function session:unstop() end

--- Bytes of cached state that the tokens so far occupy.
---@return integer
function session:kv_bytes() end

--- Frees the state. Closing twice is fine.
function session:close() end
