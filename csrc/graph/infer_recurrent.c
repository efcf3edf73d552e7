/* Shape rules of ops whose state holds all earlier tokens. */
#include "graph/graph_internal.h"

#include <inttypes.h>

/* Checks that a constant of any shape has one number per head. */
static ane_status want_heads(const struct ane_value *v, int64_t heads, const char *what, struct ane_error *err) {
  uint64_t n;
  if (!v || (v->kind == ANE_VALUE_CONST && ane_shape_count(&v->shape, &n) && n == (uint64_t)heads)) return ANE_OK;
  char text[ANE_SHAPE_TEXT];
  return ane_fail(err, ANE_SHAPE, "%s %s must have %" PRId64 " numbers, but is %s", what, v->name, heads,
                  ane_shape_text(&v->shape, text));
}

/* Checks that a state is [1, heads, n, width]. Its size then bounds the products of heads, n and width. */
static ane_status want_state(const struct ane_value *s, struct ane_error *err) {
  if (!s) return ane_fail(err, ANE_SHAPE, "the state is absent");
  const struct ane_shape *d = &s->shape;
  uint64_t n;
  if (s->kind == ANE_VALUE_STATE && d->rank == 4 && d->dim[0] == 1 && d->dim[1] > 0 && d->dim[2] > 0 && d->dim[3] > 0 &&
      ane_shape_count(d, &n) && n <= INFER_MOST)
    return ANE_OK;
  return infer_bad(s, "a state [1, heads, n, width] of at most 2^40 elements", err);
}

static ane_status want_channels(const struct ane_value *v, const struct ane_value *like, int64_t channels,
                                struct ane_error *err) {
  ane_status st = infer_want_activation(v, err);
  if (st) return st;
  if (infer_channels(v) == channels && infer_tokens(v) == infer_tokens(like)) return ANE_OK;
  return ane_fail(err, ANE_SHAPE, "%s has %" PRId64 " channels, but must have %" PRId64 ", for the tokens of %s", v->name,
                  infer_channels(v), channels, like->name);
}

ane_status infer_ssm_scan(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0), *state = infer_in(g, n, 5);
  int64_t groups = ane_node_int(n, "groups");
  ane_status st;
  if ((st = infer_want_activation(x, err)) || (st = want_state(state, err))) return st;
  int64_t heads = state->shape.dim[1], size = state->shape.dim[2], width = state->shape.dim[3];
  if (groups < 1 || heads % groups)
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " groups do not divide %" PRId64 " heads", groups, heads);
  if ((st = want_channels(x, x, heads * width + 2 * groups * size, err)) ||
      (st = want_channels(infer_in(g, n, 1), x, heads, err)) || (st = want_heads(infer_in(g, n, 2), heads, "decay", err)) ||
      (st = want_heads(infer_in(g, n, 3), heads, "d", err)) || (st = want_heads(infer_in(g, n, 4), heads, "dt bias", err)))
    return st;
  out[0] = infer_activation(heads * width, infer_tokens(x));
  return ANE_OK;
}

ane_status infer_delta_rule(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0), *state = infer_in(g, n, 5);
  int64_t keys = ane_node_int(n, "key_heads");
  ane_status st;
  if ((st = infer_want_activation(x, err)) || (st = want_state(state, err))) return st;
  int64_t heads = state->shape.dim[1], size = state->shape.dim[2], width = state->shape.dim[3];
  if (keys < 1 || heads % keys)
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " key heads do not divide %" PRId64 " value heads", keys, heads);
  if ((st = want_channels(x, x, 2 * keys * size + heads * width, err)) ||
      (st = want_channels(infer_in(g, n, 1), x, heads, err)) || (st = want_channels(infer_in(g, n, 2), x, heads, err)) ||
      (st = want_heads(infer_in(g, n, 3), heads, "decay", err)) || (st = want_heads(infer_in(g, n, 4), heads, "dt bias", err)))
    return st;
  out[0] = infer_activation(heads * width, infer_tokens(x));
  return ANE_OK;
}
