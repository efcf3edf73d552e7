/* Checks the invariants of a graph. */
#include "graph/graph_internal.h"

static ane_status verify_node(const struct ane_graph *g, int32_t index, struct ane_error *err) {
  const struct ane_node *n = &g->nodes[index];
  if (n->n_outputs != graph_outputs(n))
    return ane_fail(err, ANE_INVALID, "%s has %d outputs, but must have %d", n->name, n->n_outputs, graph_outputs(n));
  for (int32_t i = 0; i < n->n_inputs; i++) {
    int32_t v = n->inputs[i];
    if (v == ANE_NONE) continue;
    if (v < 0 || v >= g->n_values)
      return ane_fail(err, ANE_INVALID, "%s: input %d is value %d of %d", n->name, i + 1, v, g->n_values);
    if (g->values[v].kind == ANE_VALUE_RESULT && (g->values[v].node < 0 || g->values[v].node >= index))
      return ane_fail(err, ANE_INVALID, "%s uses %s before it is made", n->name, g->values[v].name);
  }
  struct infer_out outs[MAX_OUTPUTS];
  ane_status st = graph_infer(g, n, outs, err);
  for (int32_t i = 0; !st && i < n->n_outputs; i++) {
    const struct ane_value *v = &g->values[n->outputs[i]];
    if (v->kind != ANE_VALUE_RESULT || v->node != index || v->output != i)
      return ane_fail(err, ANE_INVALID, "%s: output %d is not its own", n->name, i + 1);
    if (v->dtype != outs[i].dtype || !ane_shape_equal(&v->shape, &outs[i].shape)) {
      char has[ANE_SHAPE_TEXT], want[ANE_SHAPE_TEXT];
      return ane_fail(err, ANE_SHAPE, "%s is %s, inference gives %s", v->name, ane_shape_text(&v->shape, has),
                      ane_shape_text(&outs[i].shape, want));
    }
  }
  return st;
}

ane_status ane_graph_verify(const struct ane_graph *g, struct ane_error *err) {
  for (int32_t i = 0; i < g->n_nodes; i++) {
    if (g->nodes[i].dead) return ane_fail(err, ANE_INVALID, "%s is dead but still listed", g->nodes[i].name);
    ane_status st = verify_node(g, i, err);
    if (st) return st;
  }
  if (g->n_results == 0) return ane_fail(err, ANE_INVALID, "the graph %s has no result", g->name);
  for (int32_t i = 0; i < g->n_results; i++) {
    const struct ane_value *v = &g->values[g->results[i]];
    if (v->kind == ANE_VALUE_RESULT && v->node == ANE_NONE)
      return ane_fail(err, ANE_INVALID, "the result %s is made by no node", v->name);
  }
  return ANE_OK;
}
