/* Text to token ids and back. Plain data describe the pipeline, so a GGUF vocabulary, a tokenizer.json and a SentencePiece model
 * become the same object.
 *
 *   bytes -> added tokens cut out (leftmost, longest) -> normalisers -> late added tokens -> splits -> model -> head, tail
 *
 * Input need not be UTF-8. A byte of an ill-formed sequence is a piece of its own: it becomes the token of that byte (byte-level,
 * or <0xNN>), and no pattern and no normaliser sees it. So decode(encode(text)) == text for every byte string if the vocabulary
 * is byte-level and has all 256 bytes. */
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

/* Numbers of tokenizer.ggml.token_type (gguf-py, constants.py, TokenType). */
typedef enum {
  ANE_TOKEN_NORMAL = 1,
  ANE_TOKEN_UNKNOWN,
  ANE_TOKEN_CONTROL, /* found in text only when special tokens are asked for */
  ANE_TOKEN_USER,    /* found in text always, before everything else */
  ANE_TOKEN_UNUSED,  /* made from text only by merges that name it */
  ANE_TOKEN_BYTE     /* <0xNN> */
} ane_token_type;

/* A kind whose comment names a type of tokenizer.json does the same as the Hugging Face tokenizers library. */
typedef enum {
  ANE_NORMALISE_REPLACE, /* every `from` (not empty) by `to` */
  ANE_NORMALISE_PREPEND, /* `to` before a text that is not empty */
  ANE_NORMALISE_SQUEEZE, /* SentencePiece's remove_extra_whitespaces: no spaces at the ends, runs of them become one */
  ANE_NORMALISE_NFC,     /* normal forms: Unicode Standard Annex 15 */
  ANE_NORMALISE_NFD,
  ANE_NORMALISE_NFKC,
  ANE_NORMALISE_NFKD,
  ANE_NORMALISE_PATTERN,  /* every match of the pattern `from` by `to`, which is plain text */
  ANE_NORMALISE_PREFIX,   /* as PREPEND, but not before a text that begins with `to` */
  ANE_NORMALISE_APPEND,   /* `to` after a text that is not empty */
  ANE_NORMALISE_TRIM_END, /* `from` away from the end, as often as it stands there; then `to` there, unless the text was empty */
  ANE_NORMALISE_LOWER,    /* Lowercase: the full mapping of each character by itself */
  ANE_NORMALISE_STRIP_LEFT,       /* White_Space away from the beginning */
  ANE_NORMALISE_STRIP_RIGHT,      /* and from the end */
  ANE_NORMALISE_STRIP_MARKS,      /* StripAccents: no characters of category M */
  ANE_NORMALISE_STRIP_NONSPACING, /* none of category Mn */
  ANE_NORMALISE_CLEAN,            /* BertNormalizer, clean_text: no NUL, U+FFFD, categories C; White_Space as space */
  ANE_NORMALISE_APART_HAN,        /* BertNormalizer, handle_chinese_chars: spaces around ideographs */
  ANE_NORMALISE_NMT,              /* Nmt: control characters away, special blanks as space */
  ANE_NORMALISE_ALPHABET,         /* ByteLevel: each byte by its character of GPT-2's alphabet */
  ANE_NORMALISE_CHARSMAP,         /* SentencePiece's precompiled_charsmap in `from`: the longest rule at each place */
  ANE_NORMALISE_CHARSMAP_CLUSTERS /* Precompiled: the shortest rule that each grapheme cluster, or character, begins with */
} ane_normaliser_kind;

struct ane_normaliser {
  ane_normaliser_kind kind;
  struct ane_text from, to;
  struct ane_text place; /* for messages, its field in the file: "normalizer.normalizers[0].content"; or empty */
};

/* Normalisers may lengthen a text, and steps multiply. The text after any step has at most GROWTH bytes per byte of the input,
 * plus SLACK. NFKD lengthens by up to 11, the alphabet of GPT-2 by 2. The same limit holds for the steps of pre-tokenizers, and
 * for decoders over the spelling of a token. */
enum { ANE_NORMALISE_GROWTH = 32, ANE_NORMALISE_SLACK = 65536 };

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
  ANE_SPLIT_MERGED_WITH_NEXT,     /* a match begins the gap after it */
  ANE_SPLIT_CONTIGUOUS,           /* neighbouring matches are one piece */
  ANE_SPLIT_THREES,               /* ISOLATED, then matches are cut in groups of three characters counted from the right */
  ANE_SPLIT_CUT_THREES            /* only cuts, before each such whole group; what is left of the first stays with the gap */
} ane_split_behaviour;

/* One pre-tokenizer step, applied to every piece of the previous step. A pattern sees its piece only. Patterns have the syntax of
 * tokenizer.json files (Oniguruma, Ruby syntax: see onig.c). An empty match splits. */
struct ane_split {
  const char *pattern; /* NULL where `change` is set */
  ane_split_behaviour behaviour;
  bool invert;                         /* matches are gaps, gaps are matches */
  bool literal;                        /* the pattern is plain text */
  const struct ane_normaliser *change; /* changes each piece instead of splitting it */
  bool only_first;                     /* changes only the piece at the beginning of the input */
};

typedef enum {
  ANE_MODEL_MERGES,    /* byte pair encoding: the pair of lowest rank first */
  ANE_MODEL_SCORES,    /* SentencePiece BPE: the pair that makes the token of the highest score first */
  ANE_MODEL_UNIGRAM,   /* the tokens whose scores have the largest sum (Kudo 2018) */
  ANE_MODEL_WORDPIECE, /* the longest token, again and again; a piece without such tokens as a whole is unknown */
  ANE_MODEL_WORDS      /* a piece is a token or unknown */
} ane_model_kind;

/* When a piece that is a token as a whole becomes that token without merging. */
typedef enum { ANE_WHOLE_NEVER, ANE_WHOLE_ALWAYS, ANE_WHOLE_NEWLINES } ane_whole_rule;

/* How an added token (of type CONTROL, USER or UNKNOWN) is found in text. */
enum ane_added_flags {
  ANE_ADDED_SINGLE_WORD = 1, /* not beside a character of a word */
  ANE_ADDED_LSTRIP = 2,      /* includes the White_Space before it */
  ANE_ADDED_RSTRIP = 4,      /* includes the White_Space after it */
  ANE_ADDED_LATE = 8,        /* looked for in the normalised text */
  ANE_ADDED_NORMALISED = 16, /* LATE, and spelled there as the normalisers spell it */
  ANE_ADDED_OUTSIDE = 32,    /* not in the model's vocabulary: the model never produces it */
  ANE_ADDED_MODEL = 64       /* only the model produces it */
};

/* Decoder steps, named as in tokenizer.json. Steps before FUSE or BYTE_LEVEL see single tokens; STRIP after these sees the whole
 * text. */
typedef enum {
  ANE_DECODE_REPLACE,    /* `from` by `to` */
  ANE_DECODE_PATTERN,    /* matches of `from` by `to` */
  ANE_DECODE_BYTES,      /* ByteFallback: <0xNN> is that byte */
  ANE_DECODE_FUSE,       /* joins the tokens to one text */
  ANE_DECODE_STRIP,      /* removes the character `from`, up to `start` times in front, up to `stop` times at the end */
  ANE_DECODE_METASPACE,  /* `from` by a space; with `start` by nothing in the first token */
  ANE_DECODE_WORDPIECE,  /* except in the first token: removes `from` in front, else puts a space before it */
  ANE_DECODE_CLEANUP,    /* removes spaces before English punctuation and contractions */
  ANE_DECODE_SUFFIX,     /* BPEDecoder: `from` by a space, by nothing in the last token */
  ANE_DECODE_BYTE_LEVEL, /* GPT-2's alphabet to bytes; tokens with other characters stay */
  ANE_DECODE_SPACED,     /* a space before every token but the first: what the library does without a decoder */
  ANE_DECODE_LEAD        /* removes `from` in front of the first token, once; with `start` of each token before any text */
} ane_decode_kind;

struct ane_decode_step {
  ane_decode_kind kind;
  struct ane_text from, to;
  struct ane_text place; /* as of a normaliser */
  uint32_t start, stop;
};

enum { ANE_NO_TOKEN = -1 };

struct ane_token_pair {
  struct ane_text left, right;
};

struct ane_tokenizer_desc {
  uint32_t n_tokens;                   /* < 2^31 */
  const struct ane_text *tokens;       /* [n_tokens]; empty where no token has the id */
  const uint8_t *types;                /* [n_tokens] ane_token_type; NULL: all are normal */
  const uint8_t *flags;                /* [n_tokens] ane_added_flags; NULL: none */
  const double *scores;                /* [n_tokens]; needed by ANE_MODEL_SCORES and UNIGRAM, no NaN */
  const struct ane_token_pair *merges; /* [n_merges], best first; for ANE_MODEL_MERGES */
  size_t n_merges;
  bool unique; /* two tokens of one spelling are an error */

  ane_model_kind model;
  bool byte_level;    /* tokens spell bytes in the alphabet of GPT-2 (256 printable characters) */
  bool byte_fallback; /* a character without token becomes <0xNN> tokens */
  ane_whole_rule whole;
  bool library_rules; /* the rules of the tokenizers library: a merge of unknown tokens is an error, of two equal merges
                         the last counts, and neighbours of skipped characters may merge. Else: such merges are
                         skipped, the first counts, and these neighbours never merge */
  bool single;        /* UNIGRAM: sums in single precision, tokens of type USER get a bonus, as in SentencePiece */
  struct ane_text prefix, suffix; /* MERGES: of a character that does not begin, that ends a piece; WORDPIECE: prefix */
  uint32_t max_chars;             /* WORDPIECE: a longer piece is unknown */
  const struct ane_normaliser *normalisers;
  uint32_t n_normalisers;
  const struct ane_split *splits;
  uint32_t n_splits;
  const struct ane_decode_step *decoders; /* NULL: the three fields below, and normal tokens of a byte_level vocabulary */
  uint32_t n_decoders;
  bool strip_space;         /* decoding drops one leading space: the normalisers put one before a text */
  bool space_mark;          /* U+2581 in normal tokens decodes as a space */
  struct ane_text unk_text; /* what the unknown token decodes to; data NULL: as it is spelled */

  int32_t bos, eos;           /* or ANE_NO_TOKEN */
  const int32_t *head, *tail; /* ids before and after a text, instead of bos and eos */
  uint32_t n_head, n_tail;
  int32_t unk;           /* the token of characters without one; ANE_NO_TOKEN: they are skipped */
  bool unk_needed;       /* without unk they are an error instead */
  bool fuse_unk;         /* neighbouring unknown characters are one such token */
  bool add_bos, add_eos; /* the model's defaults; see ane_encode_flags */
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
  ANE_ENCODE_BOS = 2,     /* the head first: the begin token, where the model has one */
  ANE_ENCODE_EOS = 4,     /* the tail last: the end token */
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

/* Replaces the contents of out. Skips, as the tokenizers library does, bytes for which a byte-level vocabulary has no token, and
 * characters without token where there is neither byte fallback nor an unknown token.
 * Errors: ANE_NOMEM; ANE_RANGE where one piece is 4 GiB or more, a pattern gives up at its limits, or a normaliser makes more
 * than ANE_NORMALISE_GROWTH allows; ANE_FORMAT where an unknown token is needed and there is none. */
ane_status ane_tokenizer_encode(const struct ane_tokenizer *t, struct ane_text text, unsigned flags, struct ane_encoding *out,
                                struct ane_error *err);
void ane_encoding_free(struct ane_encoding *e);

uint32_t ane_tokenizer_size(const struct ane_tokenizer *t);
/* The token as the vocabulary spells it, and its type. id < size. */
struct ane_text ane_tokenizer_piece(const struct ane_tokenizer *t, uint32_t id);
ane_token_type ane_tokenizer_type(const struct ane_tokenizer *t, uint32_t id);
/* The bytes of a token in text. Ids beyond the vocabulary (models pad their head) have none. */
struct ane_text ane_tokenizer_bytes(const struct ane_tokenizer *t, uint32_t id);
/* The lowest id that is spelled so, or ANE_NO_TOKEN. */
int32_t ane_tokenizer_id(const struct ane_tokenizer *t, const char *piece, size_t len);

/* ---- Decoding ----------------------------------------------------------------------------------------------------*/

/* State of one stream of tokens; start from {0}. Output is never cut inside a UTF-8 sequence: the last bytes of a push
 * are held back while more bytes could complete them. Bytes that can no longer become UTF-8 pass unchanged. Also held back are
 * characters that would be removed if the text ended here, and a token that decodes differently as the last one. */
struct ane_decoder {
  char held[4];
  uint8_t n_held;
  bool begun;    /* a token has been pushed */
  bool has_last; /* `last` waits for the next token */
  uint32_t last;
  uint32_t stripped; /* characters removed at the beginning; UINT32_MAX: no more will be */
  uint32_t ending;   /* characters held back at the end */
};

/* Appends the text that is complete after this token. skip: control and unknown tokens have no text. false: out of memory. */
ANE_NODISCARD bool ane_decoder_push(const struct ane_tokenizer *t, struct ane_decoder *d, uint32_t id, bool skip,
                                    struct ane_buffer *out);
/* Appends the held bytes and resets the decoder. */
ANE_NODISCARD bool ane_decoder_flush(const struct ane_tokenizer *t, struct ane_decoder *d, struct ane_buffer *out);

/* Appends the text of a whole list of ids. replace: ill-formed UTF-8 becomes U+FFFD, one per maximal subpart; with
 * ANE_DECODE_BYTES one per byte of an ill-formed run of byte tokens. */
ANE_NODISCARD bool ane_tokenizer_decode(const struct ane_tokenizer *t, const int32_t *ids, size_t n, bool skip, bool replace,
                                        struct ane_buffer *out);

#endif
