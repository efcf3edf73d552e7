/* route: chooses the experts of a token and their weights. It handles one token at a time and few experts, so plain C suffices.
 * */
#include "exec/planner.h"
#include "exec/thread_ctx.h"

#include "base/elementary.h"

#include <math.h>
#include <string.h>

enum { SIGMOID, SOFTMAX, SOFTMAX_TOPK };

/* p = softmax(x) over n elements, with the maximum subtracted first. Sums run in ascending order. p may be x. */
static void softmax(const float *x, float *p, int64_t n) {
  float m = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) m = fmaxf(m, x[i]);
  for (int64_t i = 0; i < n; i++) sum += p[i] = ane_expf(x[i] - m);
  for (int64_t i = 0; i < n; i++) p[i] /= sum;
}

/* The indices of the k largest of key[n], ascending. Of equal keys, the lower index. */
static void choose(const float *key, int64_t n, int64_t k, int32_t *chosen) {
  bool taken[ANE_MAX_EXPERTS] = {false};
  for (int64_t j = 0; j < k; j++) {
    int64_t best = -1;
    for (int64_t e = 0; e < n; e++) /* analyser: all n keys are set by the caller. */
      if (!taken[e] && (best < 0 || key[e] > key[best])) best = e;
    /* analyser: k is at most n, so one is left. */
    taken[best] = true;
  }
  for (int64_t e = 0; e < n; e++)
    if (taken[e]) *chosen++ = (int32_t)e;
}

/* Keeps only the best groups of consecutive experts; the score of a group is the sum of its best keys. Experts of other groups
 * cannot be chosen. */
static void keep_groups(const struct step *s, float *key, int64_t n) {
  float sum[ANE_MAX_EXPERTS];
  int32_t best[ANE_MAX_EXPERTS];
  int64_t groups = s->route.groups, each = n / groups;
  bool kept[ANE_MAX_EXPERTS] = {false};
  for (int64_t g = 0; g < groups; g++) {
    choose(key + g * each, each, s->route.group_best, best);
    sum[g] = 0;
    /* analyser: choose() has written as many numbers as it was asked for. */
    for (int64_t i = 0; i < s->route.group_best; i++) sum[g] += key[g * each + best[i]];
  }
  choose(sum, groups, s->route.groups_kept, best);
  for (int64_t i = 0; i < s->route.groups_kept; i++) kept[best[i]] = true;
  for (int64_t e = 0; e < n; e++) /* analyser: groups is at most n, so a group has an expert. */
    if (!kept[e / each]) key[e] = -INFINITY;
}

static void route_token(const struct step *s, const float *logits, int64_t n, float *out) {
  float score[ANE_MAX_EXPERTS], key[ANE_MAX_EXPERTS], weight[ANE_MAX_CHOSEN] = {0}, sum = 0;
  int32_t chosen[ANE_MAX_CHOSEN];
  int64_t k = s->route.k;
  if (s->route.score == SIGMOID)
    for (int64_t e = 0; e < n; e++) score[e] = 1.0f / (1.0f + ane_expf(-logits[e]));
  else if (s->route.score == SOFTMAX)
    softmax(logits, score, n);
  else
    memcpy(score, logits, (size_t)n * sizeof *score);
  for (int64_t e = 0; e < n; e++) key[e] = s->route.bias ? score[e] + s->route.bias[e] : score[e];
  if (s->route.groups > 1) keep_groups(s, key, n);
  choose(key, n, k, chosen);
  /* analyser: choose() has written k numbers. */
  for (int64_t j = 0; j < k; j++) weight[j] = score[chosen[j]];
  if (s->route.score == SOFTMAX_TOPK) softmax(weight, weight, k);
  for (int64_t j = 0; j < k; j++) sum += weight[j];
  for (int64_t j = 0; j < k; j++) {
    if (s->route.norm) weight[j] /= sum + s->route.norm_eps;
    out[j] = (float)chosen[j];
    out[k + j] = weight[j] * s->route.scale;
    if (s->route.factors) out[k + j] *= s->route.factors[chosen[j]];
  }
}

static void run_route(struct thread_ctx *tc, const struct step *s) {
  const float *x = thread_data(tc, s->in[0]);
  float *out = thread_data(tc, s->out[0]);
  int64_t n = s->in[0]->channels, from, to;
  ane_split(tc->tokens, tc->thread, tc->threads, &from, &to);
  for (int64_t t = from; t < to; t++) route_token(s, x + t * n, n, out + t * 2 * s->route.k);
}

ane_status plan_route(struct planner *pl, const struct ane_node *n, struct step *s, struct ane_error *err) {
  const char *score = ane_node_string(n, "score");
  s->run = run_route;
  s->in[0] = planner_slot(pl, n->inputs[0]);
  s->route.k = ane_node_int(n, "k");
  s->route.score = strcmp(score, "sigmoid") == 0 ? SIGMOID : strcmp(score, "softmax") == 0 ? SOFTMAX : SOFTMAX_TOPK;
  s->route.norm = ane_node_int(n, "norm") != 0;
  s->route.norm_eps = (float)ane_node_float(n, "norm_eps");
  s->route.scale = (float)ane_node_float(n, "scale");
  s->route.groups = ane_node_int(n, "groups");
  s->route.groups_kept = ane_node_int(n, "groups_kept");
  s->route.group_best = ane_node_int(n, "group_best");
  ane_status st = planner_vector(pl, ane_node_input(n, 1), 0, &s->route.bias, err);
  return st ? st : planner_vector(pl, ane_node_input(n, 2), 0, &s->route.factors, err);
}
