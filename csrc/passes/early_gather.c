/* Moves gather above per-token ops: gather(f(x, y))  =>  f(gather(x), gather(y)), if f does not mix tokens and only gather uses
 * its result. So after the attention of the last layer, only output rows are computed: one for a prompt. */
#include "passes/passes_internal.h"

#include <stdio.h>

static bool on_tokens(const struct ane_graph *g, int32_t value) {
  return value != ANE_NONE && g->values[value].kind == ANE_VALUE_RESULT && g->values[value].shape.dim[2] == ANE_DIM_TOKENS;
}

/* Does the node read activations, each at the token's own position only? Experts must follow their route directly, so they move
 * only together with it. */
static bool per_token(const struct ane_graph *g, const struct ane_node *n) {
  if (ane_op_info(n->op)->mixes_tokens || (n->op == ANE_OP_EXPERTS && !pass_sole_maker(g, n->inputs[1], ANE_OP_ROUTE)))
    return false;
  for (int32_t i = 0; i < n->n_inputs; i++)
    if (on_tokens(g, n->inputs[i])) return true;
  return false;
}

/* Returns the living gather of `value` by `out_rows` (ANE_NONE: by any rows); NULL: there is none. */
static struct ane_node *gather_of(const struct ane_graph *g, int32_t value, int32_t out_rows) {
  for (int32_t i = 0; i < g->n_nodes; i++) {
    struct ane_node *n = &g->nodes[i];
    if (!n->dead && n->op == ANE_OP_GATHER && n->inputs[0] == value && (out_rows == ANE_NONE || n->inputs[1] == out_rows))
      return n;
  }
  return NULL;
}

/* Do only gathers of the same rows use the node's outputs? *out_rows: these rows. */
static bool only_gathered(const struct ane_graph *g, const struct ane_node *n, int32_t *out_rows) {
  *out_rows = ANE_NONE;
  for (int32_t o = 0; o < n->n_outputs; o++) {
    int32_t uses = ane_graph_uses(g, n->outputs[o]);
    const struct ane_node *gather = gather_of(g, n->outputs[o], *out_rows);
    if (uses != 1 || !gather) return false;
    *out_rows = gather->inputs[1];
  }
  return *out_rows != ANE_NONE;
}

/* Sets *out to the gather of `value` by out_rows, which is added if there is none. */
static ane_status gathered(struct ane_graph *g, int32_t value, int32_t out_rows, int32_t *out, struct ane_error *err) {
  const struct ane_node *gather = gather_of(g, value, out_rows);
  if (gather) {
    *out = gather->outputs[0];
    return ANE_OK;
  }
  char name[256];
  int32_t inputs[] = {value, out_rows};
  snprintf(name, sizeof name, "%.240s.out_rows", g->values[value].name);
  return ane_graph_add(g, ANE_OP_GATHER, name, inputs, 2, NULL, 0, out, err);
}

/* Moves the gathers of node i's outputs to its inputs. Adding a node may reallocate g->nodes. */
static ane_status move_gather(struct ane_graph *g, int32_t i, int32_t out_rows, struct ane_error *err) {
  for (int32_t o = 0; o < g->nodes[i].n_outputs; o++) {
    int32_t v = g->nodes[i].outputs[o];
    struct ane_node *gather = gather_of(g, v, out_rows);
    gather->dead = true;
    ane_graph_replace(g, gather->outputs[0], v);
    g->values[v].shape.dim[2] = ANE_DIM_OUT_ROWS;
  }
  for (int32_t j = 0; j < g->nodes[i].n_inputs; j++) {
    int32_t x = g->nodes[i].inputs[j];
    if (!on_tokens(g, x)) continue;
    ane_status st = gathered(g, x, out_rows, &x, err);
    if (st) return st;
    g->nodes[i].inputs[j] = x;
  }
  return ANE_OK;
}

ane_status pass_early_gather(struct ane_graph *g, struct ane_error *err) {
  for (int32_t i = g->n_nodes - 1; i >= 0;
       i--) { /* makers come before users, so a node that a move makes movable is visited later */
    int32_t out_rows;
    if (g->nodes[i].dead || !per_token(g, &g->nodes[i]) || !only_gathered(g, &g->nodes[i], &out_rows)) continue;
    ane_status st = move_gather(g, i, out_rows, err);
    if (st) return st;
  }
  return ANE_OK;
}
