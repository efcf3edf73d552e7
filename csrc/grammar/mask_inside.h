/* Masks inside JSON strings: declarations that their files share. */
#ifndef ANE_GRAMMAR_MASK_INSIDE_H
#define ANE_GRAMMAR_MASK_INSIDE_H

#include "grammar/mask.h"

/* The classes of closing tokens that are allowed after one outcome of the string. */
struct verdict {
  uint64_t key;
  uint64_t *classes; /* a bit for each class; NULL: none is allowed */
};

/* A mask that is being made for a state inside a string or name. */
struct inside {
  struct masking *k;
  struct json_values *values;
  struct json_machine *m; /* of them */
  const struct json_state *st;
  bool is_key, exact_ends; /* exact_ends: what may follow the string depends on its contents */
  struct verdict verdicts[32];
  uint32_t n_verdicts;
  uint8_t *viable; /* by tuple, where the length does not matter: 0 not known, 1 yes, 2 no */
  uint32_t n_viable;
};

static inline void mask_set(uint32_t *mask, uint32_t token) { mask[token >> 5] |= (uint32_t)1 << (token & 31); }

/* Does the grammar accept all bytes of a token from the matcher's state on? */
bool mask_exact(struct masking *k, uint32_t token);
/* Returns the classes of closing tokens that are allowed if the string ends with this tuple and length. Equal outcomes are tested
 * once. NULL: none. */
const uint64_t *mask_verdict(struct inside *in, uint32_t tuple, uint32_t length);
/* Makes the mask by a walk of the string's automaton, or from a cached walk. */
void mask_walk_string(struct inside *in);

#endif
