/* What the lowerings of single ops share (lower_*.c). */
#ifndef ANE_MIL_LOWER_INTERNAL_H
#define ANE_MIL_LOWER_INTERNAL_H

#include "mil/build.h"

#include <stdio.h>
#include <string.h>

/* A value of the graph during lowering: as an activation [1, C, T, 1], as heads [1, n, C / n, T], or both. */
struct lowered {
  mil_value flat, heads;
  int64_t n_heads;
};

struct lower {
  struct mil_build b;
  const struct ane_graph *g;
  const struct ane_shard *shard;
  const struct ane_mil_options *o;
  int token_axis;         /* 2, or 3 in the layout [1, C, 1, T] */
  int64_t t;              /* tokens of a call, ANE_MIL_UNKNOWN: 1 .. max_t */
  int32_t node;           /* index of the node that is being lowered */
  struct lowered *values; /* by value of the graph */
  struct ane_mil_ropes ropes;
  struct ane_mil_masks masks;
  mil_value *cos, *sin; /* by rope: [1, 1, r / 2, T], made on first use */
  struct lowered_mask {
    mil_value given, tiled; /* [1, 1, T, S]; times rows of T: [1, 1, times * T, S] */
    int64_t times;
  } * mask;                               /* by mask */
  mil_value until, after;                 /* [1, 1, T, T]: 1 where column <= row, where column < row; made on first use */
  mil_value ids, types;                   /* int32 [1, T], made on first use */
  mil_value position, tokens, begin, end; /* int32 [1]; [1]; [4]: bounds of the rows that this call writes; made on first use */
  struct ane_buffer inputs, outputs, states; /* of struct ane_mil_port */
  struct ane_strmap weights;                 /* text of a request -> index into kernels */
  struct ane_buffer kernels;                 /* of mil_value */
};

/* b is &l->b. */
typedef void (*lower_fn)(struct lower *l, struct mil_build *b, const struct ane_node *n);
/* The lowerings of op.def, in lower_*.c; lower_none, in lower.c, refuses the op. */
#define ANE_OP(id, name, kind, min, max, outs, tokens, infer, step, lowering, ...)                                               \
  void lower_##lowering(struct lower *l, struct mil_build *b, const struct ane_node *n);
#include "graph/op.def"
#undef ANE_OP

/* ---- Values of the graph -----------------------------------------------------------------------------------------------*/

/* Return value `value` as an activation, or as heads [1, heads, C / heads, T]. */
mil_value lower_flat(struct lower *l, int32_t value);
mil_value lower_heads(struct lower *l, int32_t value, int64_t heads);
/* Returns input i of the node as an activation. */
static inline mil_value lower_in(struct lower *l, const struct ane_node *n, int i) { return lower_flat(l, n->inputs[i]); }
/* Set the node's result, an activation or heads. */
void lower_out(struct lower *l, const struct ane_node *n, mil_value x);
void lower_out_heads(struct lower *l, const struct ane_node *n, mil_value x, int64_t heads);
/* Converts [.., C, .., T] in that order to an activation of `channels` channels. */
mil_value lower_as_flat(struct lower *l, mil_value x, int64_t channels);

/* ---- Weights -----------------------------------------------------------------------------------------------------------*/

/* Returns rows [from, to) of a constant of the graph as a kernel [rows, C, 1, 1] of a projection. */
mil_value lower_matrix(struct lower *l, int32_t value, int64_t from, int64_t to);
/* Returns rows [from, to) of a plain constant in this shape, as (w + add) * times. NULL if value is ANE_NONE. */
mil_value lower_plain(struct lower *l, int32_t value, int64_t from, int64_t to, int32_t rank, const int64_t *dim, double add,
                      double times);
/* Returns a whole vector along one of four axes, as (w + add) * times. NULL if value is ANE_NONE. */
mil_value lower_vector(struct lower *l, int32_t value, int axis, double add, double times);

/* ---- Features ----------------------------------------------------------------------------------------------------------*/

/* Returns the type of an activation of this many channels. */
struct ane_mil_type lower_type(const struct lower *l, ane_mil_dtype t, int64_t channels);
/* Inputs, declared on first use. */
mil_value lower_position(struct lower *l);      /* int32 [1] */
mil_value lower_tokens(struct lower *l);        /* T: int32 [1] */
mil_value lower_token_indices(struct lower *l); /* int32 [T]: 0 .. T - 1 */
/* Returns input `name` of this kind, declared on first use; index as in ane_mil_port. */
mil_value lower_input(struct lower *l, const char *name, ane_mil_port_kind kind, int32_t value, int32_t index,
                      struct ane_mil_type type);
/* Returns a state of the graph, for reading and writing. */
mil_value lower_state(struct lower *l, int32_t value, ane_mil_port_kind kind, int32_t rank, const int64_t *dim);
/* Returns the number of positions that the states hold. */
static inline int64_t lower_held(const struct lower *l) { return l->o->held ? l->o->held : l->o->context; }
/* Returns int32 [rank]: v, an int32 [1], at the axis, and zeros elsewhere. */
mil_value lower_on_axis(struct lower *l, int rank, int axis, mil_value v);

/* lower_norm.c: eps; for fp16 at least 2^-24, the smallest number of that type. */
double lower_held_eps(const struct lower *l, double eps);
/* lower_norm.c: returns x / sqrt(mean x^2 + eps) along an axis. */
mil_value lower_rms(struct lower *l, mil_value x, int axis, double eps);

/* lower_moe.c: returns how many expert numbers the router that made a value chooses from; -1: no router made it. */
int64_t lower_route_experts(const struct ane_graph *g, int32_t value);

#endif
