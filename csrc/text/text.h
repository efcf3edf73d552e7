/* Text to token ids and back. Plain data describes the pipeline, so a GGUF vocabulary, a tokenizer.json and a SentencePiece model
 * become the same object.
 *
 *   bytes -> added tokens extracted (leftmost, longest) -> normalisers -> late added tokens -> splits -> model -> head, tail
 *
 * Input need not be UTF-8. Each byte of an ill-formed sequence is a piece of its own: it becomes the token of that byte
 * (byte-level, or <0xNN>), and neither patterns nor normalisers see it. So decode(encode(text)) == text for every byte string if
 * the vocabulary is byte-level and has all 256 bytes. */
#ifndef ANE_TEXT_TEXT_H
#define ANE_TEXT_TEXT_H

#include "base/status.h"
#include "base/utf8.h"

/* Borrowed bytes. They may contain NUL and need not be UTF-8. */
struct ane_text {
  const char *data;
  size_t len;
};

/* ---- Description -------------------------------------------------------------------------------------------------*/

/* The numbers of tokenizer.ggml.token_type (gguf-py, constants.py, TokenType). */
typedef enum {
  ANE_TOKEN_NORMAL = 1,
  ANE_TOKEN_UNKNOWN,
  ANE_TOKEN_CONTROL, /* found in text only if special tokens are requested */
  ANE_TOKEN_USER,    /* always found in text, before everything else */
  ANE_TOKEN_UNUSED,  /* produced from text only by merges that name it */
  ANE_TOKEN_BYTE     /* <0xNN> */
} ane_token_type;

/* A kind whose comment names a type of tokenizer.json behaves as in the Hugging Face tokenizers library. */
typedef enum {
  ANE_NORMALISE_REPLACE, /* replaces every `from` (not empty) by `to` */
  ANE_NORMALISE_PREPEND, /* inserts `to` before a text that is not empty */
  ANE_NORMALISE_SQUEEZE, /* SentencePiece's remove_extra_whitespaces: trims spaces at the ends, collapses runs of spaces to one */
  ANE_NORMALISE_NFC,     /* normalisation forms: Unicode Standard Annex 15 */
  ANE_NORMALISE_NFD,
  ANE_NORMALISE_NFKC,
  ANE_NORMALISE_NFKD,
  ANE_NORMALISE_PATTERN,          /* replaces every match of the pattern `from` by `to`, which is plain text */
  ANE_NORMALISE_PREFIX,           /* as PREPEND, except before a text that begins with `to` */
  ANE_NORMALISE_APPEND,           /* appends `to` to a text that is not empty */
  ANE_NORMALISE_TRIM_END,         /* removes every `from` at the end; then appends `to`, unless the text was empty */
  ANE_NORMALISE_LOWER,            /* Lowercase: the full mapping, each character by itself */
  ANE_NORMALISE_STRIP_LEFT,       /* removes White_Space at the beginning */
  ANE_NORMALISE_STRIP_RIGHT,      /* removes White_Space at the end */
  ANE_NORMALISE_STRIP_MARKS,      /* StripAccents: removes characters of category M */
  ANE_NORMALISE_STRIP_NONSPACING, /* removes characters of category Mn */
  ANE_NORMALISE_CLEAN,     /* BertNormalizer, clean_text: removes NUL, U+FFFD and categories C; White_Space becomes a space */
  ANE_NORMALISE_APART_HAN, /* BertNormalizer, handle_chinese_chars: puts spaces around ideographs */
  ANE_NORMALISE_NMT,       /* Nmt: removes control characters; special blanks become spaces */
  ANE_NORMALISE_ALPHABET,  /* ByteLevel: maps each byte to its character of GPT-2's alphabet */
  ANE_NORMALISE_CHARSMAP,  /* SentencePiece's precompiled_charsmap in `from`: the longest rule at each position */
  ANE_NORMALISE_CHARSMAP_CLUSTERS /* Precompiled: the shortest rule that each grapheme cluster, or character, begins with */
} ane_normaliser_kind;

struct ane_normaliser {
  ane_normaliser_kind kind;
  struct ane_text from, to;
  struct ane_text place; /* for messages: where it is in the file, "normalizer.normalizers[0]"; or empty */
};

/* Normalisers may lengthen a text, and the factors of several steps multiply. After any step the text has at most GROWTH bytes
 * per byte of the input, plus SLACK. NFKD lengthens by a factor of up to 11, GPT-2's alphabet by 2. The same limit holds for the
 * steps of pre-tokenizers, and for decoders over the spelling of a token. */
enum { ANE_NORMALISE_GROWTH = 32, ANE_NORMALISE_SLACK = 65536 };

/* The most bytes of an added token, and of any token of models that walk along a text for the longest one (all but MERGES and
 * WORDS); also of the prefix and the suffix, and of a rule of a charsmap. Without such a limit a text could take quadratic time.
 */
enum { ANE_TOKEN_BYTES = 4096 };

/* The most normalisers, splits and decoder steps of a tokenizer, each, and the most bytes of a pattern. PCRE2 refuses patterns
 * that become longer than that. */
enum { ANE_TEXT_STEPS = 256, ANE_PATTERN_BYTES = 65536 };

struct ane_buffer;
/* Appends the text in a normalisation form (ANE_NORMALISE_NFC to NFKD) to out; ill-formed bytes are copied. Takes linear time,
 * also on long runs of marks. Errors: ANE_INVALID (another kind), ANE_NOMEM. */
ane_status ane_normal_form(struct ane_text text, ane_normaliser_kind form, struct ane_buffer *out, struct ane_error *err);

/* What becomes of the matches of a pattern and of the gaps between them. The first five are those of the Hugging Face tokenizers
 * library (SplitDelimiterBehavior). */
typedef enum {
  ANE_SPLIT_ISOLATED,             /* both matches and gaps are pieces */
  ANE_SPLIT_REMOVED,              /* only gaps are pieces */
  ANE_SPLIT_MERGED_WITH_PREVIOUS, /* a match is appended to the gap before it */
  ANE_SPLIT_MERGED_WITH_NEXT,     /* a match is prepended to the gap after it */
  ANE_SPLIT_CONTIGUOUS,           /* adjacent matches form one piece */
  ANE_SPLIT_THREES,               /* ISOLATED, then matches are split into groups of three characters, counted from the right */
  ANE_SPLIT_CUT_THREES            /* only splits before each such complete group; the incomplete first group stays with the gap */
} ane_split_behaviour;

/* One pre-tokenizer step. It is applied to every piece of the previous step, and a pattern sees only its piece. Patterns have the
 * syntax of tokenizer.json files (Oniguruma, Ruby syntax: see onig.c). An empty match splits. */
struct ane_split {
  const char *pattern; /* NULL if `change` is set */
  ane_split_behaviour behaviour;
  bool invert;                         /* swaps matches and gaps */
  bool literal;                        /* the pattern is plain text */
  const char *place;                   /* of the pattern, for messages; NULL: none */
  const struct ane_normaliser *change; /* changes each piece instead of splitting it */
  bool only_first;                     /* changes only the piece at the beginning of the input */
};

typedef enum {
  ANE_MODEL_MERGES,    /* byte pair encoding: the pair of lowest rank first */
  ANE_MODEL_SCORES,    /* SentencePiece BPE: the pair that makes the token of the highest score first */
  ANE_MODEL_UNIGRAM,   /* the tokens whose scores have the largest sum (Kudo 2018) */
  ANE_MODEL_WORDPIECE, /* repeatedly takes the longest token; a piece that cannot be covered this way is unknown as a whole */
  ANE_MODEL_WORDS      /* a piece is a token or unknown */
} ane_model_kind;

/* Whether a piece that is a token as a whole becomes that token without merging. */
typedef enum { ANE_WHOLE_NEVER, ANE_WHOLE_ALWAYS, ANE_WHOLE_NEWLINES } ane_whole_rule;

/* How an added token (of type CONTROL, USER or UNKNOWN) is found in text. */
enum ane_added_flags {
  ANE_ADDED_SINGLE_WORD = 1, /* no word character may be adjacent */
  ANE_ADDED_LSTRIP = 2,      /* includes the White_Space before it */
  ANE_ADDED_RSTRIP = 4,      /* includes the White_Space after it */
  ANE_ADDED_LATE = 8,        /* searched in the normalised text */
  ANE_ADDED_NORMALISED = 16, /* LATE, and its spelling is normalised too */
  ANE_ADDED_OUTSIDE = 32,    /* not in the model's vocabulary: the model never produces it */
  ANE_ADDED_MODEL = 64       /* only the model produces it */
};

/* Decoder steps, named as in tokenizer.json. Steps before FUSE or BYTE_LEVEL see single tokens; STRIP after them sees the whole
 * text. */
typedef enum {
  ANE_DECODE_REPLACE,   /* replaces `from` by `to` */
  ANE_DECODE_PATTERN,   /* replaces matches of `from` by `to` */
  ANE_DECODE_BYTES,     /* ByteFallback: turns <0xNN> into that byte */
  ANE_DECODE_FUSE,      /* joins the tokens into one text */
  ANE_DECODE_STRIP,     /* removes the character `from`, up to `start` times at the beginning and up to `stop` times at the end */
  ANE_DECODE_METASPACE, /* replaces `from` by a space; with `start`, removes it in the first token */
  ANE_DECODE_WORDPIECE, /* except in the first token: removes `from` at the beginning, or else puts a space there */
  ANE_DECODE_CLEANUP,   /* removes spaces before English punctuation and contractions */
  ANE_DECODE_SUFFIX,    /* BPEDecoder: replaces `from` by a space; removes it in the last token */
  ANE_DECODE_BYTE_LEVEL, /* maps GPT-2's alphabet to bytes; tokens with other characters are unchanged */
  ANE_DECODE_SPACED,     /* a space before every token but the first: what the library does without a decoder */
  ANE_DECODE_LEAD /* removes `from` at the beginning of the first token, once; with `start`, of each token before any text */
} ane_decode_kind;

struct ane_decode_step {
  ane_decode_kind kind;
  struct ane_text from, to;
  struct ane_text place; /* as in a normaliser */
  uint32_t start, stop;
};

enum { ANE_NO_TOKEN = -1 };

struct ane_token_pair {
  struct ane_text left, right;
};

struct ane_tokenizer_desc {
  uint32_t n_tokens;                   /* < 2^31 */
  const struct ane_text *tokens;       /* [n_tokens]; empty if no token has the id */
  const uint8_t *types;                /* [n_tokens] ane_token_type; NULL: all are normal */
  const uint8_t *flags;                /* [n_tokens] ane_added_flags; NULL: none */
  const double *scores;                /* [n_tokens]; required by ANE_MODEL_SCORES and UNIGRAM; no NaN */
  const struct ane_token_pair *merges; /* [n_merges], best first; for ANE_MODEL_MERGES */
  size_t n_merges;
  bool unique; /* two tokens with the same spelling are an error */

  ane_model_kind model;
  bool byte_level;    /* tokens spell bytes in the alphabet of GPT-2 (256 printable characters) */
  bool byte_fallback; /* a character without a token becomes <0xNN> tokens */
  ane_whole_rule whole;
  bool library_rules; /* rules of the tokenizers library: a merge of unknown tokens is an error, of two equal merges the last
                         counts, and neighbours of skipped characters may merge. Otherwise: such merges are skipped, the first
                         counts, and these neighbours never merge */
  bool single;        /* UNIGRAM: sums in single precision, and a bonus for tokens of type USER, as in SentencePiece */
  struct ane_text prefix, suffix; /* MERGES: of a character not at the start, at the end of a piece; WORDPIECE: prefix */
  uint32_t max_chars;             /* WORDPIECE: a longer piece is unknown */
  const struct ane_normaliser *normalisers;
  uint32_t n_normalisers;
  const struct ane_split *splits;
  uint32_t n_splits;
  const struct ane_decode_step *decoders; /* NULL: decoding follows the three fields below and byte_level */
  uint32_t n_decoders;
  bool strip_space;         /* decoding removes one leading space: the normalisers insert one before a text */
  bool space_mark;          /* U+2581 in normal tokens decodes as a space */
  struct ane_text unk_text; /* what the unknown token decodes to; data NULL: its spelling */

  int32_t bos, eos;           /* or ANE_NO_TOKEN */
  const int32_t *head, *tail; /* ids before and after a text, instead of bos and eos */
  uint32_t n_head, n_tail;
  int32_t unk;           /* the token of characters without a token; ANE_NO_TOKEN: they are skipped */
  bool unk_needed;       /* if there is no unk, such characters are an error */
  bool fuse_unk;         /* adjacent unknown characters become one such token */
  bool add_bos, add_eos; /* the model's defaults; see ane_encode_flags */
};

/* ---- Pre-tokenizers by name --------------------------------------------------------------------------------------*/

/* One value of tokenizer.ggml.pre. */
struct ane_pretokenizer {
  const char *name;
  const struct ane_split *splits;
  uint32_t n_splits;
  ane_whole_rule whole;
  bool add_bos;  /* the default if the file does not specify it */
  bool sentence; /* not byte-level: spaces become U+2581, unknown characters <0xNN> */
};

const struct ane_pretokenizer *ane_pretokenizer_find(const char *name, size_t len); /* NULL: unknown */
const struct ane_pretokenizer *ane_pretokenizer_list(uint32_t *n);
/* Is this the pattern of a named pre-tokenizer? */
bool ane_pretokenizer_has(const char *pattern);

/* ---- Tokenizer ---------------------------------------------------------------------------------------------------*/

struct ane_tokenizer; /* immutable once created: many threads may use it at once */

/* Copies everything it needs from the description. Errors: ANE_FORMAT, ANE_INVALID, ANE_RANGE (too many steps), ANE_UNSUPPORTED
 * (a pattern), ANE_NOMEM. */
ane_status ane_tokenizer_create(struct ane_tokenizer **out, const struct ane_tokenizer_desc *desc, struct ane_error *err);
void ane_tokenizer_destroy(struct ane_tokenizer *t); /* NULL is fine */

enum ane_encode_flags {
  ANE_ENCODE_SPECIAL = 1, /* control and unknown tokens spelled in the text become those tokens */
  ANE_ENCODE_BOS = 2,     /* put the head first: the begin token, if the model has one */
  ANE_ENCODE_EOS = 4,     /* put the tail last: the end token */
  ANE_ENCODE_SPANS = 8    /* fill spans */
};

struct ane_span {
  size_t start, end; /* bytes [start, end) of the original text; empty for tokens that represent no text */
};

/* Zero-initialised = empty; free with ane_encoding_free. */
struct ane_encoding {
  int32_t *ids;
  struct ane_span *spans; /* NULL without ANE_ENCODE_SPANS */
  size_t n, room;
};

/* Replaces the contents of out. As in the tokenizers library, it skips bytes for which a byte-level vocabulary has no token, and
 * characters without a token if there is neither byte fallback nor an unknown token. Errors: ANE_NOMEM; ANE_RANGE if one piece is
 * 4 GiB or more, a pattern reaches its limits, or a normaliser makes more than ANE_NORMALISE_GROWTH allows; ANE_FORMAT if an
 * unknown token is needed and there is none. */
ane_status ane_tokenizer_encode(const struct ane_tokenizer *t, struct ane_text text, unsigned flags, struct ane_encoding *out,
                                struct ane_error *err);
void ane_encoding_free(struct ane_encoding *e);

uint32_t ane_tokenizer_size(const struct ane_tokenizer *t);
/* The token's spelling in the vocabulary, and its type. id < size. */
struct ane_text ane_tokenizer_piece(const struct ane_tokenizer *t, uint32_t id);
ane_token_type ane_tokenizer_type(const struct ane_tokenizer *t, uint32_t id);
/* The bytes of a token in text. Ids beyond the vocabulary have none (models pad their head). */
struct ane_text ane_tokenizer_bytes(const struct ane_tokenizer *t, uint32_t id);
/* The lowest id with this spelling, or ANE_NO_TOKEN. */
int32_t ane_tokenizer_id(const struct ane_tokenizer *t, const char *piece, size_t len);

/* ---- Decoding ----------------------------------------------------------------------------------------------------*/

/* The state of one stream of tokens; initialise to {0}. Output is never cut inside a UTF-8 sequence: the last bytes of a push are
 * held back while more bytes could complete them. Bytes that can no longer become UTF-8 are passed on unchanged. The decoder also
 * holds back characters that would be removed if the text ended here, and a token that decodes differently as the last one. */
struct ane_decoder {
  char held[4];
  uint8_t n_held;
  bool begun;    /* a token has been pushed */
  bool has_last; /* `last` waits for the next token */
  uint32_t last;
  uint32_t stripped; /* characters removed at the beginning; UINT32_MAX: no more will be */
  uint32_t ending;   /* characters held back at the end */
};

/* Appends the text that is complete after this token. skip: control and unknown tokens produce no text. false: out of memory. */
ANE_NODISCARD bool ane_decoder_push(const struct ane_tokenizer *t, struct ane_decoder *d, uint32_t id, bool skip,
                                    struct ane_buffer *out);
/* Appends the bytes held back and resets the decoder. */
ANE_NODISCARD bool ane_decoder_flush(const struct ane_tokenizer *t, struct ane_decoder *d, struct ane_buffer *out);

/* Appends the text of a whole list of ids. replace: ill-formed UTF-8 becomes U+FFFD, one per maximal subpart; with
 * ANE_DECODE_BYTES, one per byte of an ill-formed run of byte tokens. */
ANE_NODISCARD bool ane_tokenizer_decode(const struct ane_tokenizer *t, const int32_t *ids, size_t n, bool skip, bool replace,
                                        struct ane_buffer *out);

#endif
