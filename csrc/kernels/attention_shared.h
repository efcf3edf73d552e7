/* Shared by the attention kernels of all levels: the keys and tiles that a query sees, and memory offsets. */
#ifndef ANE_KERNELS_ATTENTION_SHARED_H
#define ANE_KERNELS_ATTENTION_SHARED_H

#include "kernels/kernels_internal.h"
#include "tensor/half.h"

enum {
  ANE_ATT_PANEL = 6,  /* rows whose sums are kept in registers at a time */
  ANE_ATT_PANELS = 2, /* panels side by side */
};

/* First and last key that the query at p sees. */
static inline int64_t ane_att_first(const struct ane_attention *a, int64_t p) {
  return a->window > 0 && p >= a->window ? p - a->window + 1 : 0;
}

static inline int64_t ane_att_last(const struct ane_attention *a, int64_t p) { return ANE_MIN(p + a->ahead, a->pos + a->t - 1); }

/* int16. Codes of queries and keys: at most ANE_ATT_CODE, and of a norm of at most ANE_ATT_NORM before they are rounded, so that
 * by the Cauchy-Schwarz inequality no sum of products of a query and a key, in any order, reaches 2^31: with up to 65,536
 * dimensions rounding adds 128 to the norm, and 46,328^2 < 2^31. Codes of values and of weights: 64 * 8191 * 4095 < 2^31. */
#define ANE_ATT_CODE 32767.0f
#define ANE_ATT_NORM 46200.0f
#define ANE_ATT_VALUE 4095.0f
#define ANE_ATT_WEIGHT 8191.0f
/* A head with no value above this limit gets codes of 0, because the inverse of its scale would overflow. */
static inline float ane_att_least(float most) { return most == 127 ? 0x1p-120f : 0x1p-110f; }

#define ANE_ATT_LN2 0x1.62e430p-1f

/* log2 of the scale of int16 values whose largest magnitude is `most`: at least log2(most / 4095), less than 0.09 above it,
 * within -60 .. 60, so that weights times scales neither overflow nor vanish. log2(1 + f) is between f and f + 0.0861, and the
 * bits of a float are its exponent and f; rounding them to a float adds less than 2^-17. */
static inline float ane_att_exponent(float most) {
  const float e = (float)ane_f32_bits(most) * 0x1p-23f - (127 + 11.99965f - 0.0862f);
  return e > 60 ? 60 : e > -60 ? e : -60;
}

/* Index of element d of the key, and of the value, at position j of a tile. Values of positions j and j + 16 are pairs. */
static inline int64_t ane_att_k(const struct ane_kv *kv, int64_t d, int64_t j) {
  return kv->dtype == ANE_I16 ? 2 * (d / 2 * ANE_TILE + j) + d % 2 : d * ANE_TILE + j;
}
static inline int64_t ane_att_v(const struct ane_kv *kv, int64_t j, int64_t d) {
  return kv->dtype == ANE_I16 ? 2 * ((j / 32 * 16 + j % 16) * kv->head_dim + d) + j / 16 % 2 : j * kv->head_dim + d;
}

/* head_dim rounded up to whole vectors of 16: the row length in scratch. */
static inline int64_t ane_att_pad(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

/* Element i of stored keys or values. Integers are returned unscaled. */
static inline float ane_att_element(const struct ane_kv *kv, const void *base, int64_t i) {
  if (kv->dtype == ANE_F16) return ane_f16_f32(((const uint16_t *)base)[i]);
  if (kv->dtype == ANE_I16) return (float)((const int16_t *)base)[i];
  return kv->dtype == ANE_I8 ? (float)((const int8_t *)base)[i] : ((const float *)base)[i];
}

#endif
