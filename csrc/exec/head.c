/* The best id of one token without reading the whole head: bounds from the upper halves of its codes say which groups of
 * rows can still hold the best product; only those are multiplied, by the same kernel as ever, so that id and logit are those of
 * the full product to the bit (NaN included: a bound that is no number rules nothing out).
 *
 * All threads bound; each multiplies the group with its highest bound; they meet; the best of these products then rules out
 * nearly all the others. Where the data leaves too many, token after token, the search is not worth it: it rests for some tokens. */
#include "exec/exec_internal.h"

#include <math.h>

enum { BOUNDS_A_TURN = 8, SCANS_A_TURN = 64, REST_FIRST = 16, REST_MOST = 512 };

/* What a thread found so far. */
struct found {
  _Alignas(64) float value, first; /* first: of the first group; the others read it once all have met */
  int32_t id;
  int64_t group, finished; /* the group with the highest bound; groups multiplied */
};

/* A head that is one Q8_0 matrix and gives the result itself. */
static const struct matrix *head_matrix(const struct ane_program *p) {
  const struct step *s = &p->steps[p->n_steps - 1];
  if (p->n_steps - p->n_body < 1 || s->op != ane_op_info(ANE_OP_PROJECT) || s->project.count != 1 || !s->out[0] || !s->out[0]->result) return NULL;
  const struct matrix *m = s->project.w[0];
  if (s->project.act || s->project.bias[0] || s->in[1] || m->act != ANE_ACT_I8 || m->packed.form != ANE_FORM_Q8_0) return NULL;
  return m;
}

void head_plan(struct ane_program *p) {
  const struct matrix *m = p->o.full_head || !p->k->upper_bound ? NULL : head_matrix(p);
  if (!m) return;
  struct step *s = &p->steps[p->n_steps - 1];
  int64_t nb = m->packed.cols / ANE_BLOCK, in_floats = (int64_t)(sizeof(struct ane_upper_x) / sizeof(float)) * nb;
  size_t bytes;
  if (!ane_upper_group_bytes(m->packed.cols, &p->head.upper.group_bytes) || !ane_mul_size((size_t)m->packed.groups, p->head.upper.group_bytes, &bytes)) return;
  s->temp_floats = ANE_MAX(s->temp_floats, in_floats + ANE_GROUP);
  p->head.upper.cols = m->packed.cols;
  p->head.matrix = &m->packed;
  p->head.bytes = bytes;
  p->head.share = 0.6f;
}

ane_status head_reserve(struct ane_program *p, struct ane_error *err) {
  struct head *h = &p->head;
  if (!h->matrix) return ANE_OK;
  h->upper.data = ane_pages_alloc(h->bytes, false);
  h->bounds = ane_calloc((size_t)h->matrix->groups * ANE_GROUP, sizeof *h->bounds);
  h->found = ane_arena_array(&p->arena, (size_t)p->o.threads + 1, sizeof *h->found);
  if (!h->upper.data || !h->bounds || !h->found) return ane_fail(err, ANE_NOMEM, "no memory to bound the head");
  h->found = (struct found *)ane_align_up((uintptr_t)h->found, _Alignof(struct found));
  return ANE_OK;
}

void head_free(struct ane_program *p) {
  if (p->head.upper.data) ane_pages_free(p->head.upper.data, p->head.bytes);
  ane_free(p->head.bounds);
}

struct ane_head_stats ane_program_head(const struct ane_program *p) {
  const struct ane_packed *w = p->head.matrix;
  return (struct ane_head_stats){p->head.searched, p->head.read, w ? (uint64_t)w->groups * w->group_bytes : 0};
}

bool head_searched(struct ane_program *p, const struct run *r) {
  if (!p->head.matrix || r->results || r->tap || r->n_wanted != 1) return false;
  if (p->head.rest == 0) return true;
  p->head.rest--;
  return false;
}

/* Products of group g; a better one is kept. Lowest id where equal. */
static void finish_group(const struct lane *l, const struct ane_acts *x, int64_t g, struct found *f) {
  const struct ane_packed *w = l->p->head.matrix;
  float y[ANE_GROUP];
  l->k->matmul[w->form][ANE_ACT_I8](w, x, g, g + 1, (float *)((uintptr_t)y - (uintptr_t)(g * ANE_GROUP) * sizeof *y), w->rows, l->mem + l->p->lane_kernel);
  int n = (int)ANE_MIN(w->rows - g * ANE_GROUP, (int64_t)ANE_GROUP);
  for (int i = 0; i < n; i++) {
    int32_t id = (int32_t)(g * ANE_GROUP) + i;
    if (y[i] > f->value || (y[i] == f->value && (f->id < 0 || id < f->id))) f->value = y[i], f->id = id;
  }
  f->finished++;
}

static int64_t bound_turns(const struct head *h) { return (int64_t)ane_div_up((size_t)h->matrix->groups, BOUNDS_A_TURN); }

/* Bounds of a share of the groups. The upper halves are packed when they are first needed. */
static void bound_groups(struct lane *l, const struct step *s, const struct ane_acts *x, const struct ane_upper_x *blocks, struct found *f) {
  struct head *h = &l->p->head;
  const struct ane_packed *w = h->matrix;
  float highest = -INFINITY;
  int away = 0;
  for (int64_t i; (i = lane_claim(l, s, bound_turns(h), &away)) >= 0;) {
    int64_t g0 = i * BOUNDS_A_TURN, g1 = ANE_MIN(g0 + BOUNDS_A_TURN, w->groups);
    for (int64_t g = g0; !h->packed && g < g1; g++) ane_upper_pack(w, g, h->upper.data + (size_t)g * h->upper.group_bytes);
    l->k->upper_bound(&h->upper, x, blocks, g0, g1, h->bounds);
    float best;
    int64_t at = l->k->argmax(h->bounds + g0 * ANE_GROUP, (g1 - g0) * ANE_GROUP, &best);
    if (best > highest) highest = best, f->group = g0 + at / ANE_GROUP;
  }
}

void head_ahead(const struct lane *l, const struct step *s, struct ahead *a) {
  const struct head *h = &l->p->head;
  int64_t from, to;
  (void)s;
  ane_split(bound_turns(h), l->thread, l->threads, &from, &to);
  size_t at = (size_t)(from * BOUNDS_A_TURN) * h->upper.group_bytes;
  if (from < to && h->packed) ahead_add(a, h->upper.data + at, ANE_MIN((size_t)AHEAD_BYTES, h->bytes - at));
}

static bool can_win(const float *bounds, float best) {
  int below = 0; /* a sum, since that is compiled to vectors */
  for (int i = 0; i < ANE_GROUP; i++) below += bounds[i] < best;
  return below < ANE_GROUP;
}

/* Products of those groups of a share that may hold the best. */
static void scan_groups(struct lane *l, const struct step *s, const struct ane_acts *x, struct found *f, float best) {
  const struct head *h = &l->p->head;
  for (int64_t g0; (g0 = lane_next(l, s, 1) * SCANS_A_TURN) < h->matrix->groups;)
    for (int64_t g = g0; g < ANE_MIN(g0 + SCANS_A_TURN, h->matrix->groups); g++)
      if (can_win(h->bounds + g * ANE_GROUP, ANE_MAX(best, f->value))) finish_group(l, x, g, f);
}

/* One thread: the best of all, and whether the next token is searched as well. */
static void conclude(const struct lane *l) {
  struct head *h = &l->p->head;
  struct found best = {.value = -INFINITY, .id = -1};
  int64_t finished = 0;
  for (int i = 0; i < l->threads; i++) {
    const struct found *f = &h->found[i];
    if (f->id >= 0 && (f->value > best.value || (f->value == best.value && (best.id < 0 || f->id < best.id)))) best = *f;
    finished += f->finished;
  }
  l->r->best[0] = ANE_MAX(best.id, 0);
  l->r->best_logit[0] = best.value;
  uint64_t rest = (uint64_t)finished * h->matrix->group_bytes, full = (uint64_t)h->matrix->groups * h->matrix->group_bytes;
  float share = (float)(h->bytes + rest) / (float)full;
  h->share += (share - h->share) * 0.25f;
  if (h->share > 0.9f) {
    h->rest = h->rests = h->rests ? ANE_MIN(2 * h->rests, REST_MOST) : REST_FIRST;
    h->share = 0.85f; /* the next search alone decides */
  } else if (share < 0.9f) {
    h->rests = 0;
  }
  h->packed = true;
  h->read += h->bytes + rest;
  h->searched++;
  if (!l->p->profile) return;
  struct ane_step_profile *row = &l->p->profile[l->p->n_steps - 1];
  row->bytes += (double)(h->bytes + rest);
  row->ops += 2.0 * (double)h->matrix->rows * (double)h->matrix->cols;
}

void head_search(struct lane *l) {
  struct head *h = &l->p->head;
  const struct step *s = &l->p->steps[l->p->n_steps - 1];
  struct found *f = &h->found[l->thread];
  struct prepared in;
  *f = (struct found){.value = -INFINITY, .id = -1, .group = -1};
  project_prepare_alone(l, s, &in);
  const struct ane_acts *x = &in.a[ANE_ACT_I8];
  struct ane_upper_x *blocks = (struct ane_upper_x *)(void *)(l->mem + l->p->lane_temp);
  ane_upper_prepare(x, blocks);
  bound_groups(l, s, x, blocks, f);
  if (f->group >= 0) finish_group(l, x, f->group, f);
  f->first = f->value;
  lane_barrier(l);
  float best = -INFINITY;
  for (int i = 0; i < l->threads; i++) best = ANE_MAX(best, h->found[i].first);
  scan_groups(l, s, x, f, best);
  lane_barrier(l);
  if (l->thread == 0) conclude(l);
}
