/* ssm_scan and delta_rule: ops whose state accumulates all earlier tokens. A task is one head of an item; it takes the item's
 * tokens in order, PIECE at a time. The state of a head is [n][width]. */
#include "exec/planner.h"
#include "exec/session_recurrent.h"
#include "exec/thread_ctx.h"

#include "base/elementary.h"

#include <math.h>

enum { PIECE = 32 }; /* tokens whose factors, and normed keys and queries, are computed together */

/* A head of one item. */
struct head {
  int64_t number, first, tokens; /* first: its first token in the run */
  float *state;
};

static struct head head_of(const struct thread_ctx *tc, const struct step *s, int64_t task) {
  int64_t item = task / s->recurrent.heads, h = task % s->recurrent.heads, first = 0;
  for (int64_t i = 0; i < item; i++) first += tc->r->items[i].n;
  float *state = recurrent_state(tc->r->items[item].session, s->recurrent.state);
  return (struct head){h, first, tc->r->items[item].n, state + h * s->recurrent.n * s->recurrent.width};
}

/* The time step of head h: softplus(x + bias), clamped to low .. high. */
static float time_step(const struct step *s, float x, int64_t h) {
  float dt = ane_softplusf(s->recurrent.dt_bias ? x + s->recurrent.dt_bias[h] : x);
  if (dt < s->recurrent.low) dt = s->recurrent.low;
  return s->recurrent.high > 0 && dt > s->recurrent.high ? s->recurrent.high : dt;
}

static void scan_head(const struct thread_ctx *tc, const struct step *s, const struct head *h) {
  float *dt = (float *)(void *)(tc->mem + tc->p->thread_temp), *decay = dt + PIECE;
  int64_t heads = s->recurrent.heads, n = s->recurrent.n, p = s->recurrent.width, ld = s->in[0]->channels;
  int64_t group = h->number / (heads / s->recurrent.groups);
  const float *x = thread_data(tc, s->in[0]) + h->first * ld, *steps = thread_data(tc, s->in[1]) + h->first * heads + h->number;
  struct ane_scan a = {.n = n, .width = p, .state = h->state, .ld = ld, .dt = dt, .decay = decay, .y_ld = heads * p};
  a.d = s->recurrent.d ? s->recurrent.d[h->number] : 0;
  for (int64_t from = 0; from < h->tokens; from += PIECE) {
    a.tokens = ANE_MIN((int64_t)PIECE, h->tokens - from);
    for (int64_t t = 0; t < a.tokens; t++) {
      dt[t] = time_step(s, steps[(from + t) * heads], h->number);
      decay[t] = ane_expf(dt[t] * s->recurrent.a[h->number]);
    }
    a.x = x + from * ld + h->number * p;
    a.b = x + from * ld + heads * p + group * n;
    a.c = a.b + s->recurrent.groups * n;
    a.y = thread_data(tc, s->out[0]) + (h->first + from) * a.y_ld + h->number * p;
    s->recurrent.kernels.scan(&a);
  }
}

/* y = x / |x| * by, where |x| is at least about 1e-3. */
static void normed(const float *x, float *y, int64_t n, float by) {
  float lane[16] = {0};
  for (int64_t i = 0; i < n; i++) lane[i % 16] += x[i] * x[i];
  for (int w = 8; w; w /= 2)
    for (int i = 0; i < w; i++) lane[i] += lane[i + w];
  float scale = by / sqrtf(lane[0] + 1e-6f);
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * scale;
}

static void delta_head(const struct thread_ctx *tc, const struct step *s, const struct head *h) {
  int64_t heads = s->recurrent.heads, n = s->recurrent.n, width = s->recurrent.width, ld = s->in[0]->channels;
  int64_t keys = s->recurrent.groups, key = h->number / (heads / keys);
  if (s->recurrent.interleaved) key = h->number % keys;
  float *beta = (float *)(void *)(tc->mem + tc->p->thread_temp), *decay = beta + PIECE, *q = decay + PIECE, *k = q + PIECE * n;
  const float *x = thread_data(tc, s->in[0]) + h->first * ld;
  const float *a_row = thread_data(tc, s->in[1]) + h->first * heads + h->number,
              *b_row = thread_data(tc, s->in[2]) + h->first * heads + h->number;
  struct ane_delta a = {
      .n = n, .width = width, .state = h->state, .q = q, .k = k, .v_ld = ld, .beta = beta, .decay = decay, .y_ld = heads * width};
  for (int64_t from = 0; from < h->tokens; from += PIECE) {
    a.tokens = ANE_MIN((int64_t)PIECE, h->tokens - from);
    for (int64_t t = 0; t < a.tokens; t++) {
      const float *row = x + (from + t) * ld + key * n;
      beta[t] = 1.0f / (1.0f + ane_expf(-b_row[(from + t) * heads]));
      decay[t] = ane_expf(s->recurrent.a[h->number] * time_step(s, a_row[(from + t) * heads], h->number));
      normed(row, q + t * n, n, 1.0f / sqrtf((float)n));
      normed(row + keys * n, k + t * n, n, 1.0f);
    }
    a.v = x + from * ld + 2 * keys * n + h->number * width;
    a.y = thread_data(tc, s->out[0]) + (h->first + from) * a.y_ld + h->number * width;
    s->recurrent.kernels.delta(&a);
  }
}

static void run_recurrent(struct thread_ctx *tc, const struct step *s) {
  int64_t tasks = tc->r->n_items * s->recurrent.heads;
  int stolen = 0;
  for (int64_t task; (task = thread_claim(tc, s, 0, tasks, &stolen)) >= 0;) {
    struct head h = head_of(tc, s, task);
    if (s->in[2])
      delta_head(tc, s, &h);
    else
      scan_head(tc, s, &h);
  }
}

static void recurrent_cost(const struct thread_ctx *tc, const struct step *s, struct ane_step_profile *p) {
  double state = (double)(s->recurrent.heads * s->recurrent.n * s->recurrent.width);
  p->bytes += 2 * state * sizeof(float) * tc->r->n_items;
  p->ops += (s->in[2] ? 7.0 : 5.0) * state * (double)tc->tokens;
}

/* Loads the decay factors, which are given directly or as the logarithms of their negatives. */
static ane_status plan_decay(struct planner *pl, const struct ane_node *n, int32_t value, struct step *s, struct ane_error *err) {
  const float *a;
  ane_status st = planner_vector(pl, value, 0, &a, err);
  if (st) return st;
  float *own = ane_arena_array(&pl->p->arena, (size_t)s->recurrent.heads, sizeof *own);
  if (!own) return ane_fail(err, ANE_NOMEM, "no memory for the program");
  for (int64_t h = 0; h < s->recurrent.heads; h++) own[h] = ane_node_int(n, "log") ? -ane_expf(a[h]) : a[h];
  s->recurrent.a = own;
  return ANE_OK;
}

ane_status plan_recurrent(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  bool delta = n->op == ANE_OP_DELTA_RULE;
  int state = n->n_inputs - 1;
  const struct ane_shape *shape = &pl->g->values[n->inputs[state]].shape;
  s->run = run_recurrent;
  s->cost = recurrent_cost;
  for (int i = 0; i < (delta ? 3 : 2); i++) s->in[i] = planner_slot(pl, n->inputs[i]);
  s->recurrent.state = pl->recurrent_of[n->inputs[state]];
  s->recurrent.kernels = ane_recurrent_kernels(pl->p->k->isa);
  s->recurrent.heads = shape->dim[1];
  s->recurrent.n = shape->dim[2];
  s->recurrent.width = shape->dim[3];
  s->recurrent.groups = ane_node_int(n, delta ? "key_heads" : "groups");
  s->temp_floats = 2 * PIECE + (delta ? 2 * PIECE * s->recurrent.n : 0);
  ane_status st = plan_decay(pl, n, n->inputs[delta ? 3 : 2], s, err);
  if (st || (st = planner_vector(pl, n->inputs[4], 0, &s->recurrent.dt_bias, err))) return st;
  if (delta) {
    s->recurrent.interleaved = ane_node_int(n, "interleaved") != 0;
    return ANE_OK;
  }
  s->recurrent.low = (float)ane_node_float(n, "low");
  s->recurrent.high = (float)ane_node_float(n, "high");
  return planner_vector(pl, n->inputs[3], 0, &s->recurrent.d, err);
}
