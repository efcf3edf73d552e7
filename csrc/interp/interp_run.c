/* Runs a graph: calls each node, and keeps its results until their last use. */
#include "interp/interp_internal.h"

#include "base/alloc.h"

#include <string.h>

struct run {
  struct ane_interp *g;
  struct ane_interp_states *states;
  const int32_t *state_of; /* index in `states` of each of the graph's states */
  bool wrote;              /* a state has been changed */
  struct ane_dyn_memory *m;
  struct ane_dyn *slots;     /* one for each value */
  const struct ane_dyn **in; /* room for the inputs of a node */
  struct ane_error *err;
};

static ane_status run_block(struct run *r, const struct interp_block *b);

static const struct ane_dyn *value_of(const struct run *r, int32_t v) {
  return v == INTERP_NONE ? NULL : r->g->values[v].constant ? &r->g->values[v].data : &r->slots[v];
}

/* Sets a value. An old one is still there where several nodes share a subgraph, since all runs of it make the same values. */
static void put(struct run *r, int32_t v, struct ane_dyn t) {
  ane_dyn_drop(r->m, &r->slots[v]);
  r->slots[v] = t;
}

static ane_status run_prim(struct run *r, const struct interp_node *n) {
  struct ane_dyn out[8] = {{0}}, *results = out;
  if (n->n_out > 8 && !(results = ane_calloc((size_t)n->n_out, sizeof *results))) return interp_no_memory(r->err);
  for (int32_t i = 0; i < n->n_in; i++) r->in[i] = value_of(r, n->in[i]);
  struct ane_prim_call c = {.op = n->op,
                            .in = r->in,
                            .n_in = n->n_in,
                            .out = results,
                            .n_out = n->n_out,
                            .wanted = n->wanted,
                            .state = n->state,
                            .memory = r->m,
                            .kernels = r->g->kernels,
                            .pool = r->g->pool,
                            .err = r->err};
  ane_status st = ane_prim_run(&c);
  for (int32_t i = 0; n->results && !st && i < n->n_out; i++)
    if (n->wanted[i]) st = interp_settle(r->g, n, i, r->m, &results[i], r->err);
  for (int32_t i = 0; i < n->n_out; i++) {
    if (st || n->out[i] == INTERP_NONE)
      ane_dyn_drop(r->m, &results[i]);
    else
      put(r, n->out[i], results[i]);
  }
  if (results != out) ane_free(results);
  return st;
}

static ane_status run_if(struct run *r, const struct interp_node *n) {
  const struct ane_dyn *cond = value_of(r, n->in[0]);
  if (!cond || cond->count != 1 || cond->dtype != ANE_BOOL)
    return ane_fail(r->err, ANE_SHAPE, "the condition is not a single bool");
  const struct interp_block *b = n->blocks[*(const uint8_t *)cond->data == 0];
  ane_status st = run_block(r, b);
  for (int32_t i = 0; !st && i < n->n_out; i++) {
    if (n->out[i] == INTERP_NONE) continue;
    const struct ane_dyn *v = value_of(r, b->outputs[i]);
    ane_dyn_keep(v);
    put(r, n->out[i], *v);
  }
  for (int32_t i = 0; i < b->n_outputs; i++) { /* drops a value once if several outputs name it: it is empty then */
    const struct interp_value *v = &r->g->values[b->outputs[i]];
    if (v->block == b) ane_dyn_drop(r->m, &r->slots[b->outputs[i]]);
  }
  return st;
}

/* Drops values of a block's slots that outlive its nodes. */
static void drop_list(struct run *r, const struct interp_block *b, const int32_t *list, int32_t n) {
  for (int32_t i = 0; i < n; i++)
    if (r->g->values[list[i]].block == b) ane_dyn_drop(r->m, &r->slots[list[i]]);
}

/* Runs a loop's block on `cur` and moves its outputs to `next`. */
static ane_status run_iteration(struct run *r, const struct interp_block *b, const struct ane_dyn *cur, struct ane_dyn *next) {
  for (int32_t i = 0; i < b->n_inputs; i++) {
    ane_dyn_keep(&cur[i]);
    r->slots[b->inputs[i]] = cur[i];
  }
  ane_status st = run_block(r, b);
  for (int32_t i = 0; !st && i < b->n_outputs; i++) {
    const struct ane_dyn *v = value_of(r, b->outputs[i]);
    ane_dyn_keep(v);
    next[i] = *v;
  }
  drop_list(r, b, b->outputs, b->n_outputs);
  drop_list(r, b, b->inputs, b->n_inputs);
  return st;
}

static ane_status condition(struct run *r, const struct interp_block *b, const struct ane_dyn *cur, bool *on) {
  struct ane_dyn c = {0};
  ane_status st = run_iteration(r, b, cur, &c);
  if (!st && (c.count != 1 || c.dtype != ANE_BOOL)) st = ane_fail(r->err, ANE_SHAPE, "the condition is not a single bool");
  *on = !st && *(const uint8_t *)c.data != 0;
  ane_dyn_drop(r->m, &c);
  return st;
}

enum { MOST_ITERATIONS = 1 << 24 };

static ane_status run_while(struct run *r, const struct interp_node *n) {
  int32_t k = n->n_in, rounds = 0;
  struct ane_dyn *cur = ane_calloc(2 * (size_t)k + 1, sizeof *cur), *next = cur ? cur + k : NULL;
  if (!cur) return interp_no_memory(r->err);
  for (int32_t i = 0; i < k; i++) {
    cur[i] = *value_of(r, n->in[i]);
    ane_dyn_keep(&cur[i]);
  }
  bool on = true;
  ane_status st = condition(r, n->blocks[0], cur, &on);
  while (!st && on) {
    if (++rounds > MOST_ITERATIONS) st = ane_fail(r->err, ANE_RANGE, "more than %d iterations", (int)MOST_ITERATIONS);
    if (!st) st = run_iteration(r, n->blocks[1], cur, next);
    for (int32_t i = 0; i < k; i++) {
      ane_dyn_drop(r->m, &cur[i]);
      cur[i] = next[i];
      next[i] = (struct ane_dyn){0};
    }
    if (!st) st = condition(r, n->blocks[0], cur, &on);
  }
  for (int32_t i = 0; i < k; i++) {
    if (st || i >= n->n_out || n->out[i] == INTERP_NONE)
      ane_dyn_drop(r->m, &cur[i]);
    else
      r->slots[n->out[i]] = cur[i];
  }
  ane_free(cur);
  return st;
}

/* ---- States --------------------------------------------------------------------------------------------------------*/

static ane_status run_read(struct run *r, const struct interp_node *n) {
  /* analyser: a function with states does not run without them. */
  const struct ane_dyn *t = &r->states->list[r->state_of[n->at]].t;
  ane_dyn_keep(t);
  r->slots[n->out[0]] = *t;
  return ANE_OK;
}

static ane_status run_write(struct run *r, const struct interp_node *n) {
  /* analyser: a function with states does not run without them. */
  struct ane_dyn *t = &r->states->list[r->state_of[n->at]].t, fresh;
  const struct ane_dyn *v = value_of(r, n->in[0]);
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  if (v->dtype != ANE_F32 || v->rank != t->rank || memcmp(v->dim, t->dim, (size_t)t->rank * sizeof *t->dim) != 0)
    return ane_fail(r->err, ANE_SHAPE, "the state is %s, but the value to write is %s", ane_dyn_text(t, a), ane_dyn_text(v, b));
  ane_status st = interp_solid(v, r->m, &fresh, r->err);
  if (st) return st;
  ane_dyn_drop(r->m, t);
  *t = fresh;
  r->wrote = true;
  return ANE_OK;
}

static ane_status run_node(struct run *r, const struct interp_node *n) {
  switch (n->kind) {
    case INTERP_PRIM: return run_prim(r, n);
    case INTERP_IF: return run_if(r, n);
    case INTERP_WHILE: return run_while(r, n);
    case INTERP_READ: return run_read(r, n);
    case INTERP_WRITE: return run_write(r, n);
  }
  return ANE_OK;
}

static ane_status run_block(struct run *r, const struct interp_block *b) {
  for (int32_t i = 0; i < b->n_nodes; i++) {
    const struct interp_node *n = &b->nodes[i];
    if (n->dead) continue;
    ane_status st = run_node(r, n);
    if (st) return ane_fail_in(r->err, st, "node %.120s (%s)", n->name, interp_kind_name(n));
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

/* Returns the type that a Core ML function declares for a state. */
static const struct ane_mil_type *declared(const struct ane_mil_function *f, const char *state) {
  for (uint32_t i = 0; f && i < f->n_inputs; i++)
    if (f->inputs[i].type.kind == ANE_MIL_STATE && strcmp(f->inputs[i].name, state) == 0) return &f->inputs[i].type;
  return NULL;
}

/* Finds the states of the graph in the caller's set. */
static ane_status find_states(const struct ane_interp *g, const struct ane_interp_states *s, int32_t *state_of,
                              struct ane_error *err) {
  for (int32_t i = 0; i < g->n_states; i++) {
    state_of[i] = s ? interp_state_find(s, g->states[i]) : -1;
    if (state_of[i] < 0) return ane_fail(err, ANE_INVALID, "the function has the state %.100s, which is not given", g->states[i]);
    const struct ane_mil_type *type = declared(g->function, g->states[i]);
    if (type && !interp_same_shape(&s->list[state_of[i]].t, type))
      return ane_fail(err, ANE_SHAPE, "state %.100s has another shape in this function than in the one it was made for",
                      g->states[i]);
  }
  return s && s->spoiled ? ane_fail(err, ANE_STATE, "the states were left in the middle of a call that failed: reset them")
                         : ANE_OK;
}

static ane_status take_input(struct run *r, int32_t i, const struct ane_dyn *in) {
  struct ane_dyn *slot = &r->slots[r->g->inputs[i]];
  if (r->g->mil) return interp_input(r->g, i, in, r->m, slot, r->err);
  ane_dyn_keep(in);
  /* analyser: the slots are allocated before inputs are taken. */
  *slot = *in;
  return ANE_OK;
}

ane_status ane_interp_run_states(struct ane_interp *g, struct ane_dyn_memory *m, struct ane_interp_states *s,
                                 const struct ane_dyn *inputs, struct ane_dyn *outputs, struct ane_error *err) {
  int32_t *state_of = ane_calloc((size_t)g->n_states + 1, sizeof *state_of);
  struct run r = {.g = g,
                  .states = s,
                  .state_of = state_of,
                  .m = m,
                  .slots = ane_calloc((size_t)g->n_values + 1, sizeof *r.slots),
                  .in = ane_calloc((size_t)widest(&g->main), sizeof *r.in),
                  .err = err};
  ane_status st = r.slots && r.in && state_of ? find_states(g, s, state_of, err) : interp_no_memory(err);
  for (int32_t i = 0; !st && i < g->n_inputs + g->n_added; i++) st = take_input(&r, i, &inputs[i]);
  if (!st) st = run_block(&r, &g->main);
  for (int32_t i = 0; !st && i < g->main.n_outputs; i++) {
    const struct ane_dyn *v = value_of(&r, g->main.outputs[i]);
    if (v->coded) {
      st = interp_solid(v, m, &outputs[i], err);
    } else {
      ane_dyn_keep(v);
      outputs[i] = *v;
    }
  }
  for (int32_t i = 0; r.slots && i < g->n_values; i++) ane_dyn_drop(m, &r.slots[i]);
  if (st && r.wrote) s->spoiled = true;
  ane_free(state_of);
  ane_free(r.slots);
  ane_free(r.in);
  return st;
}

ane_status ane_interp_run(struct ane_interp *g, struct ane_dyn_memory *m, const struct ane_dyn *inputs, struct ane_dyn *outputs,
                          struct ane_error *err) {
  return ane_interp_run_states(g, m, NULL, inputs, outputs, err);
}
