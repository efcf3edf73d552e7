/* Shape inference: the checks that ops share, and the driver. */
#include "graph/graph_internal.h"

#include <inttypes.h>
#include <string.h>

const struct ane_value *infer_in(const struct ane_graph *g, const struct ane_node *n, int i) {
  int32_t v = ane_node_input(n, i);
  return v == ANE_NONE ? NULL : &g->values[v];
}

ane_status infer_bad(const struct ane_value *v, const char *want, struct ane_error *err) {
  char s[ANE_SHAPE_TEXT];
  return ane_fail(err, ANE_SHAPE, "%s must be %s, but is %s%s", v->name, want, ane_dtype_info(v->dtype)->name,
                  ane_shape_text(&v->shape, s));
}

bool infer_is_activation(const struct ane_value *v) {
  return v->dtype == ANE_F32 && v->shape.rank == 4 && v->shape.dim[0] == 1 && v->shape.dim[1] > 0 &&
         v->shape.dim[1] <= INFER_MOST && v->shape.dim[3] == 1;
}

ane_status infer_want_activation(const struct ane_value *v, struct ane_error *err) {
  return v && infer_is_activation(v) ? ANE_OK
         : v                         ? infer_bad(v, "an activation fp32[1, C, T, 1]", err)
                                     : ane_fail(err, ANE_SHAPE, "the input is absent");
}

ane_status infer_want_vector(const struct ane_value *v, int64_t n, const char *what, struct ane_error *err) {
  if (!v || (v->shape.rank == 1 && v->shape.dim[0] == n)) return ANE_OK;
  char s[ANE_SHAPE_TEXT];
  return ane_fail(err, ANE_SHAPE, "%s %s must be [%" PRId64 "], but is %s", what, v->name, n, ane_shape_text(&v->shape, s));
}

ane_status infer_want_groups(const struct ane_value *x, int64_t groups, struct ane_error *err) {
  if (groups >= 1 && infer_channels(x) % groups == 0) return ANE_OK;
  return ane_fail(err, ANE_SHAPE, "%" PRId64 " groups do not divide %" PRId64 " channels", groups, infer_channels(x));
}

ane_status infer_want_matrix(const struct ane_value *v, int64_t cols, struct ane_error *err) {
  if (v && v->shape.rank == 2 && v->shape.dim[1] == cols && v->shape.dim[0] > 0) return ANE_OK;
  if (!v) return ane_fail(err, ANE_SHAPE, "the weight is absent");
  char s[ANE_SHAPE_TEXT];
  return ane_fail(err, ANE_SHAPE, "weight %s must be [N, %" PRId64 "] for an input of %" PRId64 " channels, but is %s", v->name,
                  cols, cols, ane_shape_text(&v->shape, s));
}

struct infer_out infer_activation(int64_t channels, int64_t tokens) {
  return (struct infer_out){{4, {1, channels, tokens, 1}}, ANE_F32};
}

ane_status ane_activation_check(const char *act, struct ane_error *err) {
#define ANE_ACT(id, name) #name,
  static const char *const known[] = {
#include "tensor/act.def"
  };
#undef ANE_ACT
#define ANE_ACT(id, name) ", " #name
  static const char all[] =
#include "tensor/act.def"
      ;
#undef ANE_ACT
  for (size_t i = 0; i < ANE_COUNT(known); i++)
    if (strcmp(act, known[i]) == 0) return ANE_OK;
  return ane_fail(err, ANE_INVALID, "activation %s is unknown; known are: %s", act, all + 2);
}

static const infer_fn infers[] = {
#define ANE_OP(id, name, kind, min, max, outs, tokens, infer, ...) [ANE_OP_##id] = infer_##infer,
#include "graph/op.def"
#undef ANE_OP
};

static ane_status check_inputs(const struct ane_graph *g, const struct ane_node *n, struct ane_error *err) {
  const struct ane_op_info *op = ane_op_info(n->op);
  if (n->n_inputs < op->min_inputs || (op->max_inputs >= 0 && n->n_inputs > op->max_inputs))
    return ane_fail(err, ANE_INVALID, "%s must have %d to %d inputs, but has %d", op->name, op->min_inputs, op->max_inputs,
                    n->n_inputs);
  bool rest = n->op == ANE_OP_LINEAR || n->op == ANE_OP_EXPERTS ||
              n->op == ANE_OP_CONV_CAUSAL; /* only x is required here; their shape rules check the rest */
  for (int i = 0; i < n->n_inputs; i++) {
    int32_t v = n->inputs[i];
    if (v == ANE_NONE ? i < (rest ? 1 : op->min_inputs) : v < 0 || v >= g->n_values)
      return ane_fail(err, ANE_INVALID, "input %d of %s is not a value", i + 1, op->name);
    if (v != ANE_NONE && g->values[v].kind == ANE_VALUE_RESULT && g->values[v].node == ANE_NONE)
      return ane_fail(err, ANE_INVALID, "input %d of %s is %s, which no node makes", i + 1, op->name, g->values[v].name);
  }
  return ANE_OK;
}

ane_status graph_infer(const struct ane_graph *g, const struct ane_node *n, struct infer_out *out, struct ane_error *err) {
  ane_status st = check_inputs(g, n, err);
  if (!st) st = infers[n->op](g, n, out, err);
  return st ? ane_fail_in(err, st, "%s", n->name) : ANE_OK;
}
