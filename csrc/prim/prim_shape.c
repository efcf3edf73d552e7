/* Shapes as values, views with another shape, and tensors made from parameters alone. */
#include "prim/prim_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Resolves a bound of ONNX's Shape: negative ones count from the end; then it is clamped. */
static int64_t clamp_axis(int64_t a, int rank) {
  if (a < 0) a += rank;
  return a < 0 ? 0 : a > rank ? rank : a;
}

ane_status prim_shape(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  int64_t from = clamp_axis(prim_int(c, "start", 0), x->rank), to = clamp_axis(prim_int(c, "end", x->rank), x->rank),
          n = ANE_MAX(to - from, 0);
  int64_t *y = prim_out(c, 0, ANE_I64, 1, &n);
  for (int64_t i = 0; y && i < n; i++) y[i] = x->dim[from + i];
  return c->status;
}

ane_status prim_size(struct ane_prim_call *c) {
  int64_t *y = prim_out(c, 0, ANE_I64, 0, NULL);
  if (y) *y = c->in[0]->count;
  return c->status;
}

/* ---- Views ---------------------------------------------------------------------------------------------------------*/

ane_status prim_reshape(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  int64_t dim[ANE_DYN_RANK], known = 1, n;
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  int rank = prim_ints(c, "shape", dim, ANE_DYN_RANK), hole = -1;
  bool zero = prim_bool(c, "allow_zero", false);
  int shift = prim_bool(c, "from_end", false) ? x->rank - rank : 0;
  if (c->status) return c->status;
  for (int i = 0; i < rank; i++) {
    if (dim[i] == 0 && !zero) {
      if (i + shift < 0 || i + shift >= x->rank)
        return prim_fail(c, ANE_SHAPE, "shape copies dimension %d of %s", i + 1, ane_dyn_text(x, a));
      dim[i] = x->dim[i + shift];
    }
    if (dim[i] < -1) return prim_fail(c, ANE_INVALID, "shape holds %" PRId64, dim[i]);
    if (dim[i] == -1 && hole >= 0) return prim_fail(c, ANE_INVALID, "shape holds -1 twice");
    if (dim[i] == -1)
      hole = i;
    else if (__builtin_mul_overflow(known, dim[i], &known))
      return prim_fail(c, ANE_SHAPE, "shape %s has too many elements", ane_dyn_dims(rank, dim, b));
  }
  if (hole >= 0) dim[hole] = known && x->count % known == 0 ? x->count / known : known ? -1 : 0;
  if (!ane_dyn_count(rank, dim, &n) || n != x->count)
    return prim_fail(c, ANE_SHAPE, "%s cannot take the shape %s", ane_dyn_text(x, a), ane_dyn_dims(rank, dim, b));
  return prim_view(c, 0, x, rank, dim);
}

ane_status prim_flatten(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  int64_t axis = prim_int(c, "axis", 1), dim[2] = {1, 1};
  if (axis < 0) axis += x->rank;
  if (!c->status && (axis < 0 || axis > x->rank)) return prim_fail(c, ANE_INVALID, "axis is outside of %d dimensions", x->rank);
  for (int i = 0; !c->status && i < x->rank; i++) dim[i >= axis] *= x->dim[i];
  return c->status ? c->status : prim_view(c, 0, x, 2, dim);
}

ane_status prim_expand_dims(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *axes = prim_in(c, "axes");
  int rank = x->rank + (int)ANE_MIN(axes->count, (int64_t)ANE_DYN_RANK);
  if (rank > ANE_DYN_RANK)
    return prim_fail(c, ANE_UNSUPPORTED, "a result of %d dimensions, at most %d are supported", rank, ANE_DYN_RANK);
  uint32_t mask = prim_axes(c, "axes", rank);
  int64_t dim[ANE_DYN_RANK];
  for (int i = 0, k = 0; i < rank && !c->status; i++) dim[i] = mask >> i & 1 ? 1 : x->dim[k++];
  return c->status ? c->status : prim_view(c, 0, x, rank, dim);
}

ane_status prim_squeeze(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  bool all = !prim_in(c, "axes");
  uint32_t mask = prim_axes(c, "axes", x->rank);
  int64_t dim[ANE_DYN_RANK];
  int rank = 0;
  for (int i = 0; i < x->rank; i++) {
    bool drop = mask >> i & 1 && (!all || x->dim[i] == 1);
    if (drop && x->dim[i] != 1) return prim_fail(c, ANE_SHAPE, "axis %d has %" PRId64 " elements, but must have 1", i, x->dim[i]);
    if (!drop) dim[rank++] = x->dim[i];
  }
  return c->status ? c->status : prim_view(c, 0, x, rank, dim);
}

/* ---- Creation ------------------------------------------------------------------------------------------------------*/

ane_status prim_fill(struct ane_prim_call *c) {
  const struct ane_dyn *value = prim_in(c, "value");
  int64_t dim[ANE_DYN_RANK];
  int rank = prim_ints(c, "shape", dim, ANE_DYN_RANK);
  bool floats = !value || prim_is_float(value->dtype);
  if (value && value->count != 1)
    return prim_fail(c, ANE_SHAPE, "value has %" PRId64 " elements, but must have one", value->count);
  for (int i = 0; i < rank; i++)
    if (dim[i] < 0) return prim_fail(c, ANE_INVALID, "shape holds %" PRId64, dim[i]);
  float f = floats ? prim_float(c, "value", 0) : 0;
  int64_t v = floats ? 0 : prim_int(c, "value", 0);
  if (c->status) return c->status;
  ane_dtype t = floats ? ANE_F32 : value->dtype;
  if (ane_dtype_info(t)->block != 1) return prim_fail(c, ANE_UNSUPPORTED, "a value of type %s", ane_dtype_info(t)->name);
  char *y = prim_out(c, 0, t, rank, dim);
  for (int64_t i = 0; y && i < c->out[0].count; i++) {
    if (floats)
      ((float *)(void *)y)[i] = f;
    else
      prim_store(t, y + (size_t)i * prim_width(t), &v, 1);
  }
  return c->status;
}

ane_status prim_range_1d(struct ane_prim_call *c) {
  const struct ane_dyn *start = prim_in(c, "start");
  bool floats = prim_is_float(start->dtype);
  double n;
  if (floats) {
    double a = (double)prim_float(c, "start", 0), s = (double)prim_float(c, "step", 1);
    n = s != 0 ? ceil(((double)prim_float(c, "end", 0) - a) / s) : NAN;
  } else {
    int64_t a = prim_int(c, "start", 0), s = prim_int(c, "step", 1), e = prim_int(c, "end", 0);
    n = s != 0 ? ceil(((double)e - (double)a) / (double)s) : NAN;
  }
  if (c->status) return c->status;
  if (isnan(n)) return prim_fail(c, ANE_INVALID, "step is 0 or not a number");
  if (n > 0x1p40) return prim_fail(c, ANE_RANGE, "a range of %g numbers", n);
  int64_t count = n > 0 ? (int64_t)n : 0;
  ane_dtype t = floats ? ANE_F32 : start->dtype;
  char *y = prim_out(c, 0, t, 1, &count);
  float fa = floats ? prim_float(c, "start", 0) : 0, fs = floats ? prim_float(c, "step", 1) : 0;
  int64_t ia = floats ? 0 : prim_int(c, "start", 0), is = floats ? 0 : prim_int(c, "step", 1);
  for (int64_t i = 0; y && i < count; i++) {
    if (floats) {
      ((float *)(void *)y)[i] = (float)((double)fa + (double)i * (double)fs);
    } else {
      int64_t v = (int64_t)((uint64_t)ia + (uint64_t)i * (uint64_t)is);
      prim_store(t, y + (size_t)i * prim_width(t), &v, 1);
    }
  }
  return c->status;
}

/* Makes a new axis of `depth` elements: values[1] at the index, values[0] elsewhere. Negative indices count from the end; an
 * index that is out of range gives values[0] everywhere. */
ane_status prim_one_hot(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *values = prim_in(c, "values");
  int64_t depth = prim_int(c, "depth", 0), dim[ANE_DYN_RANK + 1], inner = 1;
  int axis = prim_axis(c, "axis", -1, x->rank + 1);
  const int64_t *v = prim_i64(c, x);
  if (c->status) return c->status;
  if (depth < 1 || values->count != 2)
    return prim_fail(c, ANE_INVALID, "depth is %" PRId64 " and values has %" PRId64 " elements", depth, values->count);
  if (ane_dtype_info(values->dtype)->block != 1)
    return prim_fail(c, ANE_UNSUPPORTED, "values of type %s", ane_dtype_info(values->dtype)->name);
  for (int i = 0; i <= x->rank; i++) dim[i] = i < axis ? x->dim[i] : i == axis ? depth : x->dim[i - 1];
  for (int i = axis; i < x->rank; i++) inner *= x->dim[i];
  bool floats = prim_is_float(values->dtype);
  const void *pair = floats ? (const void *)prim_f32(c, values) : values->data;
  ane_dtype t = floats ? ANE_F32 : values->dtype;
  size_t size = prim_width(t);
  char *y = prim_out(c, 0, t, x->rank + 1, dim);
  if (!pair || !y) return c->status;
  for (int64_t i = 0; i < c->out[0].count; i++) {
    int64_t want = v[i / (inner * depth) * inner + i % inner], at = i / inner % depth;
    bool on = (want < 0 ? want + depth : want) == at;
    memcpy(y + (size_t)i * size, (const char *)pair + (on ? size : 0), size);
  }
  return c->status;
}
