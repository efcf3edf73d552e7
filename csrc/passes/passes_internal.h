/* The passes, and what they share. */
#ifndef ANE_PASSES_INTERNAL_H
#define ANE_PASSES_INTERNAL_H

#include "passes/passes.h"

ane_status pass_dead_code(struct ane_graph *g, struct ane_error *err);
ane_status pass_linear(struct ane_graph *g, struct ane_error *err);
ane_status pass_fuse_residual(struct ane_graph *g, struct ane_error *err);
ane_status pass_fuse_glu(struct ane_graph *g, struct ane_error *err);
ane_status pass_fuse_projection(struct ane_graph *g, struct ane_error *err);
ane_status pass_fuse_norm(struct ane_graph *g, struct ane_error *err);
ane_status pass_fuse_attention(struct ane_graph *g, struct ane_error *err);
ane_status pass_early_gather(struct ane_graph *g, struct ane_error *err);

/* Returns the living node of this op that makes `value`, if `value` has exactly one use; else NULL. */
struct ane_node *pass_sole_maker(const struct ane_graph *g, int32_t value, ane_op op);

#define PASS_INT(n, v)                                                                                                           \
  {                                                                                                                              \
    .name = n, .value = {.type = ANE_ATTR_INT, .i = (v) }                                                                        \
  }
#define PASS_FLOAT(n, v)                                                                                                         \
  {                                                                                                                              \
    .name = n, .value = {.type = ANE_ATTR_FLOAT, .f = (v) }                                                                      \
  }
#define PASS_STRING(n, v)                                                                                                        \
  {                                                                                                                              \
    .name = n, .value = {.type = ANE_ATTR_STRING, .s = (v) }                                                                     \
  }

/* Inputs of a linear node before its matrices. */
enum { LINEAR_X, LINEAR_RESIDUAL, LINEAR_NORM, LINEAR_MATRICES };

#endif
