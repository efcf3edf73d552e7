/* Elementwise ops of one operand. */
#include "prim/prim_internal.h"

#include <math.h>
#include <string.h>

typedef float (*map_fn)(float x, float a, float b);

struct mapping {
  map_fn fn;
  const float *x;
  float *y;
  float a, b;
};

static void map_range(void *arg, int64_t from, int64_t to, int thread ANE_UNUSED) {
  const struct mapping *m = arg;
  for (int64_t i = from; i < to; i++) m->y[i] = m->fn(m->x[i], m->a, m->b);
}

static ane_status map_f32(struct ane_prim_call *c, map_fn fn, float a, float b) {
  const struct ane_dyn *x = c->in[0];
  struct mapping m = {fn, prim_f32(c, x), prim_out(c, 0, ANE_F32, x->rank, x->dim), a, b};
  if (m.x && m.y) prim_parallel(c, x->count, 20.0 * (double)x->count, map_range, &m);
  return c->status;
}

#define MAP(name, expr)                                                                                                          \
  static float name##_f(float x, float a ANE_UNUSED, float b ANE_UNUSED) { return expr; }                                        \
  ane_status prim_##name(struct ane_prim_call *c) { return map_f32(c, name##_f, 0, 0); }

MAP(sqrt, sqrtf(x))
MAP(exp, expf(x))
MAP(sin, sinf(x))
MAP(cos, cosf(x))
MAP(tan, tanf(x))
MAP(asin, asinf(x))
MAP(acos, acosf(x))
MAP(atan, atanf(x))
MAP(sinh, sinhf(x))
MAP(cosh, coshf(x))
MAP(asinh, asinhf(x))
MAP(acosh, acoshf(x))
MAP(atanh, atanhf(x))
MAP(erf, erff(x))
MAP(relu, x > 0 ? x : x == x ? 0 : x)
MAP(sigmoid, 1 / (1 + expf(-x)))
MAP(hard_swish, x *fminf(fmaxf(x / 6 + 0.5f, 0), 1))
MAP(tanh, tanhf(x))
MAP(softplus, x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x)))
MAP(mish, x *tanhf(softplus_f(x, 0, 0)))
MAP(softsign, x / (1 + fabsf(x)))

/* Ops with parameters. Defaults are MIL's, or ONNX's where MIL has none. */
#define MAP2(name, expr, pa, da, pb, db)                                                                                         \
  static float name##_f(float x, float a ANE_UNUSED, float b ANE_UNUSED) { return expr; }                                        \
  ane_status prim_##name(struct ane_prim_call *c) {                                                                              \
    float a = prim_float(c, pa, da), b = prim_float(c, pb, db);                                                                  \
    return c->status ? c->status : map_f32(c, name##_f, a, b);                                                                   \
  }
MAP2(rsqrt, 1 / sqrtf(x + a), "epsilon", 0, "epsilon", 0)
MAP2(inverse, 1 / (x + a), "epsilon", 0, "epsilon", 0)
MAP2(log, logf(x + a), "epsilon", 0, "epsilon", 0)
MAP2(leaky_relu, x >= 0 ? x : a * x, "alpha", 0.01f, "alpha", 0)
MAP2(elu, x >= 0 ? x : a * expm1f(x), "alpha", 1, "alpha", 0)
MAP2(clamped_relu, fminf(b, x >= 0 ? x : a * x), "alpha", 0, "beta", 0)
MAP2(silu, x / (1 + expf(-(a * x))), "alpha", 1, "alpha", 1)
MAP2(selu, b *(x > 0 ? x : a * expm1f(x)), "alpha", 1.67326319217681884765625f, "gamma", 1.05070102214813232421875f)
MAP2(celu, x > 0 ? x : a * expm1f(x / a), "alpha", 1, "alpha", 1)
MAP2(thresholded_relu, x > a ? x : 0, "alpha", 1, "alpha", 1)
MAP2(sigmoid_hard, fminf(fmaxf(a *x + b, 0), 1), "alpha", 0.2f, "beta", 0.5f)

/* Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016): the definition and its two approximations. */
static float gelu_exact(float x, float a ANE_UNUSED, float b ANE_UNUSED) {
  return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
}
static float gelu_tanh(float x, float a ANE_UNUSED, float b ANE_UNUSED) {
  return 0.5f * x * (1 + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
}
static float gelu_sigmoid(float x, float a ANE_UNUSED, float b ANE_UNUSED) { return x / (1 + expf(-1.702f * x)); }

ane_status prim_gelu(struct ane_prim_call *c) {
  char text[PRIM_TEXT];
  const char *mode = prim_text(c, "mode", "EXACT", text);
  if (strcmp(mode, "EXACT") == 0) return map_f32(c, gelu_exact, 0, 0);
  if (strcmp(mode, "TANH_APPROXIMATION") == 0) return map_f32(c, gelu_tanh, 0, 0);
  if (strcmp(mode, "SIGMOID_APPROXIMATION") == 0) return map_f32(c, gelu_sigmoid, 0, 0);
  return prim_fail(c, ANE_INVALID, "mode is \"%s\"; known are EXACT, TANH_APPROXIMATION, SIGMOID_APPROXIMATION", mode);
}

/* ---- Floats and integers -------------------------------------------------------------------------------------------*/

static ane_status map_both(struct ane_prim_call *c, map_fn floats, int64_t (*integers)(int64_t x)) {
  const struct ane_dyn *x = c->in[0];
  if (prim_is_float(x->dtype)) return map_f32(c, floats, 0, 0);
  const int64_t *v = prim_i64(c, x);
  int64_t *z = prim_temp(c, (uint64_t)x->count * sizeof *z);
  void *y = prim_out(c, 0, x->dtype, x->rank, x->dim);
  if (!v || !z || !y) return c->status;
  for (int64_t i = 0; i < x->count; i++) z[i] = integers(v[i]);
  prim_store(x->dtype, y, z, x->count);
  return c->status;
}

#define BOTH(name, float_expr, int_expr)                                                                                         \
  static float name##_f(float x, float a ANE_UNUSED, float b ANE_UNUSED) { return float_expr; }                                  \
  static int64_t name##_i(int64_t x) { return int_expr; }                                                                        \
  ane_status prim_##name(struct ane_prim_call *c) { return map_both(c, name##_f, name##_i); }
BOTH(abs, fabsf(x), x < 0 ? (int64_t)(0 - (uint64_t)x) : x)
BOTH(neg, -x, (int64_t)(0 - (uint64_t)x))
BOTH(sign, (float)((x > 0) - (x < 0)), (x > 0) - (x < 0))
BOTH(square, x *x, (int64_t)((uint64_t)x *(uint64_t)x))
BOTH(floor, floorf(x), x)
BOTH(ceil, ceilf(x), x)
BOTH(round, rintf(x), x)

ane_status prim_bitwise_not(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  if (prim_is_float(x->dtype)) return prim_fail(c, ANE_INVALID, "operands are not integers");
  const int64_t *v = prim_i64(c, x);
  int64_t *z = prim_temp(c, (uint64_t)x->count * sizeof *z);
  void *y = prim_out(c, 0, x->dtype, x->rank, x->dim);
  if (c->status) return c->status;
  for (int64_t i = 0; i < x->count; i++) z[i] = ~v[i];
  prim_store(x->dtype, y, z, x->count);
  return c->status;
}

ane_status prim_logical_not(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  const int64_t *v = prim_i64(c, x);
  uint8_t *y = prim_out(c, 0, ANE_BOOL, x->rank, x->dim);
  for (int64_t i = 0; v && y && i < x->count; i++) y[i] = v[i] == 0;
  return c->status;
}

ane_status prim_isnan(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  const float *v = prim_f32(c, x);
  uint8_t *y = prim_out(c, 0, ANE_BOOL, x->rank, x->dim);
  for (int64_t i = 0; v && y && i < x->count; i++) y[i] = v[i] != v[i];
  return c->status;
}

ane_status prim_isinf(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  bool negative = prim_bool(c, "negative", true), positive = prim_bool(c, "positive", true);
  const float *v = prim_f32(c, x);
  uint8_t *y = prim_out(c, 0, ANE_BOOL, x->rank, x->dim);
  if (c->status) return c->status;
  for (int64_t i = 0; i < x->count; i++) y[i] = (positive && v[i] == INFINITY) || (negative && v[i] == -INFINITY);
  return c->status;
}

/* Clips x. NaN stays NaN. If the lower bound is above the upper, the result is the upper, as in min(max(x, alpha), beta). */
static float clip_f(float x, float a, float b) {
  x = x < a ? a : x;
  return x > b ? b : x;
}

ane_status prim_clip(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  if (prim_is_float(x->dtype)) {
    float lo = prim_float(c, "alpha", -INFINITY), hi = prim_float(c, "beta", INFINITY);
    return c->status ? c->status : map_f32(c, clip_f, lo, hi);
  }
  int64_t lo = prim_int(c, "alpha", INT64_MIN), hi = prim_int(c, "beta", INT64_MAX);
  const int64_t *v = prim_i64(c, x);
  int64_t *z = prim_temp(c, (uint64_t)x->count * sizeof *z);
  void *y = prim_out(c, 0, x->dtype, x->rank, x->dim);
  if (c->status) return c->status;
  for (int64_t i = 0; i < x->count; i++) z[i] = ANE_MIN(ANE_MAX(v[i], lo), hi);
  prim_store(x->dtype, y, z, x->count);
  return c->status;
}

/* ---- Types ---------------------------------------------------------------------------------------------------------*/

static ane_status cast(struct ane_prim_call *c, ane_dtype to) {
  const struct ane_dyn *x = c->in[0];
  if (to == x->dtype) return prim_view(c, 0, x, x->rank, x->dim);
  void *y = prim_out(c, 0, to, x->rank, x->dim);
  if (!y) return c->status;
  if (to == ANE_F32) {
    const float *v = prim_f32(c, x);
    if (v) memcpy(y, v, (size_t)x->count * sizeof *v);
  } else if (to == ANE_BOOL && prim_is_float(x->dtype)) {
    const float *v = prim_f32(c, x);
    for (int64_t i = 0; v && i < x->count; i++) ((uint8_t *)y)[i] = v[i] != 0;
  } else {
    const int64_t *v = prim_i64(c, x);
    if (v) prim_store(to, y, v, x->count);
  }
  return c->status;
}

ane_status prim_cast(struct ane_prim_call *c) {
  ane_dtype to = prim_dtype(c, "dtype", ANE_F32);
  return c->status ? c->status : cast(c, to);
}

ane_status prim_cast_like(struct ane_prim_call *c) {
  ane_dtype to = c->in[1]->dtype;
  if (ane_dtype_info(to)->block != 1 || to == ANE_F8E4M3 || to == ANE_F8E5M2)
    return prim_fail(c, ANE_UNSUPPORTED, "like is %s, which no result can be", ane_dtype_info(to)->name);
  return cast(c, prim_is_float(to) ? ANE_F32 : to);
}

ane_status prim_identity(struct ane_prim_call *c) { return prim_view(c, 0, c->in[0], c->in[0]->rank, c->in[0]->dim); }

ane_status prim_dropout(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  bool training = prim_bool(c, "training", false);
  float ratio = prim_float(c, "ratio", 0.5f);
  if (c->status) return c->status;
  if (training && ratio != 0) return prim_fail(c, ANE_UNSUPPORTED, "training_mode is true, which drops random elements");
  uint8_t *mask = prim_wanted(c, 1) ? prim_out(c, 1, ANE_BOOL, x->rank, x->dim) : NULL;
  if (c->status) return c->status;
  if (mask) memset(mask, 1, (size_t)x->count);
  return prim_view(c, 0, x, x->rank, x->dim);
}
