/* Shape rules of ops that keep earlier tokens in a state, and of ops that rearrange channels. */
#include "graph/graph_internal.h"

#include <inttypes.h>

ane_status infer_concat(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *a = infer_in(g, n, 0), *b = infer_in(g, n, 1);
  ane_status st;
  if ((st = infer_want_activation(a, err)) || (st = infer_want_activation(b, err))) return st;
  if (infer_tokens(a) != infer_tokens(b))
    return ane_fail(err, ANE_SHAPE, "%s and %s have different numbers of tokens", a->name, b->name);
  int64_t heads = ane_node_int(n, "heads");
  if (heads < 1 || infer_channels(a) % heads || infer_channels(b) % heads)
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " heads do not divide %" PRId64 " and %" PRId64 " channels", heads,
                    infer_channels(a), infer_channels(b));
  out[0] = infer_activation(infer_channels(a) + infer_channels(b), infer_tokens(a));
  return ANE_OK;
}

ane_status infer_affine(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0);
  ane_status st = infer_want_activation(x, err);
  if (st || (st = infer_want_vector(infer_in(g, n, 1), infer_channels(x), "bias", err)) ||
      (st = infer_want_vector(infer_in(g, n, 2), infer_channels(x), "scale", err)))
    return st;
  out[0] = infer_activation(infer_channels(x), infer_tokens(x));
  return ANE_OK;
}

ane_status infer_l2_norm(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0);
  int64_t groups = ane_node_int(n, "groups");
  ane_status st = infer_want_activation(x, err);
  if (st || (st = infer_want_groups(x, groups, err))) return st;
  if ((st = infer_want_vector(infer_in(g, n, 1), groups, "weight", err))) return st;
  out[0] = infer_activation(infer_channels(x), infer_tokens(x));
  return ANE_OK;
}

/* Infers repeat_heads and mean_heads. The attribute `heads` counts those of x. */
ane_status infer_repeat_heads(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0);
  int64_t heads = ane_node_int(n, "heads"), times = ane_node_int(n, "times");
  bool mean = n->op == ANE_OP_MEAN_HEADS;
  ane_status st = infer_want_activation(x, err);
  if (st) return st;
  if (heads < 1 || times < 1 || infer_channels(x) % heads || (mean ? heads % times != 0 : times > INFER_MOST / infer_channels(x)))
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " heads, %" PRId64 " times, do not fit %" PRId64 " channels", heads, times,
                    infer_channels(x));
  out[0] = infer_activation(mean ? infer_channels(x) / times : infer_channels(x) * times, infer_tokens(x));
  return ANE_OK;
}

static ane_status check_ring_state(const struct ane_value *s, int64_t channels, int64_t tokens, struct ane_error *err) {
  struct ane_shape want = {4, {1, channels, tokens, 1}};
  if (s && s->kind == ANE_VALUE_STATE && ane_shape_equal(&s->shape, &want)) return ANE_OK;
  if (!s) return ane_fail(err, ANE_SHAPE, "the state is absent");
  char text[ANE_SHAPE_TEXT];
  return ane_fail(err, ANE_SHAPE, "state %s must be [1, %" PRId64 ", %" PRId64 ", 1], but is %s", s->name, channels, tokens,
                  ane_shape_text(&s->shape, text));
}

ane_status infer_conv_causal(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0), *w = infer_in(g, n, 1);
  int64_t groups = ane_node_int(n, "groups");
  ane_status st = infer_want_activation(x, err);
  if (st) return st;
  if (!w) return ane_fail(err, ANE_SHAPE, "the weight is absent");
  bool flat = w->shape.rank == 2; /* [C, K] */
  int64_t c = infer_channels(x), taps = w->shape.rank ? w->shape.dim[w->shape.rank - 1] : 0;
  if ((st = infer_want_groups(x, groups, err))) return st;
  if (w->shape.rank < 2 || w->shape.rank > 3 || taps < 2 || w->shape.dim[0] % groups ||
      (flat ? 1 : w->shape.dim[1]) != c / groups) {
    char text[ANE_SHAPE_TEXT];
    return ane_fail(err, ANE_SHAPE,
                    "weight %s must be [N, %" PRId64 ", K >= 2] for %" PRId64 " channels in %" PRId64 " groups, but is %s",
                    w->name, c / groups, c, groups, ane_shape_text(&w->shape, text));
  }
  if ((st = infer_want_vector(infer_in(g, n, 2), w->shape.dim[0], "bias", err)) ||
      (st = infer_want_vector(infer_in(g, n, 3), c, "before", err)) ||
      (st = check_ring_state(infer_in(g, n, 4), c, taps - 1, err)))
    return st;
  out[0] = infer_activation(w->shape.dim[0], infer_tokens(x));
  return ANE_OK;
}

ane_status infer_delay(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0);
  ane_status st = infer_want_activation(x, err);
  if (st || (st = check_ring_state(infer_in(g, n, 1), infer_channels(x), 1, err))) return st;
  out[0] = infer_activation(infer_channels(x), infer_tokens(x));
  return ANE_OK;
}
