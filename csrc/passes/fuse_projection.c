/* Fuses linears of one input: linear(x, -, -, w0, b0), linear(x, -, -, w1, b1), ...  =>  one linear with several outputs, at the
 * index of the first. x is quantised once, and one barrier serves all. */
#include "passes/passes_internal.h"

enum { MAX_JOINED = 4 };

static bool plain(const struct ane_node *p) {
  return !p->dead && p->op == ANE_OP_LINEAR && ane_node_int(p, "count") == 1 && p->inputs[LINEAR_RESIDUAL] == ANE_NONE &&
         p->inputs[LINEAR_NORM] == ANE_NONE && !*ane_node_string(p, "act");
}

ane_status pass_fuse_projection(struct ane_graph *g, struct ane_error *err) {
  for (int32_t i = 0; i < g->n_nodes; i++) {
    if (!plain(&g->nodes[i])) continue;
    int32_t x = g->nodes[i].inputs[LINEAR_X], inputs[3 + 2 * MAX_JOINED] = {x, ANE_NONE, ANE_NONE}, outputs[MAX_JOINED],
            count = 0;
    for (int32_t j = i; j < g->n_nodes && count < MAX_JOINED; j++) {
      const struct ane_node *p = &g->nodes[j];
      if (!plain(p) || p->inputs[LINEAR_X] != x) continue;
      inputs[3 + 2 * count] = p->inputs[3];
      inputs[4 + 2 * count] = p->inputs[4];
      outputs[count++] = p->outputs[0];
    }
    if (count == 1) continue;
    struct ane_attr_arg attrs[] = {PASS_INT("count", count), PASS_INT("outputs", count)};
    ane_status st = ane_graph_rewrite(g, i, ANE_OP_LINEAR, inputs, 3 + 2 * count, attrs, 2, outputs, count, err);
    if (st) return st;
  }
  return ANE_OK;
}
