/* The best id of one token without reading the whole head, which is held in two halves (Q8_0_SPLIT): bounds from the upper halves
 * of its codes say which rows can still hold the best product; of those the lower halves are read, and what can win then is
 * multiplied by the same kernel as ever, so that id and logit are those of the full product to the bit (NaN included: a bound
 * that is no number rules nothing out).
 *
 * All threads bound; each multiplies the group with its highest bound; they meet; the best of these products then rules out
 * nearly all the others. Where the data leaves too many, token after token, the search is not worth it: it rests for some tokens.
 */
#include "exec/exec_internal.h"

#include <math.h>

/* A head of fewer bytes is not worth the search: 30 MB lose 4 to 9 % of a token's time, 38 and 53 MB gain 3 to 7, 69 MB 10. */
enum { PRUNED_FROM = 48 * 1000 * 1000 };
enum { BOUNDS_A_TURN = 8, SCANS_A_TURN = 64, REST_FIRST = 16, REST_MOST = 512 };

/* What a thread found so far. */
struct found {
  _Alignas(64) float value, first; /* first: of the first group; the others read it once all have met */
  int32_t id;
  int64_t group, finished, rows; /* the group with the highest bound; groups multiplied; rows whose lower halves were read */
};

/* A head that is one Q8_0 matrix and gives the result itself. */
static const struct matrix *head_matrix(const struct ane_program *p) {
  const struct step *s = &p->steps[p->n_steps - 1];
  if (p->n_steps - p->n_body < 1 || s->op != ane_op_info(ANE_OP_LINEAR) || s->linear.count != 1 || !s->out[0] ||
      !s->out[0]->result)
    return NULL;
  const struct matrix *m = s->linear.w[0];
  if (s->linear.act || s->linear.bias[0] || s->in[1] || m->activation_type != ANE_ACTIVATION_I8 ||
      m->packed.layout != ANE_LAYOUT_Q8_0)
    return NULL;
  return m;
}

static bool worth_pruning(const struct ane_program *p, const struct ane_packed *w) {
  if (p->o.head != ANE_HEAD_AUTO) return p->o.head == ANE_HEAD_PRUNED;
  return (uint64_t)w->groups * w->group_bytes >= PRUNED_FROM;
}

/* Bytes of a row's lower half and its scales. */
static uint64_t row_bytes(const struct ane_packed *w) { return (uint64_t)w->cols / ANE_BLOCK * 18; }

void head_plan(struct ane_program *p) {
  const struct matrix *m = head_matrix(p);
  if (!m || !worth_pruning(p, &m->packed)) return;
  struct ane_packed *w = &p->matrices[m - p->matrices].packed;
  struct step *s = &p->steps[p->n_steps - 1];
  int64_t nb = w->cols / ANE_BLOCK, in_floats = (int64_t)(sizeof(struct ane_bound_block) / sizeof(float)) * nb;
  struct ane_packed halves = *w;
  halves.layout = ANE_LAYOUT_Q8_0_SPLIT;
  if (w->rows > INT32_MAX || !ane_layout_group_bytes(halves.layout, w->cols, &halves.group_bytes)) return;
  *w = halves;
  s->temp_floats = ANE_MAX(s->temp_floats, in_floats + ANE_GROUP);
  p->head.matrix = w;
  p->head.share = 0.6f;
}

ane_status head_reserve(struct ane_program *p, struct ane_error *err) {
  struct head *h = &p->head;
  if (!h->matrix) return ANE_OK;
  h->bounds = ane_calloc((size_t)h->matrix->groups * ANE_GROUP, 2 * sizeof *h->bounds);
  h->found = ane_arena_array(&p->arena, (size_t)p->o.threads + 1, sizeof *h->found);
  if (!h->bounds || !h->found) return ane_fail(err, ANE_NOMEM, "no memory to bound the head");
  h->bases = h->bounds + h->matrix->groups * ANE_GROUP;
  h->found = (struct found *)ane_align_up((uintptr_t)h->found, _Alignof(struct found));
  return ANE_OK;
}

void head_free(struct ane_program *p) { ane_free(p->head.bounds); }

/* Of the whole product: upper halves and scales, and lower halves. */
static uint64_t whole_bytes(const struct ane_packed *w) { return (uint64_t)w->groups * (w->group_bytes + 8 * (uint64_t)w->cols); }

struct ane_head_stats ane_program_head(const struct ane_program *p) {
  const struct ane_packed *w = p->head.matrix;
  return (struct ane_head_stats){p->head.pruned, p->head.read, w ? whole_bytes(w) : 0};
}

bool head_prunes(struct ane_program *p, const struct run *r) {
  if (!p->head.matrix || r->results || r->tap || r->n_out_rows != 1) return false;
  if (p->head.rest == 0) return true;
  p->head.rest--;
  return false;
}

/* Products of group g; a better one is kept. Lowest id where equal. */
static void finish_group(const struct thread_ctx *tc, const struct ane_activations *x, int64_t g, struct found *f) {
  const struct ane_packed *w = tc->p->head.matrix;
  float y[ANE_GROUP];
  tc->k->matmul[w->layout][ANE_ACTIVATION_I8](w, x, g, g + 1, (float *)((uintptr_t)y - (uintptr_t)(g * ANE_GROUP) * sizeof *y),
                                              w->rows, tc->mem + tc->p->thread_kernel);
  int n = (int)ANE_MIN(w->rows - g * ANE_GROUP, (int64_t)ANE_GROUP);
  for (int i = 0; i < n; i++) {
    int32_t id = (int32_t)(g * ANE_GROUP) + i;
    if (y[i] > f->value || (y[i] == f->value && (f->id < 0 || id < f->id))) f->value = y[i], f->id = id;
  }
  f->finished++;
}

static int64_t bound_turns(const struct head *h) { return (int64_t)ane_div_up((size_t)h->matrix->groups, BOUNDS_A_TURN); }

/* Bounds of a share of the groups. */
static void bound_groups(struct thread_ctx *tc, const struct step *s, const struct ane_activations *x,
                         const struct ane_bound_block *blocks, struct found *f) {
  struct head *h = &tc->p->head;
  const struct ane_packed *w = h->matrix;
  float highest = -INFINITY;
  int away = 0;
  for (int64_t i; (i = thread_claim(tc, s, bound_turns(h), &away)) >= 0;) {
    int64_t g0 = i * BOUNDS_A_TURN, g1 = ANE_MIN(g0 + BOUNDS_A_TURN, w->groups);
    tc->k->upper_bound(w, x, blocks, g0, g1, h->bounds, h->bases);
    float best;
    int64_t at = tc->k->argmax(h->bounds + g0 * ANE_GROUP, (g1 - g0) * ANE_GROUP, &best);
    if (best > highest) highest = best, f->group = g0 + at / ANE_GROUP;
  }
}

void head_prefetch(const struct thread_ctx *tc, const struct step *s, struct prefetch *a) {
  const struct ane_packed *w = tc->p->head.matrix;
  int64_t from, to;
  (void)s;
  ane_split(bound_turns(&tc->p->head), tc->thread, tc->threads, &from, &to);
  if (from < to) prefetch_add(a, w->data + (size_t)(from * BOUNDS_A_TURN) * w->group_bytes, PREFETCH_BYTES);
}

static bool can_win(const float *bounds, float best) {
  int below = 0; /* a sum, since that is compiled to vectors */
  for (int i = 0; i < ANE_GROUP; i++) below += bounds[i] < best;
  return below < ANE_GROUP;
}

/* Those rows of groups [g0, g1) whose bounds do not rule them out. */
static int rows_left(const struct head *h, int64_t g0, int64_t g1, float best, int32_t *rows) {
  int n = 0;
  for (int64_t g = g0; g < g1; g++) {
    const float *bounds = h->bounds + g * ANE_GROUP;
    if (!can_win(bounds, best)) continue;
    int here = (int)ANE_MIN(h->matrix->rows - g * ANE_GROUP, (int64_t)ANE_GROUP);
    for (int i = 0; i < here; i++) {
      rows[n] = (int32_t)(g * ANE_GROUP) + i;
      n += !(bounds[i] < best);
    }
  }
  return n;
}

/* Products of those groups of a share that may hold the best. */
static void scan_groups(struct thread_ctx *tc, const struct step *s, const struct ane_activations *x,
                        const struct ane_bound_block *blocks, struct found *f, float best) {
  const struct head *h = &tc->p->head;
  int32_t rows[SCANS_A_TURN * ANE_GROUP + 1];
  float bounds[SCANS_A_TURN * ANE_GROUP];
  for (int64_t g0; (g0 = thread_next(tc, s, 1) * SCANS_A_TURN) < h->matrix->groups;) {
    int n = rows_left(h, g0, ANE_MIN(g0 + SCANS_A_TURN, h->matrix->groups), ANE_MAX(best, f->value), rows);
    if (n == 0) continue;
    tc->k->row_bound(h->matrix, x, blocks, rows, n, h->bases, bounds);
    f->rows += n;
    for (int i = 0, done = -1; i < n; i++) {
      int g = rows[i] / ANE_GROUP;
      if (g == done || bounds[i] < ANE_MAX(best, f->value)) continue;
      finish_group(tc, x, g, f);
      done = g;
    }
  }
}

/* One thread: the best of all, and whether the next token is searched as well. */
static void conclude(const struct thread_ctx *tc) {
  struct head *h = &tc->p->head;
  struct found best = {.value = -INFINITY, .id = -1};
  uint64_t read = (uint64_t)h->matrix->groups * h->matrix->group_bytes;
  for (int i = 0; i < tc->threads; i++) {
    const struct found *f = &h->found[i];
    if (f->id >= 0 && (f->value > best.value || (f->value == best.value && (best.id < 0 || f->id < best.id)))) best = *f;
    read +=
        (uint64_t)f->finished * (whole_bytes(h->matrix) / (uint64_t)h->matrix->groups) + (uint64_t)f->rows * row_bytes(h->matrix);
  }
  tc->r->best[0] = ANE_MAX(best.id, 0);
  tc->r->best_logit[0] = best.value;
  /* A half as much again for what does not lie one behind the other. */
  float share =
      (1.5f * (float)read - 0.5f * (float)((uint64_t)h->matrix->groups * h->matrix->group_bytes)) / (float)whole_bytes(h->matrix);
  h->share += (share - h->share) * 0.25f;
  if (h->share > 0.9f) {
    h->rest = h->rests = h->rests ? ANE_MIN(2 * h->rests, REST_MOST) : REST_FIRST;
    h->share = 0.85f; /* the next search alone decides */
  } else if (share < 0.9f) {
    h->rests = 0;
  }
  h->read += read;
  h->pruned++;
  if (!tc->p->profile) return;
  struct ane_step_profile *row = &tc->p->profile[tc->p->n_steps - 1];
  row->bytes += (double)read;
  row->ops += 2.0 * (double)h->matrix->rows * (double)h->matrix->cols;
}

void head_run_pruned(struct thread_ctx *tc) {
  struct head *h = &tc->p->head;
  const struct step *s = &tc->p->steps[tc->p->n_steps - 1];
  struct found *f = &h->found[tc->thread];
  struct prepared in;
  *f = (struct found){.value = -INFINITY, .id = -1, .group = -1};
  linear_prepare_alone(tc, s, &in);
  const struct ane_activations *x = &in.a[ANE_ACTIVATION_I8];
  struct ane_bound_block *blocks = (struct ane_bound_block *)(void *)(tc->mem + tc->p->thread_temp);
  ane_bound_prepare(x, blocks);
  bound_groups(tc, s, x, blocks, f);
  if (f->group >= 0) finish_group(tc, x, f->group, f);
  f->first = f->value;
  thread_barrier(tc);
  float best = -INFINITY;
  for (int i = 0; i < tc->threads; i++) best = ANE_MAX(best, h->found[i].first);
  scan_groups(tc, s, x, blocks, f, best);
  thread_barrier(tc);
  if (tc->thread == 0) conclude(tc);
}
