---@meta
-- Types of tokenizers and tensors; those of all else are in types/ane.lua. Nothing here runs.

---@class ane.tokenizer
---@field bos integer?
---@field eos integer?
---@field eot integer?
---@field eom integer?
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
---@param opts? { special?: boolean, bos?: boolean, eos?: boolean, offsets?: boolean }
---@return integer[]? ids
---@return integer[][]|string|nil spans byte ranges in the text, with offsets; or the message
---@return ane.code? code
function tokenizer:encode(text, opts) end

--- Ids of a text between the tokens that its family puts around one, as an encoder takes it.
---@param text string
---@param opts? { special?: boolean, max_length?: integer } max_length: tokens, those around included
---@return integer[]? ids
---@return string? message
---@return ane.code? code
function tokenizer:sequence(text, opts) end

--- Ids and token types of two texts, as the tokenizers library joins and cuts them.
---@param first string
---@param second string
---@param opts? { special?: boolean, max_length?: integer }
---@return integer[]? ids
---@return integer[]|string|nil types or the message
---@return boolean|ane.code|nil truncated whether the texts lost tokens; or the code
function tokenizer:pair(first, second, opts) end

--- Turns ids into a text. Raises when an id is outside of the vocabulary (0 to #tokenizer - 1); a decoder of stream() takes it.
---@param ids integer|integer[]
---@param opts? { skip_special?: boolean, utf8?: "raw"|"replace" }
---@return string? text
---@return string? message
---@return ane.code? code
function tokenizer:decode(ids, opts) end

--- A decoder that turns ids into text as they come and never cuts a character.
---@param opts? { skip_special?: boolean }
---@return ane.decoder
function tokenizer:stream(opts) end

--- The text of one id, as it would stand in a decoded text; nil where there is no such id.
---@param id integer
---@return string?
function tokenizer:token(id) end

--- The vocabulary entry of an id, as the file spells it; nil where there is no such id.
---@param id integer
---@return string?
function tokenizer:piece(id) end

--- The id of a vocabulary entry; nil where there is none.
---@param piece string
---@return integer?
function tokenizer:id(piece) end

--- What kind of entry an id is; nil where there is no such id.
---@param id integer
---@return "normal"|"control"|"user"|"unknown"|"unused"|"byte"|nil
function tokenizer:token_type(id) end

--- Frees the tokenizer.
function tokenizer:close() end

---@class ane.decoder
local decoder = {}

--- Adds an id and gives the text that is complete now.
---@param id integer
---@return string
function decoder:push(id) end

--- Gives the bytes that are held back; the decoder begins anew.
---@return string
function decoder:flush() end

--- Forgets what was pushed.
function decoder:reset() end

---@class ane.tensor
---@operator len: integer
local tensor = {}

--- An element.
---@param ... integer one index a dimension, from 1, negative ones from the end
---@return number
function tensor:get(...) end

--- Sets an element.
---@param ... number indices, then the value
function tensor:set(...) end

--- Sets every element.
---@param value number
function tensor:fill(value) end

--- A row of the first dimension, as a copy; from 1.
---@param i integer
---@return ane.tensor
function tensor:row(i) end

--- The dimensions, outermost first.
---@return integer[]
function tensor:shape() end

--- A range of one dimension, as a copy.
---@param dim integer 1 is the outermost
---@param from? integer
---@param to? integer included
---@return ane.tensor
function tensor:slice(dim, from, to) end

--- A copy with another shape and as many elements.
---@param shape integer[]
---@return ane.tensor
function tensor:reshape(shape) end

--- A copy with absolute values.
---@return ane.tensor
function tensor:abs() end

---@return ane.tensor copy whose rows ascend
function tensor:sort() end

--- The sum of products with a tensor of as many elements.
---@param other ane.tensor
---@return number
function tensor:dot(other) end

--- Of a matrix [n, c]: the dot product of each row and a vector of c elements.
---@param x ane.tensor
---@return ane.tensor product [n]
function tensor:times(x) end

--- The differences from another tensor of the same shape.
---@param other ane.tensor
---@return { max_abs: number, max_scaled: number, rms: number, cosine: number, worst: integer[], argmax_agree: number }
function tensor:compare(other) end

--- Counts of elements by value.
---@param n integer
---@param low number
---@param high number
---@return integer[] elements in each of n equal parts of [low, high]
function tensor:bins(n, low, high) end

--- Means of parts, for pictures.
---@param rows integer
---@param columns integer
---@return ane.tensor means of parts of the tensor as a matrix
function tensor:pool(rows, columns) end

--- A histogram as text.
---@param opts? { bins?: integer, width?: integer, ascii?: boolean }
---@return string
function tensor:histogram(opts) end

--- A heat map as text.
---@param opts? { width?: integer, height?: integer, ascii?: boolean }
---@return string
function tensor:heat(opts) end

--- The k largest elements.
---@param k integer
---@return number[][] list of {id, value}, best first; ids from 0
function tensor:topk(k) end

--- The largest element and its place.
---@return integer id
---@return number value
function tensor:argmax() end

--- The smallest element.
---@return number
function tensor:min() end

--- The largest element.
---@return number
function tensor:max() end

--- The mean of all elements.
---@return number
function tensor:mean() end

--- The elements as lists in lists.
---@return table
function tensor:totable() end

--- The tensor as text.
---@return string
function tensor:tostring() end
