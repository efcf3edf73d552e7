/* Constrained output: which texts a grammar accepts, byte by byte, and which tokens may come next.
 *
 * A grammar is compiled once. A matcher follows one text; it can return to any earlier position. Matching is exact in bytes, so
 * tokens may end inside a character. A grammar adds to its automata while it is used: it and its matchers belong to one thread.
 *
 * Nothing is ignored silently. A keyword or construct that cannot be enforced is an error when the grammar is compiled; a limit
 * that is reached during matching is an error at that point. */
#ifndef ANE_GRAMMAR_GRAMMAR_H
#define ANE_GRAMMAR_GRAMMAR_H

#include "base/status.h"

/* Bytes that another object owns. */
struct ane_bytes {
  const char *data;
  size_t len;
};

/* ---- Grammars ----------------------------------------------------------------------------------------------------*/

struct ane_grammar;

struct ane_json_options {
  bool lenient;        /* unknown annotations, such as a format's name, are ignored */
  bool free_blanks;    /* true: blanks wherever JSON allows them, up to max_blanks at each place; false: only after , and : */
  uint32_t max_blanks; /* at each place where blanks are allowed; 1: compact or with single spaces; at most 65535 */
};

/* The functions below make a grammar, which the caller frees with ane_grammar_destroy. They copy what they need. */

/* Makes a grammar of the JSON texts that fulfil a schema (2020-12, and older spellings). text[0..len): the schema, as JSON;
 * "true" accepts every JSON text. Errors: ANE_FORMAT (not JSON), ANE_INVALID (a keyword's value; no value fulfils the schema),
 * ANE_UNSUPPORTED (cannot be enforced), ANE_RANGE (a limit), ANE_NOMEM. Messages begin with the keyword and its path. */
ane_status ane_grammar_json_schema(struct ane_grammar **out, const char *text, size_t len, const struct ane_json_options *options,
                                   struct ane_error *err);

/* Makes a grammar of the texts that a pattern (ECMA-262 syntax) matches from end to end. Errors: ANE_INVALID, ANE_UNSUPPORTED,
 * ANE_RANGE, ANE_NOMEM. */
ane_status ane_grammar_regex(struct ane_grammar **out, const char *pattern, size_t len, struct ane_error *err);

/* Makes a grammar that accepts n texts and no other. Errors: ANE_INVALID (n is 0), ANE_RANGE, ANE_NOMEM. */
ane_status ane_grammar_choice(struct ane_grammar **out, const struct ane_bytes *texts, size_t n, struct ane_error *err);

/* A symbol of an alternative: a rule, a literal or a pattern. */
struct ane_rule_symbol {
  enum { ANE_RULE_REFERENCE, ANE_RULE_LITERAL, ANE_RULE_PATTERN, ANE_RULE_PATTERN_NO_CASE } kind;
  uint32_t rule;         /* of a reference: 0-based */
  struct ane_bytes text; /* of the others */
};
struct ane_rule_alternative {
  const struct ane_rule_symbol *symbols;
  size_t n; /* 0: the empty text */
};
struct ane_rule {
  const struct ane_rule_alternative *alternatives;
  size_t n;
};

/* Makes a grammar of the texts of rules[0]; the n rules are any context-free grammar over literals and patterns. A text is
 * accepted if a parse of it exists: patterns need not match greedily. Errors: as for regex. */
ane_status ane_grammar_rules(struct ane_grammar **out, const struct ane_rule *rules, size_t n, struct ane_error *err);

/* An edge between two states of an automaton. States are numbered from 0. */
struct ane_part {
  enum { ANE_PART_LITERAL, ANE_PART_PATTERN, ANE_PART_JSON } kind;
  uint32_t from, to;
  struct ane_bytes text; /* the literal; the pattern (ECMA-262); the schema of the value, as JSON text */
};

/* Makes a grammar of the texts along the paths from state 0 to one of the ends (accepting states), such as calls of tools. The
 * edges that leave a state are either several literals, none a prefix of another, or one pattern, or one JSON value. A pattern or
 * value matches greedily: what follows it must not begin with a byte that it could consume. Errors: ANE_INVALID (edges that do
 * not fit together), ANE_UNSUPPORTED (a pattern that accepts the empty text); otherwise as for json_schema and regex. */
ane_status ane_grammar_parts(struct ane_grammar **out, const struct ane_part *parts, size_t n, const uint32_t *ends,
                             size_t n_ends, const struct ane_json_options *options, struct ane_error *err);

/* g may be NULL. Matchers of a destroyed grammar may only be abandoned. */
void ane_grammar_destroy(struct ane_grammar *g);

/* ---- Vocabularies ------------------------------------------------------------------------------------------------*/

/* The bytes of all tokens as a flat tree, with precomputed properties. It is immutable, so grammars of several threads may share
 * it.
 */
struct ane_token_tree;

/* tokens[i]: the bytes of token i, which are copied. Empty tokens are never allowed. n < 2^24. Errors: ANE_INVALID, ANE_NOMEM. */
ane_status ane_token_tree_make(struct ane_token_tree **out, const struct ane_bytes *tokens, uint32_t n, struct ane_error *err);
void ane_token_tree_destroy(struct ane_token_tree *t);
uint32_t ane_token_tree_size(const struct ane_token_tree *t);

/* ---- Matching ----------------------------------------------------------------------------------------------------*/

struct ane_matcher;

/* Makes a matcher at the beginning of a text. The grammar must outlive it. Errors: ANE_NOMEM. */
ane_status ane_matcher_make(struct ane_matcher **out, struct ane_grammar *g, struct ane_error *err);
void ane_matcher_destroy(struct ane_matcher *m);
/* Frees a matcher whose grammar is already destroyed. */
void ane_matcher_abandon(struct ane_matcher *m);

/* Consumes the bytes of a token, all or none. *accepted: the grammar allows them. canonical: accept only the spellings that a
 * mask offers: JSON strings without needless escapes, and integers without point and exponent. Errors: ANE_RANGE (a limit),
 * ANE_NOMEM. */
ane_status ane_matcher_push(struct ane_matcher *m, const char *bytes, size_t n, bool canonical, bool *accepted,
                            struct ane_error *err);
/* Returns the number of pushes so far. */
uint32_t ane_matcher_pushes(const struct ane_matcher *m);
/* Returns to the state after the first `n` pushes. */
void ane_matcher_rewind(struct ane_matcher *m, uint32_t n);
/* Returns whether the text is complete. */
bool ane_matcher_accepts(struct ane_matcher *m);
/* Sets *finished: the text is complete, and no byte may follow. Errors: as for push. */
ane_status ane_matcher_finished(struct ane_matcher *m, bool *finished, struct ane_error *err);
/* Sets bit i of mask[(size + 31) / 32] if token i is allowed next. *n: the number of allowed tokens. Errors: as for push. */
ane_status ane_matcher_mask(struct ane_matcher *m, const struct ane_token_tree *t, uint32_t *mask, uint32_t *n,
                            struct ane_error *err);
/* Writes the bytes that must come next, as long as there is only one choice, at most `room`. *n: their number; 0 if the text may
 * end. Errors: as for push. */
ane_status ane_matcher_forced(struct ane_matcher *m, char *bytes, size_t room, size_t *n, struct ane_error *err);

#endif
