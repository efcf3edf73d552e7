/* conv_causal and delay: ops that see earlier tokens. Tokens of this run are in the input, older ones in the session's ring
 * (state.c). The ring is written only after all threads have read it.
 *
 * Depthwise: y = bias, then y += w[k] * x, k ascending; product and sum are rounded separately. Grouped: each group is an fp32
 * matrix [C_out / groups, K * C / groups] over the concatenated taps. */
#include "base/alloc.h"
#include "exec/planner.h"
#include "exec/session_internal.h"
#include "exec/thread_ctx.h"

#include <string.h>

/* Channels of position `pos` of an item whose first token in the run is `first`. */
static const float *channels_at(const struct thread_ctx *tc, const struct step *s, int32_t item, int64_t first, int64_t pos) {
  const struct ane_run_item *it = &tc->r->items[item];
  int64_t c = s->in[0]->channels, start = it->session->length;
  if (pos >= start) return thread_data(tc, s->in[0]) + (first + pos - start) * c;
  if (pos < 0) return s->conv.before;
  return ring_at(it->session, s->conv.ring, pos);
}

/* The item of a token. Tokens are visited in ascending order. */
struct walk {
  int32_t item;
  int64_t first;
};

/* Moves to token `tok` and returns its position. */
static int64_t walk_to(const struct run *r, struct walk *w, int64_t tok) {
  while (tok >= w->first + r->items[w->item].n) w->first += r->items[w->item++].n;
  return r->items[w->item].session->length + tok - w->first;
}

enum { CONV_BLOCK = 64 /* channels that are computed at a time, in registers */ };

/* y[0 .. n) = bias + taps of channels [from, from + n) for the token at position pos of an item. n <= CONV_BLOCK. */
static void depthwise_block(const struct thread_ctx *tc, const struct step *s, struct walk w, int64_t pos, int64_t from,
                            int64_t n, float *y) {
  const int64_t c = s->in[0]->channels, taps = s->conv.taps;
  float sum[CONV_BLOCK] = {0};
  if (s->conv.bias) memcpy(sum, s->conv.bias + from, (size_t)n * sizeof *sum);
  for (int64_t k = 0; k < taps; k++) {
    const float *x = channels_at(tc, s, w.item, w.first, pos - taps + 1 + k) + from, *wk = s->conv.weight + k * c + from;
    if (n == CONV_BLOCK) /* a constant, so that compilers vectorise it */
      for (int i = 0; i < CONV_BLOCK; i++) sum[i] += wk[i] * x[i];
    else
      for (int64_t i = 0; i < n; i++) sum[i] += wk[i] * x[i];
  }
  memcpy(y, sum, (size_t)n * sizeof *y);
}

static void run_depthwise(struct thread_ctx *tc, const struct step *s) {
  const int64_t c = s->in[0]->channels, blocks = (c + CONV_BLOCK - 1) / CONV_BLOCK;
  float *out = thread_data(tc, s->out[0]);
  struct walk w = {0};
  int64_t from, to;
  ane_split(tc->tokens * blocks, tc->thread, tc->threads, &from, &to);
  for (int64_t u = from; u < to; u++) {
    const int64_t tok = u / blocks, at = u % blocks * CONV_BLOCK, pos = walk_to(tc->r, &w, tok);
    depthwise_block(tc, s, w, pos, at, ANE_MIN(c - at, (int64_t)CONV_BLOCK), out + tok * c + at);
  }
}

/* Computes one group for tokens [from, to): concatenates the taps, then multiplies. */
static void group_block(struct thread_ctx *tc, const struct step *s, int64_t g, int64_t from, int64_t to) {
  int64_t in = s->in[0]->channels / s->conv.groups, width = in * s->conv.taps, cout = s->out[0]->channels,
          rows = cout / s->conv.groups;
  float *temp = (float *)(void *)(tc->mem + tc->p->thread_temp), *out = thread_data(tc, s->out[0]) + from * cout + g * rows;
  struct walk w = {0};
  for (int64_t tok = from; tok < to; tok++) {
    int64_t pos = walk_to(tc->r, &w, tok);
    for (int64_t k = 0; k < s->conv.taps; k++)
      memcpy(temp + (tok - from) * width + k * in, channels_at(tc, s, w.item, w.first, pos - s->conv.taps + 1 + k) + g * in,
             (size_t)in * sizeof *temp);
  }
  struct ane_activations a = {.kind = ANE_ACTIVATION_F32, .t = to - from, .cols = width, .f32 = temp, .ld = width};
  const struct ane_packed *m = &s->conv.matrix[g];
  tc->k->matmul[ANE_LAYOUT_F32][ANE_ACTIVATION_F32](m, &a, 0, m->groups, out, cout, tc->mem + tc->p->thread_kernel);
  for (int64_t t = 0; s->conv.bias && t < to - from; t++)
    tc->k->add(out + t * cout, s->conv.bias + g * rows, out + t * cout, rows);
}

static void run_grouped(struct thread_ctx *tc, const struct step *s) {
  int64_t width = s->in[0]->channels / s->conv.groups * s->conv.taps;
  int64_t block = ANE_MAX(ANE_MIN(2 * tc->p->temp_rows * tc->p->o.chunk / width, (int64_t)64), (int64_t)1),
          blocks = (tc->tokens + block - 1) / block;
  for (int64_t u; (u = thread_next(tc, s, 0)) < blocks * s->conv.groups;) {
    int64_t from = u / s->conv.groups * block;
    group_block(tc, s, u % s->conv.groups, from, ANE_MIN(from + block, tc->tokens));
  }
}

static void run_delay(struct thread_ctx *tc, const struct step *s) {
  float *out = thread_data(tc, s->out[0]);
  int64_t c = s->in[0]->channels, from, to;
  struct walk w = {0};
  ane_split(tc->tokens, tc->thread, tc->threads, &from, &to);
  for (int64_t tok = from; tok < to; tok++) {
    int64_t pos = walk_to(tc->r, &w, tok);
    memcpy(out + tok * c, channels_at(tc, s, w.item, w.first, pos - 1), (size_t)c * sizeof *out);
  }
}

/* Writes the last tokens of each item to its ring, and the last tokens of each page to its border rows. */
static void write_rings(const struct thread_ctx *tc, const struct step *s) {
  int64_t c = s->in[0]->channels, first = 0;
  for (int32_t i = 0; i < tc->r->n_items; first += tc->r->items[i++].n) {
    const struct ane_run_item *it = &tc->r->items[i];
    int64_t from, to, skip = ANE_MAX(it->n - tc->p->ring_length, (int64_t)0);
    ane_split(it->n, tc->thread, tc->threads, &from, &to);
    for (int64_t j = from; j < to; j++) {
      const float *x = thread_data(tc, s->in[0]) + (first + j) * c;
      float *border = border_at(it->session, s->conv.ring, it->session->length + j);
      if (j >= skip) memcpy(ring_at(it->session, s->conv.ring, it->session->length + j), x, (size_t)c * sizeof *x);
      if (border) memcpy(border, x, (size_t)c * sizeof *x);
    }
  }
}

static void run_conv(struct thread_ctx *tc, const struct step *s) {
  if (s->op == ane_op_info(ANE_OP_DELAY))
    run_delay(tc, s);
  else if (s->conv.matrix)
    run_grouped(tc, s);
  else
    run_depthwise(tc, s);
  thread_barrier(tc);
  write_rings(tc, s);
}

static void conv_cost(const struct thread_ctx *tc, const struct step *s, struct ane_step_profile *p) {
  int64_t c = s->in[0]->channels;
  for (int64_t g = 0; s->conv.matrix && g < s->conv.groups; g++) profile_matrix(&s->conv.matrix[g], tc->tokens, p);
  if (!s->conv.weight) return;
  p->bytes += (double)(c * s->conv.taps) * sizeof(float);
  p->ops += 2.0 * (double)(c * s->conv.taps * tc->tokens);
}

/* Transposes [C, 1, K] to [K][C]. */
static void transpose_taps(const float *w, float *out, int64_t c, int64_t taps) {
  for (int64_t i = 0; i < c; i++)
    for (int64_t k = 0; k < taps; k++) out[k * c + i] = w[i * taps + k];
}

/* Packs group g of [C_out, in, K] as rows [C_out / groups][K * in]. */
static ane_status pack_conv_group(struct planner *pl, const struct step *s, int64_t g, const float *w, float *rows,
                                  struct ane_packed *m, struct ane_error *err) {
  int64_t in = s->in[0]->channels / s->conv.groups, taps = s->conv.taps, n = s->out[0]->channels / s->conv.groups,
          width = in * taps;
  *m = (struct ane_packed){
      .layout = ANE_LAYOUT_F32, .dtype = ANE_F32, .rows = n, .cols = width, .groups = (n + ANE_GROUP - 1) / ANE_GROUP};
  uint8_t *data = NULL;
  if (ane_layout_group_bytes(ANE_LAYOUT_F32, width, &m->group_bytes))
    data = ane_arena_array(&pl->p->arena, (size_t)m->groups + 1, m->group_bytes);
  if (!data) return ane_fail(err, ANE_NOMEM, "no memory for the program");
  data += (64 - (uintptr_t)data % 64) % 64;
  for (int64_t r = 0; r < n; r++)
    for (int64_t i = 0; i < in; i++)
      for (int64_t k = 0; k < taps; k++) rows[r * width + k * in + i] = w[((g * n + r) * in + i) * taps + k];
  for (int64_t q = 0; q < m->groups; q++)
    ane_pack_group(ANE_LAYOUT_F32, ANE_F32, rows + q * ANE_GROUP * width, (size_t)width * sizeof(float),
                   (int)ANE_MIN((int64_t)ANE_GROUP, n - q * ANE_GROUP), width, data + (size_t)q * m->group_bytes);
  m->data = data;
  return ANE_OK;
}

static ane_status plan_grouped(struct planner *pl, struct step *s, const float *w, struct ane_error *err) {
  int64_t groups = s->conv.groups, width = s->in[0]->channels / groups * s->conv.taps, rows = s->out[0]->channels / groups;
  struct ane_packed *m = ane_arena_array(&pl->p->arena, (size_t)groups, sizeof *m);
  float *temp = ane_malloc((size_t)(rows * width) * sizeof *temp);
  ane_status st = m && temp ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for the program");
  for (int64_t g = 0; !st && g < groups; g++) st = pack_conv_group(pl, s, g, w, temp, &m[g], err);
  ane_free(temp);
  s->conv.matrix = m;
  if (!st) s->kernel_bytes = ane_matmul_scratch(&m[0]);
  s->temp_floats = width; /* at least one token */
  return st;
}

ane_status plan_conv(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  bool delay = n->op == ANE_OP_DELAY;
  s->run = run_conv;
  s->cost = conv_cost;
  s->in[0] = planner_slot(pl, n->inputs[0]);
  s->conv.taps = 2;
  s->conv.ring = pl->ring_of[n->inputs[delay ? 1 : 4]];
  int64_t c = s->in[0]->channels;
  float *zeros = ane_arena_array(&pl->p->arena, (size_t)c, sizeof *zeros);
  if (!zeros) return ane_fail(err, ANE_NOMEM, "no memory for the program");
  s->conv.before = zeros;
  if (delay) return ANE_OK;
  const float *w, *before;
  const struct ane_shape *shape = &pl->g->values[n->inputs[1]].shape;
  ane_status st;
  if ((st = planner_vector(pl, n->inputs[1], 0, &w, err)) || (st = planner_vector(pl, n->inputs[2], 0, &s->conv.bias, err)) ||
      (st = planner_vector(pl, n->inputs[3], 0, &before, err)))
    return st;
  if (before) s->conv.before = before;
  s->conv.taps = shape->dim[shape->rank - 1];
  s->conv.groups = ane_node_int(n, "groups");
  if (s->conv.groups != c || s->out[0]->channels != c) return plan_grouped(pl, s, w, err);
  float *by_tap = ane_arena_array(&pl->p->arena, (size_t)(c * s->conv.taps), sizeof *by_tap);
  if (!by_tap) return ane_fail(err, ANE_NOMEM, "no memory for the program");
  transpose_taps(w, by_tap, c, s->conv.taps);
  s->conv.weight = by_tap;
  return ANE_OK;
}
