/* Makes every projection a linear: conv1x1(x, w, b)  =>  linear(x, -, -, w, b) */
#include "passes/passes_internal.h"

ane_status pass_linear(struct ane_graph *g, struct ane_error *err) {
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct ane_node *n = &g->nodes[i];
    if (n->dead || n->op != ANE_OP_CONV1X1) continue;
    int32_t inputs[] = {n->inputs[0], ANE_NONE, ANE_NONE, n->inputs[1], ane_node_input(n, 2)}, out = n->outputs[0];
    ane_status st = ane_graph_rewrite(g, i, ANE_OP_LINEAR, inputs, 5, NULL, 0, &out, 1, err);
    if (st) return st;
  }
  return ANE_OK;
}
