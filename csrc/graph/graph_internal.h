#ifndef ANE_GRAPH_INTERNAL_H
#define ANE_GRAPH_INTERNAL_H

#include "graph/graph.h"

/* What inference fills: shape and type of each output. */
struct infer_out {
  struct ane_shape shape;
  ane_dtype dtype;
};
enum { MAX_OUTPUTS = 8 };

typedef ane_status (*infer_fn)(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err);

/* Checks inputs and gives the outputs (n->n_outputs of them). The error's text starts with the node's name. */
ane_status graph_infer(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err);

/* Number of outputs the node must have by its op and attributes. */
int graph_outputs(const struct ane_node *n);

#endif
