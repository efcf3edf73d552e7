/* Presents operations of an ML Program to the rules. A convolution is judged by the scheme of its weight, which is the output of
 * another operation. */
#include "mil/residency.h"

#include <string.h>

bool ane_residency_makers(const struct ane_mil_function *f, struct ane_strmap *out) {
  for (uint32_t i = 0; i < f->block.n_ops; i++)
    for (uint32_t j = 0; j < f->block.ops[i].n_outputs; j++) {
      const char *name = f->block.ops[i].outputs[j].name;
      if (!ane_strmap_put(out, name, strlen(name), i, NULL)) return false;
    }
  return true;
}

/* Returns the index of the operation before `end` whose output has this name, or `end`. */
static uint32_t maker(const struct ane_strmap *makers, uint32_t end, const char *name) {
  return ANE_MIN(ane_strmap_get(makers, name, strlen(name)), end);
}

/* Returns the value of a parameter: an attribute (constexpr operations of iOS 16), or an input bound to a value (iOS 18). NULL:
 * it is neither. */
static const struct ane_mil_value *parameter(const struct ane_mil_op *op, const char *name) {
  const struct ane_mil_value *v = ane_mil_op_attr(op, name);
  const struct ane_mil_arg *a = v ? NULL : ane_mil_op_arg(op, name);
  return v ? v : a && a->n_bindings == 1 ? a->bindings[0].value : NULL;
}

static bool scheme_of(const struct ane_mil_op *op, ane_weight_scheme *out) {
  const struct ane_mil_value *scale = parameter(op, "scale"), *data = parameter(op, "data");
  bool one = scale && scale->count == 1;
  if (strcmp(op->type, "const") == 0)
    *out = ANE_WEIGHT_FP16;
  else if (strcmp(op->type, "constexpr_lut_to_dense") == 0)
    *out = ANE_WEIGHT_LUT;
  else if (strcmp(op->type, "constexpr_affine_dequantize") == 0)
    *out = one ? ANE_WEIGHT_INT8 : ANE_WEIGHT_INT8_CHANNEL;
  else if (strcmp(op->type, "constexpr_blockwise_shift_scale") != 0)
    return false;
  else if (data && ane_mil_dtype_bits(data->type.dtype) == 4)
    *out = parameter(op, "offset") ? ANE_WEIGHT_UINT4_BLOCK : ANE_WEIGHT_INT4_BLOCK;
  else if (scale && scale->type.rank > 1 && scale->type.dim[1] > 1)
    *out = ANE_WEIGHT_INT8_BLOCK;
  else
    *out = one ? ANE_WEIGHT_INT8 : ANE_WEIGHT_INT8_CHANNEL;
  return true;
}

/* Fills the fields of x that describe the operation's weight. */
static void read_weight(const struct ane_mil_block *b, const struct ane_strmap *makers, uint32_t i, struct ane_residency_op *x) {
  const struct ane_mil_op *op = &b->ops[i];
  const struct ane_mil_arg *w = ane_mil_op_arg(op, "weight");
  if (!w || w->n_bindings != 1) return;
  uint32_t at = w->bindings[0].name ? maker(makers, i, w->bindings[0].name) : i;
  if (w->bindings[0].value) {
    x->scheme = ANE_WEIGHT_FP16;
    x->has_weights = true;
  } else if (at < i) {
    x->has_weights = scheme_of(&b->ops[at], &x->scheme);
  }
  x->projection = x->has_weights && strcmp(op->type, "conv") == 0;
  for (uint32_t j = 0; at < i && j < b->ops[at].n_outputs; j++)
    for (int32_t d = 0; d < b->ops[at].outputs[j].type.rank; d++) x->most = ANE_MAX(x->most, b->ops[at].outputs[j].type.dim[d]);
}

/* Returns the last dimension of the state that the operation writes. */
static int64_t state_last(const struct ane_mil_function *f, const struct ane_mil_op *op) {
  const struct ane_mil_arg *s = ane_mil_op_arg(op, "input");
  for (uint32_t i = 0; s && s->n_bindings == 1 && s->bindings[0].name && i < f->n_inputs; i++)
    if (strcmp(f->inputs[i].name, s->bindings[0].name) == 0 && f->inputs[i].type.rank > 0)
      return f->inputs[i].type.dim[f->inputs[i].type.rank - 1];
  return 0;
}

struct ane_residency_finding ane_residency_judge_mil(const struct ane_mil_function *f, const struct ane_strmap *makers,
                                                     uint32_t i) {
  const struct ane_mil_op *op = &f->block.ops[i];
  struct ane_residency_op x = {0};
  if (strcmp(op->type, "const") == 0 || strncmp(op->type, "constexpr_", 10) == 0)
    return (struct ane_residency_finding){ANE_RESIDENCY_ENGINE, ANE_NONE, 0};
  read_weight(&f->block, makers, i, &x);
  x.int8_activations = strcmp(op->type, "quantize") == 0 || strcmp(op->type, "dequantize") == 0;
  x.top_k = strcmp(op->type, "topk") == 0;
  x.state_write = strcmp(op->type, "write_state") == 0;
  if (x.state_write) x.state_last = state_last(f, op);
  for (uint32_t j = 0; j < op->n_outputs; j++) {
    const struct ane_mil_type *t = &op->outputs[j].type;
    x.fp32 |= t->kind == ANE_MIL_TENSOR && t->dtype == ANE_MIL_FP32;
    x.rank = ANE_MAX(x.rank, t->rank);
    for (int32_t d = 0; d < t->rank; d++) x.most = ANE_MAX(x.most, t->dim[d]);
  }
  return ane_residency_judge_op(&x);
}
