---@meta ane
-- Types of sessions: the state of one sequence. See types/ane.lua.

--- Options of every reply.
---@class ane.reply_options
---@field max_tokens? integer maximum tokens of the reply; default: until an end token or the end of the context
---@field temperature? number 0 (default) is greedy
---@field top_k? integer 1 or more: sample only from the k best tokens; 0 (default): from all
---@field top_p? number 0 .. 1: sample only from the best tokens whose probabilities add up to p; default 1
---@field min_p? number 0 .. 1: sample only from tokens with at least p times the probability of the best token; default 0
---@field repeat_penalty? number 0.000001 .. 1000000: penalty on recent tokens; default 1: none
---@field repeat_window? integer number of recent tokens to which the penalty applies; default 64; 0: all
---@field logit_bias? table<integer, number> values added to the logits, by id; -math.huge bans an id
---@field seed? integer the same seed gives the same reply; default: a new seed for each reply
---@field stop? string|string[] the reply ends before the first of these texts
---@field stop_ngram? integer|{ size: integer, times?: integer } the reply ends when the same `size` tokens occur for the third time, or for the time `times`
---@field eos? integer[] ids that end the reply, instead of the model's own
---@field ignore_eos? boolean true: end tokens do not end the reply
---@field logprobs? integer number of best tokens whose log probabilities the result has for each token of the reply, besides the token's own
---@field prompt_logprobs? integer number of log probabilities for each token of the prompt, which is then computed as a whole
---@field speculate? boolean|{ max?: integer, corpus?: string|integer[] } max: 1 .. 7 drafted tokens of a run; corpus: path of a text, or token ids
---@field logits_processor? fun(logits: ane.tensor, ids: integer[]): ane.tensor? changes the logits before each choice, in place or by returning others; ids: prompt and reply so far, read only
---@field grammar? ane.grammar the grammar that the reply must match
---@field skip_special? boolean true (default): control tokens are left out of the text
---@field progress? ane.progress called as progress("prefill", tokens done, tokens in all)

---@class ane.continue_options: ane.reply_options
---@field details? boolean true: generate returns an ane.result

--- The state of one sequence. While a reply is in progress in it, methods that change its tokens raise. Sessions of all engines have the same methods, messages and codes.
---@class ane.session
---@field length integer number of cached tokens
---@field ids integer[] the cached token ids, a copy
---@field context integer maximum tokens
---@field n_ids integer number of valid token ids: 0 .. n_ids - 1
---@field exact boolean logits do not depend on how tokens are divided into feeds
---@field switch_at? integer sequences longer than this use other rope factors (longrope)
---@field stopping boolean stop was called, and no feed has ended because of it yet
---@field adapters_key? string identifies the adapters of the session; nil: those of the model
---@field closed boolean
local session = {}

--- Computes tokens that follow the cached ones. If an id is not valid or the context is too small (code "range"), nothing is computed.
---@param ids integer|integer[]
---@param opts? { want?: "last"|"all"|"argmax"|"best"|"none", chunk?: integer, progress?: ane.progress, each?: fun(s: ane.session, first: integer, count: integer) } want: the output rows that are kept: logits of the last token (last, default) or of every token (all), only the best token at the last position (best) or at every one (argmax), or none. chunk: maximum tokens computed at a time. each: called after each chunk, whose rows are then 1 .. count and are not kept longer
---@return boolean? ok
---@return string? message
---@return ane.code? code
function session:feed(ids, opts) end

--- Returns the number of output rows of the last feed.
---@return integer
function session:rows() end

--- Returns the logits of an output row, a value for each token id, as a copy.
---@param row? integer default -1, the last
---@return ane.tensor
function session:logits(row) end

--- Returns the best token of an output row; of equal logits, the lowest id.
---@param row? integer
---@return integer id
---@return number logit
function session:argmax(row) end

--- Returns the k best tokens of an output row.
---@param k integer
---@param row? integer
---@return number[][] list of {id, logit}, best first
function session:topk(k, row) end

--- Makes the row of the last token available as row -1. If the last feed did not keep it (after rewind, in a fork,
--- after want = "none"), the last token is computed again.
---@param want? "last"|"argmax" "argmax": only the best token is needed; default "last": logits
---@return boolean? ok
---@return string? message
---@return ane.code? code
function session:recall(want) end

--- Continues the cached tokens. The session then holds the reply too, and the next call continues it.
--- ```lua
--- assert(s:feed(model.tokenizer:encode "The sky is"))
--- print(s:generate { max_tokens = 8 }, s:generate { max_tokens = 8, temperature = 0.8 })
--- ```
---@param opts? ane.continue_options
---@return string|integer[]|ane.result|nil reply
---@return string? message
---@return ane.code? code
function session:generate(opts) end

--- Continues the cached tokens, and returns the reply piece by piece.
---@param opts? ane.continue_options
---@return ane.pieces? pieces
---@return string? message
---@return ane.code? code
function session:stream(opts) end

--- Removes all tokens from position n on, and the output rows.
---@param n integer the new length; negative: the number of tokens to remove
---@return boolean? ok
---@return string? message
---@return ane.code? code
function session:rewind(n) end

--- Removes all tokens. The next feed is a part of a longer sequence and has n tokens before it. For models with attention in both
--- directions.
---@param n integer 0 or more
---@return boolean? ok
---@return string? message
---@return ane.code? code
function session:part(n) end

--- Writes tokens, states and, if the last feed has kept them, the logits of the last token to a file, in one step.
---@param path string
---@param note? string a text of the caller, which restore returns
---@return boolean? ok
---@return string? message
---@return ane.code? code
function session:save(path, note) end

--- Reads a session that save wrote with the same model and options. The saved row of the last token is then available. A failure changes
--- nothing. Code "state": the file has another model, option, engine or version of the arithmetic; "format": it is damaged or not a saved
--- session; "range": it is longer than the context.
---@param path string
---@return boolean? ok
---@return string? note or the error message
---@return ane.code? code
function session:restore(path) end

--- Returns a second session with the same cached tokens, without output rows.
---@return ane.session? session
---@return string? message
---@return ane.code? code
function session:fork() end

--- Ends the running feed before its next chunk, or else the next feed. It returns nil, message, "stopped".
function session:stop() end

--- Cancels a stop that no feed has seen yet.
function session:unstop() end

--- Returns the bytes of state that the cached tokens occupy.
---@return integer
function session:kv_bytes() end

--- Frees the state. A reply in progress fails with the code "state". Closing twice is allowed.
function session:close() end
