/* Small steps on channels: concat, affine, l2_norm, repeat_heads, mean_heads. The threads divide the tokens. */
#include "exec/planner.h"
#include "exec/thread_ctx.h"

#include <math.h>
#include <string.h>

static void run_concat(struct thread_ctx *tc, const struct step *s) {
  const float *a = thread_data(tc, s->in[0]), *b = thread_data(tc, s->in[1]);
  float *out = thread_data(tc, s->out[0]);
  int64_t heads = s->mix.groups, ca = s->in[0]->channels / heads, cb = s->in[1]->channels / heads, from, to;
  ane_split(tc->tokens * heads, tc->thread, tc->threads, &from, &to);
  for (int64_t i = from; i < to; i++) {
    memcpy(out + i * (ca + cb), a + i * ca, (size_t)ca * sizeof *out);
    memcpy(out + i * (ca + cb) + ca, b + i * cb, (size_t)cb * sizeof *out);
  }
}

static void run_affine(struct thread_ctx *tc, const struct step *s) {
  const float *x = thread_data(tc, s->in[0]);
  float *out = thread_data(tc, s->out[0]);
  int64_t c = s->out[0]->channels, from, to;
  ane_split(tc->tokens, tc->thread, tc->threads, &from, &to);
  for (int64_t t = from; t < to; t++) {
    const float *row = x + t * c;
    float *dst = out + t * c;
    if (s->mix.bias) tc->k->add(row, s->mix.bias, dst, c), row = dst;
    if (s->mix.weight)
      tc->k->mul(row, s->mix.weight, dst, c);
    else if (row != dst)
      memcpy(dst, row, (size_t)c * sizeof *dst);
  }
}

/* The sum of squares over 16 lanes, in the order of the norms of kernels.h. */
static float sum_squares(const float *x, int64_t n) {
  float lane[16] = {0};
  for (int64_t i = 0; i < n; i++) lane[i % 16] += x[i] * x[i];
  for (int w = 8; w; w /= 2)
    for (int i = 0; i < w; i++) lane[i] += lane[i + w];
  return lane[0];
}

static void run_l2_norm(struct thread_ctx *tc, const struct step *s) {
  int64_t c = s->in[0]->channels / s->mix.groups, from, to;
  float root = sqrtf((float)c);
  ane_split(tc->tokens * s->mix.groups, tc->thread, tc->threads, &from, &to);
  for (int64_t i = from; i < to; i++) {
    const float *x = thread_data(tc, s->in[0]) + i * c;
    float by = root / fmaxf(sqrtf(sum_squares(x, c)), s->mix.eps);
    if (s->mix.weight) by *= s->mix.weight[i % s->mix.groups];
    tc->k->scale(x, by, thread_data(tc, s->out[0]) + i * c, c);
  }
}

static void run_repeat(struct thread_ctx *tc, const struct step *s) {
  int64_t heads = s->mix.groups, times = s->mix.times, d = s->in[0]->channels / heads, from, to;
  ane_split(tc->tokens * heads, tc->thread, tc->threads, &from, &to);
  for (int64_t i = from; i < to; i++)
    for (int64_t j = 0; j < times; j++)
      memcpy(thread_data(tc, s->out[0]) + (i * times + j) * d, thread_data(tc, s->in[0]) + i * d, (size_t)d * sizeof(float));
}

static void run_mean(struct thread_ctx *tc, const struct step *s) {
  int64_t times = s->mix.times, d = s->in[0]->channels / s->mix.groups, from, to;
  ane_split(tc->tokens * s->mix.groups / times, tc->thread, tc->threads, &from, &to);
  for (int64_t i = from; i < to; i++) {
    const float *x = thread_data(tc, s->in[0]) + i * times * d;
    float *out = thread_data(tc, s->out[0]) + i * d;
    memcpy(out, x, (size_t)d * sizeof *out);
    for (int64_t j = 1; j < times; j++) tc->k->add(out, x + j * d, out, d);
    tc->k->scale(out, 1.0f / (float)times, out, d);
  }
}

ane_status plan_mix(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  s->in[0] = planner_slot(pl, n->inputs[0]);
  switch (n->op) {
    case ANE_OP_CONCAT:
      s->run = run_concat;
      s->mix.groups = ane_node_int(n, "heads");
      s->in[1] = planner_slot(pl, n->inputs[1]);
      return ANE_OK;
    case ANE_OP_AFFINE: {
      s->run = run_affine;
      ane_status st = planner_vector(pl, ane_node_input(n, 1), 0, &s->mix.bias, err);
      return st ? st : planner_vector(pl, ane_node_input(n, 2), 0, &s->mix.weight, err);
    }
    case ANE_OP_L2_NORM:
      s->run = run_l2_norm;
      s->mix.groups = ane_node_int(n, "groups");
      s->mix.eps = (float)ane_node_float(n, "eps");
      return planner_vector(pl, ane_node_input(n, 1), 0, &s->mix.weight, err);
    default:
      s->run = n->op == ANE_OP_MEAN_HEADS ? run_mean : run_repeat;
      s->mix.groups = ane_node_int(n, "heads");
      s->mix.times = ane_node_int(n, "times");
      return ANE_OK;
  }
}
