/* Translation of MIL operations: what its files share. */
#ifndef ANE_INTERP_MIL_H
#define ANE_INTERP_MIL_H

#include "interp/interp_internal.h"

/* What a name of the function stands for. */
struct mil_name {
  int32_t value;                   /* INTERP_NONE: not a tensor that primitives can hold */
  const struct ane_mil_value *raw; /* a constant as stored, or the result of a constexpr op */
  const struct ane_mil_type *type;
  int32_t state; /* index of a state, -1: none */
};

struct mil_import {
  struct ane_interp *g;
  struct interp_block *block; /* receives the nodes */
  struct ane_strmap names;    /* -> index into entries */
  struct ane_buffer entries;  /* of struct mil_name */
  struct ane_error *err;
};

ane_status mil_op_fail(const struct mil_import *t, const struct ane_mil_op *op, ane_status code, const char *fmt, ...)
    ANE_PRINTF(4, 5);
/* Returns the meaning of a name; NULL: not defined, which the verifier excludes. Valid until the next name is defined. */
const struct mil_name *mil_find(const struct mil_import *t, const char *name);
ane_status mil_define(struct mil_import *t, const char *name, const struct mil_name *n);
/* Sets *out to the value of a parameter; INTERP_NONE if the op does not have it. */
ane_status mil_param(struct mil_import *t, const struct ane_mil_op *op, const char *name, int32_t *out);
/* Sets *out to the value that a parameter is bound to. */
ane_status mil_binding(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_binding *b, int32_t *out);
/* Makes a value of a stored constant; INTERP_NONE if tensors cannot hold it. */
ane_status mil_constant(struct mil_import *t, const char *name, const struct ane_mil_value *v, int32_t *out);
/* Makes values for the outputs of an op, with their names. */
ane_status mil_outputs(struct mil_import *t, const struct ane_mil_op *op, int32_t **out);
/* Adds a node whose results are cast and rounded as the op's output types require. moves: no rounding is needed. */
ane_status mil_add(struct mil_import *t, const struct ane_mil_op *op, ane_prim prim, bool moves, const int32_t *in, int32_t n_in,
                   const int32_t *out);
/* Adds an inner node of an op that becomes several: its result has no declared type. */
ane_status mil_step(struct mil_import *t, const struct ane_mil_op *op, ane_prim prim, const int32_t *in, int32_t n_in,
                    int32_t *out);

/* constexpr_* (interp_mil_const.c) and ops of several primitives (interp_mil_compose.c). *done is false for other ops. */
ane_status mil_constexpr(struct mil_import *t, const struct ane_mil_op *op, bool *done);
ane_status mil_compose(struct mil_import *t, const struct ane_mil_op *op, bool *done);

#endif
