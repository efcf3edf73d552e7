/* The operations that lowerings use, with their result types (coremltools' definitions for iOS 15 to 18). Parameters that have a
 * default are written too: Core ML requires them. */
#include "mil/build.h"

#include "tensor/half.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static struct ane_mil_type typed(mil_value x, ane_mil_dtype t) {
  struct ane_mil_type type = x->type;
  type.dtype = t;
  return type;
}

static struct ane_mil_type with_dim(mil_value x, int axis, int64_t n) {
  struct ane_mil_type type = x->type;
  type.dim[axis] = n;
  return type;
}

static void fail_shapes(struct mil_build *b, const char *op, mil_value x, mil_value y) {
  if (!b->status)
    mil_build_fail(b, ane_fail(b->err, ANE_SHAPE, "%s of %s and %s: their shapes do not fit", op, x->name, y->name));
}

/* ---- Elementwise -----------------------------------------------------------------------------------------------------*/

mil_value mil_unary(struct mil_build *b, const char *type, mil_value x) {
  return mil_op(b, type, NULL, x->type, &(struct mil_arg){"x", x}, 1);
}

/* Broadcasts shapes aligned at the right. An unknown dimension matches 1 or another unknown one. */
static struct ane_mil_type broadcast(struct mil_build *b, const char *op, mil_value x, mil_value y) {
  mil_value wide = x->type.rank >= y->type.rank ? x : y, thin = wide == x ? y : x;
  struct ane_mil_type type = wide->type;
  int32_t skip = type.rank - thin->type.rank;
  for (int32_t i = skip; i < type.rank; i++) {
    int64_t a = type.dim[i], c = thin->type.dim[i - skip];
    if (a == 1)
      type.dim[i] = c;
    else if (c != 1 && c != a)
      fail_shapes(b, op, x, y);
  }
  return type;
}

mil_value mil_binary(struct mil_build *b, const char *type, mil_value x, mil_value y) {
  struct mil_arg args[] = {{"x", x}, {"y", y}};
  if (!b->status && x->type.dtype != y->type.dtype) fail_shapes(b, type, x, y);
  return mil_op(b, type, NULL, broadcast(b, type, x, y), args, 2);
}

mil_value mil_compare(struct mil_build *b, const char *type, mil_value x, mil_value y) {
  struct mil_arg args[] = {{"x", x}, {"y", y}};
  struct ane_mil_type out = broadcast(b, type, x, y);
  out.dtype = ANE_MIL_BOOL;
  return mil_op(b, type, NULL, out, args, 2);
}

mil_value mil_equal(struct mil_build *b, mil_value x, mil_value y) { return mil_compare(b, "equal", x, y); }

/* Is v a number of the type, and 0 only if it is 0? */
static bool holds(ane_mil_dtype t, double v) {
  double rounded = t == ANE_MIL_FP16 ? (double)ane_f16_f32(ane_f32_f16((float)v)) : (double)(float)v;
  return isfinite(rounded) && (rounded != 0 || v == 0);
}

mil_value mil_scale(struct mil_build *b, mil_value x, double by) {
  ane_mil_dtype t = x->type.dtype;
  if (!b->status && !holds(t, by))
    mil_build_fail(b, ane_fail(b->err, ANE_INVALID, "a factor of %g is beyond %s", by, ane_mil_dtype_name(t)));
  return by == 1 ? x : mil_binary(b, "mul", x, mil_number(b, t, by));
}

mil_value mil_rsqrt(struct mil_build *b, mil_value x, double eps) {
  struct mil_arg args[] = {{"x", x}, {"epsilon", mil_number(b, x->type.dtype, eps)}};
  return mil_op(b, "rsqrt", NULL, x->type, args, 2);
}

mil_value mil_clip(struct mil_build *b, mil_value x, double low, double high) {
  struct mil_arg args[] = {{"x", x}, {"alpha", mil_number(b, x->type.dtype, low)}, {"beta", mil_number(b, x->type.dtype, high)}};
  return mil_op(b, "clip", NULL, x->type, args, 3);
}

mil_value mil_cast(struct mil_build *b, mil_value x, ane_mil_dtype t) {
  if (x->type.dtype == t) return x;
  struct mil_arg args[] = {{"x", x}, {"dtype", mil_text(b, ane_mil_dtype_name(t))}};
  return mil_op(b, "cast", NULL, typed(x, t), args, 2);
}

mil_value mil_activation(struct mil_build *b, const char *act, mil_value x) {
  if (strcmp(act, "silu") == 0 || strcmp(act, "sigmoid") == 0 || strcmp(act, "relu") == 0) return mil_unary(b, act, x);
  struct mil_arg args[] = {{"x", x}, {"mode", mil_text(b, strcmp(act, "gelu_tanh") == 0 ? "TANH_APPROXIMATION" : "EXACT")}};
  return mil_op(b, "gelu", NULL, x->type, args, 2);
}

/* ---- Along an axis -----------------------------------------------------------------------------------------------------*/

mil_value mil_softmax(struct mil_build *b, mil_value x, int axis) {
  struct mil_arg args[] = {{"x", x}, {"axis", mil_int(b, axis)}};
  return mil_op(b, "softmax", NULL, x->type, args, 2);
}

mil_value mil_layer_norm(struct mil_build *b, mil_value x, int axis, double eps) {
  struct mil_arg args[] = {{"x", x}, {"axes", mil_ints(b, &(int32_t){axis}, 1)}, {"epsilon", mil_number(b, x->type.dtype, eps)}};
  return mil_op(b, "layer_norm", NULL, x->type, args, 3);
}

mil_value mil_reduce(struct mil_build *b, const char *type, mil_value x, int axis) {
  struct mil_arg args[] = {{"x", x}, {"axes", mil_ints(b, &(int32_t){axis}, 1)}, {"keep_dims", mil_flag(b, true)}};
  return mil_op(b, type, NULL, with_dim(x, axis, 1), args, 3);
}

mil_value mil_argmax(struct mil_build *b, mil_value x, int axis) {
  struct mil_arg args[] = {{"x", x},
                           {"axis", mil_int(b, axis)},
                           {"keep_dims", mil_flag(b, false)},
                           {"output_dtype", b->version >= 8 ? mil_text(b, "int32") : NULL}};
  struct ane_mil_type type = typed(x, ANE_MIL_INT32);
  for (int i = axis; i + 1 < type.rank; i++) type.dim[i] = type.dim[i + 1];
  type.rank--;
  return mil_op(b, "reduce_argmax", NULL, type, args, 4);
}

mil_value mil_concat(struct mil_build *b, const mil_value *list, int n, int axis, bool interleave) {
  struct ane_mil_type type = list[0]->type;
  for (int i = 1; i < n && !b->status; i++) {
    const struct ane_mil_type *t = &list[i]->type;
    for (int d = 0; d < type.rank; d++)
      if (t->rank != type.rank || t->dtype != type.dtype || (d != axis && t->dim[d] != type.dim[d]))
        fail_shapes(b, "concat", list[0], list[i]);
    type.dim[axis] = type.dim[axis] < 0 || t->dim[axis] < 0 ? ANE_MIL_UNKNOWN : type.dim[axis] + t->dim[axis];
  }
  struct mil_arg args[] = {{"values", .list = list, .n = n}, {"axis", mil_int(b, axis)}, {"interleave", mil_flag(b, interleave)}};
  return mil_op(b, "concat", NULL, type, args, 3);
}

mil_value mil_concat2(struct mil_build *b, mil_value x, mil_value y, int axis) {
  return mil_concat(b, (mil_value[]){x, y}, 2, axis, false);
}

/* Makes a mask over the axes: `there` at `axis`, true at all others. */
static mil_value others(struct mil_build *b, int rank, int axis, bool there) {
  bool mask[ANE_MIL_RANK];
  for (int i = 0; i < rank; i++) mask[i] = i != axis || there;
  return mil_flags(b, mask, rank);
}

static mil_value on_axis(struct mil_build *b, int rank, int axis, int32_t v, int32_t other) {
  int32_t list[ANE_MIL_RANK] = {0};
  for (int i = 0; i < rank; i++) list[i] = i == axis ? v : other;
  return mil_ints(b, list, rank);
}

/* Returns the number of elements in [from, to) of a dimension of size n; unknown if it depends on an unknown n. */
static int64_t slice_size(int64_t n, int64_t from, int64_t to, int64_t stride) {
  if (n < 0 && from < 0 && to == MIL_END) return -from;
  if (n < 0 && (from < 0 || to < 0 || to == MIL_END)) return ANE_MIL_UNKNOWN;
  if (from < 0) from += n;
  if (to < 0)
    to += n;
  else if (to == MIL_END)
    to = n;
  return (to - from + stride - 1) / stride;
}

mil_value mil_slice(struct mil_build *b, mil_value x, int axis, int64_t from, int64_t to, int64_t stride) {
  int rank = x->type.rank;
  bool end = to == MIL_END;
  if (to >= 0 && to == mil_dim(x, axis)) to = MIL_END, end = true;
  if (from == 0 && end && stride == 1) return x;
  struct ane_mil_type type = with_dim(x, axis, slice_size(mil_dim(x, axis), from, to, stride));
  struct mil_arg args[] = {{"x", x},
                           {"begin", on_axis(b, rank, axis, (int32_t)from, 0)},
                           {"end", on_axis(b, rank, axis, end ? 0 : (int32_t)to, 0)},
                           {"stride", stride == 1 ? NULL : on_axis(b, rank, axis, (int32_t)stride, 1)},
                           {"begin_mask", others(b, rank, axis, false)},
                           {"end_mask", others(b, rank, axis, end)}};
  return mil_op(b, "slice_by_index", "slice", type, args, ANE_COUNT(args));
}

mil_value mil_slice_size(struct mil_build *b, mil_value x, int axis, mil_value begin, int64_t count) {
  int32_t size[ANE_MIL_RANK];
  for (int i = 0; i < x->type.rank; i++) size[i] = i == axis ? (int32_t)count : x->type.dim[i] < 0 ? -1 : (int32_t)x->type.dim[i];
  struct mil_arg args[] = {{"x", x}, {"begin", begin}, {"size", mil_ints(b, size, x->type.rank)}};
  return mil_op(b, "slice_by_size", "slice", with_dim(x, axis, count), args, 3);
}

mil_value mil_slice_update(struct mil_build *b, mil_value x, mil_value update, int axis, mil_value begin, mil_value end) {
  mil_value mask = others(b, x->type.rank, axis, false);
  struct mil_arg args[] = {{"x", x},     {"update", update},   {"begin", begin},
                           {"end", end}, {"begin_mask", mask}, {"end_mask", mask}};
  return mil_op(b, "slice_update", NULL, x->type, args, ANE_COUNT(args));
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------------*/

/* Counts the elements; false: a dimension is unknown. */
static bool count_of(const int64_t *dim, int rank, int64_t *n) {
  *n = 1;
  for (int i = 0; i < rank; i++) {
    if (dim[i] < 0) return false;
    *n *= dim[i];
  }
  return true;
}

mil_value mil_reshape(struct mil_build *b, mil_value x, int rank, const int64_t *dim) {
  if (b->status) return x; /* after a failure, the shape of x is not the caller's */
  struct ane_mil_type type = ane_mil_tensor_type(x->type.dtype, rank, dim);
  int64_t have, rest = 1;
  int32_t shape[ANE_MIL_RANK];
  bool fixed = count_of(x->type.dim, x->type.rank, &have);
  int open = -1;
  for (int i = 0; i < rank; i++) {
    if (dim[i] < 0)
      open = i;
    else
      rest *= dim[i];
  }
  if (fixed && open >= 0) type.dim[open] = have / rest;
  if (fixed && !b->status && (open < 0 ? rest : type.dim[open] * rest) != have)
    mil_build_fail(b, ane_fail(b->err, ANE_SHAPE, "reshape of %s: %" PRId64 " elements do not fit the new shape", x->name, have));
  if (ane_mil_type_equal(&type, &x->type)) return x;
  for (int i = 0; i < rank; i++) shape[i] = (int32_t)type.dim[i];
  struct mil_arg args[] = {{"x", x}, {"shape", mil_ints(b, shape, rank)}};
  return mil_op(b, "reshape", NULL, type, args, 2);
}

mil_value mil_reshape4(struct mil_build *b, mil_value x, int64_t d0, int64_t d1, int64_t d2, int64_t d3) {
  return mil_reshape(b, x, 4, (int64_t[]){d0, d1, d2, d3});
}

mil_value mil_transpose(struct mil_build *b, mil_value x, const int32_t *perm) {
  if (b->status) return x;
  struct ane_mil_type type = x->type;
  /* analyser: perm has a number for each dimension of x. */
  for (int i = 0; i < type.rank; i++) type.dim[i] = x->type.dim[perm[i]];
  struct mil_arg args[] = {{"x", x}, {"perm", mil_ints(b, perm, type.rank)}};
  return mil_op(b, "transpose", NULL, type, args, 2);
}

mil_value mil_swap(struct mil_build *b, mil_value x) { return mil_transpose(b, x, (int32_t[]){0, 1, 3, 2}); }

mil_value mil_tile(struct mil_build *b, mil_value x, int axis, int64_t times) {
  if (times == 1) return x;
  int64_t n = mil_dim(x, axis);
  struct mil_arg args[] = {{"x", x}, {"reps", on_axis(b, x->type.rank, axis, (int32_t)times, 1)}};
  return mil_op(b, "tile", NULL, with_dim(x, axis, n < 0 ? n : n * times), args, 2);
}

mil_value mil_size(struct mil_build *b, mil_value x, int axis) {
  if (mil_dim(x, axis) >= 0) return mil_ints(b, &(int32_t){(int32_t)mil_dim(x, axis)}, 1);
  int64_t rank = x->type.rank;
  mil_value shape = mil_op(b, "shape", NULL, ane_mil_tensor_type(ANE_MIL_INT32, 1, &rank), &(struct mil_arg){"x", x}, 1);
  return mil_slice(b, shape, 0, axis, axis + 1, 1);
}

/* ---- Products, rows, states ----------------------------------------------------------------------------------------------*/

mil_value mil_matmul(struct mil_build *b, mil_value x, mil_value y, bool transpose_y) {
  int r = x->type.rank;
  struct ane_mil_type type = with_dim(x, r - 1, mil_dim(y, transpose_y ? r - 2 : r - 1));
  for (int i = 0; !b->status && i < r; i++)
    if (x->type.dtype != y->type.dtype || r != y->type.rank ||
        (i < r - 2 ? mil_dim(x, i) != mil_dim(y, i) : i == r - 1 && mil_dim(x, i) != mil_dim(y, transpose_y ? r - 1 : r - 2)))
      fail_shapes(b, "matmul", x, y);
  struct mil_arg args[] = {{"x", x}, {"y", y}, {"transpose_x", mil_flag(b, false)}, {"transpose_y", mil_flag(b, transpose_y)}};
  return mil_op(b, "matmul", NULL, type, args, 4);
}

mil_value mil_conv(struct mil_build *b, mil_value x, mil_value weight, mil_value bias, int64_t groups) {
  static const int32_t ones[] = {1, 1}, zeros[] = {0, 0, 0, 0};
  struct ane_mil_type type = with_dim(x, 1, mil_dim(weight, 0));
  for (int i = 2; i < 4; i++)
    if (type.dim[i] >= 0) type.dim[i] -= mil_dim(weight, i) - 1;
  if (!b->status && mil_dim(x, 1) != mil_dim(weight, 1) * groups) fail_shapes(b, "conv", x, weight);
  struct mil_arg args[] = {{"x", x},
                           {"weight", weight},
                           {"bias", bias},
                           {"strides", mil_ints(b, ones, 2)},
                           {"pad_type", mil_text(b, "valid")},
                           {"pad", mil_ints(b, zeros, 4)},
                           {"dilations", mil_ints(b, ones, 2)},
                           {"groups", mil_int(b, (int32_t)groups)}};
  return mil_op(b, "conv", NULL, type, args, ANE_COUNT(args));
}

mil_value mil_gather(struct mil_build *b, mil_value x, mil_value indices, int axis) {
  struct mil_arg args[] = {{"x", x},
                           {"indices", indices},
                           {"axis", mil_int(b, axis)},
                           {"batch_dims", mil_int(b, 0)},
                           {"validate_indices", b->version >= 8 ? mil_flag(b, false) : NULL}};
  return mil_op(b, "gather", NULL, with_dim(x, axis, mil_dim(indices, 0)), args, 5);
}

mil_value mil_read_state(struct mil_build *b, mil_value state) {
  struct ane_mil_type type = ane_mil_tensor_type(state->type.dtype, state->type.rank, state->type.dim);
  return mil_op(b, "read_state", NULL, type, &(struct mil_arg){"input", state}, 1);
}
