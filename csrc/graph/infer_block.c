/* Shape rules of the ops of dense blocks. */
#include "graph/graph_internal.h"

#include <inttypes.h>
#include <string.h>

ane_status infer_embed(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *ids = infer_in(g, n, 0), *table = infer_in(g, n, 1);
  if (ids->dtype != ANE_I32 || ids->shape.rank != 2 || ids->shape.dim[0] != 1) return infer_bad(ids, "ids int32[1, T]", err);
  if (table->shape.rank != 2 || table->shape.dim[0] < 1 || table->shape.dim[1] < 1)
    return infer_bad(table, "a table [V, C]", err);
  out[0] = infer_activation(table->shape.dim[1], ids->shape.dim[1]);
  return ANE_OK;
}

ane_status infer_conv1x1(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0), *w = infer_in(g, n, 1);
  ane_status st = infer_want_activation(x, err);
  if (st || (st = infer_want_matrix(w, infer_channels(x), err)) ||
      (st = infer_want_vector(infer_in(g, n, 2), w->shape.dim[0], "bias", err)))
    return st;
  out[0] = infer_activation(w->shape.dim[0], infer_tokens(x));
  return ANE_OK;
}

ane_status infer_head_linear(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0), *first = infer_in(g, n, 1);
  int64_t heads = n->n_inputs - 1;
  ane_status st = infer_want_activation(x, err);
  if (st) return st;
  if (infer_channels(x) % heads)
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " heads do not divide %" PRId64 " channels", heads, infer_channels(x));
  for (int i = 1; i < n->n_inputs; i++) {
    const struct ane_value *w = infer_in(g, n, i);
    if ((st = infer_want_matrix(w, infer_channels(x) / heads, err))) return st;
    if (w->shape.dim[0] != first->shape.dim[0])
      return ane_fail(err, ANE_SHAPE, "%s has %" PRId64 " rows, %s %" PRId64, w->name, w->shape.dim[0], first->name,
                      first->shape.dim[0]);
  }
  out[0] = infer_activation(heads * first->shape.dim[0], infer_tokens(x));
  return ANE_OK;
}

ane_status infer_norm(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0);
  int64_t groups = ane_node_int(n, "groups");
  ane_status st = infer_want_activation(x, err);
  if (st || (st = infer_want_groups(x, groups, err))) return st;
  if ((st = infer_want_vector(infer_in(g, n, 1), infer_channels(x) / groups, "weight", err)) ||
      (st = infer_want_vector(infer_in(g, n, 2), infer_channels(x) / groups, "bias", err)))
    return st;
  out[0] = infer_activation(infer_channels(x), infer_tokens(x));
  return ANE_OK;
}

ane_status infer_rope_table(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *p = infer_in(g, n, 0);
  const struct ane_attr *f = ane_node_attr(n, "inv_freq");
  if (p->dtype != ANE_I32 || p->shape.rank != 2 || p->shape.dim[0] != 1) return infer_bad(p, "positions int32[1, T]", err);
  const struct ane_attr *long_freq = ane_node_attr(n, "long_freq");
  if (f->fv.n < 1) return ane_fail(err, ANE_INVALID, "inv_freq is empty");
  if (long_freq->fv.n && (long_freq->fv.n != f->fv.n || ane_node_int(n, "original") < 1))
    return ane_fail(err, ANE_INVALID, "long_freq has %" PRId64 " numbers and inv_freq %" PRId64 "; original is %" PRId64,
                    long_freq->fv.n, f->fv.n, ane_node_int(n, "original"));
  out[0] = infer_activation(2 * f->fv.n, p->shape.dim[1]);
  return ANE_OK;
}

ane_status infer_position_scale(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out,
                                struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0), *p = infer_in(g, n, 1);
  ane_status st = infer_want_activation(x, err);
  if (st) return st;
  if (p->dtype != ANE_I32 || p->shape.rank != 2 || p->shape.dim[0] != 1) return infer_bad(p, "positions int32[1, T]", err);
  if (ane_node_int(n, "original") < 1) return ane_fail(err, ANE_INVALID, "original must be above 0");
  out[0] = infer_activation(infer_channels(x), infer_tokens(x));
  return ANE_OK;
}

static ane_status check_layout(const struct ane_node *n, struct ane_error *err) {
  const char *s = ane_node_string(n, "layout");
  if (strcmp(s, "half") == 0 || strcmp(s, "interleaved") == 0) return ANE_OK;
  return ane_fail(err, ANE_INVALID, "rope layout %s is unknown; known are: half, interleaved", s);
}

/* Checks that a and b have the same number of tokens. */
static ane_status same_tokens(const struct ane_value *a, const struct ane_value *b, struct ane_error *err) {
  char s[ANE_SHAPE_TEXT], t[ANE_SHAPE_TEXT];
  if (infer_tokens(a) == infer_tokens(b)) return ANE_OK;
  return ane_fail(err, ANE_SHAPE, "%s %s and %s %s have different numbers of tokens", a->name, ane_shape_text(&a->shape, s),
                  b->name, ane_shape_text(&b->shape, t));
}

static ane_status check_rope(const struct ane_value *x, const struct ane_value *table, int64_t head_dim, struct ane_error *err) {
  ane_status st = infer_want_activation(table, err);
  if (st || (st = same_tokens(x, table, err))) return st;
  if (infer_channels(table) > head_dim)
    return ane_fail(err, ANE_SHAPE, "rope rotates %" PRId64 " dimensions, but a head has %" PRId64, infer_channels(table),
                    head_dim);
  return ANE_OK;
}

ane_status infer_rope(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0);
  int64_t heads = ane_node_int(n, "heads");
  ane_status st = infer_want_activation(x, err);
  if (st || (st = check_layout(n, err))) return st;
  if (heads < 1 || infer_channels(x) % heads)
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " heads do not divide %" PRId64 " channels", heads, infer_channels(x));
  if ((st = check_rope(x, infer_in(g, n, 1), infer_channels(x) / heads, err))) return st;
  out[0] = infer_activation(infer_channels(x), infer_tokens(x));
  return ANE_OK;
}

static ane_status check_kv_state(const struct ane_value *s, int64_t kv_heads, int64_t head_dim, struct ane_error *err) {
  struct ane_shape want = {4, {1, kv_heads, ANE_DIM_CONTEXT, head_dim}};
  if (s && s->kind == ANE_VALUE_STATE && ane_shape_equal(&s->shape, &want)) return ANE_OK;
  if (!s) return ane_fail(err, ANE_SHAPE, "a state is absent");
  char text[ANE_SHAPE_TEXT];
  return ane_fail(err, ANE_SHAPE, "state %s must be [1, %" PRId64 ", context, %" PRId64 "], but is %s", s->name, kv_heads,
                  head_dim, ane_shape_text(&s->shape, text));
}

ane_status infer_attention(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *q = infer_in(g, n, 0), *k = infer_in(g, n, 1), *v = infer_in(g, n, 2);
  int64_t heads = ane_node_int(n, "heads"), kv_heads = ane_node_int(n, "kv_heads");
  ane_status st;
  if ((st = infer_want_activation(q, err)) || (st = infer_want_activation(k, err)) || (st = infer_want_activation(v, err)))
    return st;
  if ((st = same_tokens(q, k, err)) || (st = same_tokens(q, v, err))) return st;
  if (heads < 1 || kv_heads < 1 || heads % kv_heads || infer_channels(q) % heads)
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " heads and %" PRId64 " kv heads do not fit each other or %" PRId64 " channels",
                    heads, kv_heads, infer_channels(q));
  int64_t head_dim = infer_channels(q) / heads;
  if (infer_channels(k) != kv_heads * head_dim || infer_channels(v) != kv_heads * head_dim)
    return ane_fail(err, ANE_SHAPE, "k has %" PRId64 " and v %" PRId64 " channels, but must have %" PRId64 " heads of %" PRId64,
                    infer_channels(k), infer_channels(v), kv_heads, head_dim);
  if (ane_node_int(n, "window") < 0 || !(ane_node_float(n, "softcap") >= 0))
    return ane_fail(err, ANE_INVALID, "window and softcap must not be negative");
  if (ane_node_int(n, "window") > INFER_MOST || ane_node_int(n, "ahead") > INFER_MOST)
    return ane_fail(err, ANE_INVALID, "window and ahead must be at most 2^40, but are %" PRId64 " and %" PRId64,
                    ane_node_int(n, "window"), ane_node_int(n, "ahead"));
  if ((st = check_kv_state(infer_in(g, n, 3), kv_heads, head_dim, err)) ||
      (st = check_kv_state(infer_in(g, n, 4), kv_heads, head_dim, err)))
    return st;
  if (ane_node_int(n, "ahead") < 0) return ane_fail(err, ANE_INVALID, "ahead must not be negative");
  if ((st = infer_want_vector(infer_in(g, n, 5), heads, "sinks", err))) return st;
  if (n->op == ANE_OP_FUSED_ATTENTION) {
    if ((st = check_layout(n, err)) || (infer_in(g, n, 6) && (st = check_rope(q, infer_in(g, n, 6), head_dim, err)))) return st;
    if ((st = infer_want_vector(infer_in(g, n, 7), head_dim, "q norm", err)) ||
        (st = infer_want_vector(infer_in(g, n, 8), head_dim, "k norm", err)))
      return st;
  }
  out[0] = infer_activation(infer_channels(q), infer_tokens(q));
  return ANE_OK;
}

ane_status infer_same(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *a = infer_in(g, n, 0), *b = infer_in(g, n, 1);
  ane_status st = infer_want_activation(a, err);
  if (st || (b && (st = infer_want_activation(b, err)))) return st;
  if (b && !ane_shape_equal(&a->shape, &b->shape)) {
    char s[ANE_SHAPE_TEXT], t[ANE_SHAPE_TEXT];
    return ane_fail(err, ANE_SHAPE, "%s is %s but %s is %s", a->name, ane_shape_text(&a->shape, s), b->name,
                    ane_shape_text(&b->shape, t));
  }
  if ((n->op == ANE_OP_GLU || n->op == ANE_OP_ACT) && (st = ane_activation_check(ane_node_string(n, "act"), err))) return st;
  out[0] = infer_activation(infer_channels(a), infer_tokens(a));
  return ANE_OK;
}

ane_status infer_slice(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0);
  int64_t from = ane_node_int(n, "from"), to = ane_node_int(n, "to");
  ane_status st = infer_want_activation(x, err);
  if (st) return st;
  int64_t heads = ane_node_int(n, "heads");
  if (heads < 1 || infer_channels(x) % heads)
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " heads do not divide the %" PRId64 " channels of %s", heads, infer_channels(x),
                    x->name);
  if (from < 0 || to <= from || to > infer_channels(x) / heads)
    return ane_fail(err, ANE_SHAPE, "channels %" PRId64 " to %" PRId64 " of %s%s, which has %" PRId64, from, to,
                    heads > 1 ? "a head of " : "", x->name, infer_channels(x) / heads);
  out[0] = infer_activation(heads * (to - from), infer_tokens(x));
  return ANE_OK;
}

ane_status infer_gather(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0), *w = infer_in(g, n, 1);
  ane_status st = infer_want_activation(x, err);
  if (st) return st;
  if (w->dtype != ANE_I32 || w->shape.rank != 2 || w->shape.dim[0] != 1) return infer_bad(w, "positions int32[1, W]", err);
  out[0] = infer_activation(infer_channels(x), w->shape.dim[1]);
  return ANE_OK;
}

ane_status infer_linear(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = infer_in(g, n, 0), *residual = infer_in(g, n, 1);
  int64_t count = ane_node_int(n, "count");
  bool glu = *ane_node_string(n, "act") != '\0';
  ane_status st = infer_want_activation(x, err);
  if (st) return st;
  if (count < 1 || count > MAX_OUTPUTS || n->n_inputs != 3 + 2 * count || n->n_outputs != (glu ? 1 : count) ||
      (glu && count != 2) || (residual && count != 1))
    return ane_fail(err, ANE_INVALID, "linear of %" PRId64 " matrices with %d inputs and %d outputs", count, n->n_inputs,
                    n->n_outputs);
  if (glu && (st = ane_activation_check(ane_node_string(n, "act"), err))) return st;
  if ((st = infer_want_vector(infer_in(g, n, 2), infer_channels(x), "norm weight", err))) return st;
  for (int i = 0; i < count; i++) {
    const struct ane_value *w = infer_in(g, n, 3 + 2 * i);
    if ((st = infer_want_matrix(w, infer_channels(x), err)) ||
        (st = infer_want_vector(infer_in(g, n, 4 + 2 * i), w->shape.dim[0], "bias", err)))
      return st;
    if (glu && i && w->shape.dim[0] != out[0].shape.dim[1])
      return ane_fail(err, ANE_SHAPE, "weight %s has %" PRId64 " rows, but its gate has %" PRId64, w->name, w->shape.dim[0],
                      out[0].shape.dim[1]);
    if (i < n->n_outputs) out[i] = infer_activation(w->shape.dim[0], infer_tokens(x));
  }
  if (residual && (!infer_is_activation(residual) || infer_channels(residual) != out[0].shape.dim[1] ||
                   infer_tokens(residual) != infer_tokens(x)))
    return infer_bad(residual, "a residual of the output's shape", err);
  return ANE_OK;
}
