/* ONNX ops that become several primitives, or one whose parameters need work. */
#include "interp/interp_onnx.h"

#include <string.h>

enum { NONE = INTERP_NONE, MAX_IN = 8 };

/* Names the outputs of the steps: the last step gets the node's own output. */
static ane_status step(struct onnx_import *t, const struct ane_onnx_node *n, ane_prim op, const int32_t *in, int n_in,
                       int32_t *out) {
  ane_status st = *out == NONE ? interp_value(t->g, n->name, out, t->err) : ANE_OK;
  return st ? st : interp_add(t->g, t->block, op, n->name, in, n_in, out, 1, t->err);
}

static ane_status step2(struct onnx_import *t, const struct ane_onnx_node *n, ane_prim op, int32_t a, int32_t b, int32_t *out) {
  int32_t in[2] = {a, b};
  return step(t, n, op, in, 2, out);
}

/* Refuses attributes, inputs and outputs beyond those listed. */
static ane_status only(struct onnx_import *t, const struct ane_onnx_node *n, const char *const *attrs, int n_in, int n_out) {
  for (int32_t i = 0; i < n->n_attrs; i++) {
    bool known = false;
    for (const char *const *a = attrs; *a; a++) known = known || strcmp(*a, n->attrs[i].name) == 0;
    if (!known) return onnx_node_fail(t, n, ANE_UNSUPPORTED, "attribute %.60s is not known", n->attrs[i].name);
  }
  for (int32_t i = n_in; i < n->n_in; i++)
    if (n->in[i] != NONE) return onnx_node_fail(t, n, ANE_UNSUPPORTED, "input %d is not supported", (int)i + 1);
  for (int32_t i = n_out; i < n->n_out; i++)
    if (n->out[i] != NONE && n_out >= 0) return onnx_node_fail(t, n, ANE_UNSUPPORTED, "output %d is not supported", (int)i + 1);
  if (n->n_in < 1 || n->in[0] == NONE || n->n_out < 1 || n->out[0] == NONE)
    return onnx_node_fail(t, n, ANE_FORMAT, "has no first input or output");
  return ANE_OK;
}

static ane_status wrong_type(struct onnx_import *t, const struct ane_onnx_node *n) {
  return onnx_node_fail(t, n, ANE_FORMAT, "an attribute has another type than the op needs");
}

/* ---- Products ------------------------------------------------------------------------------------------------------*/

static ane_status product(struct onnx_import *t, const struct ane_onnx_node *n, int64_t ta, int64_t tb, float alpha,
                          int32_t *out) {
  int32_t in[4] = {onnx_in(t, n, 0), onnx_in(t, n, 1), NONE, NONE}, raw = NONE, scale;
  ane_status st = interp_ints(t->g, &ta, 1, true, &in[2], t->err);
  if (!st) st = interp_ints(t->g, &tb, 1, true, &in[3], t->err);
  if (!st) st = step(t, n, ANE_PRIM_matmul, in, 4, alpha == 1 ? out : &raw);
  if (st || alpha == 1) return st;
  st = interp_float(t->g, alpha, &scale, t->err);
  return st ? st : step2(t, n, ANE_PRIM_mul, raw, scale, out);
}

static ane_status fused_matmul(struct onnx_import *t, const struct ane_onnx_node *n) {
  static const char *const attrs[] = {"alpha", "transA", "transB", "transBatchA", "transBatchB", NULL};
  int64_t ta = 0, tb = 0, ba = 0, bb = 0;
  float alpha = 1;
  ane_status st = only(t, n, attrs, 2, 1);
  if (st) return st;
  if (!onnx_int(n, "transA", &ta) || !onnx_int(n, "transB", &tb) || !onnx_int(n, "transBatchA", &ba) ||
      !onnx_int(n, "transBatchB", &bb) || !onnx_float(n, "alpha", &alpha))
    return wrong_type(t, n);
  if (ba || bb) return onnx_node_fail(t, n, ANE_UNSUPPORTED, "transposed batch dimensions");
  int32_t out = n->out[0];
  return product(t, n, ta != 0, tb != 0, alpha, &out);
}

static ane_status gemm(struct onnx_import *t, const struct ane_onnx_node *n) {
  static const char *const attrs[] = {"alpha", "beta", "transA", "transB", NULL};
  int64_t ta = 0, tb = 0;
  float alpha = 1, beta = 1;
  int32_t c = onnx_in(t, n, 2), out = n->out[0], ab = NONE, by, scaled = NONE;
  ane_status st = only(t, n, attrs, 3, 1);
  if (st) return st;
  if (!onnx_int(n, "transA", &ta) || !onnx_int(n, "transB", &tb) || !onnx_float(n, "alpha", &alpha) ||
      !onnx_float(n, "beta", &beta))
    return wrong_type(t, n);
  st = product(t, n, ta != 0, tb != 0, alpha, c == NONE ? &out : &ab);
  if (st || c == NONE) return st;
  if (beta != 1) {
    st = interp_float(t->g, beta, &by, t->err);
    if (!st) st = step2(t, n, ANE_PRIM_mul, c, by, &scaled);
    c = scaled;
  }
  return st ? st : step2(t, n, ANE_PRIM_add, ab, c, &out);
}

/* Translates an op with windows. ONNX lists all begins of the padding, then all ends; MIL has a pair for each axis. The mapping
 * names the parameters pad_type and pad, which are set here. */
static ane_status windows(struct onnx_import *t, const struct ane_onnx_node *n, ane_prim prim, const char *mapping) {
  const struct ane_onnx_attr *pads = ane_onnx_attr(n, "pads"), *ap = ane_onnx_attr(n, "auto_pad");
  int64_t pairs[6];
  int32_t pad = NONE, type = NONE;
  const char *name = pads ? "custom" : "valid", *as = !ap ? "NOTSET" : ap->type == ANE_ONNX_STRING ? ap->s.data : "";
  if (strcmp(as, "SAME_UPPER") == 0)
    name = "same";
  else if (strcmp(as, "SAME_LOWER") == 0)
    name = "same_lower";
  else if (strcmp(as, "VALID") == 0)
    name = "valid";
  else if (strcmp(as, "NOTSET") != 0)
    return wrong_type(t, n);
  if (pads && (pads->type != ANE_ONNX_INTS || pads->n % 2 || pads->n > 6)) return wrong_type(t, n);
  for (size_t i = 0; pads && i < pads->n / 2; i++) pairs[2 * i] = pads->ints[i], pairs[2 * i + 1] = pads->ints[i + pads->n / 2];
  ane_status st = interp_text(t->g, name, strlen(name), &type, t->err);
  if (!st && pads) st = interp_ints(t->g, pairs, (int64_t)pads->n, false, &pad, t->err);
  size_t before = t->block->buffer.size;
  if (!st) st = onnx_map(t, n, prim, mapping);
  if (st) return st;
  struct interp_node *made = (struct interp_node *)(void *)(t->block->buffer.data + before);
  made->in[ane_prim_param(prim, "pad_type")] = type;
  if (pads) made->in[ane_prim_param(prim, "pad")] = pad;
  return ANE_OK;
}

static ane_status conv(struct onnx_import *t, const struct ane_onnx_node *n) {
  return windows(t, n, ANE_PRIM_conv,
                 "x=0 weight=1 bias=2 strides=@strides dilations=@dilations groups=@group pad_type='valid pad=@pads !auto_pad "
                 "!kernel_shape");
}

static ane_status conv_integer(struct onnx_import *t, const struct ane_onnx_node *n) {
  return windows(t, n, ANE_PRIM_conv_integer,
                 "x=0 weight=1 x_zero_point=2 weight_zero_point=3 strides=@strides dilations=@dilations groups=@group "
                 "pad_type='valid pad=@pads !auto_pad !kernel_shape");
}

/* ---- Pooling -------------------------------------------------------------------------------------------------------*/

/* storage_order changes the indices only, which are not supported. */
static ane_status max_pool(struct onnx_import *t, const struct ane_onnx_node *n) {
  return windows(t, n, ANE_PRIM_max_pool,
                 "x=0 kernel_sizes=@kernel_shape strides=@strides dilations=@dilations ceil_mode=@ceil_mode pad_type='valid "
                 "pad=@pads !auto_pad !storage_order");
}

static ane_status average_pool(struct onnx_import *t, const struct ane_onnx_node *n) {
  int64_t include = 0;
  if (!onnx_int(n, "count_include_pad", &include)) return wrong_type(t, n);
  return windows(t, n, ANE_PRIM_avg_pool,
                 include ? "x=0 kernel_sizes=@kernel_shape strides=@strides dilations=@dilations ceil_mode=@ceil_mode "
                           "pad_type='valid pad=@pads !auto_pad !count_include_pad"
                         : "x=0 kernel_sizes=@kernel_shape strides=@strides dilations=@dilations ceil_mode=@ceil_mode "
                           "pad_type='valid pad=@pads exclude_padding_from_average=#1 !auto_pad !count_include_pad");
}

static ane_status norm_axes(struct onnx_import *t, const struct ane_onnx_node *n, int64_t axis, int32_t x, int32_t *out);

/* Reduces all axes but the first two. */
static ane_status global_pool(struct onnx_import *t, const struct ane_onnx_node *n, ane_prim op) {
  static const char *const attrs[] = {NULL};
  int64_t keep = 1;
  int32_t out = n->n_out ? n->out[0] : NONE, in[3] = {NONE, NONE, NONE};
  ane_status st = only(t, n, attrs, 1, 1);
  if (st) return st;
  in[0] = n->in[0];
  st = norm_axes(t, n, 2, in[0], &in[1]);
  if (!st) st = interp_ints(t->g, &keep, 1, true, &in[2], t->err);
  return st ? st : step(t, n, op, in, 3, &out);
}
static ane_status global_average(struct onnx_import *t, const struct ane_onnx_node *n) {
  return global_pool(t, n, ANE_PRIM_reduce_mean);
}
static ane_status global_max(struct onnx_import *t, const struct ane_onnx_node *n) {
  return global_pool(t, n, ANE_PRIM_reduce_max);
}

/* ---- Norms ---------------------------------------------------------------------------------------------------------*/

/* Makes the list of the axes `axis` .. -1. The rank is not known before the run, so a primitive computes the list from the
 * shape. */
static ane_status norm_axes(struct onnx_import *t, const struct ane_onnx_node *n, int64_t axis, int32_t x, int32_t *out) {
  int32_t shape = NONE, in[3], rank = NONE, start = NONE, one = NONE;
  int64_t single[1] = {axis}, step_by = 1;
  if (axis == -1) return interp_ints(t->g, single, 1, false, out, t->err);
  ane_status st = ANE_OK;
  if (axis < -1) { /* -k .. -1 */
    int64_t list[ANE_DYN_RANK];
    if (axis < -ANE_DYN_RANK) return onnx_node_fail(t, n, ANE_INVALID, "axis is out of range");
    int64_t k = -axis;
    for (int64_t i = 0; i < k; i++) list[i] = axis + i;
    return interp_ints(t->g, list, k, false, out, t->err);
  }
  in[0] = x; /* range(axis, rank), where rank = size(shape(x)) */
  st = step(t, n, ANE_PRIM_shape, in, 1, &shape);
  if (!st) st = step(t, n, ANE_PRIM_size, &shape, 1, &rank);
  if (!st) st = interp_ints(t->g, &axis, 1, true, &start, t->err);
  if (!st) st = interp_ints(t->g, &step_by, 1, true, &one, t->err);
  in[0] = rank, in[1] = start, in[2] = one;
  *out = NONE;
  return st ? st : step(t, n, ANE_PRIM_range_1d, in, 3, out);
}

/* The node's outputs: the norm; with `all` also the means and 1 / the deviations. */
static ane_status layer_norm_of(struct onnx_import *t, const struct ane_onnx_node *n, int32_t x, int32_t gamma, int32_t beta,
                                int64_t axis, float epsilon, bool all) {
  int32_t in[5] = {x, NONE, gamma, beta, NONE};
  if (gamma == NONE) return onnx_node_fail(t, n, ANE_FORMAT, "the input of its scale is missing");
  ane_status st = norm_axes(t, n, axis, x, &in[1]);
  if (!st) st = interp_float(t->g, epsilon, &in[4], t->err);
  return st ? st : interp_add(t->g, t->block, ANE_PRIM_layer_norm, n->name, in, 5, n->out, all ? n->n_out : 1, t->err);
}

static ane_status layer_norm(struct onnx_import *t, const struct ane_onnx_node *n) {
  static const char *const attrs[] = {"axis", "epsilon", "stash_type", NULL};
  int64_t axis = -1;
  float epsilon = 1e-5f;
  ane_status st = only(t, n, attrs, 3, 3);
  if (st) return st;
  if (!onnx_int(n, "axis", &axis) || !onnx_float(n, "epsilon", &epsilon)) return wrong_type(t, n);
  return layer_norm_of(t, n, n->in[0], onnx_in(t, n, 1), onnx_in(t, n, 2), axis, epsilon, true);
}

/* Translates a norm of t = x + skip (+ bias). Outputs: the norm of t; two that only training uses; t. */
static ane_status skip_norm(struct onnx_import *t, const struct ane_onnx_node *n, bool rms) {
  static const char *const attrs[] = {"epsilon", NULL};
  float epsilon = 1e-12f;
  int32_t bias = onnx_in(t, n, rms ? 3 : 4), sum = n->n_out > 3 ? n->out[3] : NONE, part = NONE, eps;
  ane_status st = only(t, n, attrs, rms ? 4 : 5, 4);
  if (st) return st;
  if (!onnx_float(n, "epsilon", &epsilon)) return wrong_type(t, n);
  if ((n->n_out > 1 && n->out[1] != NONE) || (n->n_out > 2 && n->out[2] != NONE))
    return onnx_node_fail(t, n, ANE_UNSUPPORTED, "outputs 2 and 3 are for training only");
  st = step2(t, n, ANE_PRIM_add, n->in[0], onnx_in(t, n, 1), bias == NONE ? &sum : &part);
  if (!st && bias != NONE) st = step2(t, n, ANE_PRIM_add, part, bias, &sum);
  if (st) return st;
  if (!rms) return layer_norm_of(t, n, sum, onnx_in(t, n, 2), onnx_in(t, n, 3), -1, epsilon, false);
  st = interp_float(t->g, epsilon, &eps, t->err);
  int32_t in[4] = {sum, onnx_in(t, n, 2), NONE, eps}, out = n->out[0];
  return st ? st : step(t, n, ANE_PRIM_rms_norm, in, 4, &out);
}
static ane_status skip_layer_norm(struct onnx_import *t, const struct ane_onnx_node *n) { return skip_norm(t, n, false); }
static ane_status skip_rms_norm(struct onnx_import *t, const struct ane_onnx_node *n) { return skip_norm(t, n, true); }

/* ---- Activations ---------------------------------------------------------------------------------------------------*/

static ane_status gelu_of(struct onnx_import *t, const struct ane_onnx_node *n, bool tanh, bool bias) {
  const char *mode = tanh ? "TANH_APPROXIMATION" : "EXACT";
  int32_t in[2] = {n->in[0], NONE}, sum = NONE, out = n->out[0];
  ane_status st = ANE_OK;
  if (bias && onnx_in(t, n, 1) != NONE) {
    st = step2(t, n, ANE_PRIM_add, n->in[0], n->in[1], &sum);
    in[0] = sum;
  }
  if (!st) st = interp_text(t->g, mode, strlen(mode), &in[1], t->err);
  return st ? st : step(t, n, ANE_PRIM_gelu, in, 2, &out);
}

static ane_status gelu(struct onnx_import *t, const struct ane_onnx_node *n) {
  static const char *const attrs[] = {"approximate", NULL};
  const struct ane_onnx_attr *a = ane_onnx_attr(n, "approximate");
  ane_status st = only(t, n, attrs, 1, 1);
  if (st) return st;
  bool tanh = a && a->type == ANE_ONNX_STRING && strcmp(a->s.data, "tanh") == 0;
  if (a && !tanh && (a->type != ANE_ONNX_STRING || strcmp(a->s.data, "none") != 0))
    return onnx_node_fail(t, n, ANE_UNSUPPORTED, "approximate is neither none nor tanh");
  return gelu_of(t, n, tanh, false);
}

static ane_status fast_gelu(struct onnx_import *t, const struct ane_onnx_node *n) {
  static const char *const attrs[] = {NULL};
  ane_status st = only(t, n, attrs, 2, 1);
  return st ? st : gelu_of(t, n, true, true);
}
static ane_status bias_gelu(struct onnx_import *t, const struct ane_onnx_node *n) {
  static const char *const attrs[] = {NULL};
  ane_status st = only(t, n, attrs, 2, 1);
  return st ? st : gelu_of(t, n, false, true);
}

/* x * sigmoid(alpha * x) */
static ane_status quick_gelu(struct onnx_import *t, const struct ane_onnx_node *n) {
  static const char *const attrs[] = {"alpha", NULL};
  float alpha = 1.702f;
  int32_t by, scaled = NONE, gate = NONE, out = n->out[0];
  ane_status st = only(t, n, attrs, 1, 1);
  if (st) return st;
  if (!onnx_float(n, "alpha", &alpha)) return wrong_type(t, n);
  st = interp_float(t->g, alpha, &by, t->err);
  if (!st) st = step2(t, n, ANE_PRIM_mul, n->in[0], by, &scaled);
  if (!st) st = step(t, n, ANE_PRIM_sigmoid, &scaled, 1, &gate);
  return st ? st : step2(t, n, ANE_PRIM_mul, n->in[0], gate, &out);
}

/* Swish of the first operand, times the second */
static ane_status swiglu(struct onnx_import *t, const struct ane_onnx_node *n) {
  static const char *const attrs[] = {"alpha", NULL};
  float alpha = 1;
  int32_t in[2] = {NONE, NONE}, gate = NONE, out = n->out[0];
  ane_status st = only(t, n, attrs, 2, 1);
  if (st) return st;
  if (!onnx_float(n, "alpha", &alpha)) return wrong_type(t, n);
  in[0] = n->in[0];
  st = interp_float(t->g, alpha, &in[1], t->err);
  if (!st) st = step(t, n, ANE_PRIM_silu, in, 2, &gate);
  return st ? st : step2(t, n, ANE_PRIM_mul, gate, onnx_in(t, n, 1), &out);
}

/* ---- Types, sums of several operands, others -----------------------------------------------------------------------*/

static ane_status cast(struct onnx_import *t, const struct ane_onnx_node *n) {
  static const char *const attrs[] = {"to", "saturate", "round_mode", NULL};
  int64_t to = 0;
  ane_status st = only(t, n, attrs, 1, 1);
  if (st) return st;
  if (!onnx_int(n, "to", &to)) return wrong_type(t, n);
  for (int d = 0; to > 0 && d < ANE_DTYPE_COUNT; d++) {
    const struct ane_dtype_info *info = ane_dtype_info((ane_dtype)d);
    if (info->onnx != to || info->block != 1 || d == ANE_F8E4M3 || d == ANE_F8E5M2) continue;
    int32_t in[2] = {n->in[0], NONE}, out = n->out[0];
    st = interp_text(t->g, info->name, strlen(info->name), &in[1], t->err);
    return st ? st : step(t, n, ANE_PRIM_cast, in, 2, &out);
  }
  return onnx_node_fail(t, n, ANE_UNSUPPORTED, "to is %d, which no result can have", (int)to);
}

/* Max, Min, Sum of any number of operands, left to right. Mean divides the sum at the end. */
static ane_status several(struct onnx_import *t, const struct ane_onnx_node *n, ane_prim op, bool mean) {
  static const char *const attrs[] = {NULL};
  int32_t acc = n->n_in ? n->in[0] : NONE, out = n->out[0], by;
  ane_status st = only(t, n, attrs, n->n_in, 1);
  for (int32_t i = 1; !st && i < n->n_in; i++) {
    int32_t next = i == n->n_in - 1 && !mean ? out : NONE;
    st = step2(t, n, op, acc, n->in[i], &next);
    acc = next;
  }
  if (st || (n->n_in > 1 && !mean)) return st;
  if (n->n_in == 1) return step(t, n, ANE_PRIM_identity, &acc, 1, &out);
  st = interp_float(t->g, (float)n->n_in, &by, t->err);
  return st ? st : step2(t, n, ANE_PRIM_real_div, acc, by, &out);
}
static ane_status max_of(struct onnx_import *t, const struct ane_onnx_node *n) { return several(t, n, ANE_PRIM_maximum, false); }
static ane_status min_of(struct onnx_import *t, const struct ane_onnx_node *n) { return several(t, n, ANE_PRIM_minimum, false); }
static ane_status sum_of(struct onnx_import *t, const struct ane_onnx_node *n) { return several(t, n, ANE_PRIM_add, false); }
static ane_status mean_of(struct onnx_import *t, const struct ane_onnx_node *n) { return several(t, n, ANE_PRIM_add, true); }

static ane_status mod(struct onnx_import *t, const struct ane_onnx_node *n) {
  int64_t fmod = 0;
  if (!onnx_int(n, "fmod", &fmod)) return wrong_type(t, n);
  return onnx_map(t, n, fmod ? ANE_PRIM_fmod : ANE_PRIM_mod, "x=0 y=1 !fmod");
}

/* The k largest elements; with largest 0 the k smallest. */
static ane_status topk(struct onnx_import *t, const struct ane_onnx_node *n) {
  int64_t largest = 1;
  if (!onnx_int(n, "largest", &largest)) return wrong_type(t, n);
  return onnx_map(t, n, ANE_PRIM_topk,
                  largest ? "x=0 k=1 axis=@axis sort=@sorted output_indices_dtype='int64 !largest"
                          : "x=0 k=1 axis=@axis sort=@sorted output_indices_dtype='int64 ascending=#1 !largest");
}

/* The primitive lists the indices of one element as a row, ONNX as a column. */
static ane_status non_zero(struct onnx_import *t, const struct ane_onnx_node *n) {
  static const char *const attrs[] = {NULL};
  int32_t rows = NONE, out = n->out[0];
  int32_t in[2] = {NONE, NONE};
  ane_status st = only(t, n, attrs, 1, 1);
  if (st) return st;
  in[0] = n->in[0];
  st = interp_text(t->g, "int64", 5, &in[1], t->err);
  if (!st) st = step(t, n, ANE_PRIM_non_zero, in, 2, &rows);
  return st ? st : step(t, n, ANE_PRIM_transpose, &rows, 1, &out);
}

/* Gathers the indices at which the condition holds, along an axis or of all elements. */
static ane_status compress(struct onnx_import *t, const struct ane_onnx_node *n) {
  static const char *const attrs[] = {"axis", NULL};
  const int64_t all = -1;
  int64_t axis = 0;
  int32_t in[3] = {NONE, NONE, NONE}, cond = onnx_in(t, n, 1), rows = NONE, list = NONE, flat = NONE, out = n->out[0];
  ane_status st = only(t, n, attrs, 2, 1);
  if (st) return st;
  if (!onnx_int(n, "axis", &axis)) return wrong_type(t, n);
  st = interp_ints(t->g, &all, 1, false, &list, t->err);
  if (!st) st = step(t, n, ANE_PRIM_non_zero, &cond, 1, &rows);
  if (!st) st = step2(t, n, ANE_PRIM_reshape, rows, list, &in[1]);
  in[0] = n->in[0];
  if (!st && !ane_onnx_attr(n, "axis")) {
    st = step2(t, n, ANE_PRIM_reshape, n->in[0], list, &flat);
    in[0] = flat;
  }
  if (!st) st = interp_ints(t->g, &axis, 1, true, &in[2], t->err);
  return st ? st : step(t, n, ANE_PRIM_gather, in, 3, &out);
}

/* ---- The list of ops -----------------------------------------------------------------------------------------------*/

static const struct {
  const char *domain, *op;
  int64_t first; /* opset */
  ane_status (*fn)(struct onnx_import *t, const struct ane_onnx_node *n);
} list[] = {
    {"", "If", 1, onnx_if},
    {"", "Gemm", 7, gemm},
    {"", "Conv", 1, conv},
    {"com.microsoft", "FusedMatMul", 1, fused_matmul},
    {"", "LayerNormalization", 1, layer_norm},
    {"com.microsoft", "SkipLayerNormalization", 1, skip_layer_norm},
    {"com.microsoft", "SkipSimplifiedLayerNormalization", 1, skip_rms_norm},
    {"", "Gelu", 1, gelu},
    {"com.microsoft", "Gelu", 1, gelu},
    {"com.microsoft", "FastGelu", 1, fast_gelu},
    {"com.microsoft", "BiasGelu", 1, bias_gelu},
    {"com.microsoft", "QuickGelu", 1, quick_gelu},
    {"", "Cast", 6, cast},
    {"", "Max", 8, max_of},
    {"", "Min", 8, min_of},
    {"", "Sum", 8, sum_of},
    {"", "Mean", 8, mean_of},
    {"", "Mod", 10, mod},
    {"", "TopK", 10, topk},
    {"", "ConvInteger", 1, conv_integer},
    {"", "MaxPool", 1, max_pool},
    {"", "AveragePool", 7, average_pool},
    {"", "GlobalAveragePool", 1, global_average},
    {"", "GlobalMaxPool", 1, global_max},
    {"", "SwiGLU", 1, swiglu},
    {"", "NonZero", 9, non_zero},
    {"", "Compress", 9, compress},
};

ane_status onnx_compose(struct onnx_import *t, const struct ane_onnx_node *n, bool *done) {
  for (size_t i = 0; i < ANE_COUNT(list); i++) {
    if (strcmp(list[i].op, n->op) != 0 || strcmp(list[i].domain, n->domain) != 0 || n->opset < list[i].first) continue;
    *done = true;
    if (n->n_out < 1) return onnx_node_fail(t, n, ANE_FORMAT, "has no output");
    return list[i].fn(t, n);
  }
  return ANE_OK;
}
