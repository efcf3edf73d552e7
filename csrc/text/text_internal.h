/* Shared by the files of csrc/text. */
#ifndef ANE_TEXT_TEXT_INTERNAL_H
#define ANE_TEXT_TEXT_INTERNAL_H

#include "base/arena.h"
#include "base/bytes.h"
#include "base/strmap.h"
#include "text/text.h"

/* Types of PCRE2. Its header is not included, since it requires a macro to be defined first. */
struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_general_context_8;
struct pcre2_real_jit_stack_8;

/* ---- Text with its origin (rewrite.c) ----------------------------------------------------------------------------*/

/* Bytes [out, out + out_len) come from bytes [in, in + in_len) of the original. Edits are sorted by out and do not overlap. Bytes
 * between two edits are copies: position x after edit e comes from x - (e.out + e.out_len) + (e.in + e.in_len). */
struct ane_edit {
  size_t out, out_len, in, in_len;
};

struct ane_aligned {
  struct ane_buffer bytes;
  struct ane_edit *edits;
  size_t n_edits, room;
};

void ane_aligned_free(struct ane_aligned *a);
/* The original bytes of [start, end). *cursor is an index into edits, initially 0; positions must not decrease from call to call.
 * */
struct ane_span ane_aligned_span(const struct ane_aligned *a, size_t start, size_t end, size_t *cursor);

/* Reads from[at..end) in order and writes `to`. The edits of `to` refer to the original. */
struct ane_rewrite {
  const struct ane_aligned *from;
  struct ane_aligned *to;
  size_t at, end;
  size_t cursor; /* first edit of `from` that does not end before `at` */
  bool edits;    /* record edits */
  size_t limit;  /* the most bytes that `to` may have */
  bool full;     /* a call failed at the limit */
};

/* ane_rewrite_copy copies the next n bytes of `from`. ane_rewrite_put writes text[0..len) in their place. false: out of memory,
 * or r->full. */
ANE_NODISCARD bool ane_rewrite_copy(struct ane_rewrite *r, size_t n);
ANE_NODISCARD bool ane_rewrite_put(struct ane_rewrite *r, size_t n, const void *text, size_t len);
/* normal_form.c, normalise_chars.c: apply a step of this kind to the rest. false: out of memory, or r->full. */
ANE_NODISCARD bool ane_rewrite_form(struct ane_rewrite *r, ane_normaliser_kind kind);
ANE_NODISCARD bool ane_rewrite_chars(struct ane_rewrite *r, ane_normaliser_kind kind);

/* ---- Characters (chars.c) ----------------------------------------------------------------------------------------*/

/* The code point at s[0..len), len > 0, and its length. Ill-formed: -1 and the length of the maximal subpart. */
int32_t ane_char_at(const char *s, size_t len, size_t *n);
/* The code point that ends at s[len], len > 0, and its length. Ill-formed: -1 and 1. */
int32_t ane_char_before(const char *s, size_t len, size_t *n);
bool ane_char_is_space(int32_t c); /* White_Space (Unicode 15, PropList.txt) */
bool ane_char_is_word(int32_t c);  /* \w of Unicode Technical Standard 18, annex C */

/* ---- Trie (trie.c) -----------------------------------------------------------------------------------------------*/

struct ane_trie_node {
  int32_t token;           /* or ANE_NO_TOKEN */
  uint32_t child, sibling; /* indices; 0: none (node 0 is the root) */
  uint8_t byte;
};

/* Added tokens. Zero-initialised = empty. */
struct ane_trie {
  struct ane_trie_node *nodes;
  uint32_t n, room;
  uint8_t first[256]; /* does any key begin with this byte? */
};

/* Adds a key. If the key exists, its token stays. false: out of memory, or 2^32 nodes. */
ANE_NODISCARD bool ane_trie_add(struct ane_trie *t, const char *key, size_t len, int32_t token);
/* Returns the token of the longest key at the start of s[0..n); ANE_NO_TOKEN: there is none. Only tokens count whose type is
 * admitted: bit types[token] of `admitted` is set. *len receives the key's length. */
int32_t ane_trie_longest(const struct ane_trie *t, const uint8_t *types, unsigned admitted, const char *s, size_t n, size_t *len);
void ane_trie_free(struct ane_trie *t);

/* ---- Patterns (pretokenize.c, onig.c) ----------------------------------------------------------------------------*/

struct ane_pattern {
  struct pcre2_real_code_8 *code;
  ane_split_behaviour behaviour;
  bool invert;
};

/* Translates a pattern in Oniguruma's Ruby syntax into a PCRE2 pattern that matches the same, and appends it. Errors:
 * ANE_UNSUPPORTED, ANE_NOMEM. */
ane_status ane_onig_translate(const char *pattern, struct ane_buffer *out, struct ane_error *err);

/* Compiles the pattern of a split. Free it with ane_pattern_free. Errors: ANE_UNSUPPORTED (or malformed), ANE_NOMEM. */
ane_status ane_pattern_compile(struct ane_pattern *p, const struct ane_split *split, struct ane_error *err);
void ane_pattern_free(struct ane_pattern *p);

/* One thread's memory for matching. Zero-initialised = closed. */
struct ane_pattern_memory {
  struct pcre2_real_match_data_8 *data;
  struct pcre2_real_match_context_8 *context;
  struct pcre2_real_jit_stack_8 *stack;
  uint64_t items; /* items of patterns that may still be tried */
};

ane_status ane_pattern_memory_open(struct ane_pattern_memory *m, struct ane_error *err);
void ane_pattern_memory_close(struct ane_pattern_memory *m);

/* The state of an iteration over the matches of one text. Initialise to {.none = true}. */
struct ane_matches {
  size_t from, last; /* start of the next search; end of the last match */
  bool none;         /* no match yet */
};

/* Finds the next match in s[0..len), well-formed UTF-8. range receives its start and end. A match may be empty, but not at the
 * end of the previous one. Call ane_pattern_memory_limit once before an iteration. */
ane_status ane_pattern_next(const struct ane_pattern *p, struct ane_pattern_memory *m, const char *s, size_t len,
                            struct ane_matches *walk, bool *found, size_t range[2], struct ane_error *err);
/* Limits the work of each match, and that of all matches until the next call, by the length of the text. */
void ane_pattern_memory_limit(struct ane_pattern_memory *m, size_t len);

/* Called with each piece, in order. `piece` points into the text. */
typedef ane_status (*ane_piece_fn)(void *context, const char *piece, size_t len, struct ane_error *err);

/* Splits s[0..len), well-formed UTF-8, by patterns[0..n) and calls fn with each non-empty piece. */
ane_status ane_pretokenize(const struct ane_pattern *patterns, uint32_t n, struct ane_pattern_memory *m, const char *s,
                           size_t len, ane_piece_fn fn, void *context, struct ane_error *err);

/* ---- Changes (normalise.c) ---------------------------------------------------------------------------------------*/

/* SentencePiece's precompiled_charsmap (charsmap.c): views into the normaliser's `from`. */
struct ane_charsmap {
  const uint8_t *units; /* of a double array (Yata's darts-clone), 4 bytes each, little endian */
  uint32_t n_units;
  const char *texts; /* replacements of rules, NUL-terminated */
  size_t n_texts;
};

/* Opens a map; m points into the blob. Errors: ANE_FORMAT. */
ane_status ane_charsmap_open(struct ane_charsmap *m, struct ane_text blob, struct ane_error *err);
/* keep: keys that no rule changes, or NULL. false: out of memory, or r->full. */
ANE_NODISCARD bool ane_rewrite_charsmap(struct ane_rewrite *r, const struct ane_charsmap *m, bool clusters,
                                        const struct ane_trie *keep, const uint8_t *types);

/* A normaliser ready to run. */
struct ane_change {
  struct ane_normaliser n;
  struct ane_pattern pattern;
  struct ane_charsmap charsmap;
};

/* Copies the texts into the arena. ane_change_close may be called after a failure too. */
ane_status ane_change_open(struct ane_change *c, struct ane_arena *arena, const struct ane_normaliser *n, struct ane_error *err);
void ane_change_close(struct ane_change *c);

/* What a change may need in addition to its text. */
struct ane_change_context {
  struct ane_pattern_memory *pattern_memory; /* open; may be NULL without patterns */
  const struct ane_trie *keep;               /* for charsmaps */
  const uint8_t *types;
  size_t limit; /* maximum bytes after a step; 0: ane_normalise_limit of the text */
};

/* The maximum bytes that a text of len bytes may have after a step. */
size_t ane_normalise_limit(size_t len);

/* Applies the change to the rest of r. Errors: ANE_NOMEM, ANE_RANGE (a pattern reaches its limits, or the text the limit of r).
 * */
ane_status ane_change_run(const struct ane_change *c, struct ane_rewrite *r, const struct ane_change_context *x,
                          struct ane_error *err);
/* The error of a rewrite of n bytes that failed: ANE_RANGE at the limit, otherwise ANE_NOMEM. */
ane_status ane_change_failed(const struct ane_change *c, const struct ane_rewrite *r, size_t n, struct ane_error *err);
/* Applies the steps to `in` and fills out, which must be zeroed. Free it with ane_aligned_free, also after a failure. If
 * keep_edits is false, only the text is made. */
ane_status ane_normalise(const struct ane_change *steps, uint32_t n, const struct ane_change_context *x, struct ane_text in,
                         bool keep_edits, struct ane_aligned *out, struct ane_error *err);

/* ---- Merging (merge.c) -------------------------------------------------------------------------------------------*/

#define ANE_NO_RANK UINT32_MAX

/* The symbol that begins at this byte of the piece; entries inside a symbol are unused. */
struct ane_symbol {
  int32_t id;
  uint32_t len, prev; /* bytes; position of the symbol before, or UINT32_MAX */
  uint32_t rank;      /* of merging it with the next symbol: the lowest merges first; ANE_NO_RANK: never */
  int32_t merged;     /* the token that this merge makes */
};

struct ane_merge_work {
  struct ane_symbol *symbols;
  size_t room;
  uint64_t *heap; /* rank << 32 | position */
  size_t n_heap, heap_room;
};

struct ane_tokenizer;
/* Returns the rank of the pair a, b, or ANE_NO_RANK; *merged receives the token that the pair makes. `at`: the first byte of
 * a. */
typedef uint32_t (*ane_pair_fn)(const struct ane_tokenizer *t, const char *at, const struct ane_symbol *a,
                                const struct ane_symbol *b, int32_t *merged);

/* Makes room for a piece of n bytes. false: out of memory. */
ANE_NODISCARD bool ane_merge_reserve(struct ane_merge_work *w, size_t n);
/* Merges the symbols of piece[0..n) (id, len, prev set) until no pair has a rank: lowest rank first, leftmost among
 * equals. O(n log n) time. false: out of memory. */
ANE_NODISCARD bool ane_merge(struct ane_merge_work *w, const struct ane_tokenizer *t, const char *piece, uint32_t n,
                             ane_pair_fn pair);
void ane_merge_free(struct ane_merge_work *w);

/* ---- Models ------------------------------------------------------------------------------------------------------*/

struct ane_pair_slot {
  uint64_t key; /* left << 32 | right; UINT64_MAX = free */
  uint32_t rank;
  int32_t merged;
};

/* A read-only prefix tree: the children of a node are consecutive, sorted by byte. */
struct ane_prefix_node {
  int32_t token; /* or ANE_NO_TOKEN */
  uint32_t child;
  uint16_t n; /* children */
  uint8_t byte;
};

/* A stage of pre-tokenization: a normaliser that changes each piece, and the patterns that then split the pieces. */
struct ane_text_stage {
  struct ane_change change;
  bool only_first;
  uint32_t first, n; /* of ane_tokenizer.patterns */
};

struct ane_tokenizer {
  struct ane_arena arena;
  uint32_t n;
  struct ane_text *pieces; /* [n] as the vocabulary spells them */
  struct ane_text *bytes;  /* [n] their bytes in text, after other tokens */
  uint8_t *types;          /* [n] */
  uint8_t *flags;          /* [n] or NULL */
  double *scores;          /* [n] or NULL */
  struct ane_strmap by_piece;
  uint32_t max_len;      /* of all pieces */
  int32_t byte_ids[256]; /* byte_level: the token of each byte; byte_fallback: the token <0xNN>; or ANE_NO_TOKEN */

  ane_model_kind model;
  bool byte_level, fuse_unk, unk_needed, library_rules, single;
  bool words_apart; /* SCORES: no token has U+2581 after another character, so the text may be split there */
  ane_whole_rule whole;
  struct ane_text prefix, suffix;
  uint32_t max_chars;
  int32_t unk;
  int32_t *head, *tail;
  uint32_t n_head, n_tail;
  struct ane_change *normalisers;
  struct ane_pattern *patterns;
  struct ane_text_stage *stages;
  uint32_t n_normalisers, n_patterns, n_stages, n_first; /* patterns before the first stage */
  bool needs_first;                                      /* some stage needs to know whether a piece begins the text */
  bool needs_pattern_memory;
  struct ane_trie added, late, keep;
  struct ane_pair_slot *pairs; /* open addressing; pair_mask + 1 slots */
  size_t pair_mask;
  uint64_t pair_seed;
  struct ane_prefix_node *tree;              /* UNIGRAM, WORDPIECE */
  const struct ane_prefix_node *tree_inside; /* WORDPIECE: the node of the prefix; NULL: no token begins with it */
  double unk_score, bonus;

  struct ane_decode_step *decoders;
  uint32_t n_decoders, n_alone;            /* all; those that see single tokens */
  struct ane_change *decoder_changes;      /* [n_decoders], used by REPLACE and PATTERN */
  bool byte_runs, place_first, place_last; /* some token decodes differently as the first, as the last */
  bool lead_all;                           /* every token before any text decodes as the first one */
  bool unk_text;                           /* the unknown token has a text of its own */
  struct ane_text strip;                   /* character that is removed at the ends of the whole text, and how often */
  uint32_t strip_start, strip_stop;
};

struct ane_unigram_node {
  double score;
  uint32_t start; /* or UINT32_MAX: unreachable */
  int32_t id;
};

struct ane_piece {
  size_t start, end;
};

struct ane_pieces {
  struct ane_piece *items;
  size_t n, room;
};

/* One call of encode. */
struct ane_encode_run {
  const struct ane_tokenizer *t;
  struct ane_encoding *out;
  bool spans, special;
  unsigned admitted; /* bits of types of added tokens */
  struct ane_merge_work work;
  struct ane_unigram_node *nodes;
  size_t nodes_room;
  struct ane_pattern_memory pattern_memory;
  struct ane_buffer spelled;         /* a piece in GPT-2's alphabet; a part of a word with its prefix or suffix */
  const char *base;                  /* start of the current fragment, as the model sees it */
  size_t offset;                     /* of that fragment in the input */
  const struct ane_aligned *aligned; /* NULL: the fragment is unchanged input */
  size_t cursor;
  size_t normalised, staged; /* bytes that normalisers and stages have made so far; each is at most limit */
  size_t limit;
};

/* Appends the id of piece[0..len); ANE_NO_TOKEN appends nothing. */
ane_status ane_emit(struct ane_encode_run *run, int32_t id, const char *piece, size_t len, struct ane_error *err);
/* Appends the ids of unknown text: byte tokens, the unknown token, or none. *fused (may be NULL): the preceding text was unknown
 * too, and its token is the last one. */
ane_status ane_emit_unknown(struct ane_encode_run *run, const char *s, size_t len, bool *fused, struct ane_error *err);
/* The token with these bytes that the model may produce: not a control token (except with `special`), and not an unknown, unused
 * or byte token. */
int32_t ane_model_token(const struct ane_tokenizer *t, const char *s, size_t len, bool special);
/* Appends the symbols of a merged piece. */
ane_status ane_emit_symbols(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err);

/* Appends the ids that the model gives for one piece. */
ane_status ane_model_encode(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err);
/* bpe.c: makes the table of pairs; appends the ids of one piece. */
ane_status ane_bpe_init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *desc, struct ane_error *err);
ane_status ane_bpe_encode(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err);
/* spm.c */
void ane_spm_init(struct ane_tokenizer *t);
ane_status ane_spm_encode(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err);
/* tree.c: makes the prefix tree of the tokens that the model may produce; ane_model_token may still exclude some. */
ane_status ane_tree_init(struct ane_tokenizer *t, struct ane_error *err);
/* Returns the child of a node for this byte; NULL: it has none. */
const struct ane_prefix_node *ane_tree_child(const struct ane_tokenizer *t, const struct ane_prefix_node *node, uint8_t byte);
/* unigram.c */
ane_status ane_unigram_init(struct ane_tokenizer *t, struct ane_error *err);
ane_status ane_unigram_encode(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err);
/* words.c */
ane_status ane_wordpiece_init(struct ane_tokenizer *t, struct ane_error *err);
ane_status ane_wordpiece_encode(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err);
ane_status ane_word_encode(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err);

/* stages.c: splits and changes, then the model. s points into run->base. */
ane_status ane_stages_init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *d, struct ane_error *err);
ane_status ane_stages_encode(struct ane_encode_run *run, const char *s, size_t len, struct ane_error *err);

/* added.c: fills added, late and keep, and finds added tokens. */
ane_status ane_added_init(struct ane_tokenizer *t, struct ane_error *err);
/* Finds the next added token in s[*at..len). ANE_NO_TOKEN: none is left. [*start, *end) is its text, which begins at `taken` at
 * the earliest. *at receives the start of the next search. */
int32_t ane_added_next(const struct ane_tokenizer *t, const struct ane_trie *trie, unsigned admitted, const char *s, size_t len,
                       size_t taken, size_t *at, size_t *start, size_t *end);

/* GPT-2's alphabet (alphabet.c): decodes a token's spelling to bytes. false: it has a character outside the alphabet. out has
 * room for len bytes. */
bool ane_alphabet_decode(const char *s, size_t len, char *out, size_t *out_len);
/* Writes the spelling of one byte: one or two bytes. */
size_t ane_alphabet_spell(unsigned byte, char out[2]);
/* Appends the spelling of bytes. false: out of memory. */
ANE_NODISCARD bool ane_alphabet_encode(const char *s, size_t len, struct ane_buffer *out);

/* Value of <0xNN>, or -1. */
int ane_byte_value(struct ane_text s);
/* vocab.c: fills pieces, types, flags, scores, by_piece, byte_ids. */
ane_status ane_vocab_init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *desc, struct ane_error *err);

/* decode.c: prepares the steps, and fills `bytes` with them. */
ane_status ane_decode_init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *desc, struct ane_error *err);
/* Appends the text of a token in the first or last position. false: out of memory, or a pattern reaches its limits. */
ANE_NODISCARD bool ane_decode_token(const struct ane_tokenizer *t, uint32_t id, bool first, bool last, struct ane_buffer *out);
void ane_decode_close(struct ane_tokenizer *t);

#endif
