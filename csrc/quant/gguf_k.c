/* Super-blocks of 256 with two levels of scales: Q2_K to Q6_K. */
#include "quant/blocks.h"
#include "quant/quant_internal.h"
#include "quant/wide.h"

#include "tensor/half.h"

static ANE_WIDE void decode_q2_k(const void *src, float *restrict dst, uint64_t n) {
  const ane_block_q2_k *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d), dmin = ane_f16_f32(b->dmin);
    for (int j = 0; j < 16; j++) { /* sub-block j: half of a run of 32, run k of 4 in 32 bytes */
      float dl = d * (float)(b->scales[j] & 15), ml = dmin * (float)(b->scales[j] >> 4);
      const uint8_t *q = b->qs + j / 8 * 32 + j % 2 * 16;
      int shift = j % 8 / 2 * 2;
      for (int l = 0; l < 16; l++) *dst++ = dl * (float)(q[l] >> shift & 3) - ml;
    }
  }
}
ANE_WIDE_DECODER(q2_k)

static ANE_WIDE void decode_q3_k(const void *src, float *restrict dst, uint64_t n) {
  const ane_block_q3_k *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d);
    uint8_t scales[16];
    ane_q3_k_scales(b->scales, scales);
    for (int j = 0; j < 16; j++) {
      float dl = d * (float)(scales[j] - 32);
      const uint8_t *q = b->qs + j / 8 * 32 + j % 2 * 16, *h = b->hmask + j % 2 * 16;
      int shift = j % 8 / 2 * 2, bit = j / 2;
      for (int l = 0; l < 16; l++) *dst++ = dl * (float)((q[l] >> shift & 3) - (h[l] >> bit & 1 ? 0 : 4));
    }
  }
}
ANE_WIDE_DECODER(q3_k)

static ANE_WIDE void decode_q4_k(const void *src, float *restrict dst, uint64_t n) {
  const ane_block_q4_k *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d), dmin = ane_f16_f32(b->dmin);
    for (int j = 0; j < 8; j++) {
      uint8_t s, m;
      ane_k_scale_min(b->scales, j, &s, &m);
      float dl = d * (float)s, ml = dmin * (float)m;
      const uint8_t *q = b->qs + j / 2 * 32;
      int shift = j % 2 * 4;
      for (int l = 0; l < 32; l++) *dst++ = dl * (float)(q[l] >> shift & 15) - ml;
    }
  }
}
ANE_WIDE_DECODER(q4_k)

static ANE_WIDE void decode_q5_k(const void *src, float *restrict dst, uint64_t n) {
  const ane_block_q5_k *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d), dmin = ane_f16_f32(b->dmin);
    for (int j = 0; j < 8; j++) {
      uint8_t s, m;
      ane_k_scale_min(b->scales, j, &s, &m);
      float dl = d * (float)s, ml = dmin * (float)m;
      const uint8_t *q = b->qs + j / 2 * 32;
      int shift = j % 2 * 4;
      for (int l = 0; l < 32; l++) *dst++ = dl * (float)((q[l] >> shift & 15) | (b->qh[l] >> j & 1) << 4) - ml;
    }
  }
}
ANE_WIDE_DECODER(q5_k)

static ANE_WIDE void decode_q6_k(const void *src, float *restrict dst, uint64_t n) {
  const ane_block_q6_k *b = src;
  for (uint64_t i = 0; i < n / ANE_QK_K; i++, b++) {
    float d = ane_f16_f32(b->d);
    for (int j = 0; j < 16; j++) {
      float dl = d * (float)b->scales[j];
      int run = j / 2 % 4, at = j % 2 * 16; /* run of 32 in its half, index in the run */
      const uint8_t *l4 = b->ql + j / 8 * 64 + run % 2 * 32 + at, *h2 = b->qh + j / 8 * 32 + at;
      for (int l = 0; l < 16; l++) *dst++ = dl * (float)(((l4[l] >> run / 2 * 4 & 15) | (h2[l] >> run * 2 & 3) << 4) - 32);
    }
  }
}
ANE_WIDE_DECODER(q6_k)
