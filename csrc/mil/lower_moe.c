/* Soft mixture of experts. The graph is static, so every expert runs for every token, and experts that were not chosen get weight
 * zero. Here a route is a weight for every expert number of the router, [1, E, T, 1]. */
#include "mil/lower_internal.h"

int64_t lower_route_experts(const struct ane_graph *g, int32_t value) {
  const struct ane_value *v = &g->values[value];
  if (v->kind != ANE_VALUE_RESULT || g->nodes[v->node].op != ANE_OP_ROUTE) return -1;
  return g->values[g->nodes[v->node].inputs[0]].shape.dim[1];
}

/* Returns 1 for the k largest of key [1, E, T, 1], else 0. NULL: all are chosen. */
static mil_value chosen(struct lower *l, mil_value key, int64_t k) {
  struct mil_build *b = &l->b;
  int64_t experts = mil_dim(key, 1);
  if (k >= experts) return NULL;
  float numbers[ANE_MAX_EXPERTS];
  for (int64_t e = 0; e < experts; e++) numbers[e] = (float)e;
  mil_value best = mil_topk(b, mil_reshape(b, key, 3, (int64_t[]){1, experts, -1}), (int)k, 1); /* [1, k, T] */
  mil_value all = mil_tensor(b, "slots", ANE_MIL_INT32, 4, (int64_t[]){1, experts, 1, 1}, numbers);
  mil_value hit = mil_cast(b, mil_equal(b, mil_reshape4(b, best, 1, 1, k, -1), all), b->dtype); /* [1, E, k, T] */
  return lower_as_flat(l, k == 1 ? hit : mil_reduce(b, "reduce_sum", hit, 2), experts);
}

/* Adds (mask - 1) 1e4 to x: far below any other score, and still finite in fp16. */
static mil_value excluding(struct lower *l, mil_value x, mil_value mask) {
  struct mil_build *b = &l->b;
  return mil_add(b, x, mil_scale(b, mil_binary(b, "sub", mask, mil_number(b, b->dtype, 1)), 1e4));
}

/* Returns the sum of the k largest of each group of x [1, G, n, T]: [1, G, 1, T]. */
static mil_value sum_of_best(struct lower *l, mil_value x, int64_t k) {
  struct mil_build *b = &l->b;
  int64_t groups = mil_dim(x, 1), size = mil_dim(x, 2);
  if (k == 1) return mil_reduce(b, "reduce_max", x, 2);
  if (k < size) {
    float numbers[ANE_MAX_EXPERTS];
    for (int64_t e = 0; e < size; e++) numbers[e] = (float)e;
    mil_value best = mil_reshape(b, mil_topk(b, x, (int)k, 2), 5, (int64_t[]){1, groups, 1, k, -1});
    mil_value all = mil_tensor(b, "places", ANE_MIL_INT32, 5, (int64_t[]){1, 1, size, 1, 1}, numbers);
    mil_value hit = mil_reduce(b, "reduce_sum", mil_cast(b, mil_equal(b, best, all), b->dtype), 3); /* [1, G, n, 1, T] */
    x = mil_mul(b, x, mil_reshape4(b, hit, 1, groups, size, -1));
  }
  return mil_reduce(b, "reduce_sum", x, 2);
}

/* Lowers the keys [1, E, T, 1] of the experts outside of the best groups, so that none of them is chosen. */
static mil_value in_best_groups(struct lower *l, const struct ane_node *n, mil_value key) {
  struct mil_build *b = &l->b;
  int64_t groups = ane_node_int(n, "groups"), experts = mil_dim(key, 1), size = experts / groups;
  mil_value sums = sum_of_best(l, mil_reshape4(b, key, 1, groups, size, -1), ane_node_int(n, "group_best"));
  mil_value mask = chosen(l, lower_as_flat(l, sums, groups), ane_node_int(n, "groups_kept"));
  if (!mask) return key;
  mask = mil_tile(b, mil_reshape4(b, mask, 1, groups, 1, -1), 2, size);
  return excluding(l, key, lower_as_flat(l, mask, experts));
}

void lower_route(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  const char *score = ane_node_string(n, "score");
  mil_value logits = lower_in(l, n, 0), bias = lower_vector(l, ane_node_input(n, 1), 1, 0, 1);
  mil_value factors = lower_vector(l, ane_node_input(n, 2), 1, 0, 1);
  bool over_chosen = strcmp(score, "softmax_topk") == 0;
  mil_value w = over_chosen                     ? logits
                : strcmp(score, "sigmoid") == 0 ? mil_unary(b, "sigmoid", logits)
                                                : mil_softmax(b, logits, 1);
  mil_value key = bias ? mil_add(b, w, bias) : w;
  if (ane_node_int(n, "groups") > 1) key = in_best_groups(l, n, key);
  mil_value mask = chosen(l, key, ane_node_int(n, "k"));
  if (over_chosen) {
    if (mask) w = excluding(l, w, mask);
    w = mil_softmax(b, w, 1);
  }
  if (mask) w = mil_mul(b, w, mask);
  if (ane_node_int(n, "norm")) {
    mil_value sum = mil_reduce(b, "reduce_sum", w, 1);
    double eps = ane_node_float(n, "norm_eps");
    w = mil_binary(b, "real_div", w, eps > 0 ? mil_add(b, sum, mil_number(b, b->dtype, lower_held_eps(l, eps))) : sum);
  }
  w = mil_scale(b, w, ane_node_float(n, "scale"));
  lower_out(l, n, factors ? mil_mul(b, w, factors) : w);
}

/* (clamp(u) + 1) g sigmoid(alpha g), g = min(g, limit) */
static mil_value swiglu_oai(struct lower *l, const struct ane_node *n, mil_value gate, mil_value up) {
  struct mil_build *b = &l->b;
  double limit = ane_node_float(n, "limit");
  mil_value g = mil_binary(b, "minimum", gate, mil_number(b, b->dtype, limit));
  mil_value u = mil_add(b, mil_clip(b, up, -limit, limit), mil_number(b, b->dtype, 1));
  return mil_mul(b, u, mil_mul(b, g, mil_unary(b, "sigmoid", mil_scale(b, g, ane_node_float(n, "alpha")))));
}

/* Lowers one projection of an expert. Its weight is input `at` of the node; the next input is its bias. */
static mil_value linear(struct lower *l, const struct ane_node *n, int at, mil_value x) {
  int64_t rows = l->g->values[n->inputs[at]].shape.dim[0];
  mil_value bias = lower_plain(l, ane_node_input(n, at + 1), 0, rows, 1, &rows, 0, 1);
  return mil_conv(&l->b, x, lower_matrix(l, n->inputs[at], 0, rows), bias, 1);
}

static mil_value expert(struct lower *l, const struct ane_node *n, int64_t e, mil_value x) {
  const char *act = ane_node_string(n, "act");
  int at = (int)(2 + 6 * e);
  mil_value gate = linear(l, n, at, x), up = linear(l, n, at + 2, x);
  mil_value inner =
      strcmp(act, "swiglu_oai") == 0 ? swiglu_oai(l, n, gate, up) : mil_mul(&l->b, mil_activation(&l->b, act, gate), up);
  return linear(l, n, at + 4, inner);
}

/* Lowers the experts of the shard. Expert numbers of the router without an expert add nothing. A slice of the experts adds to the
 * sum of the slice before. */
void lower_experts(struct lower *l, struct mil_build *b, const struct ane_node *n) {
  const struct ane_shard *p = l->shard;
  bool slice = p->kind == ANE_SHARD_EXPERTS && p->split == l->node;
  int64_t from = slice ? p->from : 0, to = slice ? p->to : ane_node_int(n, "count");
  mil_value x = lower_in(l, n, 0), route = lower_in(l, n, 1), sum = from > 0 ? lower_flat(l, n->outputs[0]) : NULL;
  to = ANE_MIN(to, mil_dim(route, 1)); /* the router never chooses the others */
  for (int64_t e = from; e < to && !b->status; e++) {
    mil_value y = mil_mul(b, expert(l, n, e, x), mil_slice(b, route, 1, e, e + 1, 1));
    sum = sum ? mil_add(b, sum, y) : y;
  }
  lower_out(l, n, sum);
}
