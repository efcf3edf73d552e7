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

/* Largest code of keys and values, and of queries for int16 keys. Sums of 128, 512 or 2048 products stay below 2^31. */
static inline float ane_att_most(const struct ane_kv *kv) {
  return kv->dtype == ANE_I8 ? 127 : kv->head_dim <= 128 ? 4095 : kv->head_dim <= 512 ? 2047 : 1023;
}
/* A head with no value above this limit gets codes of 0, because the inverse of its scale would overflow. */
static inline float ane_att_least(float most) { return most == 127 ? 0x1p-120f : 0x1p-110f; }
#define ANE_ATT_WEIGHT 8191.0f /* largest code of a softmax weight for int16 values: 64 * 8191 * 4095 < 2^31 */

/* Index of element d of the key, and of the value, at position j of a tile. */
static inline int64_t ane_att_k(const struct ane_kv *kv, int64_t d, int64_t j) {
  return kv->dtype == ANE_I16 ? 2 * (d / 2 * ANE_TILE + j) + d % 2 : d * ANE_TILE + j;
}
static inline int64_t ane_att_v(const struct ane_kv *kv, int64_t j, int64_t d) {
  return kv->dtype == ANE_I16 ? 2 * (j / 2 * kv->head_dim + d) + j % 2 : j * kv->head_dim + d;
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
