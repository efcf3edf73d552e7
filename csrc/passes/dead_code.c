/* Removes nodes whose outputs are not used. Nodes that write a state stay only if their output is used: a recipe that drops the
 * output of an attention has a mistake, which the dump then shows. */
#include "passes/passes_internal.h"

ane_status pass_dead_code(struct ane_graph *g, struct ane_error *err) {
  (void)err;
  for (int32_t i = g->n_nodes - 1; i >= 0; i--) { /* users come after makers, so one walk from the end is enough */
    bool used = false;
    for (int32_t j = 0; j < g->nodes[i].n_outputs; j++) used |= ane_graph_uses(g, g->nodes[i].outputs[j]) > 0;
    g->nodes[i].dead |= !used;
  }
  return ANE_OK;
}
