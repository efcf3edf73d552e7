/* Text to token ids and back: a pipeline that is described by plain data, so that a GGUF vocabulary and (later) a
 * tokenizer.json become the same object.
 *
 *   bytes -> added tokens cut out (leftmost, longest) -> normalisers -> splits -> model (merges) -> bos, eos
 *
 * Input need not be UTF-8. A byte that is no part of a valid sequence is a piece of its own: it is encoded as that byte
 * (its byte-level token, or <0xNN>), and no pattern and no normaliser sees it. So decode(encode(text)) == text for every
 * byte string wherever the vocabulary is byte-level and has all 256 bytes. */
#ifndef ANE_TEXT_TEXT_H
#define ANE_TEXT_TEXT_H

#include "base/status.h"

/* Bytes that someone else owns; may hold NUL, need not be UTF-8. */
struct ane_text {
  const char *data;
  size_t len;
};

/* ---- UTF-8 -------------------------------------------------------------------------------------------------------*/

/* Length of the well-formed sequence at s[0..len), len > 0 (Unicode 15, table 3-7: no overlong forms, no surrogates), or
 * 0 - n where it is ill-formed: n >= 1 bytes are the "maximal subpart" that one U+FFFD replaces (Unicode 15, 3.9, D93b),
 * the count that Python's errors="replace" uses. *cut (may be NULL) is set to whether the text ended inside a sequence
 * that more bytes could complete. */
int ane_utf8_step(const char *s, size_t len, bool *cut);

/* How many bytes of s are whole: all but a sequence at the very end that more bytes could complete (0 to 3 bytes). */
size_t ane_utf8_whole(const char *s, size_t len);

/* s with U+FFFD for each maximal ill-formed subpart, in new memory (ane_free) with a NUL behind; NULL: no memory. */
char *ane_utf8_replace(const char *s, size_t len, size_t *out_len);

/* ---- Description -------------------------------------------------------------------------------------------------*/

/* Numbers of tokenizer.ggml.token_type (gguf-py, constants.py, TokenType). */
typedef enum {
  ANE_TOKEN_NORMAL = 1,
  ANE_TOKEN_UNKNOWN,
  ANE_TOKEN_CONTROL, /* found in text only when special tokens are asked for */
  ANE_TOKEN_USER,    /* found in text always, before everything else */
  ANE_TOKEN_UNUSED,  /* made from text only by merges that name it */
  ANE_TOKEN_BYTE     /* <0xNN> */
} ane_token_type;

typedef enum {
  ANE_NORMALISE_REPLACE, /* every `from` (not empty) by `to` */
  ANE_NORMALISE_PREPEND, /* `to` before a text that is not empty */
  ANE_NORMALISE_SQUEEZE, /* SentencePiece's remove_extra_whitespaces: no spaces at the ends, runs of them become one */
  ANE_NORMALISE_NFC,     /* normal forms: Unicode Standard Annex 15 */
  ANE_NORMALISE_NFD,
  ANE_NORMALISE_NFKC,
  ANE_NORMALISE_NFKD
} ane_normaliser_kind;

struct ane_normaliser {
  ane_normaliser_kind kind;
  struct ane_text from, to;
};

struct ane_buffer;
/* Appends the text in a normal form (ANE_NORMALISE_NFC to NFKD) to out; ill-formed bytes stay. Linear time, also on long
 * runs of marks. Errors: ANE_INVALID (another kind), ANE_NOMEM. */
ane_status ane_normal_form(struct ane_text text, ane_normaliser_kind form, struct ane_buffer *out, struct ane_error *err);

/* What happens to the matches of a pattern and to the gaps between them; the first five are those of the Hugging Face
 * tokenizers library (SplitDelimiterBehavior). */
typedef enum {
  ANE_SPLIT_ISOLATED,             /* matches and gaps are pieces */
  ANE_SPLIT_REMOVED,              /* only gaps are */
  ANE_SPLIT_MERGED_WITH_PREVIOUS, /* a match ends the gap before it */
  ANE_SPLIT_MERGED_WITH_NEXT,     /* a match begins the gap behind it */
  ANE_SPLIT_CONTIGUOUS,           /* neighbouring matches are one piece */
  ANE_SPLIT_THREES,               /* ISOLATED, then matches are cut in groups of three characters counted from the right */
  ANE_SPLIT_CUT_THREES            /* only cuts, before each such whole group; what is left of the first stays with the gap */
} ane_split_behaviour;

/* One pre-tokenizer step, applied to every piece that the step before made; a pattern sees nothing beyond its piece.
 * Patterns are in the syntax of tokenizer.json files: \s and \S mean White_Space, \p{Han} the script itself. */
struct ane_split {
  const char *pattern;
  ane_split_behaviour behaviour;
  bool invert; /* matches are gaps, gaps are matches */
};

typedef enum {
  ANE_MODEL_MERGES, /* byte pair encoding: the pair of lowest rank first */
  ANE_MODEL_SCORES  /* SentencePiece BPE: the pair that makes the token of the highest score first */
} ane_model_kind;

/* When a piece that is a token as a whole becomes that token without merging. */
typedef enum { ANE_WHOLE_NEVER, ANE_WHOLE_ALWAYS, ANE_WHOLE_NEWLINES } ane_whole_rule;

enum { ANE_NO_TOKEN = -1 };

struct ane_tokenizer_desc {
  uint32_t n_tokens;             /* < 2^31 */
  const struct ane_text *tokens; /* [n_tokens] */
  const uint8_t *types;          /* [n_tokens] ane_token_type; NULL: all are normal */
  const float *scores;           /* [n_tokens]; needed by ANE_MODEL_SCORES, no NaN */
  const struct ane_text *merges; /* [n_merges] "left right", best first; needed by ANE_MODEL_MERGES. Merges of tokens that
                                    are not in the vocabulary can never apply and are left out. */
  size_t n_merges;

  ane_model_kind model;
  bool byte_level;    /* tokens spell bytes in the alphabet of GPT-2 (256 printable characters) */
  bool byte_fallback; /* a character without token becomes <0xNN> tokens */
  ane_whole_rule whole;
  const struct ane_normaliser *normalisers;
  uint32_t n_normalisers;
  const struct ane_split *splits;
  uint32_t n_splits;
  bool strip_space; /* decoding drops one leading space: the normalisers put one before a text */
  bool space_mark;  /* U+2581 in normal tokens decodes as a space */

  int32_t bos, eos;      /* or ANE_NO_TOKEN */
  int32_t unk;           /* what becomes of characters without token, or ANE_NO_TOKEN: left out */
  bool fuse_unk;         /* neighbouring unknown characters are one such token */
  bool add_bos, add_eos; /* the model's wish; see ane_encode_flags */
};

/* ---- Pre-tokenizers by name --------------------------------------------------------------------------------------*/

/* One value of tokenizer.ggml.pre. */
struct ane_pretokenizer {
  const char *name;
  const struct ane_split *splits;
  uint32_t n_splits;
  ane_whole_rule whole;
  bool add_bos;  /* the default where the file does not say */
  bool sentence; /* not byte-level: spaces become U+2581, unknown characters <0xNN> */
};

const struct ane_pretokenizer *ane_pretokenizer_find(const char *name, size_t len); /* NULL: unknown */
const struct ane_pretokenizer *ane_pretokenizer_list(uint32_t *n);

/* ---- Tokenizer ---------------------------------------------------------------------------------------------------*/

struct ane_tokenizer; /* immutable once made: many threads may use it at once */

/* Copies all it needs of the description. Errors: ANE_FORMAT, ANE_INVALID, ANE_NOMEM. */
ane_status ane_tokenizer_create(struct ane_tokenizer **out, const struct ane_tokenizer_desc *desc, struct ane_error *err);
void ane_tokenizer_destroy(struct ane_tokenizer *t); /* NULL is fine */

enum ane_encode_flags {
  ANE_ENCODE_SPECIAL = 1, /* control and unknown tokens spelled in the text become those tokens */
  ANE_ENCODE_BOS = 2,     /* the begin token first, where the model has one */
  ANE_ENCODE_EOS = 4,     /* the end token last */
  ANE_ENCODE_SPANS = 8    /* fill spans */
};

struct ane_span {
  size_t start, end; /* bytes [start, end) of the text as given; empty for tokens that no text stands for */
};

/* Zero-initialised = empty; free with ane_encoding_free. */
struct ane_encoding {
  int32_t *ids;
  struct ane_span *spans; /* NULL without ANE_ENCODE_SPANS */
  size_t n, room;
};

/* Replaces what out holds. Bytes for which a byte-level vocabulary has no token, and characters without token where there
 * is neither byte fallback nor an unknown token, are left out, as the tokenizers library does.
 * Errors: ANE_NOMEM; ANE_RANGE where one piece is 4 GiB or more, or a pattern gives up at its limits. */
ane_status ane_tokenizer_encode(const struct ane_tokenizer *t, struct ane_text text, unsigned flags, struct ane_encoding *out,
                                struct ane_error *err);
void ane_encoding_free(struct ane_encoding *e);

uint32_t ane_tokenizer_size(const struct ane_tokenizer *t);
/* The token as the vocabulary spells it, and its type. id < size. */
struct ane_text ane_tokenizer_piece(const struct ane_tokenizer *t, uint32_t id);
ane_token_type ane_tokenizer_type(const struct ane_tokenizer *t, uint32_t id);
/* The bytes a token stands for in text. Ids beyond the vocabulary (models pad their head) stand for nothing. */
struct ane_text ane_tokenizer_bytes(const struct ane_tokenizer *t, uint32_t id);
/* The lowest id that is spelled so, or ANE_NO_TOKEN. */
int32_t ane_tokenizer_id(const struct ane_tokenizer *t, const char *piece, size_t len);

/* ---- Decoding ----------------------------------------------------------------------------------------------------*/

/* State of one stream of tokens; start from {0}. Output is never cut inside a UTF-8 sequence: the last bytes of a push
 * are held back while more bytes could complete them. Bytes that cannot become UTF-8 any more pass as they are. */
struct ane_decoder {
  char held[4];
  uint8_t n_held;
  bool begun; /* something was decoded: the leading space is gone */
};

/* Appends to out what is whole after this token. skip: control and unknown tokens give nothing. false: no memory. */
ANE_NODISCARD bool ane_decoder_push(const struct ane_tokenizer *t, struct ane_decoder *d, uint32_t id, bool skip,
                                    struct ane_buffer *out);
/* Appends the held bytes and makes the decoder new. */
ANE_NODISCARD bool ane_decoder_flush(struct ane_decoder *d, struct ane_buffer *out);

#endif
