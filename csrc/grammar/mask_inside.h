/* Masks inside JSON strings: declarations that their files share. */
#ifndef ANE_GRAMMAR_MASK_INSIDE_H
#define ANE_GRAMMAR_MASK_INSIDE_H

#include "grammar/mask.h"

/* The classes of closing tokens that are allowed after one result of the string. */
struct allowed_classes {
  uint64_t key;
  uint64_t *classes; /* a bit for each class; NULL: none is allowed */
};

/* A mask that is being made for a state inside a string or name. */
struct inside {
  struct masking *k;
  struct json_values *values;
  struct json_machine *m; /* of them */
  const struct json_state *st;
  bool is_key;     /* the string is the name of a member */
  bool exact_ends; /* what may follow the string depends on its contents */
  struct allowed_classes allowed[32];
  uint32_t n_allowed;
  /* Of a string with parts. A minimum that the next character reaches does not matter. */
  bool far_min;    /* some minimum is further away */
  uint32_t max;    /* the lowest maximum; NO_LIMIT: none */
  uint8_t *viable; /* by tuple, if the length does not matter: 0 not known, 1 yes, 2 no */
  uint32_t n_viable;
  /* By the goals that have failed (json_string_failed): may the string continue? */
  struct {
    uint64_t failed;
    bool viable;
  } judged[64];
  uint32_t n_judged;
};

static inline void mask_set(uint32_t *mask, uint32_t token) { mask[token >> 5] |= (uint32_t)1 << (token & 31); }

/* Tests of tokens one after the other. The states of the bytes that a token shares with the one before are not computed again, so
 * tokens should come in the tree's order. Between two tests nothing else steps. Zero-initialised before the first test. */
struct token_test {
  const uint8_t *bytes; /* of the last token that was stepped */
  uint32_t len;
  uint32_t good; /* its bytes whose states stand in the matcher's path */
  bool failed;   /* the byte after these is not accepted */
};
/* Returns whether the grammar accepts all bytes of a token in the matcher's state. */
bool mask_exact(struct masking *k, struct token_test *test, uint32_t token);
/* Returns the classes of closing tokens that are allowed if the string ends with this tuple and length. Equal results are tested
 * once. NULL: none. */
const uint64_t *mask_allowed_classes(struct inside *in, uint32_t tuple, uint32_t length);
/* Makes the mask by a walk of the string's automaton, or from a cached walk. */
void mask_walk_string(struct inside *in);

#endif
