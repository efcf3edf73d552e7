/* What the files of csrc/graph share: shape inference. */
#ifndef ANE_GRAPH_INTERNAL_H
#define ANE_GRAPH_INTERNAL_H

#include "graph/graph.h"

/* What inference fills: shape and type of each output. */
struct infer_out {
  struct ane_shape shape;
  ane_dtype dtype;
};
enum { MAX_OUTPUTS = 8 };

/* The most channels of a value, and elements of a recurrent state. Attributes and states have no data that limits them. With this
 * limit, sizes in bytes of a chunk of tokens fit 64 bits. */
#define INFER_MOST (INT64_C(1) << 40)

typedef ane_status (*infer_fn)(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err);

/* Checks the inputs and fills n->n_outputs outputs. The error's text starts with the node's name. */
ane_status graph_infer(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err);

/* Returns the number of outputs that the node must have by its op and attributes. */
int graph_outputs(const struct ane_node *n);

/* The shape rules of op.def, in infer_block.c, infer_state.c and infer_moe.c. Several ops may share one. */
#define ANE_OP(id, name, kind, min, max, outs, tokens, infer, ...)                                                               \
  ane_status infer_##infer(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err);
#include "graph/op.def"
#undef ANE_OP

/* Returns input i as a value; NULL if it is absent. */
const struct ane_value *infer_in(const struct ane_graph *g, const struct ane_node *n, int i);
/* Fails with ANE_SHAPE. The message names the value and its shape, and says what it must be. */
ane_status infer_bad(const struct ane_value *v, const char *want, struct ane_error *err);
/* Returns whether v is an activation: fp32 [1, C, T, 1]. */
bool infer_is_activation(const struct ane_value *v);
ane_status infer_want_activation(const struct ane_value *v, struct ane_error *err);
/* Checks that v is a vector of n elements or NULL (absent). what: its name in the message. */
ane_status infer_want_vector(const struct ane_value *v, int64_t n, const char *what, struct ane_error *err);
/* Checks that `groups` divides the channels of x. */
ane_status infer_want_groups(const struct ane_value *x, int64_t groups, struct ane_error *err);
ane_status infer_want_matrix(const struct ane_value *v, int64_t cols, struct ane_error *err);
struct infer_out infer_activation(int64_t channels, int64_t tokens);
static inline int64_t infer_channels(const struct ane_value *v) { return v->shape.dim[1]; }
static inline int64_t infer_tokens(const struct ane_value *v) { return v->shape.dim[2]; }

#endif
