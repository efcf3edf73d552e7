/* Fuses a gated act into the linear of gate and up:
 * glu(linear(x, -, -, w0, b0), linear(x, -, -, w1, b1)) {act}  =>  linear(x, -, -, w0, b0, w1, b1) {count=2 act} */
#include "passes/passes_internal.h"

static bool plain(const struct ane_node *p) {
  return p && ane_node_int(p, "count") == 1 && p->inputs[LINEAR_RESIDUAL] == ANE_NONE && p->inputs[LINEAR_NORM] == ANE_NONE;
}

ane_status pass_fuse_glu(struct ane_graph *g, struct ane_error *err) {
  for (int32_t i = 0; i < g->n_nodes; i++) {
    const struct ane_node *n = &g->nodes[i];
    if (n->dead || n->op != ANE_OP_GLU) continue;
    struct ane_node *gate = pass_sole_maker(g, n->inputs[0], ANE_OP_LINEAR),
                    *up = pass_sole_maker(g, n->inputs[1], ANE_OP_LINEAR);
    if (!plain(gate) || !plain(up) || gate->inputs[LINEAR_X] != up->inputs[LINEAR_X]) continue;
    int32_t inputs[] = {gate->inputs[LINEAR_X], ANE_NONE,      ANE_NONE,     gate->inputs[3],
                        gate->inputs[4],        up->inputs[3], up->inputs[4]};
    int32_t out = n->outputs[0];
    struct ane_attr_arg attrs[] = {PASS_INT("count", 2), PASS_STRING("act", ane_node_string(n, "act"))};
    gate->dead = up->dead = true;
    ane_status st = ane_graph_rewrite(g, i, ANE_OP_LINEAR, inputs, 7, attrs, 2, &out, 1, err);
    if (st) return st;
  }
  return ANE_OK;
}
