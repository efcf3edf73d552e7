--- Tokenizers: any bytes come back, spans fit together, and a stream gives what decoding at once gives.
local core = require "ane.core"
local Tokenizer = require "ane.tokenizer"

local M = { cases = 40 }

local FOLDER = "spec/fixtures/tokenizer/"
local NAMES = { "llama.gguf", "llama-bias.gguf", "qwen2.gguf", "gemma3.gguf", "gemma4.gguf", "phi3.gguf", "spm-prefix.gguf" }
local opened = {}

local function open(name)
  if not opened[name] then
    local source <close> = assert(core.open(FOLDER .. name))
    opened[name] = assert(Tokenizer.new(source))
  end
  return opened[name]
end

local PIECES = {
  "a", " ", "  ", "\n", "\r\n", "\t", "\0", "'s", "1234", "\u{e9}", "e\u{301}", "\u{4f60}\u{597d}", "\u{1f600}", "\u{200d}", "\u{fe0f}",
  "\u{2581}", "\u{120}", "<|eot_id|>", "<0x41>", "<bos>", "</s>", "\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xed\xa0\x80", "\xc0\x80",
  "\u{feff}", "\u{0}", "The", "quick", ".", "!?", "()", "\u{a0}", "\u{3000}", "\u{fdfa}", "\u{1100}\u{1161}", "x = 1", "\u{10ffff}",
}

--- A text: bytes at random, characters at random, or pieces that tokenizers treat in ways of their own.
function M.text(d, valid)
  local kind, parts = d.below(3), {}
  for i = 1, d.between(0, 40) do
    if kind == 0 and not valid then parts[i] = string.char(d.below(256))
    elseif kind == 1 or kind == 0 then
      local c = d.one_of { d.below(128), d.below(0x800), d.below(0xd800), 0x1f300 + d.below(0x300), d.below(0x20) + 0x20 }
      parts[i] = utf8.char(c)
    else
      repeat parts[i] = d.one_of(PIECES) until not valid or utf8.len(parts[i])
    end
  end
  return table.concat(parts)
end

function M.case(d)
  local name = d.one_of(NAMES)
  local t, text = open(name), M.text(d)
  local what = ("%s, %q"):format(name, text)
  local ids, spans = t:encode(text, { bos = false, eos = false, offsets = true })
  assert(ids and #ids == #spans, what)
  local at = 1
  for i, id in ipairs(ids) do
    assert(id >= 0 and id < #t, what)
    assert(spans[i][1] >= 1 and spans[i][2] <= #text and spans[i][2] >= spans[i][1] - 1, what .. ": a span outside of the text")
    assert(spans[i][1] >= at or spans[i][2] >= at - 1, what .. ": spans go back")
    at = math.max(at, spans[i][1])
  end
  local back = t:decode(ids)
  -- SentencePiece has one sign for a blank and for U+2581.
  local want = name:find "^[gs]" and text:gsub("\u{2581}", " ") or text
  assert(back == want, ("%s comes back as %q"):format(what, back))
  local stream, out = t:stream(), {}
  for i, id in ipairs(ids) do out[i] = stream:push(id) end
  out[#out + 1] = stream:flush()
  assert(table.concat(out) == back, what .. ": a stream gives other text")
end

return M
