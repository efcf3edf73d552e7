/* Finds the best ids of a few output rows without reading the whole head. The head is in the split layout (Q8_0_SPLIT). The high
 * nibbles of its codes give an upper bound for each row's product. Rows whose bound is too low are pruned. For the others the low
 * nibbles are read, which gives a tighter bound. The rows that remain are multiplied by the usual kernel. So id and logit equal
 * those of the whole product to the bit, also with NaN: a bound that is NaN prunes nothing.
 *
 * Positive factors and soft caps may follow the product, as in Granite and Gemma. Products and bounds take the same steps. A
 * factor keeps the order of floats, and a cap keeps it except for the error of tanh, which is added to the bounds (CAP_SLACK).
 *
 * A row with a mask (ane_run_item) is searched among the ids of the mask. The bounds of other ids are -infinity, and groups
 * without an id of any mask are not read.
 *
 * All threads compute bounds; the high nibbles are read from memory once for all output rows. For each output row, each thread
 * multiplies the group with its highest bound. After a barrier the best of these products prunes nearly all other rows. If too
 * many rows remain in several runs, pruning pauses for some runs. */
#include "base/alloc.h"
#include "exec/thread_ctx.h"

#include <math.h>

/* Smaller heads are not pruned. Measured change of a token's time: 30 MB loses 4 to 9 %, 38 and 53 MB gain 3 to 7 %, 69 MB gains
 * 10 %. */
enum { PRUNED_FROM_BYTES = 48 * 1000 * 1000 };
enum { BOUND_GROUPS_PER_TASK = 8, SCAN_GROUPS_PER_TASK = 64, FIRST_PAUSE = 16, LONGEST_PAUSE = 512 };

/* The tolerance of a soft cap, as a share of the cap. v_tanh is wrong by less than 3 ulp (mathfn.h), and the quotient and the
 * product by half an ulp each. A bound that is larger than a product before the cap may be smaller after it, but by less than
 * 10 * 2^-24 of the cap. 2^-19 is three times that. */
#define CAP_SLACK 0x1p-19f

/* An output row of the run: its activations, what the bounds need of their blocks, and its part of `bounds` and `bases`. */
struct target {
  struct ane_activations x;
  const struct ane_bound_block *blocks;
  float *bounds, *bases;
  const uint32_t *mask; /* NULL: all ids */
};

/* The best row of the head that a thread has found for an output row. */
struct candidate {
  _Alignas(64) float value, first; /* first: best of the first group; other threads read it after the barrier */
  int32_t id;
  int64_t group, finished, rows; /* the group with the highest bound; groups multiplied; rows whose low nibbles were read */
  int64_t bounded;               /* of output row 0: groups whose bounds were computed, for all output rows at once */
};

static bool is_scale(const struct step *s) { return s->op == ane_op_info(ANE_OP_SCALE); }

/* Does the step keep the order of logits? Then it can follow a pruned head. */
static bool keeps_order(const struct step *s) {
  return (is_scale(s) || s->op == ane_op_info(ANE_OP_SOFTCAP)) && s->math.by > 0 && isfinite(s->math.by);
}

/* The step of the head, if it is the product with a single Q8_0 matrix and the result follows from it by steps that keep the
 * order; otherwise -1. */
static int32_t head_step(const struct ane_program *p) {
  int32_t i = p->n_steps - 1;
  if (i < p->n_body || !p->steps[i].out[0] || !p->steps[i].out[0]->result) return -1;
  while (i > p->n_body && keeps_order(&p->steps[i]) && p->steps[i].in[0] == p->steps[i - 1].out[0]) i--;
  const struct step *s = &p->steps[i];
  if (s->op != ane_op_info(ANE_OP_LINEAR) || s->linear.count != 1) return -1;
  const struct matrix *m = s->linear.w[0];
  if (m->all_rows || s->linear.act || s->linear.bias[0] || s->in[1] || m->activation_type != ANE_ACTIVATION_I8 ||
      m->packed.layout != ANE_LAYOUT_Q8_0)
    return -1;
  return i;
}

static bool worth_pruning(const struct ane_program *p, const struct ane_packed *w) {
  if (p->o.head != ANE_HEAD_AUTO) return p->o.head == ANE_HEAD_PRUNED;
  return (uint64_t)w->groups * w->group_bytes >= PRUNED_FROM_BYTES;
}

/* Bytes of a row's low nibbles and scales. */
static uint64_t row_bytes(const struct ane_packed *w) { return (uint64_t)w->cols / ANE_BLOCK * 18; }

void pruned_head_plan(struct ane_program *p) {
  const int32_t at = head_step(p);
  if (at < 0 || !worth_pruning(p, &p->steps[at].linear.w[0]->packed)) return;
  struct step *s = &p->steps[at];
  struct ane_packed *w = &p->matrices[s->linear.w[0] - p->matrices].packed;
  int64_t nb = w->cols / ANE_BLOCK, in_floats = (int64_t)(sizeof(struct ane_bound_block) / sizeof(float)) * nb;
  struct ane_packed split = *w;
  split.layout = ANE_LAYOUT_Q8_0_SPLIT;
  if (w->rows > INT32_MAX || !ane_layout_group_bytes(split.layout, w->cols, &split.group_bytes)) return;
  *w = split;
  s->temp_floats = ANE_MAX(s->temp_floats, PRUNED_ROWS * in_floats);
  p->pruned_head.matrix = w;
  p->pruned_head.step = at;
  p->pruned_head.share = 0.6f;
}

ane_status pruned_head_reserve(struct ane_program *p, struct ane_error *err) {
  struct pruned_head *h = &p->pruned_head;
  if (!h->matrix) return ANE_OK;
  const size_t floats = (size_t)h->matrix->groups * ANE_GROUP * PRUNED_ROWS;
  h->bounds = ane_calloc(floats, 2 * sizeof *h->bounds);
  h->candidates = ane_arena_array(&p->arena, (size_t)p->o.threads * PRUNED_ROWS + 1, sizeof *h->candidates);
  if (!h->bounds || !h->candidates) return ane_fail(err, ANE_NOMEM, "no memory for the bounds of the head");
  h->bases = h->bounds + floats;
  h->candidates = (struct candidate *)ane_align_up((uintptr_t)h->candidates, _Alignof(struct candidate));
  return ANE_OK;
}

void pruned_head_free(struct ane_program *p) { ane_free(p->pruned_head.bounds); }

/* The bytes that the whole product reads: high nibbles, low nibbles and scales. */
static uint64_t whole_bytes(const struct ane_packed *w) { return (uint64_t)w->groups * (w->group_bytes + 8 * (uint64_t)w->cols); }

struct ane_head_stats ane_program_head(const struct ane_program *p) {
  const struct ane_packed *w = p->pruned_head.matrix;
  return (struct ane_head_stats){p->pruned_head.pruned, p->pruned_head.read, w ? whole_bytes(w) : 0};
}

bool pruned_head_applies(struct ane_program *p, const struct run *r) {
  if (!p->pruned_head.matrix || r->results || r->tap || r->n_out_rows < 1 || r->n_out_rows > PRUNED_ROWS) return false;
  if (p->pruned_head.pause == 0) return true;
  p->pruned_head.pause--;
  return false;
}

/* The ids of group g that the output row's mask holds: bit i for the group's row i. */
static unsigned allowed(const struct target *x, int64_t g) {
  return x->mask ? x->mask[g / 2] >> (g % 2 * ANE_GROUP) & 0xffffu : 0xffffu;
}

/* Applies the steps after the head to n products, or to n bounds of products. */
static void apply_steps_after(const struct thread_ctx *tc, float *y, int64_t n, bool bounds) {
  for (int32_t i = tc->p->pruned_head.step + 1; i < tc->p->n_steps; i++) {
    const struct step *s = &tc->p->steps[i];
    if (is_scale(s)) {
      tc->k->scale(y, s->math.by, y, n);
      continue;
    }
    tc->k->softcap(y, s->math.by, y, n);
    for (int64_t j = 0; bounds && j < n; j++) y[j] += s->math.by * CAP_SLACK;
  }
}

/* Multiplies group g and keeps its best row if that beats the current best; of equal products, the lowest id. */
static void finish_group(const struct thread_ctx *tc, const struct target *x, int64_t g, struct candidate *f) {
  const struct ane_packed *w = tc->p->pruned_head.matrix;
  float y[ANE_GROUP];
  const unsigned bits = allowed(x, g);
  tc->k->matmul[w->layout][ANE_ACTIVATION_I8](w, &x->x, g, g + 1,
                                              (float *)((uintptr_t)y - (uintptr_t)(g * ANE_GROUP) * sizeof *y), w->rows,
                                              tc->mem + tc->p->thread_kernel);
  int n = (int)ANE_MIN(w->rows - g * ANE_GROUP, (int64_t)ANE_GROUP);
  apply_steps_after(tc, y, n, false);
  for (int i = 0; i < n; i++) {
    int32_t id = (int32_t)(g * ANE_GROUP) + i;
    if (!(bits >> i & 1)) continue;
    /* analyser: the kernel has written the rows of group g, the first of which is y[0]. */
    if (y[i] > f->value || (y[i] == f->value && (f->id < 0 || id < f->id))) f->value = y[i], f->id = id;
  }
  f->finished++;
}

static int64_t bound_tasks(const struct pruned_head *h) {
  return (int64_t)ane_div_up((size_t)h->matrix->groups, BOUND_GROUPS_PER_TASK);
}

/* Computes the bounds of groups [g0, g1) for all n output rows. Groups without an id of any mask are left out, and the bounds of
 * ids that are not in the row's mask become -infinity. Returns the number of groups that were read. */
static int64_t bound_task(const struct thread_ctx *tc, const struct ane_activations *x, const struct target *targets, int n,
                          int64_t g0, int64_t g1) {
  struct pruned_head *h = &tc->p->pruned_head;
  int64_t read = 0;
  for (int64_t from = g0, to; from < g1; from = to + 1) {
    for (to = from; to < g1; to++) {
      unsigned any = 0;
      for (int i = 0; i < n; i++) any |= allowed(&targets[i], to);
      if (!any) break;
    }
    /* analyser: n is at least 1, so the first target is set. */
    if (to == from) continue;
    tc->k->upper_bound(h->matrix, x, targets[0].blocks, from, to, h->bounds, h->bases, h->matrix->groups * ANE_GROUP);
    for (int i = 0; i < n; i++) apply_steps_after(tc, targets[i].bounds + from * ANE_GROUP, (to - from) * ANE_GROUP, true);
    read += to - from;
  }
  for (int i = 0; i < n; i++)
    for (int64_t g = g0; targets[i].mask && g < g1; g++) {
      float *bounds = targets[i].bounds + g * ANE_GROUP;
      for (unsigned banned = ~allowed(&targets[i], g) & 0xffffu; banned; banned &= banned - 1)
        bounds[__builtin_ctz(banned)] = -INFINITY;
    }
  return read;
}

/* Computes the bounds of the groups that the thread claims, for all output rows. */
static void bound_groups(struct thread_ctx *tc, const struct step *s, const struct ane_activations *x,
                         const struct target *targets, struct candidate *f) {
  const int n = (int)x->t;
  struct pruned_head *h = &tc->p->pruned_head;
  const struct ane_packed *w = h->matrix;
  float highest[PRUNED_ROWS], best;
  for (int i = 0; i < n; i++) highest[i] = -INFINITY;
  int stolen = 0;
  for (int64_t task; (task = thread_claim(tc, s, 0, bound_tasks(h), &stolen)) >= 0;) {
    const int64_t g0 = task * BOUND_GROUPS_PER_TASK, g1 = ANE_MIN(g0 + BOUND_GROUPS_PER_TASK, w->groups);
    f->bounded += bound_task(tc, x, targets, n, g0, g1);
    for (int i = 0; i < n; i++) {
      /* analyser: the caller has as many targets as x has rows. */
      const int64_t at = tc->k->argmax(targets[i].bounds + g0 * ANE_GROUP, (g1 - g0) * ANE_GROUP, &best);
      if (best > highest[i]) highest[i] = best, f[i].group = g0 + at / ANE_GROUP;
    }
  }
}

void pruned_head_prefetch(const struct thread_ctx *tc, const struct step *s, struct prefetch *a) {
  const struct ane_packed *w = tc->p->pruned_head.matrix;
  int64_t from, to;
  (void)s;
  ane_split(bound_tasks(&tc->p->pruned_head), tc->thread, tc->threads, &from, &to);
  if (from < to) prefetch_add(a, w->data + (size_t)(from * BOUND_GROUPS_PER_TASK) * w->group_bytes, PREFETCH_BYTES);
}

/* Does some row of the group have a bound that is not below the best product? */
static bool can_win(const float *bounds, float best) {
  int below = 0; /* a sum: compilers vectorise it */
  for (int i = 0; i < ANE_GROUP; i++) below += bounds[i] < best;
  return below < ANE_GROUP;
}

/* Lists the rows of groups [g0, g1) that their bounds do not prune. Returns their number. */
static int rows_left(const struct ane_packed *w, const struct target *x, int64_t g0, int64_t g1, float best, int32_t *rows) {
  int n = 0;
  for (int64_t g = g0; g < g1; g++) {
    const float *bounds = x->bounds + g * ANE_GROUP;
    const unsigned bits = allowed(x, g);
    if (!bits || !can_win(bounds, best)) continue;
    int here = (int)ANE_MIN(w->rows - g * ANE_GROUP, (int64_t)ANE_GROUP);
    for (int i = 0; i < here; i++) {
      rows[n] = (int32_t)(g * ANE_GROUP) + i;
      n += !(bounds[i] < best) && (bits >> i & 1);
    }
  }
  return n;
}

/* Multiplies the groups that may hold the best row of the head for output row x, among SCAN_GROUPS_PER_TASK groups from g0 on. */
static void scan_groups(const struct thread_ctx *tc, const struct target *x, int64_t g0, struct candidate *f, float best) {
  const struct ane_packed *w = tc->p->pruned_head.matrix;
  int32_t rows[SCAN_GROUPS_PER_TASK * ANE_GROUP + 1];
  float bounds[SCAN_GROUPS_PER_TASK * ANE_GROUP];
  int n = rows_left(w, x, g0, ANE_MIN(g0 + SCAN_GROUPS_PER_TASK, w->groups), ANE_MAX(best, f->value), rows);
  if (n == 0) return;
  tc->k->row_bound(w, &x->x, x->blocks, rows, n, x->bases, bounds);
  apply_steps_after(tc, bounds, n, true);
  f->rows += n;
  for (int i = 0, done = -1; i < n; i++) {
    int g = rows[i] / ANE_GROUP;
    if (g == done || bounds[i] < ANE_MAX(best, f->value)) continue;
    finish_group(tc, x, g, f);
    done = g;
  }
}

/* Scans all groups for each of n output rows. */
static void scan(struct thread_ctx *tc, const struct step *s, const struct target *targets, int n, struct candidate *f) {
  const struct pruned_head *h = &tc->p->pruned_head;
  const int64_t tasks = (int64_t)ane_div_up((size_t)h->matrix->groups, SCAN_GROUPS_PER_TASK);
  float best[PRUNED_ROWS];
  for (int i = 0; i < n; i++) {
    best[i] = -INFINITY;
    for (int t = 0; t < tc->threads; t++) best[i] = ANE_MAX(best[i], h->candidates[t * PRUNED_ROWS + i].first);
  }
  for (int64_t task; (task = thread_next(tc, s, 1)) < n * tasks;) {
    const int64_t i = task / tasks;
    scan_groups(tc, &targets[i], task % tasks * SCAN_GROUPS_PER_TASK, &f[i], best[i]);
  }
}

/* Chooses the best of all threads' candidates for output row i. Returns the bytes that were read for it, apart from those of the
 * first bounds. */
static uint64_t choose_row(const struct thread_ctx *tc, int i) {
  const struct pruned_head *h = &tc->p->pruned_head;
  struct candidate best = {.value = -INFINITY, .id = -1};
  uint64_t read = 0;
  for (int t = 0; t < tc->threads; t++) {
    const struct candidate *f = &h->candidates[t * PRUNED_ROWS + i];
    if (f->id >= 0 && (f->value > best.value || (f->value == best.value && (best.id < 0 || f->id < best.id)))) best = *f;
    read +=
        (uint64_t)f->finished * (whole_bytes(h->matrix) / (uint64_t)h->matrix->groups) + (uint64_t)f->rows * row_bytes(h->matrix);
  }
  tc->r->best[i] = ANE_MAX(best.id, 0);
  tc->r->best_logit[i] = best.value;
  return read;
}

/* Chooses the best ids of n output rows, and decides whether the next run's head is pruned as well. Called on one thread. */
static void choose_best(const struct thread_ctx *tc, int n) {
  struct pruned_head *h = &tc->p->pruned_head;
  uint64_t bounds = 0, rest = 0;
  for (int t = 0; t < tc->threads; t++) bounds += (uint64_t)h->candidates[t * PRUNED_ROWS].bounded * h->matrix->group_bytes;
  for (int i = 0; i < n; i++) rest += choose_row(tc, i);
  /* Reads that are not consecutive count 1.5 times. */
  float share = ((float)bounds + 1.5f * (float)rest) / (float)whole_bytes(h->matrix);
  h->share += (share - h->share) * 0.25f;
  if (h->share > 0.9f) {
    h->pause = h->last_pause = h->last_pause ? ANE_MIN(2 * h->last_pause, LONGEST_PAUSE) : FIRST_PAUSE;
    h->share = 0.85f; /* so that the first pruned run after the pause decides */
  } else if (share < 0.9f) {
    h->last_pause = 0;
  }
  h->read += bounds + rest;
  h->pruned++;
  if (!tc->p->profile) return;
  struct ane_step_profile *row = &tc->p->profile[h->step];
  row->bytes += (double)(bounds + rest);
  row->ops += 2.0 * (double)h->matrix->rows * (double)h->matrix->cols * n;
}

void pruned_head_run(struct thread_ctx *tc) {
  struct pruned_head *h = &tc->p->pruned_head;
  const struct step *s = &tc->p->steps[h->step];
  const int n = (int)tc->tokens;
  struct candidate *f = &h->candidates[tc->thread * PRUNED_ROWS];
  struct ane_bound_block *blocks = (struct ane_bound_block *)(void *)(tc->mem + tc->p->thread_temp);
  struct target targets[PRUNED_ROWS];
  struct prepared in;
  linear_prepare(tc, s, &in);
  for (int i = 0; i < n; i++, blocks += h->matrix->cols / ANE_BLOCK) {
    const int64_t at = i * h->matrix->groups * ANE_GROUP;
    targets[i] = (struct target){ane_activations_rows(&in.a[ANE_ACTIVATION_I8], i, 1), blocks, h->bounds + at, h->bases + at,
                                 tc->r->masks[i]};
    ane_bound_prepare(&targets[i].x, blocks);
    f[i] = (struct candidate){.value = -INFINITY, .id = -1, .group = -1};
  }
  bound_groups(tc, s, &in.a[ANE_ACTIVATION_I8], targets, f);
  for (int i = 0; i < n; i++) {
    if (f[i].group >= 0) finish_group(tc, &targets[i], f[i].group, &f[i]);
    f[i].first = f[i].value;
  }
  thread_barrier(tc);
  scan(tc, s, targets, n, f);
  thread_barrier(tc);
  if (tc->thread == 0) choose_best(tc, n);
}
