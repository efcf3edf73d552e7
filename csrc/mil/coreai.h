/* The Core AI back end of the lowering. Blocks are lowered once, to a function of MIL primitives (lower.h). The table in
 * coreai_ops.c then translates each primitive into operations of Core AI. */
#ifndef ANE_MIL_COREAI_H
#define ANE_MIL_COREAI_H

#include "formats/formats.h"
#include "mil/export.h"
#include "mil/lower.h"

/* A state of Core AI. A function reads it once, before its first use, and writes it once, at the end: Apple's library for Linux
 * (coreai-core 1.0.0b3) corrupts states that a function writes several times. */
struct coreai_store {
  ane_ai_value state; /* from ane_ai_state */
  ane_ai_value now;   /* the tensor after the updates so far; NULL: not read yet */
  bool changed;
};

/* A state of MIL, [1, n, S, C / n]. Stacked: one layer of a store [layers, 1, C, 1, S], with channels first. Otherwise: a store
 * of its own with MIL's shape. */
struct coreai_state {
  const char *name; /* of the MIL state, in its function */
  int32_t value;    /* of the graph; unused in assets of one shard */
  struct coreai_store *store;
  bool stacked;
  int64_t layer;
};

/* Writes a store that was changed. */
void coreai_store_end(struct ane_ai_build *b, struct coreai_store *store);

/* The values of a MIL function, by name. */
struct coreai_scope {
  struct ane_ai_build *b;
  struct ane_arena *arena;
  struct ane_strmap names;  /* name -> index into values */
  struct ane_buffer values; /* of struct coreai_named */
  const struct coreai_state *states;
  uint32_t n_states;
};

/* Makes an empty scope. The builder and the arena outlive it. */
struct coreai_scope coreai_scope_begin(struct ane_ai_build *b, struct ane_arena *arena);
void coreai_scope_free(struct coreai_scope *s);
/* Binds an input of the MIL function. A failure is recorded in the builder. */
void coreai_bind(struct coreai_scope *s, const char *name, ane_ai_value x);
/* Returns the value of this name. An unknown name is recorded in the builder as ANE_INVALID. */
ane_ai_value coreai_value(struct coreai_scope *s, const char *name);
/* Translates the operations of f. Its inputs are bound and all of its shapes are static. Constants of kind BLOB are resources,
 * whose number is the constant's offset. Failures are recorded in the builder: ANE_UNSUPPORTED (an operation without a row), or
 * the builder's own. The message names the operation's result. */
void coreai_lower(struct coreai_scope *s, const struct ane_mil_function *f);

/* Begins an asset (ane_aimodel_create, or ane_aimodel_resume by e->resume). Weights go to its resources: the offset of a constant
 * is the number of its resource. */
struct export_sink;
ane_status coreai_begin(const struct ane_mil_export *e, const char *path, struct ane_aimodel_writer **w, struct export_sink *sink,
                        struct ane_error *err);

/* Returns the same tensor type in Core AI. MIL's strings, which no tensor holds, become fp16. */
struct ane_ai_type coreai_type(const struct ane_mil_type *t);

#endif
