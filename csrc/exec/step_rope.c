/* rope_table: cosines and sines of the run's positions, computed once for all layers. rope: rotates heads by the table.
 * position_scale: multiplies by a factor for each position. */
#include "exec/planner.h"
#include "exec/thread_ctx.h"

#include "base/elementary.h"
#include "tensor/half.h"

#include <string.h>

/* The angle is the fp32 product position * frequency, as the references compute it. */
static void run_table(struct thread_ctx *tc, const struct step *s) {
  float *out = thread_data(tc, s->out[0]);
  int64_t n = s->rope.n, from, to;
  ane_split(tc->tokens, tc->thread, tc->threads, &from, &to);
  for (int64_t t = from; t < to; t++) {
    float pos = (float)tc->r->angles[t], *row = out + t * 2 * n;
    const float *f = s->rope.long_freq && tc->p->token_lists.long_rope[t] ? s->rope.long_freq : s->rope.inv_freq;
    for (int64_t i = 0; i < n; i++) {
      float sine, cosine;
      ane_sincosf(pos * f[i], &sine, &cosine);
      row[i] = cosine * s->rope.magnitude;
      row[n + i] = sine * s->rope.magnitude;
    }
    for (int64_t i = 0; s->rope.fp16 && i < 2 * n; i++) row[i] = ane_f16_f32(ane_f32_f16(row[i]));
  }
}

static void run_rope(struct thread_ctx *tc, const struct step *s) {
  const float *x = thread_data(tc, s->in[0]), *table = thread_data(tc, s->in[2]);
  float *out = thread_data(tc, s->out[0]);
  int64_t c = s->in[0]->channels, r = s->in[2]->channels, from, to;
  ane_split(tc->tokens, tc->thread, tc->threads, &from, &to);
  if (x != out) memcpy(out + from * c, x + from * c, (size_t)((to - from) * c) * sizeof *out);
  for (int64_t t = from; t < to; t++) tc->k->rope(out + t * c, table + t * r, s->rope.heads, c / s->rope.heads, r, s->rope.half);
}

static ane_status copy_floats(struct planner *pl, const struct ane_attr *a, const float **out, struct ane_error *err) {
  float *copy = ane_arena_array(&pl->p->arena, (size_t)a->fv.n, sizeof *copy);
  if (!copy) return ane_fail(err, ANE_NOMEM, "no memory for the program");
  memcpy(copy, a->fv.v, (size_t)a->fv.n * sizeof *copy);
  *out = copy;
  return ANE_OK;
}

ane_status planner_long_rope(struct planner *pl, const struct ane_node *n, struct ane_error *err) {
  if (!ane_node_attr(n, "long_freq")->fv.n) return ANE_OK;
  int64_t at = ane_node_int(n, "original");
  if (pl->p->long_rope_after && pl->p->long_rope_after != at)
    return ane_fail(err, ANE_UNSUPPORTED, "two rope tables have long_freq with different values of `original`");
  pl->p->long_rope_after = at;
  return ANE_OK;
}

ane_status plan_rope(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  if (n->op == ANE_OP_ROPE) {
    s->run = run_rope;
    s->in[0] = planner_slot(pl, n->inputs[0]);
    s->in[2] = planner_slot(pl, n->inputs[1]);
    s->rope.heads = ane_node_int(n, "heads");
    s->rope.half = ane_node_string(n, "layout")[0] == 'h';
    return ANE_OK;
  }
  s->run = run_table;
  s->rope.n = ane_node_attr(n, "inv_freq")->fv.n;
  s->rope.fp16 = ane_node_int(n, "fp16") != 0;
  s->rope.magnitude = (float)ane_node_float(n, "magnitude");
  ane_status st = copy_floats(pl, ane_node_attr(n, "inv_freq"), &s->rope.inv_freq, err);
  if (st || !ane_node_attr(n, "long_freq")->fv.n) return st;
  st = copy_floats(pl, ane_node_attr(n, "long_freq"), &s->rope.long_freq, err);
  return st ? st : planner_long_rope(pl, n, err);
}

static void run_position_scale(struct thread_ctx *tc, const struct step *s) {
  int64_t c = s->in[0]->channels, from, to;
  ane_split(tc->tokens, tc->thread, tc->threads, &from, &to);
  for (int64_t t = from; t < to; t++) {
    float by = 1.0f + s->position_scale.beta * ane_logf(1.0f + (float)(tc->r->angles[t] / s->position_scale.original));
    tc->k->scale(thread_data(tc, s->in[0]) + t * c, by, thread_data(tc, s->out[0]) + t * c, c);
  }
}

ane_status plan_position_scale(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  (void)err;
  s->run = run_position_scale;
  s->in[0] = planner_slot(pl, n->inputs[0]);
  s->position_scale.beta = (float)ane_node_float(n, "beta");
  s->position_scale.original = ane_node_int(n, "original");
  return ANE_OK;
}
