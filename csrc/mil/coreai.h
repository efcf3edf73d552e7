/* The second back end of the lowering: a function of MIL primitives (lower.h) as operations of Core AI. The lowering of blocks is
 * written once, in lower_*.c; the tables of coreai_ops.c say how each primitive is made of Core AI's operations. */
#ifndef ANE_MIL_COREAI_H
#define ANE_MIL_COREAI_H

#include "formats/formats.h"
#include "mil/lower.h"

/* A state of Core AI. It is read once, before its first use, and written once, at the end: Apple's library for Linux damages
 * states that a function writes several times. */
struct coreai_store {
  ane_ai_value state; /* from ane_ai_state */
  ane_ai_value now;   /* its tensor after the updates so far; NULL: not read yet */
  bool changed;
};

/* A state of MIL: one layer of a store [layers, 1, C, 1, S], in which the MIL state [1, n, S, C / n] lies channels first
 * (stacked), or a store of its own with MIL's shape. */
struct coreai_state {
  const char *name; /* of the MIL state */
  struct coreai_store *store;
  bool stacked;
  int64_t layer;
};

/* Writes a store, if it was changed. */
void coreai_store_end(struct ane_ai_build *b, struct coreai_store *store);

/* The values that names of a MIL function stand for. */
struct coreai_scope {
  struct ane_ai_build *b;
  struct ane_arena *arena;
  struct ane_strmap names;  /* name -> index into values */
  struct ane_buffer values; /* of struct coreai_named */
  const struct coreai_state *states;
  uint32_t n_states;
};

/* Begins a scope without names. The arena outlives it. */
struct coreai_scope coreai_scope_begin(struct ane_ai_build *b, struct ane_arena *arena);
void coreai_scope_free(struct coreai_scope *s);
/* Binds an input of the MIL function. Failures go to the builder. */
void coreai_bind(struct coreai_scope *s, const char *name, ane_ai_value x);
/* The value of this name. */
ane_ai_value coreai_value(struct coreai_scope *s, const char *name);
/* Emits the operations of f, whose inputs are bound and whose shapes are all known. Constants of kind BLOB are resources: their
 * offset is the resource's number. Errors (of the builder): ANE_UNSUPPORTED (an operation without a row), those of the builder;
 * the message names the operation's result. */
void coreai_lower(struct coreai_scope *s, const struct ane_mil_function *f);

/* The type of Core AI with the same elements. There is none of strings, which no tensor has. */
struct ane_ai_type coreai_type(const struct ane_mil_type *t);

#endif
