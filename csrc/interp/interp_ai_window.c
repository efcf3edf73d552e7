/* Translates transposed convolutions, pooling and interpolation of Core AI to operations of MIL. */
#include "interp/interp_ai.h"

/* Returns the result's shape as a constant. NULL: the error is set. */
static const struct ane_mil_value *result_shape(struct translation *t, const struct call *c) {
  const struct ane_mil_type *y = &c->out->type;
  int32_t dim[ANE_MIL_RANK];
  for (int32_t i = 0; i < y->rank; i++) {
    if (y->dim[i] < 0 || y->dim[i] > INT32_MAX) return (void)ai_fail(t, ANE_UNSUPPORTED, "its shape is unknown"), NULL;
    dim[i] = (int32_t)y->dim[i];
  }
  const struct ane_mil_value *v = ai_ints(t, dim, y->rank);
  if (!v) (void)ai_no_memory(t);
  return v;
}

/* Translates a transposed convolution. Operands: x, weight, stride, padding of each axis, dilation, elements added at the end,
 * groups. The added elements are part of the declared shape. */
static ane_status conv_transpose(struct translation *t, const struct call *c) {
  const struct ane_mil_value *shape = result_shape(t, c);
  int32_t pad[3], both[6];
  int64_t n;
  if (!shape) return t->err->code;
  if (!ai_constant_ints(c->in[3], pad, 3, &n)) return ai_fail(t, ANE_UNSUPPORTED, "its padding must be constant");
  for (int64_t i = 0; i < n; i++) both[2 * i] = both[2 * i + 1] = pad[i];
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "weight", .slot = c->in[1]},
                      {.name = "strides", .slot = c->in[2]},
                      {.name = "pad_type", .value = ai_text(t, "custom")},
                      {.name = "pad", .value = ai_ints(t, both, 2 * n)},
                      {.name = "dilations", .slot = c->in[4]},
                      {.name = "groups", .slot = c->in[6]},
                      {.name = "output_shape", .value = shape}};
  return ai_emit(t, "conv_transpose", p, ANE_COUNT(p), c->out, 1);
}

static ane_status max_pool(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "kernel_sizes", .slot = c->in[1]},
                      {.name = "strides", .slot = c->in[2]},
                      {.name = "dilations", .slot = c->in[3]},
                      {.name = "ceil_mode", .slot = c->in[4]}};
  return ai_emit(t, "max_pool", p, ANE_COUNT(p), c->out, 1);
}

/* Translates sum pooling: the mean times the number of elements in a window. */
static ane_status sum_pool(struct translation *t, const struct call *c) {
  struct slot mean = {.type = c->out->type}, size = {.type = ane_mil_tensor_type(ANE_MIL_INT32, 0, NULL)},
              count = {.type = ane_mil_tensor_type(ANE_MIL_FP32, 0, NULL)};
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "kernel_sizes", .slot = c->in[1]},
                      {.name = "strides", .slot = c->in[2]},
                      {.name = "dilations", .slot = c->in[3]}};
  struct param all[] = {{.name = "x", .slot = c->in[1]}, {.name = "keep_dims", .value = ai_flag(t, false)}};
  struct param real[] = {{.name = "x", .slot = &size}, {.name = "dtype", .value = ai_text(t, "fp32")}};
  struct param times[] = {{.name = "x", .slot = &mean}, {.name = "y", .slot = &count}};
  ane_status st = ai_emit(t, "avg_pool", p, ANE_COUNT(p), &mean, 1);
  if (!st) st = ai_emit(t, "reduce_prod", all, 2, &size, 1);
  if (!st) st = ai_emit(t, "cast", real, 2, &count, 1);
  return st ? st : ai_emit(t, "mul", times, 2, c->out, 1);
}

static ane_status interpolate(struct translation *t, const struct call *c) {
  static const char *const modes[] = {"linear", "nearest"};
  if (c->op->mode >= ANE_COUNT(modes)) return ai_fail(t, ANE_UNSUPPORTED, "its mode is not known");
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "shape", .slot = c->in[1]},
                      {.name = "scale", .slot = c->in[2]},
                      {.name = "offset", .slot = c->in[3]},
                      {.name = "mode", .value = ai_text(t, modes[c->op->mode])}};
  return ai_emit(t, "interpolate", p, ANE_COUNT(p), c->out, 1);
}

ane_status ai_translate_window(struct translation *t, const struct call *c) {
  switch (c->op->id) {
    case ANE_AI_MAX_POOL2D:
    case ANE_AI_MAX_POOL3D: return max_pool(t, c);
    case ANE_AI_SUM_POOL2D:
    case ANE_AI_SUM_POOL3D: return sum_pool(t, c);
    case ANE_AI_INTERPOLATE: return interpolate(t, c);
    default: return conv_transpose(t, c);
  }
}
