/* rms_norm and layer_norm: each group of channels of each token is one row. */
#include "exec/planner.h"
#include "exec/thread_ctx.h"

static void run_rms_norm(struct thread_ctx *tc, const struct step *s) {
  int64_t c = s->in[0]->channels / s->norm.groups, from, to;
  ane_split(tc->tokens * s->norm.groups, tc->thread, tc->threads, &from, &to);
  tc->k->rms_norm(thread_data(tc, s->in[0]) + from * c, c, s->norm.weight, s->norm.eps, thread_data(tc, s->out[0]) + from * c, c,
                  to - from, c);
}

static void run_layer_norm(struct thread_ctx *tc, const struct step *s) {
  int64_t c = s->in[0]->channels / s->norm.groups, from, to;
  ane_split(tc->tokens * s->norm.groups, tc->thread, tc->threads, &from, &to);
  tc->k->layer_norm(thread_data(tc, s->in[0]) + from * c, c, s->norm.weight, s->norm.bias, s->norm.eps,
                    thread_data(tc, s->out[0]) + from * c, c, to - from, c);
}

ane_status plan_norm(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  bool rms = n->op == ANE_OP_RMS_NORM;
  s->run = rms ? run_rms_norm : run_layer_norm;
  s->in[0] = planner_slot(pl, n->inputs[0]);
  s->norm.eps = (float)ane_node_float(n, "eps");
  s->norm.groups = ane_node_int(n, "groups");
  ane_status st = planner_vector(pl, ane_node_input(n, 1), rms ? (float)ane_node_float(n, "offset") : 0, &s->norm.weight, err);
  return st ? st : planner_vector(pl, ane_node_input(n, 2), 0, &s->norm.bias, err);
}
