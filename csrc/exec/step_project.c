/* project: norm, quantise the input once, multiply by one or more matrices, then bias, residual or gated activation.
 *
 * One token: every thread prepares the input for itself, so there is no meeting between the two halves. More tokens:
 * the threads share the columns, meet, and multiply. Work is handed out in runs of row groups; each output is the same
 * whoever makes it. */
#include "exec/exec_internal.h"

#include <string.h>

enum { TURN_BYTES = 32768 };

/* Prepares columns [from, to) of x into `out`; normed: room for the normed columns, from column 0. */
static void prepare(const struct lane *l, const struct step *s, struct prepared *out, float *normed, int64_t from, int64_t to) {
  const struct ane_kernels *k = l->k;
  int64_t c = s->in[0]->channels;
  const float *x = lane_data(l, s->in[0]);
  if (s->project.norm) {
    k->rms_norm(x + from * c, c, s->project.norm_weight, s->project.eps, normed + from * c, c, to - from, c);
    x = normed;
  }
  out->a[ANE_ACT_F32] = (struct ane_acts){.kind = ANE_ACT_F32, .t = l->cols, .cols = c, .f32 = x, .ld = c};
  if (s->project.acts & 1u << ANE_ACT_I8) k->acts_i8(&out->a[ANE_ACT_I8], x, c, from, to);
  if (s->project.acts & 1u << ANE_ACT_BF16) k->acts_bf16(&out->a[ANE_ACT_BF16], x, c, from, to);
}

/* Places the kinds of activations that the step's matrices meet. */
static void place_acts(const struct lane *l, const struct step *s, uint8_t *const memory[ANE_ACT_COUNT], struct prepared *out) {
  for (int a = 0; a < ANE_ACT_COUNT; a++)
    if (a != ANE_ACT_F32 && s->project.acts & 1u << a) ane_acts_place(&out->a[a], (ane_act)a, l->cols, s->in[0]->channels, memory[a]);
  out->a[ANE_ACT_I8].fine = s->project.fine;
}

void project_prepare_alone(const struct lane *l, const struct step *s, struct prepared *out) {
  uint8_t *memory[ANE_ACT_COUNT];
  for (int a = 0; a < ANE_ACT_COUNT; a++) memory[a] = l->mem + l->p->lane_acts[a];
  place_acts(l, s, memory, out);
  prepare(l, s, out, (float *)(void *)(l->mem + l->p->lane_normed), 0, l->cols);
}

static void prepare_shared(const struct lane *l, const struct step *s, struct prepared *out) {
  place_acts(l, s, l->p->acts, out);
  int64_t from, to;
  ane_split(l->cols, l->thread, l->threads, &from, &to);
  prepare(l, s, out, l->p->normed, from, to);
  lane_barrier(l);
}

/* y[t][r] for groups [g0, g1) of matrix m, with bias, into dst[t * ld + (r - first row)]. */
static void multiply(const struct lane *l, const struct step *s, const struct prepared *in, int m, int64_t g0, int64_t g1, float *dst, int64_t ld) {
  const struct matrix *w = s->project.w[m];
  int64_t r0 = g0 * ANE_GROUP, rows = ANE_MIN(g1 * ANE_GROUP, w->packed.rows) - r0;
  /* The kernel writes out[t * ld + r] for absolute rows r; dst is where row r0 shall be. */
  l->k->matmul[w->packed.form][w->act](&w->packed, &in->a[w->act], g0, g1, (float *)((uintptr_t)dst - (uintptr_t)r0 * sizeof(float)), ld, l->mem + l->p->lane_kernel);
  if (s->project.bias[m])
    for (int64_t t = 0; t < l->cols; t++) l->k->add(dst + t * ld, s->project.bias[m] + r0, dst + t * ld, rows);
}

/* One run of groups of matrix m, finished. */
static void finish_groups(const struct lane *l, const struct step *s, const struct prepared *in, int m, int64_t g0, int64_t g1) {
  int64_t ld = s->out[m]->channels, r0 = g0 * ANE_GROUP, rows = ANE_MIN(g1 * ANE_GROUP, ld) - r0;
  float *out = lane_data(l, s->out[m]) + r0, *temp = (float *)(void *)(l->mem + l->p->lane_temp);
  if (s->project.act) {
    float *up = temp + l->cols * rows;
    multiply(l, s, in, 0, g0, g1, temp, rows);
    multiply(l, s, in, 1, g0, g1, up, rows);
    for (int64_t t = 0; t < l->cols; t++) s->project.act(temp + t * rows, up + t * rows, out + t * ld, rows);
  } else if (s->in[1]) {
    const float *residual = lane_data(l, s->in[1]) + r0;
    multiply(l, s, in, 0, g0, g1, temp, rows);
    for (int64_t t = 0; t < l->cols; t++) l->k->add(residual + t * ld, temp + t * rows, out + t * ld, rows);
  } else {
    multiply(l, s, in, m, g0, g1, out, ld);
  }
}

/* Row groups a thread takes at once. Few tokens: about 32 KB of weights, so that all end together; many: four, since what a product
 * does once a call is then shared, or two where the threads would have less alike to do. Always no more rows than an epilogue's
 * temporary holds. */
static int64_t groups_a_turn(const struct lane *l, const struct matrix *w) {
  int64_t most = l->p->temp_rows * (l->p->o.chunk / l->cols) / ANE_GROUP;
  if (l->cols > 8) {
    size_t groups = (size_t)w->packed.groups, threads = (size_t)l->threads;
    bool alike = ane_div_up(groups, 4 * threads) * 2 <= ane_div_up(groups, 2 * threads);
    return ANE_MIN((int64_t)(alike ? 4 : 2), most);
  }
  size_t bytes = ANE_MAX(w->packed.group_bytes, (size_t)1);
  return ANE_MIN(ANE_MAX((int64_t)(TURN_BYTES / bytes), (int64_t)1), most);
}

static int jobs_of(const struct step *s) { return s->project.act ? 1 : s->project.count; }

static int64_t turns_of(const struct lane *l, const struct matrix *w) { return (int64_t)ane_div_up((size_t)w->packed.groups, (size_t)groups_a_turn(l, w)); }

/* The groups [*g0, *g1) of matrix *m that turn i is; turns count through all matrices. */
static void turn_at(const struct lane *l, const struct step *s, int64_t i, int *m, int64_t *g0, int64_t *g1) {
  for (*m = 0;; ++*m) {
    const struct matrix *w = s->project.w[*m];
    int64_t turn = groups_a_turn(l, w), turns = turns_of(l, w);
    if (i >= turns) {
      i -= turns;
      continue;
    }
    *g0 = i * turn;
    *g1 = ANE_MIN(*g0 + turn, w->packed.groups);
    return;
  }
}

static int64_t all_turns(const struct lane *l, const struct step *s) {
  int64_t n = 0;
  for (int m = 0; m < jobs_of(s); m++) n += turns_of(l, s->project.w[m]);
  return n;
}

static void run_project(struct lane *l, const struct step *s) {
  struct prepared in;
  if (l->cols == 1) project_prepare_alone(l, s, &in);
  else prepare_shared(l, s, &in);
  int64_t total = all_turns(l, s), g0, g1;
  int m, away = 0;
  for (int64_t i; (i = lane_claim(l, s, total, &away)) >= 0;) {
    turn_at(l, s, i, &m, &g0, &g1);
    finish_groups(l, s, &in, m, g0, g1);
  }
}

/* The first turns of the thread's share. */
static void project_ahead(const struct lane *l, const struct step *s, struct ahead *a) {
  int64_t from, to, g0, g1;
  int m, both = s->project.act ? 2 : 1;
  if (l->r->search && s == &l->p->steps[l->p->n_steps - 1]) {
    head_ahead(l, s, a);
    return;
  }
  ane_split(all_turns(l, s), l->thread, l->threads, &from, &to);
  if (from == to) return;
  turn_at(l, s, from, &m, &g0, &g1);
  for (int i = 0; i < both; i++) {
    const struct ane_packed *w = &s->project.w[m + i]->packed;
    if (w->form != ANE_FORM_ROWS) ahead_add(a, w->data + (size_t)g0 * w->group_bytes, ANE_MIN((size_t)(w->groups - g0) * w->group_bytes, (size_t)(AHEAD_BYTES / both)));
  }
}

static void project_cost(const struct lane *l, const struct step *s, struct ane_step_profile *p) {
  for (int m = 0; m < s->project.count; m++) profile_matrix(&s->project.w[m]->packed, l->cols, p);
}

ane_status plan_project(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  s->run = run_project;
  s->cost = project_cost;
  s->ahead = project_ahead;
  s->in[0] = planner_place(pl, n->inputs[0]);
  s->in[1] = planner_place(pl, n->inputs[1]);
  s->project.count = (int)ane_node_int(n, "count");
  s->project.norm = ane_node_int(n, "norm") != 0;
  s->project.eps = (float)ane_node_float(n, "eps");
  ane_status st = planner_vector(pl, n->inputs[2], (float)ane_node_float(n, "offset"), &s->project.norm_weight, err);
  for (int o = 0; o < n->n_outputs; o++) s->project.fine |= pl->fine[n->outputs[o]];
  const char *act = ane_node_string(n, "act");
  if (!st && *act) st = planner_act(pl->p->k, act, &s->project.act, err);
  for (int m = 0; !st && m < s->project.count; m++) {
    st = planner_matrix(pl, n->inputs[3 + 2 * m], s->project.norm ? NULL : s->in[0], &s->project.w[m], err);
    if (!st) st = planner_vector(pl, n->inputs[4 + 2 * m], 0, &s->project.bias[m], err);
    if (!st) s->project.acts |= 1u << s->project.w[m]->act;
  }
  return st;
}
