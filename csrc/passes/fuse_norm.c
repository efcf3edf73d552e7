/* Fuses an RMS norm into the linear that is its only user: linear(rms_norm(x, n), r, -, w...)  =>  linear(x, r, n, w...) {norm=1}
 */
#include "passes/passes_internal.h"

#include <string.h>

enum { MAX_INPUTS = 3 + 2 * 8 };

ane_status pass_fuse_norm(struct ane_graph *g, struct ane_error *err) {
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct ane_node *n = &g->nodes[i];
    if (n->dead || n->op != ANE_OP_LINEAR || ane_node_int(n, "norm") || n->n_inputs > MAX_INPUTS) continue;
    struct ane_node *norm = pass_sole_maker(g, n->inputs[LINEAR_X], ANE_OP_RMS_NORM);
    if (!norm || ane_node_int(norm, "groups") != 1) continue;
    int32_t inputs[MAX_INPUTS], outputs[8];
    memcpy(inputs, n->inputs, (size_t)n->n_inputs * sizeof *inputs);
    memcpy(outputs, n->outputs, (size_t)n->n_outputs * sizeof *outputs);
    inputs[LINEAR_X] = norm->inputs[0];
    inputs[LINEAR_NORM] = ane_node_input(norm, 1);
    struct ane_attr_arg attrs[] = {
        PASS_INT("count", ane_node_int(n, "count")),    PASS_INT("outputs", ane_node_int(n, "outputs")),
        PASS_STRING("act", ane_node_string(n, "act")),  PASS_INT("norm", 1),
        PASS_FLOAT("eps", ane_node_float(norm, "eps")), PASS_FLOAT("offset", ane_node_float(norm, "offset"))};
    norm->dead = true;
    ane_status st =
        ane_graph_rewrite(g, i, ANE_OP_LINEAR, inputs, n->n_inputs, attrs, ANE_COUNT(attrs), outputs, n->n_outputs, err);
    if (st) return st;
  }
  return ANE_OK;
}
