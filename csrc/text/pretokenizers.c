/* The named pre-tokenizers: patterns of the published tokenizer.json (or tiktoken) files of the model families, in that syntax.
 * Sources: those files, and llama.cpp, src/llama-vocab.cpp, which rewrites some of them for std::regex. The patterns here are
 * those that the models were trained with. */
#include "text/text.h"

#include <string.h>

/* ---- Parts -------------------------------------------------------------------------------------------------------*/

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define ENGLISH "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SIGNS " ?[^\\s\\p{L}\\p{N}]+"
#define BLANKS "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3(digits) ENGLISH "|" WORD "|" digits "|" SIGNS "[\\r\\n]*|" BLANKS
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CAMEL(up, low, end) "[^\\r\\n\\p{L}\\p{N}]?" up "*" low "+" end "|[^\\r\\n\\p{L}\\p{N}]?" up "+" low "*" end
#define O200K(digits, end) CAMEL(UPPER, LOWER, end) "|" digits "|" SIGNS "[\\r\\n/]*|" BLANKS
#define CJK "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define ASCII_SIGN_WORD "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
#define DEEPSEEK3_WORD ASCII_SIGN_WORD "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
#define DEEPSEEK3 DEEPSEEK3_WORD "[\\r\\n]*|" BLANKS
#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"
#define OLD_CJK "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"

/* The letters of deepseek-llm: cased letters in the Unicode version of its tokenizer. */
#define DEEPSEEK_LETTERS                                                                                                         \
  "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}"               \
  "\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}"                 \
  "\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}"                   \
  "\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}"           \
  "\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}"            \
  "\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}"            \
  "\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}"            \
  "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}"             \
  "\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}"             \
  "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}"            \
  "\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}"           \
  "\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}"                    \
  "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

/* Kimi's classes contain "&&[^\p{Han}]", which PCRE2 lacks. Written as complements they need no intersection. */
#define NO_HAN "\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{Han}]"
#define KIMI_UPPER "[^\\p{Ll}" NO_HAN
#define KIMI_LOWER "[^\\p{Lu}\\p{Lt}" NO_HAN

/* ---- Lists -------------------------------------------------------------------------------------------------------*/

static const struct ane_split gpt2[] = {{GPT2}};
static const struct ane_split gpt2_digits[] = {{"\\p{N}"}, {GPT2}};
static const struct ane_split falcon[] = {{"[\\p{P}$+<=>^~|`]+"}, {GPT2}, {"[0-9][0-9][0-9]"}};
static const struct ane_split contiguous_punctuation[] = {{"[\\p{P}$+<=>^~|]+"}, {GPT2}, {"\\p{N}+"}, {"[0-9][0-9][0-9]"}};
static const struct ane_split llama3[] = {{LLAMA3("\\p{N}{1,3}")}};
static const struct ane_split minicpm5[] = {{"\\p{N}{1,3}"}, {LLAMA3("\\p{N}+")}};
static const struct ane_split qwen2[] = {{LLAMA3("\\p{N}")}};
static const struct ane_split qwen2_bare[] = {{WORD "|\\p{N}|" SIGNS "[\\r\\n]*|" BLANKS}};
static const struct ane_split laguna[] = {{"[^\\n]+|[\\n]+"}, {LLAMA3("\\p{N}")}};
static const struct ane_split qwen35[] = {
    {ENGLISH "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" BLANKS},
};
static const struct ane_split seed_coder[] = {{ENGLISH "|" WORD "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" BLANKS}};
/* The possessive forms are the original's. */
static const struct ane_split bailing[] = {
    {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
};
/* These quantifiers are possessive, unlike the original's, but match the same: nothing follows the repeated group, and a letter
 * never begins a mark or a space. This keeps the matcher's stack small on long words. */
static const struct ane_split exaone_moe[] = {
    {ENGLISH "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*+(?: \\p{L}\\p{M}*+)*+)++|\\p{N}| "
             "?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
};
/* The original has no lookbehind. The lookbehind changes no match: after a blank that is not a line end, the rest of the run has
 * no line end either, otherwise the match from the start of the run would have reached it. Without it, restarting the search at
 * each piece takes quadratic time. */
static const struct ane_split jais2[] = {
    {ENGLISH "|" WORD "|\\p{N}{1,3}|" SIGNS
             "[\\r\\n]*|(?<![^\\S\\r\\n])\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)"
             "|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"},
};
static const struct ane_split o200k[] = {{O200K("\\p{N}{1,3}", ENGLISH "?")}};
static const struct ane_split tekken[] = {{O200K("\\p{N}", "")}};
/* "\d{1,3}(?=(?:\d{3})*\b)" in linear time: runs of digits that end at a word boundary are split in threes from the right; other
 * runs are skipped whole. */
static const struct ane_split tiny_aya[] = {
    {"\\d++(?:(?![\\p{L}\\p{M}\\p{N}\\p{Pc}])|(*SKIP)(*FAIL))", ANE_SPLIT_THREES},
    {O200K("\\p{N}{1,3}", ENGLISH "?")},
};
static const struct ane_split youtu[] = {
    {"[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}\\x{FF1A}\\x{"
     "FF1B}\\x{FF0C}"
     "\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|" CJK},
    {O200K("\\p{N}", ENGLISH "?")},
};
static const struct ane_split kimi[] = {
    {"\\p{Han}+|" CAMEL(KIMI_UPPER, KIMI_LOWER, ENGLISH "?") "|\\p{N}{1,3}|" SIGNS "[\\r\\n]*|" BLANKS},
};
static const struct ane_split deepseek_llm[] = {
    {"[\\r\\n]"},
    {"\\s?[" DEEPSEEK_LETTERS "]+"},
    {"\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+"},
    {"\\s++(?:\\z|(*SKIP)(*FAIL))"},
    {OLD_CJK},
    {"\\p{N}+"},
};
static const struct ane_split deepseek_coder[] = {{"[\\r\\n]"}, {"\\s?\\p{L}+"}, {"\\s?\\p{P}+"}, {OLD_CJK}, {"\\p{N}"}};
static const struct ane_split deepseek3[] = {{"\\p{N}{1,3}"}, {CJK}, {DEEPSEEK3}};
static const struct ane_split spark[] = {
    {"\\p{N}{1,3}"},
    {CJK},
    {DEEPSEEK3_WORD "|[\\r\\n]|\\s+(?!\\S)|\\s+"},
    {"\\p{N}"},
};
/* The second is "(?=(\d{3})+(?!\d))": cuts of zero length. */
static const struct ane_split superbpe[] = {{"\\p{N}+"}, {"\\d+", ANE_SPLIT_CUT_THREES}};
static const struct ane_split bloom[] = {{BLOOM}};
static const struct ane_split viking[] = {{BLOOM}, {"\\p{N}"}};
static const struct ane_split chameleon[] = {
    {"<sentinel:[0-9]+>"},      {"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"},
    {"([\\t\\n]|    |  )"},     {"\\p{N}"},
    {"[\\p{P}!-/:-@\\[-`{-~]"}, {GPT2},
};
static const struct ane_split newlines[] = {{"[^\\n]+|[\\n]+"}};

static const struct ane_pretokenizer list[] = {
#define X(name, splits, whole, add_bos, sentence) {name, splits, ANE_COUNT(splits), ANE_WHOLE_##whole, add_bos, sentence},
#include "text/pretokenizers.def"
#undef X
};

const struct ane_pretokenizer *ane_pretokenizer_list(uint32_t *n) {
  *n = ANE_COUNT(list);
  return list;
}

const struct ane_pretokenizer *ane_pretokenizer_find(const char *name, size_t len) {
  for (size_t i = 0; i < ANE_COUNT(list); i++)
    if (strlen(list[i].name) == len && memcmp(list[i].name, name, len) == 0) return &list[i];
  return NULL;
}

bool ane_pretokenizer_has(const char *pattern) {
  for (size_t i = 0; i < ANE_COUNT(list); i++)
    for (uint32_t k = 0; k < list[i].n_splits; k++)
      if (list[i].splits[k].pattern && strcmp(list[i].splits[k].pattern, pattern) == 0) return true;
  return false;
}
