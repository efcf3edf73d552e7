/* Elementwise steps over all channels of all tokens, and slices of channels. */
#include "exec/planner.h"
#include "exec/thread_ctx.h"

#include <string.h>

/* This thread's part of all elements, in whole cache lines: n elements from `from` on. */
static void part_of(const struct thread_ctx *tc, const struct step *s, int64_t *from, int64_t *n) {
  int64_t total = tc->tokens * s->out[0]->channels, lines = (total + 15) / 16, to;
  ane_split(lines, tc->thread, tc->threads, from, &to);
  *from *= 16;
  *n = ANE_MAX(ANE_MIN(to * 16, total) - *from, (int64_t)0);
}

static void run_binary(struct thread_ctx *tc, const struct step *s) {
  int64_t from, n;
  part_of(tc, s, &from, &n);
  const float *b = s->in[1] ? thread_data(tc, s->in[1]) + from : NULL;
  s->math.act(thread_data(tc, s->in[0]) + from, b, thread_data(tc, s->out[0]) + from, n);
}

static void run_scale(struct thread_ctx *tc, const struct step *s) {
  int64_t from, n;
  part_of(tc, s, &from, &n);
  tc->k->scale(thread_data(tc, s->in[0]) + from, s->math.by, thread_data(tc, s->out[0]) + from, n);
}

static void run_softcap(struct thread_ctx *tc, const struct step *s) {
  int64_t from, n;
  part_of(tc, s, &from, &n);
  tc->k->softcap(thread_data(tc, s->in[0]) + from, s->math.by, thread_data(tc, s->out[0]) + from, n);
}

static void run_slice(struct thread_ctx *tc, const struct step *s) {
  int64_t heads = s->math.heads, c = s->out[0]->channels / heads, ld = s->in[0]->channels / heads, from, to;
  ane_split(tc->tokens * heads, tc->thread, tc->threads, &from, &to);
  for (int64_t i = from; i < to; i++)
    memcpy(thread_data(tc, s->out[0]) + i * c, thread_data(tc, s->in[0]) + i * ld + s->math.from, (size_t)c * sizeof(float));
}

ane_status plan_math(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  const struct ane_kernels *k = pl->p->k;
  s->in[0] = planner_slot(pl, n->inputs[0]);
  s->in[1] = planner_slot(pl, ane_node_input(n, 1));
  s->run = run_binary;
  switch (n->op) {
    case ANE_OP_ADD: s->math.act = k->add; return ANE_OK;
    case ANE_OP_MUL: s->math.act = k->mul; return ANE_OK;
    case ANE_OP_SCALE:
      s->run = run_scale;
      s->math.by = (float)ane_node_float(n, "by");
      return ANE_OK;
    case ANE_OP_SOFTCAP:
      s->run = run_softcap;
      s->math.by = (float)ane_node_float(n, "cap");
      return ANE_OK;
    case ANE_OP_SLICE:
      s->run = run_slice;
      s->math.from = ane_node_int(n, "from");
      s->math.heads = ane_node_int(n, "heads");
      return ANE_OK;
    default: return planner_act(k, ane_node_string(n, "act"), &s->math.act, err);
  }
}
