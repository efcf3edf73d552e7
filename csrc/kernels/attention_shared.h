/* Shared by the attention kernels of all levels: the keys and tiles that a query sees, and memory offsets. */
#ifndef ANE_KERNELS_ATTENTION_SHARED_H
#define ANE_KERNELS_ATTENTION_SHARED_H

#include "kernels/kernels_internal.h"
#include "tensor/half.h"

enum {
  ANE_ATT_PANEL = 6,  /* rows whose sums are kept in registers at a time */
  ANE_ATT_PANELS = 2, /* panels side by side */
};

/* Returns the first, or the last, key that the query at position p sees. */
static inline int64_t ane_att_first(const struct ane_attention *a, int64_t p) {
  return a->window > 0 && p >= a->window ? p - a->window + 1 : 0;
}

static inline int64_t ane_att_last(const struct ane_attention *a, int64_t p) { return ANE_MIN(p + a->ahead, a->pos + a->t - 1); }

/* Limits of int16 codes. The codes of a query or key are at most ANE_ATT_CODE, and their norm is at most ANE_ATT_NORM before
 * rounding. With up to 65,536 dimensions rounding adds at most 128 to the norm, and 46,328^2 < 2^31. By the Cauchy-Schwarz
 * inequality no partial sum of the products of a query and a key reaches 2^31. For the codes of values (ANE_ATT_VALUE) and of
 * weights (ANE_ATT_WEIGHT), 64 * 8191 * 4095 < 2^31. */
#define ANE_ATT_CODE 32767.0f
#define ANE_ATT_NORM 46200.0f
#define ANE_ATT_VALUE 4095.0f
#define ANE_ATT_WEIGHT 8191.0f
/* A head whose values are all at or below this magnitude gets codes of 0, because the inverse of its scale would overflow.
 * max_code: the largest code of its type. */
static inline float ane_att_min_magnitude(float max_code) { return max_code == 127 ? 0x1p-120f : 0x1p-110f; }

#define ANE_ATT_LN2 0x1.62e430p-1f

/* Returns log2 of the scale of int16 values whose largest magnitude is `most`. It is at least log2(most / 4095), at most 0.09
 * above it, and clamped to -60 .. 60, so that weights times scales neither overflow nor underflow. log2(1 + f) is between f and f
 * + 0.0861, and the bits of a float are its exponent and f; rounding them to a float adds less than 2^-17. */
static inline float ane_att_exponent(float most) {
  const float e = (float)ane_f32_bits(most) * 0x1p-23f - (127 + 11.99965f - 0.0862f);
  return e > 60 ? 60 : e > -60 ? e : -60;
}

/* Returns head_dim rounded up to a multiple of 16: the row length in scratch. */
static inline int64_t ane_att_pad(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

/* Returns element i of stored keys or values; of integer types the code, without its scale. */
static inline float ane_att_element(const struct ane_kv *kv, const void *base, int64_t i) {
  if (kv->dtype == ANE_F16) return ane_f16_f32(((const uint16_t *)base)[i]);
  if (kv->dtype == ANE_I16) return (float)((const int16_t *)base)[i];
  return kv->dtype == ANE_I8 ? (float)((const int8_t *)base)[i] : ((const float *)base)[i];
}

#endif
