/* What the files of csrc/text share. */
#ifndef ANE_TEXT_TEXT_INTERNAL_H
#define ANE_TEXT_TEXT_INTERNAL_H

#include "base/arena.h"
#include "base/bytes.h"
#include "base/strmap.h"
#include "text/text.h"

/* PCRE2's types, without its header (which wants a macro before it). */
struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_general_context_8;
struct pcre2_real_jit_stack_8;

/* ---- Text that remembers where it came from (normalise.c) --------------------------------------------------------*/

/* Bytes [out, out + out_len) stand for bytes [in, in + in_len) of the original. Sorted by out, without overlap; bytes
 * between two edits are copies, so a position x behind edit e stands for x - (e.out + e.out_len) + (e.in + e.in_len). */
struct ane_edit {
  size_t out, out_len, in, in_len;
};

struct ane_aligned {
  struct ane_buffer bytes;
  struct ane_edit *edits;
  size_t n_edits, room;
};

/* Runs the steps over `in`; out is filled (it must be zeroed) and freed by ane_aligned_free, also after a failure.
 * Without keep_edits the text alone is made. */
ane_status ane_normalise(const struct ane_normaliser *steps, uint32_t n, struct ane_text in, bool keep_edits,
                         struct ane_aligned *out, struct ane_error *err);
void ane_aligned_free(struct ane_aligned *a);
/* The original bytes of [start, end). *cursor is an index into edits, at first 0; later calls must not go back. */
struct ane_span ane_aligned_span(const struct ane_aligned *a, size_t start, size_t end, size_t *cursor);

/* ---- Patterns (pretokenize.c) ------------------------------------------------------------------------------------*/

struct ane_pattern {
  struct pcre2_real_code_8 *code;
  ane_split_behaviour behaviour;
  bool invert;
};

ane_status ane_pattern_compile(struct ane_pattern *p, const struct ane_split *split, struct ane_error *err);
void ane_pattern_free(struct ane_pattern *p);

/* What one thread needs to match. Zero-initialised = closed. */
struct ane_matcher {
  struct pcre2_real_match_data_8 *data;
  struct pcre2_real_match_context_8 *context;
  struct pcre2_real_jit_stack_8 *stack;
};

ane_status ane_matcher_open(struct ane_matcher *m, struct ane_error *err);
void ane_matcher_close(struct ane_matcher *m);

/* Called with each piece, in order; the pointer lies in the text given. */
typedef ane_status (*ane_piece_fn)(void *context, const char *piece, size_t len, struct ane_error *err);

/* Splits s[0..len), well-formed UTF-8, by patterns[0..n) and gives away the pieces that are not empty. */
ane_status ane_pretokenize(const struct ane_pattern *patterns, uint32_t n, struct ane_matcher *m, const char *s, size_t len,
                           ane_piece_fn fn, void *context, struct ane_error *err);

/* ---- Trie (trie.c) -----------------------------------------------------------------------------------------------*/

struct ane_trie_node {
  int32_t token;           /* or ANE_NO_TOKEN */
  uint32_t child, sibling; /* indices; 0 = none (node 0 is the root and nobody's child) */
  uint8_t byte;
};

/* Added tokens. Zero-initialised = empty. */
struct ane_trie {
  struct ane_trie_node *nodes;
  uint32_t n, room;
  uint8_t first[256]; /* whether any key begins with this byte */
};

/* The first of two equal keys stays. false: no memory (or 2^32 nodes). */
ANE_NODISCARD bool ane_trie_add(struct ane_trie *t, const char *key, size_t len, int32_t token);
/* The longest key that s[0..n) begins with, among tokens whose types[token] is a bit of `admitted`; *len gets its length. */
int32_t ane_trie_longest(const struct ane_trie *t, const uint8_t *types, unsigned admitted, const char *s, size_t n, size_t *len);
void ane_trie_free(struct ane_trie *t);

/* ---- Merging (merge.c) -------------------------------------------------------------------------------------------*/

#define ANE_NO_RANK UINT32_MAX

/* The symbol that begins at this byte of the piece; entries inside a symbol are unused. */
struct ane_symbol {
  int32_t id;
  uint32_t len, prev; /* bytes; position of the symbol before, or UINT32_MAX */
  uint32_t rank;      /* of merging it with the next symbol: lower goes first; ANE_NO_RANK: never */
  int32_t merged;     /* what that would make */
};

struct ane_merge_work {
  struct ane_symbol *symbols;
  size_t room;
  uint64_t *heap; /* rank << 32 | position */
  size_t n_heap, heap_room;
};

struct ane_tokenizer;
/* Rank of the pair a, b (a begins at piece[at]) and the token it makes. */
typedef uint32_t (*ane_pair_fn)(const struct ane_tokenizer *t, const char *at, const struct ane_symbol *a,
                                const struct ane_symbol *b, int32_t *merged);

/* Room for a piece of n bytes; false: no memory. */
ANE_NODISCARD bool ane_merge_reserve(struct ane_merge_work *w, size_t n);
/* Merges the symbols of piece[0..n) (id, len, prev set) until no pair has a rank: lowest rank first, leftmost among
 * equals. O(n log n) time. false: no memory. */
ANE_NODISCARD bool ane_merge(struct ane_merge_work *w, const struct ane_tokenizer *t, const char *piece, uint32_t n,
                             ane_pair_fn pair);
void ane_merge_free(struct ane_merge_work *w);

/* ---- Models ------------------------------------------------------------------------------------------------------*/

struct ane_pair_slot {
  uint64_t key; /* left << 32 | right; UINT64_MAX = free */
  uint32_t rank;
  int32_t merged;
};

struct ane_tokenizer {
  struct ane_arena arena;
  uint32_t n;
  struct ane_text *pieces; /* [n] as the vocabulary spells them */
  struct ane_text *bytes;  /* [n] as they stand in text */
  uint8_t *types;          /* [n] */
  float *scores;           /* [n] or NULL */
  struct ane_strmap by_piece;
  uint32_t max_len;      /* of all pieces */
  int32_t byte_ids[256]; /* byte-level: the token of each byte; otherwise <0xNN> where byte_fallback; or ANE_NO_TOKEN */

  ane_model_kind model;
  bool byte_level, strip_space, fuse_unk;
  bool words_apart; /* SCORES: no token has U+2581 behind another character, so text may be cut there */
  ane_whole_rule whole;
  int32_t bos, eos, unk;
  struct ane_normaliser *normalisers;
  uint32_t n_normalisers, n_patterns;
  struct ane_pattern *patterns;
  struct ane_trie added;
  struct ane_pair_slot *pairs; /* open addressing; pair_mask + 1 slots */
  size_t pair_mask;
};

/* One call of encode. */
struct ane_encode_run {
  const struct ane_tokenizer *t;
  struct ane_encoding *out;
  bool spans;
  struct ane_merge_work work;
  struct ane_matcher matcher;
  struct ane_buffer spelled;         /* a piece in GPT-2's alphabet */
  const char *base;                  /* of the fragment under way, normalised */
  size_t offset;                     /* of that fragment in the text as given */
  const struct ane_aligned *aligned; /* or NULL: the fragment is as given */
  size_t cursor;
};

/* Appends one id that stands for piece[0..len); ANE_NO_TOKEN appends nothing. */
ane_status ane_emit(struct ane_encode_run *run, int32_t id, const char *piece, size_t len, struct ane_error *err);
/* The token that the model may make of these bytes of text: not a control, unknown, unused or byte token. */
int32_t ane_model_token(const struct ane_tokenizer *t, const char *s, size_t len);
/* Appends the symbols of a merged piece. */
ane_status ane_emit_symbols(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err);

/* bpe.c: the table of pairs, and ids of one piece. */
ane_status ane_bpe_init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *desc, struct ane_error *err);
ane_status ane_bpe_encode(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err);
/* spm.c */
void ane_spm_init(struct ane_tokenizer *t);
ane_status ane_spm_encode(struct ane_encode_run *run, const char *piece, size_t len, struct ane_error *err);

/* GPT-2's alphabet (vocab.c): the bytes that a token spells, or false where it has a character outside of it.
 * out has room for len bytes. */
bool ane_alphabet_decode(const char *s, size_t len, char *out, size_t *out_len);
/* Appends the spelling of bytes; false: no memory. */
ANE_NODISCARD bool ane_alphabet_encode(const char *s, size_t len, struct ane_buffer *out);

/* vocab.c: fills pieces, bytes, types, scores, by_piece, byte_ids, added. */
ane_status ane_vocab_init(struct ane_tokenizer *t, const struct ane_tokenizer_desc *desc, struct ane_error *err);

#endif
