/* The head: the projection that makes the logits, and the ops on single logits after it. */
#include "graph/graph.h"

#include <inttypes.h>
#include <stdio.h>

/* Inputs of a linear node: its residual, its first matrix and that matrix's bias. */
enum { RESIDUAL = 1, MATRIX = 3, BIAS = 4 };

/* Returns whether the op changes each logit by itself. */
static bool is_elementwise(ane_op op) { return op == ANE_OP_SCALE || op == ANE_OP_SOFTCAP || op == ANE_OP_ACT; }

/* Returns whether rows of this constant (a weight or a bias) can be selected by moving its pointer. */
static bool is_plain(const struct ane_graph *g, int32_t value, uint32_t rank) {
  const struct ane_value *v = &g->values[value];
  return v->kind == ANE_VALUE_CONST && v->shape.rank == rank && !v->data.transposed && !v->data.gather;
}

static bool is_head(const struct ane_graph *g, const struct ane_node *n) {
  return n->op == ANE_OP_LINEAR && ane_node_int(n, "count") == 1 && !*ane_node_string(n, "act") &&
         n->inputs[RESIDUAL] == ANE_NONE && is_plain(g, n->inputs[MATRIX], 2) &&
         (ane_node_input(n, BIAS) == ANE_NONE || is_plain(g, n->inputs[BIAS], 1));
}

int32_t ane_graph_head(const struct ane_graph *g) {
  if (g->n_results != 1) return ANE_NONE;
  for (int32_t v = g->results[0]; g->values[v].kind == ANE_VALUE_RESULT && g->values[v].node != ANE_NONE;) {
    int32_t i = g->values[v].node;
    const struct ane_node *n = &g->nodes[i];
    if (g->values[v].shape.dim[2] != ANE_DIM_OUT_ROWS || ane_graph_uses(g, v) != 1) return ANE_NONE;
    if (is_head(g, n)) return i;
    if (!is_elementwise(n->op)) return ANE_NONE;
    v = n->inputs[0];
  }
  return ANE_NONE;
}

/* Replaces input j of the head by its rows [from, to). */
static ane_status slice_input(struct ane_graph *g, struct ane_node *n, int32_t j, int64_t from, int64_t to,
                              struct ane_error *err) {
  const struct ane_value *v = &g->values[n->inputs[j]];
  struct ane_tensor t = v->data;
  uint64_t row = t.bytes / (uint64_t)v->shape.dim[0];
  char name[256];
  snprintf(name, sizeof name, "%.200s[%" PRId64 ":%" PRId64 "]", v->name, from, to);
  t.shape = v->shape;
  t.shape.dim[0] = to - from;
  if (t.data) t.data = (const uint8_t *)t.data + (uint64_t)from * row;
  t.bytes = (uint64_t)(to - from) * row;
  return ane_graph_const(g, name, &t, &n->inputs[j], err);
}

ane_status ane_graph_slice_head(struct ane_graph *g, int64_t from, int64_t to, struct ane_error *err) {
  int32_t head = ane_graph_head(g);
  if (head == ANE_NONE) return ane_fail(err, ANE_UNSUPPORTED, "the graph %s has no head whose rows can be divided", g->name);
  struct ane_node *n = &g->nodes[head];
  int64_t rows = g->values[n->inputs[MATRIX]].shape.dim[0];
  if (from < 0 || to <= from || to > rows)
    return ane_fail(err, ANE_RANGE, "rows %" PRId64 " to %" PRId64 " of the head, which has %" PRId64, from, to, rows);
  ane_status st = slice_input(g, n, MATRIX, from, to, err);
  if (!st && ane_node_input(n, BIAS) != ANE_NONE) st = slice_input(g, n, BIAS, from, to, err);
  for (int32_t v = g->results[0]; !st; v = g->nodes[g->values[v].node].inputs[0]) {
    g->values[v].shape.dim[1] = to - from;
    if (g->values[v].node == head) break;
  }
  return st ? st : ane_graph_verify(g, err);
}
