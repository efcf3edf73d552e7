/* experts: a mixture of gated feed-forward experts. Only the weights of chosen experts are read. Rows (token, choice) are sorted
 * by expert, and each expert multiplies its rows. Every token sums its rows in ascending order of expert, so the result does not
 * depend on the other tokens of the run. Soft experts: every expert takes every token, with weight 0 if it is not chosen. */
#include "exec/planner.h"
#include "exec/thread_ctx.h"

#include <math.h>
#include <string.h>

/* The shared scratch of the step. */
struct expert_rows {
  int32_t *start, *token;    /* [count + 1]: first row of each expert; [rows]: token of a row */
  float *weight, *x, *h, *o; /* [rows]; gathered input [rows][C], if any matrix takes fp32; inner [rows][I]; output [rows][C] */
  int32_t *row_of;           /* [T][per token]: row of each choice, ascending by expert; -1: none */
  struct ane_activations in[ANE_ACTIVATION_COUNT], inner[ANE_ACTIVATION_COUNT];
  size_t bytes;
};

static int64_t rows_per_token(const struct step *s) { return s->experts.soft ? s->experts.count : s->experts.k; }

static void *carve(uint8_t *base, size_t *at, size_t bytes) {
  void *p = base ? base + *at : NULL;
  *at += ane_align_up(bytes, 64);
  return p;
}

/* Lays out the scratch at `base` for this many tokens. base NULL: only computes `bytes`. */
static struct expert_rows expert_rows(const struct step *s, uint8_t *base, int64_t tokens) {
  struct expert_rows y = {0};
  int64_t rows = tokens * rows_per_token(s), c = s->in[0]->channels, inner = s->experts.inner;
  y.start = carve(base, &y.bytes, (size_t)(s->experts.count + 1) * sizeof *y.start);
  y.token = carve(base, &y.bytes, (size_t)rows * sizeof *y.token);
  y.row_of = carve(base, &y.bytes, (size_t)rows * sizeof *y.row_of);
  y.weight = carve(base, &y.bytes, (size_t)rows * sizeof *y.weight);
  y.x = carve(base, &y.bytes, (size_t)(rows * c) * sizeof *y.x);
  y.h = carve(base, &y.bytes, (size_t)(rows * inner) * sizeof *y.h);
  y.o = carve(base, &y.bytes, (size_t)(rows * c) * sizeof *y.o);
  for (int a = 0; a < ANE_ACTIVATION_COUNT; a++) {
    if (a == ANE_ACTIVATION_F32 || !(s->experts.activation_types & 1u << a)) continue;
    void *m = carve(base, &y.bytes, ane_activations_bytes((ane_activation_type)a, rows, c)),
         *n = carve(base, &y.bytes, ane_activations_bytes((ane_activation_type)a, rows, inner));
    if (base)
      ane_activations_place(&y.in[a], (ane_activation_type)a, rows, c, m),
          ane_activations_place(&y.inner[a], (ane_activation_type)a, rows, inner, n);
    y.in[a].precise = y.inner[a].precise = false; /* nothing is chosen by these products */
  }
  y.in[ANE_ACTIVATION_F32] = (struct ane_activations){.kind = ANE_ACTIVATION_F32, .t = rows, .cols = c, .f32 = y.x, .ld = c};
  y.inner[ANE_ACTIVATION_F32] =
      (struct ane_activations){.kind = ANE_ACTIVATION_F32, .t = rows, .cols = inner, .f32 = y.h, .ld = inner};
  return y;
}

/* Is choice j of a token an expert that no earlier choice is? */
static bool is_first(const float *route, int64_t j) {
  int64_t i = 0;
  while (i < j && truncf(route[i]) != truncf(route[j])) i++;
  return i == j;
}

/* The expert that is choice j of a token, and its weight. The result `count` means no expert. route: the token's k expert
 * numbers, then their k weights. They may come from the stage before, which may send anything, also an expert twice: each has
 * room for one row per token. */
static int64_t choice(const struct step *s, const float *route, int64_t j, float *weight) {
  int64_t k = s->experts.k;
  if (!s->experts.soft) {
    *weight = route[k + j];
    return route[j] >= 0 && route[j] < (float)s->experts.count && is_first(route, j) ? (int64_t)route[j] : s->experts.count;
  }
  *weight = 0;
  for (int64_t i = 0; i < k; i++)
    if (route[i] == (float)j) *weight = route[k + i];
  return j;
}

/* Sorts the rows by expert (counting sort, tokens ascending). Called on one thread. */
static void sort_rows(const struct thread_ctx *tc, const struct step *s, struct expert_rows *y) {
  const float *route = thread_data(tc, s->in[1]);
  int64_t per = rows_per_token(s), n = s->experts.count;
  float w;
  /* analyser: the shared memory is given, so there is room for the rows in it. */
  memset(y->start, 0, (size_t)(n + 1) * sizeof *y->start);
  for (int64_t i = 0; i < tc->tokens * per; i++) {
    int64_t e = choice(s, route + i / per * 2 * s->experts.k, i % per, &w);
    if (e < n) y->start[e + 1]++;
  }
  for (int64_t e = 0; e < n; e++) y->start[e + 1] += y->start[e];
  for (int64_t i = 0; i < tc->tokens * per; i++) {
    int64_t e = choice(s, route + i / per * 2 * s->experts.k, i % per, &w);
    y->row_of[i] = -1;
    if (e >= n) continue;
    int32_t row = y->start[e]++;
    y->row_of[i] = row;
    y->token[row] = (int32_t)(i / per);
    y->weight[row] = w;
  }
  for (int64_t e = n; e > 0; e--) y->start[e] = y->start[e - 1];
  y->start[0] = 0;
}

/* Gathers and prepares rows [from, to) of the input. The kernels read row r at x + r * ld, so the base is moved back. */
static void gather(const struct thread_ctx *tc, const struct step *s, const struct expert_rows *y, int64_t from, int64_t to) {
  const float *x = thread_data(tc, s->in[0]);
  int64_t c = s->in[0]->channels;
  for (int64_t r = from; r < to; r++) {
    const float *row = x + y->token[r] * c;
    const float *base = (const float *)((uintptr_t)row - (uintptr_t)(r * c) * sizeof(float));
    if (s->experts.activation_types & 1u << ANE_ACTIVATION_F32) memcpy(y->x + r * c, row, (size_t)c * sizeof *row);
    if (s->experts.activation_types & 1u << ANE_ACTIVATION_I8) tc->k->quantise_i8(&y->in[ANE_ACTIVATION_I8], base, c, r, r + 1);
    if (s->experts.activation_types & 1u << ANE_ACTIVATION_BF16)
      tc->k->convert_bf16(&y->in[ANE_ACTIVATION_BF16], base, c, r, r + 1);
  }
}

/* out[row][r - r0] = W x + bias for row groups [g0, g1) and rows [from, from + n). */
static void multiply(const struct thread_ctx *tc, const struct matrix *w, const float *bias,
                     const struct ane_activations *activations, int64_t from, int64_t n, int64_t g0, int64_t g1, float *out,
                     int64_t ld) {
  int64_t r0 = g0 * ANE_GROUP, rows = ANE_MIN(g1 * ANE_GROUP, w->packed.rows) - r0;
  struct ane_activations a = ane_activations_rows(&activations[w->activation_type], from, n);
  tc->k->matmul[w->packed.layout][w->activation_type](
      &w->packed, &a, g0, g1, (float *)((uintptr_t)out - (uintptr_t)r0 * sizeof(float)), ld, tc->mem + tc->p->thread_kernel);
  for (int64_t t = 0; bias && t < n; t++) tc->k->add(out + t * ld, bias + r0, out + t * ld, rows);
}

/* y = (clamp(u) + 1) * g' * sigmoid(alpha * g'), g' = min(g, limit): the gated unit of gpt-oss. Overwrites g and u. */
static void swiglu_oai(const struct thread_ctx *tc, const struct step *s, float *g, float *u, float *y, int64_t n) {
  float limit = s->experts.limit, alpha = s->experts.alpha;
  for (int64_t i = 0; i < n; i++) {
    float a = g[i] < limit ? g[i] : limit, b = u[i] < -limit ? -limit : u[i] > limit ? limit : u[i];
    u[i] = (b + 1.0f) * a;
    g[i] = alpha * a;
  }
  tc->k->sigmoid(g, u, y, n);
}

static void inner_groups(const struct thread_ctx *tc, const struct step *s, const struct expert_rows *y, int64_t e, int64_t g0,
                         int64_t g1) {
  const struct expert *x = &s->experts.list[e];
  int64_t from = y->start[e], n = y->start[e + 1] - from, inner = s->experts.inner, r0 = g0 * ANE_GROUP,
          rows = ANE_MIN(g1 * ANE_GROUP, inner) - r0;
  float *gate = (float *)(void *)(tc->mem + tc->p->thread_temp), *up = gate + n * rows;
  multiply(tc, x->gate, x->gate_bias, y->in, from, n, g0, g1, gate, rows);
  multiply(tc, x->up, x->up_bias, y->in, from, n, g0, g1, up, rows);
  for (int64_t t = 0; t < n; t++) {
    float *h = y->h + (from + t) * inner + r0;
    if (s->experts.act)
      s->experts.act(gate + t * rows, up + t * rows, h, rows);
    else
      swiglu_oai(tc, s, gate + t * rows, up + t * rows, h, rows);
  }
}

static void outer_groups(const struct thread_ctx *tc, const struct step *s, const struct expert_rows *y, int64_t e, int64_t g0,
                         int64_t g1) {
  const struct expert *x = &s->experts.list[e];
  int64_t from = y->start[e], c = s->in[0]->channels;
  multiply(tc, x->down, x->down_bias, y->inner, from, y->start[e + 1] - from, g0, g1, y->o + from * c + g0 * ANE_GROUP, c);
}

/* The number of row groups per task: with few tokens thread_few_groups. */
static int64_t groups_per_task(const struct thread_ctx *tc, size_t group_bytes) {
  enum { FEW_TOKENS = 8 };
  return tc->tokens > FEW_TOKENS ? tc->p->temp_rows / ANE_GROUP : thread_few_groups(tc, group_bytes);
}

/* Divides the work of all experts that have rows among the threads. A task is a run of row groups of one expert. The tasks of a
 * thread are consecutive (thread_claim), so most of them begin where the one before has prefetched. */
static void
each_task(struct thread_ctx *tc, const struct step *s, const struct expert_rows *y, int which, int64_t groups, int64_t per_task,
          void (*fn)(const struct thread_ctx *, const struct step *, const struct expert_rows *, int64_t, int64_t, int64_t)) {
  const int64_t tasks = (groups + per_task - 1) / per_task;
  int64_t total = 0;
  int stolen = 0;
  for (int64_t e = 0; e < s->experts.count; e++) total += y->start[e] < y->start[e + 1] ? tasks : 0;
  for (int64_t task; (task = thread_claim(tc, s, which, total, &stolen)) >= 0;) {
    int64_t e = 0;
    for (int64_t skip = task / tasks; y->start[e] == y->start[e + 1] || skip > 0; e++) skip -= y->start[e] < y->start[e + 1];
    const int64_t g0 = task % tasks * per_task;
    fn(tc, s, y, e, g0, ANE_MIN(g0 + per_task, groups));
  }
}

/* out = sum of weight * o over the token's rows, in the order of its choices. */
static void sum_rows(const struct thread_ctx *tc, const struct step *s, const struct expert_rows *y) {
  float *out = thread_data(tc, s->out[0]);
  int64_t c = s->in[0]->channels, per = rows_per_token(s), from, to;
  ane_split(tc->tokens, tc->thread, tc->threads, &from, &to);
  for (int64_t t = from; t < to; t++) {
    float *dst = out + t * c;
    memset(dst, 0, (size_t)c * sizeof *dst);
    for (int64_t j = 0; j < per; j++) {
      int32_t row = y->row_of[t * per + j];
      if (row < 0) continue;
      const float *o = y->o + (int64_t)row * c, w = y->weight[row];
      for (int64_t i = 0; i < c; i++) dst[i] += w * o[i];
    }
  }
}

static void run_experts(struct thread_ctx *tc, const struct step *s) {
  struct expert_rows y = expert_rows(s, tc->p->shared, tc->tokens);
  if (tc->thread == 0) sort_rows(tc, s, &y);
  thread_barrier(tc);
  /* analyser: as in sort_rows. */
  int64_t rows = y.start[s->experts.count], c = s->in[0]->channels, inner = s->experts.inner, from, to;
  ane_split(rows, tc->thread, tc->threads, &from, &to);
  gather(tc, s, &y, from, to);
  thread_barrier(tc);
  const struct ane_packed *gate = &s->experts.list[0].gate->packed, *down = &s->experts.list[0].down->packed;
  each_task(tc, s, &y, 0, (inner + ANE_GROUP - 1) / ANE_GROUP, groups_per_task(tc, 2 * gate->group_bytes), inner_groups);
  thread_barrier(tc);
  if (s->experts.activation_types & 1u << ANE_ACTIVATION_I8)
    tc->k->quantise_i8(&y.inner[ANE_ACTIVATION_I8], y.h, inner, from, to);
  if (s->experts.activation_types & 1u << ANE_ACTIVATION_BF16)
    tc->k->convert_bf16(&y.inner[ANE_ACTIVATION_BF16], y.h, inner, from, to);
  thread_barrier(tc);
  each_task(tc, s, &y, 1, (c + ANE_GROUP - 1) / ANE_GROUP, groups_per_task(tc, down->group_bytes), outer_groups);
  thread_barrier(tc);
  sum_rows(tc, s, &y);
}

/* Counts only experts that have rows: no other is read. */
static void experts_cost(const struct thread_ctx *tc, const struct step *s, struct ane_step_profile *p) {
  struct expert_rows y = expert_rows(s, tc->p->shared, tc->tokens);
  for (int64_t e = 0; e < s->experts.count; e++) {
    /* analyser: as in sort_rows. */
    int64_t rows = y.start[e + 1] - y.start[e];
    if (!rows) continue;
    profile_matrix(&s->experts.list[e].gate->packed, rows, p);
    profile_matrix(&s->experts.list[e].up->packed, rows, p);
    profile_matrix(&s->experts.list[e].down->packed, rows, p);
  }
}

static ane_status plan_expert(struct planner *pl, const struct ane_node *n, int at, struct step *s, struct expert *x,
                              struct ane_error *err) {
  ane_status st;
  if ((st = planner_matrix(pl, n->inputs[at], s->in[0], &x->gate, err)) ||
      (st = planner_vector(pl, n->inputs[at + 1], 0, &x->gate_bias, err)) ||
      (st = planner_matrix(pl, n->inputs[at + 2], s->in[0], &x->up, err)) ||
      (st = planner_vector(pl, n->inputs[at + 3], 0, &x->up_bias, err)) ||
      (st = planner_matrix(pl, n->inputs[at + 4], NULL, &x->down, err)) ||
      (st = planner_vector(pl, n->inputs[at + 5], 0, &x->down_bias, err)))
    return st;
  s->experts.activation_types |= 1u << x->gate->activation_type | 1u << x->up->activation_type | 1u << x->down->activation_type;
  const struct matrix *all[] = {x->gate, x->up, x->down};
  for (int i = 0; i < 3; i++) s->kernel_bytes = ANE_MAX(s->kernel_bytes, ane_matmul_scratch(&all[i]->packed));
  return ANE_OK;
}

ane_status plan_experts(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  if (pl->p->o.tensor)
    return ane_fail(err, ANE_UNSUPPORTED, "the experts of a mixture cannot be divided by rows: divide the layers");
  const char *act = ane_node_string(n, "act");
  const struct ane_value *route = &pl->g->values[n->inputs[1]];
  /* Expert numbers are used as indices, and only route guarantees that they are unique, ascending and not negative. */
  if (route->node == ANE_NONE || pl->g->nodes[route->node].op != ANE_OP_ROUTE)
    return ane_fail(err, ANE_UNSUPPORTED, "%s is not the output of route", route->name);
  s->run = run_experts;
  s->cost = experts_cost;
  s->in[0] = planner_slot(pl, n->inputs[0]);
  s->in[1] = planner_slot(pl, n->inputs[1]);
  s->experts.count = ane_node_int(n, "count");
  s->experts.k = s->in[1]->channels / 2;
  s->experts.soft = ane_node_int(n, "soft") != 0;
  s->experts.limit = (float)ane_node_float(n, "limit");
  s->experts.alpha = (float)ane_node_float(n, "alpha");
  s->experts.inner = pl->g->values[n->inputs[2]].shape.dim[0];
  struct expert *list = ane_arena_array(&pl->p->arena, (size_t)s->experts.count, sizeof *list);
  if (!list) return ane_fail(err, ANE_NOMEM, "no memory for the program");
  s->experts.list = list;
  ane_status st = strcmp(act, "swiglu_oai") == 0 ? ANE_OK : planner_act(pl->p->k, act, &s->experts.act, err);
  for (int64_t e = 0; !st && e < s->experts.count; e++) st = plan_expert(pl, n, (int)(2 + 6 * e), s, &list[e], err);
  if (!st) s->shared_bytes = expert_rows(s, NULL, pl->p->o.chunk).bytes;
  return st;
}
