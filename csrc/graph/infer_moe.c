/* Shape rules of mixture-of-experts ops. */
#include "graph/graph_internal.h"

#include <inttypes.h>
#include <string.h>

ane_status infer_route(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  static const char *const scores[] = {"sigmoid", "softmax", "softmax_topk"};
  const struct ane_value *x = infer_in(g, n, 0);
  int64_t k = ane_node_int(n, "k");
  ane_status st = infer_want_activation(x, err);
  if (st) return st;
  bool known = false;
  for (size_t i = 0; i < ANE_COUNT(scores); i++) known |= strcmp(ane_node_string(n, "score"), scores[i]) == 0;
  if (!known)
    return ane_fail(err, ANE_INVALID, "router score %s is unknown; known are: sigmoid, softmax, softmax_topk",
                    ane_node_string(n, "score"));
  if (k < 1 || k > infer_channels(x) || k > ANE_MAX_CHOSEN || infer_channels(x) > ANE_MAX_EXPERTS)
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " of %" PRId64 " experts; at most %d of %d", k, infer_channels(x), ANE_MAX_CHOSEN,
                    ANE_MAX_EXPERTS);
  int64_t groups = ane_node_int(n, "groups"), kept = ane_node_int(n, "groups_kept"), best = ane_node_int(n, "group_best");
  if (groups < 1 || infer_channels(x) % groups || kept < 1 || kept > groups || best < 1 || best > infer_channels(x) / groups)
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " of %" PRId64 " groups by their best %" PRId64 " do not fit %" PRId64 " experts",
                    kept, groups, best, infer_channels(x));
  if (k > kept * (infer_channels(x) / groups))
    return ane_fail(err, ANE_SHAPE,
                    "the experts of a token must be at most %" PRId64 ", those of %" PRId64 " of %" PRId64
                    " groups, but are %" PRId64,
                    kept * (infer_channels(x) / groups), kept, groups, k);
  if ((st = infer_want_vector(infer_in(g, n, 1), infer_channels(x), "bias", err)) ||
      (st = infer_want_vector(infer_in(g, n, 2), infer_channels(x), "factors", err)))
    return st;
  out[0] = infer_activation(2 * k, infer_tokens(x));
  return ANE_OK;
}

/* Checks the inputs of one expert, from input `at` on: gate, bias?, up, bias?, down, bias?. */
static ane_status check_expert(const struct ane_graph *g, const struct ane_node *n, int at, int64_t c, struct ane_error *err) {
  const struct ane_value *gate = infer_in(g, n, at), *up = infer_in(g, n, at + 2), *down = infer_in(g, n, at + 4);
  ane_status st;
  if ((st = infer_want_matrix(gate, c, err)) || (st = infer_want_matrix(up, c, err)) ||
      (st = infer_want_matrix(down, gate->shape.dim[0], err)))
    return st;
  int64_t inner = gate->shape.dim[0];
  if (up->shape.dim[0] != inner || down->shape.dim[0] != c)
    return ane_fail(err, ANE_SHAPE, "%s has %" PRId64 " rows and %s %" PRId64 ", but must have %" PRId64 " and %" PRId64,
                    up->name, up->shape.dim[0], down->name, down->shape.dim[0], inner, c);
  if ((st = infer_want_vector(infer_in(g, n, at + 1), inner, "gate bias", err)) ||
      (st = infer_want_vector(infer_in(g, n, at + 3), inner, "up bias", err)))
    return st;
  return infer_want_vector(infer_in(g, n, at + 5), c, "down bias", err);
}

ane_status infer_experts(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0), *route = infer_in(g, n, 1);
  int64_t count = ane_node_int(n, "count");
  ane_status st;
  if ((st = infer_want_activation(x, err)) || (st = infer_want_activation(route, err))) return st;
  if (count < 1 || count > ANE_MAX_EXPERTS || n->n_inputs != 2 + 6 * count)
    return ane_fail(err, ANE_INVALID, "%" PRId64 " experts with %d inputs", count, n->n_inputs);
  if (infer_channels(route) % 2 || infer_tokens(route) != infer_tokens(x)) return infer_bad(route, "the output of route", err);
  if (strcmp(ane_node_string(n, "act"), "swiglu_oai") != 0 && (st = ane_activation_check(ane_node_string(n, "act"), err)))
    return st;
  for (int64_t e = 0; e < count; e++)
    if ((st = check_expert(g, n, (int)(2 + 6 * e), infer_channels(x), err))) return st;
  out[0] = infer_activation(infer_channels(x), infer_tokens(x));
  return ANE_OK;
}
