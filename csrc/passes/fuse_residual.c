/* Fuses a residual into the linear before it: add(r, linear(x, -, -, w, b))  =>  linear(x, r, -, w, b), at the index of the add
 */
#include "passes/passes_internal.h"

#include <string.h>

static bool plain(const struct ane_node *p) {
  return p && ane_node_int(p, "count") == 1 && p->inputs[LINEAR_RESIDUAL] == ANE_NONE && !*ane_node_string(p, "act");
}

ane_status pass_fuse_residual(struct ane_graph *g, struct ane_error *err) {
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct ane_node *n = &g->nodes[i];
    if (n->dead || n->op != ANE_OP_ADD) continue;
    /* The second operand first: recipes write add(residual, branch). */
    for (int operand = 1; operand >= 0; operand--) {
      struct ane_node *p = pass_sole_maker(g, n->inputs[operand], ANE_OP_LINEAR);
      if (!plain(p)) continue;
      int32_t inputs[5], out = n->outputs[0];
      memcpy(inputs, p->inputs, sizeof inputs);
      inputs[LINEAR_RESIDUAL] = n->inputs[1 - operand];
      p->dead = true;
      ane_status st = ane_graph_rewrite(g, i, ANE_OP_LINEAR, inputs, 5, NULL, 0, &out, 1, err);
      if (st) return st;
      break;
    }
  }
  return ANE_OK;
}
