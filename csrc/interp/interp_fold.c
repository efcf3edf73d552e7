/* Constant folding: runs nodes whose inputs are constant once, and packs weights. */
#include "interp/interp_internal.h"

#include <inttypes.h>

/* The most bytes of a folded constant. Larger ones are computed at each call; products read large transposed or dequantised
 * weights directly (interp_fuse). */
#define FOLD_LIMIT (UINT64_C(64) << 20)

enum { MAX_OUT = 8, MAX_IN = 64 };

static bool all_constant(const struct ane_interp *g, const struct interp_node *n) {
  bool ok = n->kind == INTERP_PRIM && !n->dead && n->n_in > 0 && n->n_in <= MAX_IN && n->n_out <= MAX_OUT;
  for (int32_t i = 0; ok && i < n->n_in; i++) ok = n->in[i] == INTERP_NONE || g->values[n->in[i]].constant;
  return ok;
}

static struct ane_prim_call call_of(struct ane_interp *g, const struct interp_node *n, const struct ane_dyn **in,
                                    struct ane_dyn *out, struct ane_error *err) {
  for (int32_t i = 0; i < n->n_in && i < MAX_IN; i++)
    in[i] = n->in[i] != INTERP_NONE && g->values[n->in[i]].constant ? &g->values[n->in[i]].data : NULL;
  return (struct ane_prim_call){.op = n->op,
                                .in = in,
                                .n_in = n->n_in,
                                .out = out,
                                .n_out = n->n_out,
                                .memory = &g->memory,
                                .kernels = g->kernels,
                                .pool = g->pool,
                                .err = err};
}

static ane_status named(const struct interp_node *n, ane_status st, struct ane_error *err) {
  return ane_fail_in(err, st, "node %.120s (%s)", n->name, interp_kind_name(n));
}

static ane_status fold_node(struct ane_interp *g, struct interp_node *n, struct ane_error *err) {
  const struct ane_dyn *in[MAX_IN];
  struct ane_dyn out[MAX_OUT] = {{0}};
  g->memory.limit = FOLD_LIMIT;
  g->memory.refused = 0;
  struct ane_prim_call c = call_of(g, n, in, out, err);
  ane_status st = ane_prim_run(&c);
  for (int32_t i = 0; !st && i < n->n_out; i++)
    if (n->out[i] != INTERP_NONE) st = interp_settle(g, n, i, &g->memory, &out[i], err);
  g->memory.limit = 0;
  for (int32_t i = 0; i < n->n_out; i++) {
    if (st || n->out[i] == INTERP_NONE)
      ane_dyn_drop(&g->memory, &out[i]);
    else
      g->values[n->out[i]].data = out[i], g->values[n->out[i]].constant = true;
  }
  if (st && g->memory.refused > 0) { /* too large to fold: the node stays in the graph, unless it can never run */
    if (g->memory.refused <= ane_dyn_budget_limit(g->memory.budget)) return ANE_OK;
    st = ane_dyn_budget_check(g->memory.budget, g->memory.refused, err);
  }
  if (st) return named(n, st, err);
  n->dead = true;
  g->info.n_folded++;
  return ANE_OK;
}

/* Were the results folded for another node that has the same subgraph? */
static bool made_before(const struct ane_interp *g, const struct interp_node *n) {
  bool all = n->n_out > 0;
  for (int32_t i = 0; all && i < n->n_out; i++) all = n->out[i] == INTERP_NONE || g->values[n->out[i]].constant;
  return all;
}

static ane_status fold_block(struct ane_interp *g, struct interp_block *b, struct ane_error *err) {
  ane_status st = ANE_OK;
  for (int32_t i = 0; !st && i < b->n_nodes; i++) {
    struct interp_node *n = &b->nodes[i];
    if (n->blocks[0] && !n->dead) {
      st = fold_block(g, n->blocks[0], err);
      if (!st) st = fold_block(g, n->blocks[1], err);
    } else if (!n->dead && made_before(g, n)) {
      n->dead = true;
    } else if (all_constant(g, n)) {
      st = fold_node(g, n, err);
    }
  }
  return st;
}

ane_status interp_fold(struct ane_interp *g, struct ane_error *err) { return fold_block(g, &g->main, err); }

/* ---- Weights -------------------------------------------------------------------------------------------------------*/

static void release(const struct ane_interp *g, const struct interp_node *n) {
  for (int32_t i = 0; g->options.release && n->state && i < n->n_in; i++) {
    const struct interp_value *v = n->in[i] == INTERP_NONE ? NULL : &g->values[n->in[i]];
    if (!v || !v->constant || v->data.block || v->uses != 1 || !ane_prim_packs(n->op, i)) continue;
    const struct ane_coded *w = v->data.coded;
    if (!w)
      g->options.release(g->options.arg, v->data.data, ane_dyn_bytes(&v->data));
    else if (ane_prim_state_packed(n->state))
      g->options.release(g->options.arg, w->codes, ane_coded_bytes(w, v->data.count));
  }
}

static ane_status ready_block(struct ane_interp *g, struct interp_block *b, struct ane_error *err) {
  ane_status st = ANE_OK;
  for (int32_t i = 0; !st && i < b->n_nodes; i++) {
    struct interp_node *n = &b->nodes[i];
    if (n->dead) continue;
    if (n->blocks[0]) {
      st = ready_block(g, n->blocks[0], err);
      if (!st) st = ready_block(g, n->blocks[1], err);
      continue;
    }
    const struct ane_dyn *in[MAX_IN];
    if (n->kind != INTERP_PRIM) continue;
    if (n->n_in > MAX_IN) continue; /* only joins have more inputs */
    struct ane_prim_call c = call_of(g, n, in, NULL, err);
    st = interp_prepare(g, n, &c, err);
    if (st) return named(n, st, err);
    release(g, n);
    g->info.n_nodes++;
    if (b == &g->main && g->options.progress) g->options.progress(g->options.arg, (uint64_t)i + 1, (uint64_t)b->n_nodes);
  }
  return st;
}

ane_status interp_ready(struct ane_interp *g, struct ane_error *err) {
  ane_status st = ready_block(g, &g->main, err);
  g->info.constant_bytes = g->memory.used;
  return st;
}
