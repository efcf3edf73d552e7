#include "tensor/tensor.h"

#include "tensor/half.h"

#include <math.h>
#include <string.h>

static const struct ane_dtype_info infos[] = {
#define ANE_DTYPE(id, name, block, bytes, gguf, st, onnx, mil, codec, layout, file_type, mixed, nearest)                         \
  [ANE_##id] = {#name, block, bytes, gguf, st, onnx, mil, file_type, mixed, nearest},
#include "tensor/dtype.def"
#undef ANE_DTYPE
};

const struct ane_dtype_info *ane_dtype_info(ane_dtype t) { return &infos[t]; }

ane_dtype ane_dtype_from_gguf(uint32_t id) {
  for (int t = 0; t < ANE_DTYPE_COUNT; t++)
    if (infos[t].gguf >= 0 && (uint32_t)infos[t].gguf == id) return (ane_dtype)t;
  return ANE_DTYPE_COUNT;
}

ane_dtype ane_dtype_from_name(const char *name, size_t len) {
  for (int t = 0; t < ANE_DTYPE_COUNT; t++)
    if (strlen(infos[t].name) == len && memcmp(infos[t].name, name, len) == 0) return (ane_dtype)t;
  return ANE_DTYPE_COUNT;
}

bool ane_dtype_bytes(ane_dtype t, uint64_t n, uint64_t *bytes) {
  const struct ane_dtype_info *i = &infos[t];
  return n % i->block == 0 && ane_mul_u64(n / i->block, i->bytes, bytes);
}

ane_status ane_to_f32(ane_dtype t, const void *src, float *dst, uint64_t n, struct ane_error *err) {
#define EACH(type, expr)                                                                                                         \
  for (uint64_t i = 0; i < n; i++) {                                                                                             \
    type v;                                                                                                                      \
    memcpy(&v, (const char *)src + i * sizeof v, sizeof v);                                                                      \
    dst[i] = (expr);                                                                                                             \
  }                                                                                                                              \
  return ANE_OK
  switch (t) {
    case ANE_F32: memcpy(dst, src, n * sizeof *dst); return ANE_OK;
    case ANE_F16: EACH(uint16_t, ane_f16_f32(v));
    case ANE_BF16: EACH(uint16_t, ane_bf16_f32(v));
    case ANE_F64: EACH(double, (float)v);
    case ANE_I8: EACH(int8_t, (float)v);
    case ANE_I16: EACH(int16_t, (float)v);
    case ANE_I32: EACH(int32_t, (float)v);
    case ANE_I64: EACH(int64_t, (float)v);
    case ANE_U8: EACH(uint8_t, (float)v);
    case ANE_U16: EACH(uint16_t, (float)v);
    case ANE_U32: EACH(uint32_t, (float)v);
    case ANE_U64: EACH(uint64_t, (float)v);
    case ANE_BOOL: EACH(uint8_t, v ? 1.0f : 0.0f);
    case ANE_F8E4M3: EACH(uint8_t, ane_f8e4m3_f32(v));
    case ANE_F8E5M2: EACH(uint8_t, ane_f8e5m2_f32(v));
    default: return ane_fail(err, ANE_UNSUPPORTED, "%s is not a plain element type", infos[t].name);
  }
#undef EACH
}

struct ane_difference ane_compare_f32(const float *a, const float *b, uint64_t n) {
  struct ane_difference d = {.cosine = 1};
  double aa = 0, bb = 0, ab = 0, se = 0;
  for (uint64_t i = 0; i < n; i++) {
    double x = a[i], y = b[i], e = fabs(x - y);
    if (isnan(x) || isnan(y))
      e = INFINITY;
    else if (x == y)
      e = 0; /* equal infinities */
    if (e > d.max_abs) d.max_abs = e, d.worst = i;
    d.max_scaled = ANE_MAX(d.max_scaled, isinf(e) ? e : e / (1 + fabs(y)));
    se += e * e, aa += x * x, bb += y * y, ab += x * y;
  }
  if (n) d.rms = sqrt(se / (double)n);
  if (aa > 0 || bb > 0) d.cosine = ab / sqrt(aa * bb);
  if (isinf(d.max_abs)) d.cosine = NAN;
  return d;
}
