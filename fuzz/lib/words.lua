--- What is done with a tokenizer: texts there and back, with offsets, in a stream, and every kind of look-up.
-- Usage: `words.use(tokenizer)`

local promise = require "lib.promise"

local M = {}

local TEXTS = {
  "", "Hello, world 12345!\n\n", "  héllo\u{1F600}\u{301} \u{FB01}\u{4E2D}\u{6587}\t", "\0\xFF\xC0\xED\xA0\x80",
  "<s>[INST] </s><|im_end|> a<unk>",
  ("ab"):rep(200), "'s it's DON'T \u{130}\u{1E9E}\u{3B1}\u{345}",
}

--- Uses a tokenizer and closes it.
function M.use(tokenizer)
  for _, text in ipairs(TEXTS) do
    local ids, spans = promise.keep("encode", tokenizer:encode(text, { offsets = true, special = true }))
    if ids then
      if #spans ~= #ids then error(("%d ids, %d spans"):format(#ids, #spans)) end
      promise.keep("decode", tokenizer:decode(ids))
      promise.keep("decode", tokenizer:decode(ids, { skip_special = true, utf8 = "replace" }))
    end
    promise.keep("encode", tokenizer:encode(text))
  end
  for _, id in ipairs { 0, 1, #tokenizer // 2, #tokenizer - 1 } do
    if id >= 0 and id < #tokenizer then
      tokenizer:token(id)
      tokenizer:piece(id)
      tokenizer:token_type(id)
    end
  end
  tokenizer:id "a"
  tokenizer:close()
end

return M
