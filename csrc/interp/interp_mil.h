/* Translation of MIL operations, as its files share it. */
#ifndef ANE_INTERP_MIL_H
#define ANE_INTERP_MIL_H

#include "interp/interp_internal.h"

/* A name of the function: what it stands for. */
struct mil_name {
  int32_t value;                   /* INTERP_NONE: no tensor that primitives know */
  const struct ane_mil_value *raw; /* a constant as stored, or as decoded by a constexpr op */
  const struct ane_mil_type *type;
  int32_t state; /* number of a state, -1: none */
};

struct mil_import {
  struct ane_interp *g;
  struct interp_block *block; /* where nodes go */
  struct ane_strmap names;    /* -> index into rows */
  struct ane_buffer rows;     /* of struct mil_name */
  struct ane_error *err;
};

ane_status mil_op_fail(const struct mil_import *t, const struct ane_mil_op *op, ane_status code, const char *fmt, ...)
    ANE_PRINTF(4, 5);
/* NULL: not defined (the verifier has seen to it that names are). Valid until the next name is defined. */
const struct mil_name *mil_find(const struct mil_import *t, const char *name);
ane_status mil_define(struct mil_import *t, const char *name, const struct mil_name *n);
/* A parameter as a value; INTERP_NONE where the op has none of the name. */
ane_status mil_param(struct mil_import *t, const struct ane_mil_op *op, const char *name, int32_t *out);
/* A stored constant as a value; *out INTERP_NONE where tensors cannot hold it. */
ane_status mil_constant(struct mil_import *t, const char *name, const struct ane_mil_value *v, int32_t *out);
/* Fresh values for the outputs of an op, named. */
ane_status mil_outputs(struct mil_import *t, const struct ane_mil_op *op, int32_t **out);
/* Adds a node with what the types of the op's outputs ask; moves: nothing needs to be rounded. */
ane_status mil_add(struct mil_import *t, const struct ane_mil_op *op, ane_prim prim, bool moves, const int32_t *in, int32_t n_in,
                   const int32_t *out);
/* A node in the middle of an op that is several: its result has no type. */
ane_status mil_step(struct mil_import *t, const struct ane_mil_op *op, ane_prim prim, const int32_t *in, int32_t n_in,
                    int32_t *out);

/* constexpr_* (interp_mil_const.c), ops of several primitives (interp_mil_compose.c); *done is false where the name is unknown.
 */
ane_status mil_constexpr(struct mil_import *t, const struct ane_mil_op *op, bool *done);
ane_status mil_compose(struct mil_import *t, const struct ane_mil_op *op, bool *done);

#endif
