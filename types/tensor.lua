---@meta
-- Types of tokenizers and tensors. The other types are in types/ane.lua. Nothing here runs.

---@class ane.tokenizer
---@field bos integer?
---@field eos integer?
---@field eot integer? end of a turn
---@field eom integer? end of a message
---@field unk integer?
---@field pad integer?
---@field add_bos boolean
---@field add_eos boolean
---@field eos_ids integer[]
---@field chat_templates table<string, string>
---@operator len: integer
local tokenizer = {}

--- Turns a text into ids. The code is "range" when a normaliser makes more than 32 bytes per byte of the text and 65,536 more.
---@param text string
---@param opts? { special?: boolean, bos?: boolean, eos?: boolean, offsets?: boolean } special: read the spellings of control tokens in the text as those tokens; default false. bos, eos: add the begin or end token; default: as the model does. offsets: also return the spans
---@return integer[]? ids
---@return integer[][]|string|nil spans with offsets: byte ranges in the text; or the error message
---@return ane.code? code
function tokenizer:encode(text, opts) end

--- Turns a text into the ids that an encoder takes, with the special tokens of its family around it ([CLS], [SEP]).
---@param text string
---@param opts? { special?: boolean, max_length?: integer } max_length: maximum tokens, with the special ones
---@return integer[]? ids
---@return string? message
---@return ane.code? code
function tokenizer:sequence(text, opts) end

--- Turns two texts into ids and token types, joined and truncated as the tokenizers library does.
---@param first string
---@param second string
---@param opts? { special?: boolean, max_length?: integer }
---@return integer[]? ids
---@return integer[]|string|nil types or the error message
---@return boolean|ane.code|nil truncated whether tokens were removed; or the code
function tokenizer:pair(first, second, opts) end

--- Turns ids into a text. An id outside of the vocabulary (0 to #tokenizer - 1) raises an error. A decoder of stream() accepts it.
---@param ids integer|integer[]
---@param opts? { skip_special?: boolean, utf8?: "raw"|"replace" } skip_special: leave control tokens out; default false. utf8: raw (default) returns the bytes unchanged, replace puts U+FFFD for invalid UTF-8
---@return string? text
---@return string? message
---@return ane.code? code
function tokenizer:decode(ids, opts) end

--- Returns a decoder, which turns ids into text one by one and never divides a character.
---@param opts? { skip_special?: boolean } skip_special: leave control tokens out; default false
---@return ane.decoder
function tokenizer:stream(opts) end

--- Returns the text of one id, as in a decoded text; nil if there is no such id.
---@param id integer
---@return string?
function tokenizer:token(id) end

--- Returns the vocabulary entry of an id, as the file spells it; nil if there is no such id.
---@param id integer
---@return string?
function tokenizer:piece(id) end

--- Returns the id of a vocabulary entry; nil if there is none.
---@param piece string
---@return integer?
function tokenizer:id(piece) end

--- Returns the type of an id; nil if there is no such id.
---@param id integer
---@return "normal"|"control"|"user"|"unknown"|"unused"|"byte"|nil
function tokenizer:token_type(id) end

--- Frees the tokenizer.
function tokenizer:close() end

---@class ane.decoder
local decoder = {}

--- Adds an id and returns the text that is now complete.
---@param id integer
---@return string
function decoder:push(id) end

--- Returns the bytes of an incomplete character and resets the decoder.
---@return string
function decoder:flush() end

--- Resets the decoder.
function decoder:reset() end

---@class ane.tensor
---@operator len: integer
local tensor = {}

--- Returns an element.
---@param ... integer an index for each dimension, from 1; negative indices count from the end
---@return number
function tensor:get(...) end

--- Sets an element.
---@param ... number indices, then the value
function tensor:set(...) end

--- Sets every element.
---@param value number
function tensor:fill(value) end

--- Returns a row of the first dimension, as a copy.
---@param i integer
---@return ane.tensor
function tensor:row(i) end

--- Returns the dimensions, outermost first.
---@return integer[]
function tensor:shape() end

--- Returns a range of one dimension, as a copy.
---@param dim integer 1 is the outermost
---@param from? integer
---@param to? integer last index, included
---@return ane.tensor
function tensor:slice(dim, from, to) end

--- Returns a copy with another shape and the same number of elements.
---@param shape integer[]
---@return ane.tensor
function tensor:reshape(shape) end

--- Returns a copy with absolute values.
---@return ane.tensor
function tensor:abs() end

---@return ane.tensor sorted a copy in which each row is sorted in ascending order, -0 before 0
function tensor:sort() end

--- Returns the dot product with a tensor of the same number of elements.
---@param other ane.tensor
---@return number
function tensor:dot(other) end

--- Multiplies a matrix [n, c] by a vector [c].
---@param x ane.tensor
---@return ane.tensor product [n]
function tensor:times(x) end

--- Compares with another tensor of the same shape.
---@param other ane.tensor
---@return { max_abs: number, max_scaled: number, rms: number, cosine: number, worst: integer[], argmax_agree: number }
function tensor:compare(other) end

--- Counts elements by value.
---@param n integer
---@param low number
---@param high number
---@return integer[] counts number of elements in each of n equal parts of [low, high]
function tensor:bins(n, low, high) end

--- Averages blocks of the tensor as a matrix, for pictures.
---@param rows integer
---@param columns integer
---@return ane.tensor means [rows, columns]
function tensor:pool(rows, columns) end

--- Returns a histogram as text.
---@param opts? { bins?: integer, width?: integer, ascii?: boolean } bins: 1 .. 4096; width: 1 .. 1000
---@return string
function tensor:histogram(opts) end

--- Returns a heat map as text.
---@param opts? { width?: integer, height?: integer, ascii?: boolean } width, height: 1 .. 1000
---@return string
function tensor:heat(opts) end

--- Returns the k largest elements.
---@param k integer
---@return number[][] list of {id, value}, best first; ids from 0
function tensor:topk(k) end

--- Returns the index of the largest element, from 0, and its value.
---@return integer id
---@return number value
function tensor:argmax() end

--- Returns the smallest element.
---@return number
function tensor:min() end

--- Returns the largest element.
---@return number
function tensor:max() end

--- Returns the mean of all elements.
---@return number
function tensor:mean() end

--- Returns the elements as one list, row by row. ane.tensor(list, shape) makes the tensor again.
---@return number[]
function tensor:totable() end

--- Returns the elements as a string of little-endian float32, which ane.tensor(string, shape) takes. The function tostring of Lua gives
--- a text to read.
---@return string
function tensor:tostring() end
