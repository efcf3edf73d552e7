/* take(f(x, y))  =>  f(take(x), take(y)), where f makes each token's columns of that token alone and nobody needs f of other
 * tokens. Of the last layer, what stands behind its attention is then computed for wanted positions only: at a prompt one. */
#include "passes/passes_internal.h"

#include <stdio.h>

static bool on_tokens(const struct ane_graph *g, int32_t value) {
  return value != ANE_NONE && g->values[value].kind == ANE_VALUE_RESULT && g->values[value].shape.dim[2] == ANE_DIM_TOKENS;
}

/* Every activation it reads, it reads at the token's own position, and it reads some. Experts stand right behind their route, so
 * they move only with it. */
static bool by_token(const struct ane_graph *g, const struct ane_node *n) {
  if (ane_op_sees_tokens(n->op) || (n->op == ANE_OP_EXPERTS && !pass_sole_maker(g, n->inputs[1], ANE_OP_ROUTE))) return false;
  for (int32_t i = 0; i < n->n_inputs; i++)
    if (on_tokens(g, n->inputs[i])) return true;
  return false;
}

/* The living take of `value`; wanted ANE_NONE: whatever it takes. */
static struct ane_node *take_of(const struct ane_graph *g, int32_t value, int32_t wanted) {
  for (int32_t i = 0; i < g->n_nodes; i++) {
    struct ane_node *n = &g->nodes[i];
    if (!n->dead && n->op == ANE_OP_TAKE && n->inputs[0] == value && (wanted == ANE_NONE || n->inputs[1] == wanted)) return n;
  }
  return NULL;
}

/* Does every output of the node go nowhere but into takes of the same positions? *wanted: these. */
static bool only_taken(const struct ane_graph *g, const struct ane_node *n, int32_t *wanted) {
  *wanted = ANE_NONE;
  for (int32_t o = 0; o < n->n_outputs; o++) {
    int32_t uses = ane_graph_uses(g, n->outputs[o]);
    const struct ane_node *take = take_of(g, n->outputs[o], *wanted);
    if (uses != 1 || !take) return false;
    *wanted = take->inputs[1];
  }
  return *wanted != ANE_NONE;
}

/* The value of the wanted positions of `value`. */
static ane_status taken(struct ane_graph *g, int32_t value, int32_t wanted, int32_t *out, struct ane_error *err) {
  const struct ane_node *take = take_of(g, value, wanted);
  if (take) {
    *out = take->outputs[0];
    return ANE_OK;
  }
  char name[256];
  int32_t inputs[] = {value, wanted};
  snprintf(name, sizeof name, "%.240s.wanted", g->values[value].name);
  return ane_graph_add(g, ANE_OP_TAKE, name, inputs, 2, NULL, 0, out, err);
}

/* Node i stands behind the takes instead of before them. Adding nodes may move the others. */
static ane_status move_take(struct ane_graph *g, int32_t i, int32_t wanted, struct ane_error *err) {
  for (int32_t o = 0; o < g->nodes[i].n_outputs; o++) {
    int32_t v = g->nodes[i].outputs[o];
    struct ane_node *take = take_of(g, v, wanted);
    take->dead = true;
    ane_graph_replace(g, take->outputs[0], v);
    g->values[v].shape.dim[2] = ANE_DIM_WANTED;
  }
  for (int32_t j = 0; j < g->nodes[i].n_inputs; j++) {
    int32_t x = g->nodes[i].inputs[j];
    if (!on_tokens(g, x)) continue;
    ane_status st = taken(g, x, wanted, &x, err);
    if (st) return st;
    g->nodes[i].inputs[j] = x;
  }
  return ANE_OK;
}

ane_status pass_early_take(struct ane_graph *g, struct ane_error *err) {
  for (int32_t i = g->n_nodes - 1; i >= 0; i--) { /* makers stand before users, so what a move makes movable comes later */
    int32_t wanted;
    if (g->nodes[i].dead || !by_token(g, &g->nodes[i]) || !only_taken(g, &g->nodes[i], &wanted)) continue;
    ane_status st = move_take(g, i, wanted, err);
    if (st) return st;
  }
  return ANE_OK;
}
