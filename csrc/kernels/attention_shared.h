/* What the attention kernels of all levels share: which keys and tiles a query sees, and where things lie in memory. */
#ifndef ANE_KERNELS_ATTENTION_SHARED_H
#define ANE_KERNELS_ATTENTION_SHARED_H

#include "kernels/kernels_internal.h"
#include "tensor/half.h"

enum {
  ANE_ATT_PANEL = 6,  /* rows whose sums are in registers at a time */
  ANE_ATT_PANELS = 2, /* panels side by side */
};

/* First and last key that the query at p sees. */
static inline int64_t ane_att_first(const struct ane_attention *a, int64_t p) {
  return a->window > 0 && p >= a->window ? p - a->window + 1 : 0;
}

static inline int64_t ane_att_last(const struct ane_attention *a, int64_t p) { return ANE_MIN(p + a->ahead, a->pos + a->t - 1); }

/* head_dim rounded up to whole vectors of 16: the row length in scratch. */
static inline int64_t ane_att_pad(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

/* Element i of stored keys or values; int8 without its scale. */
static inline float ane_att_element(const struct ane_kv *kv, const void *base, int64_t i) {
  if (kv->dtype == ANE_F16) return ane_f16_f32(((const uint16_t *)base)[i]);
  return kv->dtype == ANE_I8 ? (float)((const int8_t *)base)[i] : ((const float *)base)[i];
}

#endif
