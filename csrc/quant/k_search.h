/* The search of the encoders of Q2_K to Q6_K, for encoders that begin with it. */
#ifndef ANE_QUANT_K_SEARCH_H
#define ANE_QUANT_K_SEARCH_H

#include "quant/blocks.h"
#include "quant/fit.h"
#include "quant/quant.h"

enum { ANE_K_SUBS = 16 };

/* One type. Values are d * scale * q - dmin * min, or d * scale * (q - half) where half > 0. */
struct ane_k_layout {
  int subs, len;          /* sub-blocks and their elements */
  int top;                /* codes 0 .. top */
  int half;               /* 0: there are minima */
  int scale_lo, scale_hi; /* range of integer scales (and minima) */
};
const struct ane_k_layout *ane_k_layout(ane_dtype t); /* NULL: another type */

/* The approximation of a super-block; d and dmin are exact in fp16. */
struct ane_k_choice {
  float d, dmin, error;
  int scale[ANE_K_SUBS], min[ANE_K_SUBS];
  float q[ANE_QK_K];
};

/* src [256]; importance [256], or NULL: all equal. */
void ane_k_search(const struct ane_k_layout *l, const float *src, const float *importance, struct ane_k_choice *c);
/* Writes the bytes of a choice. */
void ane_k_pack(ane_dtype t, const struct ane_k_choice *c, void *block);

#endif
