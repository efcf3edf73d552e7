/* One pass over a graph: each node is called, its results are kept until their last use. */
#include "interp/interp_internal.h"

#include "base/alloc.h"

#include <string.h>

struct run {
  struct ane_interp *g;
  struct ane_prim_memory *m;
  struct ane_dyn *slots; /* one for each value */
  const struct ane_dyn **in; /* room for the inputs of a node */
  struct ane_error *err;
};

static ane_status run_block(struct run *r, const struct interp_block *b);

static const struct ane_dyn *value_of(const struct run *r, int32_t v) {
  return v == INTERP_NONE ? NULL : r->g->values[v].constant ? &r->g->values[v].data : &r->slots[v];
}

static ane_status run_prim(struct run *r, const struct interp_node *n) {
  struct ane_dyn out[8] = {{0}}, *results = out;
  if (n->n_out > 8 && !(results = ane_calloc((size_t)n->n_out, sizeof *results))) return interp_no_memory(r->err);
  for (int32_t i = 0; i < n->n_in; i++) r->in[i] = value_of(r, n->in[i]);
  struct ane_prim_call c = {.op = n->op, .in = r->in, .n_in = n->n_in, .out = results, .n_out = n->n_out, .wanted = n->wanted, .state = n->state,
                            .memory = r->m, .kernels = r->g->kernels, .pool = r->g->pool, .err = r->err};
  ane_status st = ane_prim_run(&c);
  for (int32_t i = 0; i < n->n_out; i++) {
    if (st || n->out[i] == INTERP_NONE) ane_dyn_drop(r->m, &results[i]);
    else r->slots[n->out[i]] = results[i];
  }
  if (results != out) ane_free(results);
  return st;
}

static ane_status run_if(struct run *r, const struct interp_node *n) {
  const struct ane_dyn *cond = value_of(r, n->in[0]);
  if (!cond || cond->count != 1 || cond->dtype != ANE_BOOL) return ane_fail(r->err, ANE_SHAPE, "the condition is no single bool");
  const struct interp_block *b = n->blocks[*(const uint8_t *)cond->data == 0];
  ane_status st = run_block(r, b);
  for (int32_t i = 0; !st && i < n->n_out; i++) {
    if (n->out[i] == INTERP_NONE) continue;
    const struct ane_dyn *v = value_of(r, b->outputs[i]);
    ane_dyn_keep(v);
    r->slots[n->out[i]] = *v;
  }
  for (int32_t i = 0; i < b->n_outputs; i++) { /* a value that several outputs name is dropped once: it is empty then */
    const struct interp_value *v = &r->g->values[b->outputs[i]];
    if (v->block == b) ane_dyn_drop(r->m, &r->slots[b->outputs[i]]);
  }
  return st;
}

static ane_status run_block(struct run *r, const struct interp_block *b) {
  for (int32_t i = 0; i < b->n_nodes; i++) {
    const struct interp_node *n = &b->nodes[i];
    if (n->dead) continue;
    ane_status st = n->is_if ? run_if(r, n) : run_prim(r, n);
    if (st) return ane_fail_in(r->err, st, "node %.120s (%s)", n->name, n->is_if ? "if" : ane_prim_info(n->op).name);
    for (int32_t k = 0; k < n->n_drop; k++) ane_dyn_drop(r->m, &r->slots[n->drop[k]]);
  }
  return ANE_OK;
}

static int32_t widest(const struct interp_block *b) {
  int32_t most = 1;
  for (int32_t i = 0; i < b->n_nodes; i++) {
    most = ANE_MAX(most, b->nodes[i].n_in);
    for (int k = 0; k < 2 && b->nodes[i].blocks[k]; k++) most = ANE_MAX(most, widest(b->nodes[i].blocks[k]));
  }
  return most;
}

ane_status ane_interp_run(struct ane_interp *g, struct ane_prim_memory *m, const struct ane_dyn *inputs, struct ane_dyn *outputs, struct ane_error *err) {
  struct run r = {g, m, ane_calloc((size_t)g->n_values + 1, sizeof *r.slots), ane_calloc((size_t)widest(&g->main), sizeof *r.in), err};
  ane_status st = r.slots && r.in ? ANE_OK : interp_no_memory(err);
  for (int32_t i = 0; !st && i < g->n_inputs + g->n_added; i++) {
    ane_dyn_keep(&inputs[i]);
    r.slots[g->inputs[i]] = inputs[i];
  }
  if (!st) st = run_block(&r, &g->main);
  for (int32_t i = 0; !st && i < g->main.n_outputs; i++) {
    const struct ane_dyn *v = value_of(&r, g->main.outputs[i]);
    ane_dyn_keep(v);
    outputs[i] = *v;
  }
  for (int32_t i = 0; r.slots && i < g->n_values; i++) ane_dyn_drop(m, &r.slots[i]);
  ane_free(r.slots);
  ane_free(r.in);
  return st;
}
