/* Shape inference: what each op asks of its inputs, and what it gives. */
#include "graph/graph_internal.h"

#include <inttypes.h>
#include <string.h>

/* Input i as a value; NULL where absent. */
static const struct ane_value *in(const struct ane_graph *g, const struct ane_node *n, int i) {
  int32_t v = ane_node_input(n, i);
  return v == ANE_NONE ? NULL : &g->values[v];
}

static ane_status bad(const struct ane_value *v, const char *want, struct ane_error *err) {
  char s[ANE_SHAPE_TEXT];
  return ane_fail(err, ANE_SHAPE, "%s is %s%s, wanted %s", v->name, ane_dtype_info(v->dtype)->name, ane_shape_text(&v->shape, s), want);
}

/* An activation: fp32 [1, C, T, 1]. */
static bool is_activation(const struct ane_value *v) {
  return v->dtype == ANE_F32 && v->shape.rank == 4 && v->shape.dim[0] == 1 && v->shape.dim[1] > 0 && v->shape.dim[3] == 1;
}

static ane_status want_activation(const struct ane_value *v, struct ane_error *err) {
  return v && is_activation(v) ? ANE_OK : v ? bad(v, "an activation fp32[1, C, T, 1]", err) : ane_fail(err, ANE_SHAPE, "the input is absent");
}

/* A vector of n elements, or nothing. */
static ane_status want_vector(const struct ane_value *v, int64_t n, const char *what, struct ane_error *err) {
  if (!v || (v->shape.rank == 1 && v->shape.dim[0] == n)) return ANE_OK;
  char s[ANE_SHAPE_TEXT];
  return ane_fail(err, ANE_SHAPE, "%s %s is %s, wanted [%" PRId64 "]", what, v->name, ane_shape_text(&v->shape, s), n);
}

static ane_status want_matrix(const struct ane_value *v, int64_t cols, struct ane_error *err) {
  if (v && v->shape.rank == 2 && v->shape.dim[1] == cols && v->shape.dim[0] > 0) return ANE_OK;
  if (!v) return ane_fail(err, ANE_SHAPE, "the weight is absent");
  char s[ANE_SHAPE_TEXT];
  return ane_fail(err, ANE_SHAPE, "weight %s is %s, wanted [N, %" PRId64 "] for an input of %" PRId64 " channels", v->name,
                  ane_shape_text(&v->shape, s), cols, cols);
}

static struct infer_out activation(int64_t channels, int64_t tokens) {
  return (struct infer_out){{4, {1, channels, tokens, 1}}, ANE_F32};
}

static int64_t channels(const struct ane_value *v) { return v->shape.dim[1]; }
static int64_t tokens(const struct ane_value *v) { return v->shape.dim[2]; }

static ane_status infer_embed(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *ids = in(g, n, 0), *table = in(g, n, 1);
  if (ids->dtype != ANE_I32 || ids->shape.rank != 2 || ids->shape.dim[0] != 1) return bad(ids, "ids int32[1, T]", err);
  if (table->shape.rank != 2 || table->shape.dim[0] < 1 || table->shape.dim[1] < 1) return bad(table, "a table [V, C]", err);
  out[0] = activation(table->shape.dim[1], ids->shape.dim[1]);
  return ANE_OK;
}

static ane_status infer_conv1x1(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = in(g, n, 0), *w = in(g, n, 1);
  ane_status st = want_activation(x, err);
  if (st || (st = want_matrix(w, channels(x), err)) || (st = want_vector(in(g, n, 2), w->shape.dim[0], "bias", err))) return st;
  out[0] = activation(w->shape.dim[0], tokens(x));
  return ANE_OK;
}

static ane_status infer_norm(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = in(g, n, 0);
  int64_t groups = ane_node_int(n, "groups");
  ane_status st = want_activation(x, err);
  if (st) return st;
  if (groups < 1 || channels(x) % groups) return ane_fail(err, ANE_SHAPE, "%" PRId64 " groups do not divide %" PRId64 " channels", groups, channels(x));
  if ((st = want_vector(in(g, n, 1), channels(x) / groups, "weight", err)) || (st = want_vector(in(g, n, 2), channels(x) / groups, "bias", err))) return st;
  out[0] = activation(channels(x), tokens(x));
  return ANE_OK;
}

static ane_status infer_rope_table(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *p = in(g, n, 0);
  const struct ane_attr *f = ane_node_attr(n, "inv_freq");
  if (p->dtype != ANE_I32 || p->shape.rank != 2 || p->shape.dim[0] != 1) return bad(p, "positions int32[1, T]", err);
  const struct ane_attr *longer = ane_node_attr(n, "long_freq");
  if (f->fv.n < 1) return ane_fail(err, ANE_INVALID, "inv_freq is empty");
  if (longer->fv.n && (longer->fv.n != f->fv.n || ane_node_int(n, "original") < 1))
    return ane_fail(err, ANE_INVALID, "long_freq has %" PRId64 " numbers and inv_freq %" PRId64 "; original is %" PRId64, longer->fv.n, f->fv.n,
                    ane_node_int(n, "original"));
  out[0] = activation(2 * f->fv.n, p->shape.dim[1]);
  return ANE_OK;
}

static ane_status check_layout(const struct ane_node *n, struct ane_error *err) {
  const char *s = ane_node_string(n, "layout");
  if (strcmp(s, "half") == 0 || strcmp(s, "interleaved") == 0) return ANE_OK;
  return ane_fail(err, ANE_INVALID, "rope layout %s is unknown; known are: half, interleaved", s);
}

static ane_status check_rope(const struct ane_value *table, int64_t head_dim, struct ane_error *err) {
  ane_status st = want_activation(table, err);
  if (st) return st;
  if (channels(table) > head_dim)
    return ane_fail(err, ANE_SHAPE, "rope turns %" PRId64 " dimensions, a head has %" PRId64, channels(table), head_dim);
  return ANE_OK;
}

static ane_status infer_rope(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = in(g, n, 0);
  int64_t heads = ane_node_int(n, "heads");
  ane_status st = want_activation(x, err);
  if (st || (st = check_layout(n, err))) return st;
  if (heads < 1 || channels(x) % heads) return ane_fail(err, ANE_SHAPE, "%" PRId64 " heads do not divide %" PRId64 " channels", heads, channels(x));
  if ((st = check_rope(in(g, n, 1), channels(x) / heads, err))) return st;
  out[0] = activation(channels(x), tokens(x));
  return ANE_OK;
}

static ane_status check_kv_state(const struct ane_value *s, int64_t kv_heads, int64_t head_dim, struct ane_error *err) {
  struct ane_shape want = {4, {1, kv_heads, ANE_DIM_CONTEXT, head_dim}};
  if (s && s->kind == ANE_VALUE_STATE && ane_shape_equal(&s->shape, &want)) return ANE_OK;
  if (!s) return ane_fail(err, ANE_SHAPE, "a state is absent");
  char text[ANE_SHAPE_TEXT];
  return ane_fail(err, ANE_SHAPE, "state %s is %s, wanted [1, %" PRId64 ", context, %" PRId64 "]", s->name, ane_shape_text(&s->shape, text), kv_heads, head_dim);
}

static ane_status infer_attention(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *q = in(g, n, 0), *k = in(g, n, 1), *v = in(g, n, 2);
  int64_t heads = ane_node_int(n, "heads"), kv_heads = ane_node_int(n, "kv_heads");
  ane_status st;
  if ((st = want_activation(q, err)) || (st = want_activation(k, err)) || (st = want_activation(v, err))) return st;
  if (heads < 1 || kv_heads < 1 || heads % kv_heads || channels(q) % heads)
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " heads and %" PRId64 " kv heads do not fit together or to %" PRId64 " channels", heads, kv_heads, channels(q));
  int64_t head_dim = channels(q) / heads;
  if (channels(k) != kv_heads * head_dim || channels(v) != kv_heads * head_dim)
    return ane_fail(err, ANE_SHAPE, "k has %" PRId64 " and v %" PRId64 " channels, wanted %" PRId64 " heads of %" PRId64, channels(k), channels(v), kv_heads, head_dim);
  if (ane_node_int(n, "window") < 0 || !(ane_node_float(n, "softcap") >= 0)) return ane_fail(err, ANE_INVALID, "window and softcap must not be negative");
  if ((st = check_kv_state(in(g, n, 3), kv_heads, head_dim, err)) || (st = check_kv_state(in(g, n, 4), kv_heads, head_dim, err))) return st;
  if (n->op == ANE_OP_ATTEND) {
    if ((st = check_layout(n, err)) || (in(g, n, 5) && (st = check_rope(in(g, n, 5), head_dim, err)))) return st;
    if ((st = want_vector(in(g, n, 6), head_dim, "q norm", err)) || (st = want_vector(in(g, n, 7), head_dim, "k norm", err))) return st;
  }
  out[0] = activation(channels(q), tokens(q));
  return ANE_OK;
}

static ane_status check_act(const char *act, struct ane_error *err) {
  static const char *const known[] = {"silu", "gelu_tanh", "gelu_erf", "sigmoid"};
  for (size_t i = 0; i < ANE_COUNT(known); i++)
    if (strcmp(act, known[i]) == 0) return ANE_OK;
  return ane_fail(err, ANE_INVALID, "activation %s is unknown; known are: silu, gelu_tanh, gelu_erf, sigmoid", act);
}

static ane_status infer_same(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *a = in(g, n, 0), *b = in(g, n, 1);
  ane_status st = want_activation(a, err);
  if (st || (b && (st = want_activation(b, err)))) return st;
  if (b && !ane_shape_equal(&a->shape, &b->shape)) {
    char s[ANE_SHAPE_TEXT], t[ANE_SHAPE_TEXT];
    return ane_fail(err, ANE_SHAPE, "%s is %s but %s is %s", a->name, ane_shape_text(&a->shape, s), b->name, ane_shape_text(&b->shape, t));
  }
  if ((n->op == ANE_OP_GLU || n->op == ANE_OP_ACT) && (st = check_act(ane_node_string(n, "act"), err))) return st;
  out[0] = activation(channels(a), tokens(a));
  return ANE_OK;
}

static ane_status infer_slice(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = in(g, n, 0);
  int64_t from = ane_node_int(n, "from"), to = ane_node_int(n, "to");
  ane_status st = want_activation(x, err);
  if (st) return st;
  if (from < 0 || to <= from || to > channels(x))
    return ane_fail(err, ANE_SHAPE, "channels %" PRId64 " to %" PRId64 " of %" PRId64, from, to, channels(x));
  out[0] = activation(to - from, tokens(x));
  return ANE_OK;
}

static ane_status infer_take(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = in(g, n, 0), *w = in(g, n, 1);
  ane_status st = want_activation(x, err);
  if (st) return st;
  if (w->dtype != ANE_I32 || w->shape.rank != 2 || w->shape.dim[0] != 1) return bad(w, "positions int32[1, W]", err);
  out[0] = activation(channels(x), w->shape.dim[1]);
  return ANE_OK;
}

static ane_status infer_project(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  const struct ane_value *x = in(g, n, 0), *residual = in(g, n, 1);
  int64_t count = ane_node_int(n, "count");
  bool glu = *ane_node_string(n, "act") != '\0';
  ane_status st = want_activation(x, err);
  if (st) return st;
  if (count < 1 || count > MAX_OUTPUTS || n->n_inputs != 3 + 2 * count || n->n_outputs != (glu ? 1 : count) || (glu && count != 2) || (residual && count != 1))
    return ane_fail(err, ANE_INVALID, "project of %" PRId64 " matrices with %d inputs and %d outputs", count, n->n_inputs, n->n_outputs);
  if (glu && (st = check_act(ane_node_string(n, "act"), err))) return st;
  if ((st = want_vector(in(g, n, 2), channels(x), "norm weight", err))) return st;
  for (int i = 0; i < count; i++) {
    const struct ane_value *w = in(g, n, 3 + 2 * i);
    if ((st = want_matrix(w, channels(x), err)) || (st = want_vector(in(g, n, 4 + 2 * i), w->shape.dim[0], "bias", err))) return st;
    if (i < n->n_outputs) out[i] = activation(w->shape.dim[0], tokens(x));
  }
  if (residual && (!is_activation(residual) || channels(residual) != out[0].shape.dim[1] || tokens(residual) != tokens(x)))
    return bad(residual, "a residual of the output's shape", err);
  return ANE_OK;
}

static const infer_fn infers[] = {
#define ANE_OP(id, name, kind, min, max, outs, infer, ...) [ANE_OP_##id] = infer_##infer,
#include "graph/op.def"
#undef ANE_OP
};

static ane_status check_inputs(const struct ane_graph *g, const struct ane_node *n, struct ane_error *err) {
  const struct ane_op_info *op = ane_op_info(n->op);
  if (n->n_inputs < op->min_inputs || (op->max_inputs >= 0 && n->n_inputs > op->max_inputs))
    return ane_fail(err, ANE_INVALID, "%s takes %d to %d inputs, got %d", op->name, op->min_inputs, op->max_inputs, n->n_inputs);
  bool project = n->op == ANE_OP_PROJECT; /* its second, third and every bias may be absent */
  for (int i = 0; i < n->n_inputs; i++) {
    int32_t v = n->inputs[i];
    if (v == ANE_NONE ? i < (project ? 1 : op->min_inputs) : v < 0 || v >= g->n_values)
      return ane_fail(err, ANE_INVALID, "input %d of %s is no value", i + 1, op->name);
  }
  return ANE_OK;
}

ane_status graph_infer(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  ane_status st = check_inputs(g, n, err);
  if (!st) st = infers[n->op](g, n, out, err);
  return st ? ane_fail_in(err, st, "%s", n->name) : ANE_OK;
}
