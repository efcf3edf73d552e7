/* Masks of allowed tokens: declarations that the files of matchers share. */
#ifndef ANE_GRAMMAR_MASK_H
#define ANE_GRAMMAR_MASK_H

#include "grammar/engine.h"
#include "grammar/token_tree.h"

struct matcher_state {
  union engine_state st;
  struct json_mark mark; /* of the tape: what was made later belongs to later states */
};

struct ane_matcher {
  struct ane_grammar *g;
  struct json_tape tape;
  struct matcher_state *states; /* [n + 1]: before the first push, and after each */
  uint32_t n, room;             /* pushes; allocated states */
  union engine_state *path;     /* [TOKEN_LONGEST + 1]: after each byte of the token that is tried; path[0]: before the first */
};

/* A mask that is being made. mask: t->words words, a bit for each token. */
struct masking {
  struct ane_matcher *m;
  const struct ane_token_tree *t;
  uint32_t *mask;
};

/* Walks the nodes [from, to) of a tree byte by byte, starting in path[depth - 1], and allows the tokens that the grammar accepts.
 */
void mask_walk(struct masking *k, const struct token_node *nodes, uint32_t from, uint32_t to);
/* Allows a token, and the other tokens with the same bytes. token: id + 1. */
void mask_allow(struct masking *k, uint32_t token);
/* Makes the mask of a state of an automaton or of rules. Such states recur, so their masks are cached. */
void mask_state(struct masking *k);
/* Makes the mask inside a JSON string or name from precomputed facts about the vocabulary. false: the state is not in a string,
 * or must be walked. */
bool mask_string(struct masking *k);

#endif
