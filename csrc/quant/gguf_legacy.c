/* Blocks of 32 with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. Rounding of the encoders: gguf-py's quants.py. */
#include "quant/blocks.h"
#include "quant/quant_internal.h"
#include "quant/wide.h"

#include "base/bytes.h"
#include "tensor/half.h"

#include <math.h>
#include <string.h>

/* ---- Decode ------------------------------------------------------------------------------------------------------*/

static ANE_WIDE void decode_q4_0(const void *src, float *restrict dst, uint64_t n) {
  const ane_block_q4_0 *b = src;
  for (uint64_t i = 0; i < n / ANE_QK; i++, dst += ANE_QK) {
    float d = ane_f16_f32(b[i].d);
    for (int l = 0; l < 16; l++) {
      dst[l] = d * (float)((b[i].qs[l] & 15) - 8);
      dst[l + 16] = d * (float)((b[i].qs[l] >> 4) - 8);
    }
  }
}
ANE_WIDE_DECODER(q4_0)

static ANE_WIDE void decode_q4_1(const void *src, float *restrict dst, uint64_t n) {
  const ane_block_q4_1 *b = src;
  for (uint64_t i = 0; i < n / ANE_QK; i++, dst += ANE_QK) {
    float d = ane_f16_f32(b[i].d), m = ane_f16_f32(b[i].m);
    for (int l = 0; l < 16; l++) {
      dst[l] = d * (float)(b[i].qs[l] & 15) + m;
      dst[l + 16] = d * (float)(b[i].qs[l] >> 4) + m;
    }
  }
}
ANE_WIDE_DECODER(q4_1)

static ANE_WIDE void decode_q5_0(const void *src, float *restrict dst, uint64_t n) {
  const ane_block_q5_0 *b = src;
  for (uint64_t i = 0; i < n / ANE_QK; i++, dst += ANE_QK) {
    float d = ane_f16_f32(b[i].d);
    uint32_t qh = ane_load_u32(b[i].qh);
    for (int l = 0; l < 16; l++) {
      dst[l] = d * (float)((int)((b[i].qs[l] & 15) | (qh >> l & 1) << 4) - 16);
      dst[l + 16] = d * (float)((int)(b[i].qs[l] >> 4 | (qh >> (l + 16) & 1) << 4) - 16);
    }
  }
}
ANE_WIDE_DECODER(q5_0)

static ANE_WIDE void decode_q5_1(const void *src, float *restrict dst, uint64_t n) {
  const ane_block_q5_1 *b = src;
  for (uint64_t i = 0; i < n / ANE_QK; i++, dst += ANE_QK) {
    float d = ane_f16_f32(b[i].d), m = ane_f16_f32(b[i].m);
    uint32_t qh = ane_load_u32(b[i].qh);
    for (int l = 0; l < 16; l++) {
      dst[l] = d * (float)((b[i].qs[l] & 15) | (qh >> l & 1) << 4) + m;
      dst[l + 16] = d * (float)(b[i].qs[l] >> 4 | (qh >> (l + 16) & 1) << 4) + m;
    }
  }
}
ANE_WIDE_DECODER(q5_1)

static ANE_WIDE void decode_q8_0(const void *src, float *restrict dst, uint64_t n) {
  const ane_block_q8_0 *b = src;
  for (uint64_t i = 0; i < n / ANE_QK; i++, dst += ANE_QK) {
    float d = ane_f16_f32(b[i].d);
    for (int l = 0; l < ANE_QK; l++) dst[l] = d * (float)b[i].qs[l];
  }
}
ANE_WIDE_DECODER(q8_0)

/* ---- Encode ------------------------------------------------------------------------------------------------------*/

static float inverse(float d) { return d != 0 ? 1 / d : 0; }

/* Truncates to 0..top; NaN gives 0. */
static uint8_t truncate(float v, int top) { return v > 0 ? (uint8_t)(v < (float)top ? (int)v : top) : 0; }

/* The element of largest magnitude, with its sign; the first one of equals. */
static float largest(const float *x) {
  float best = x[0];
  for (int l = 1; l < ANE_QK; l++)
    if (fabsf(x[l]) > fabsf(best)) best = x[l];
  return best;
}

/* Symmetric: the element of largest magnitude becomes exactly -half. Returns d. */
static float quantise_signed(const float *x, uint8_t *q, int half) {
  float d = largest(x) / (float)-half, id = inverse(d);
  for (int l = 0; l < ANE_QK; l++) q[l] = truncate(x[l] * id + ((float)half + 0.5f), 2 * half - 1);
  return d;
}

/* Asymmetric: divides the range from the smallest element (*min) to the largest into `steps` steps. Returns d. */
static float quantise_range(const float *x, uint8_t *q, int steps, float *min) {
  float lo = x[0], hi = x[0];
  for (int l = 1; l < ANE_QK; l++) {
    if (x[l] < lo) lo = x[l];
    if (x[l] > hi) hi = x[l];
  }
  float d = (hi - lo) / (float)steps, id = inverse(d);
  for (int l = 0; l < ANE_QK; l++) q[l] = truncate((x[l] - lo) * id + 0.5f, steps);
  *min = lo;
  return d;
}

/* Packs the low four bits of codes into nibbles and their fifth bits into qh (NULL: there are none). */
static void pack(const uint8_t *q, uint8_t *qs, uint8_t *qh) {
  for (int l = 0; l < 16; l++) qs[l] = (uint8_t)((q[l] & 15) | (q[l + 16] & 15) << 4);
  if (!qh) return;
  memset(qh, 0, 4);
  for (int l = 0; l < ANE_QK; l++) qh[l / 8] = (uint8_t)(qh[l / 8] | (q[l] >> 4) << l % 8);
}

void ane_q4_0_encode(const float *src, void *dst, uint64_t n) {
  ane_block_q4_0 *b = dst;
  uint8_t q[ANE_QK];
  for (uint64_t i = 0; i < n / ANE_QK; i++, src += ANE_QK) {
    b[i].d = ane_f32_f16(quantise_signed(src, q, 8));
    pack(q, b[i].qs, NULL);
  }
}

void ane_q5_0_encode(const float *src, void *dst, uint64_t n) {
  ane_block_q5_0 *b = dst;
  uint8_t q[ANE_QK];
  for (uint64_t i = 0; i < n / ANE_QK; i++, src += ANE_QK) {
    b[i].d = ane_f32_f16(quantise_signed(src, q, 16));
    pack(q, b[i].qs, b[i].qh);
  }
}

void ane_q4_1_encode(const float *src, void *dst, uint64_t n) {
  ane_block_q4_1 *b = dst;
  uint8_t q[ANE_QK];
  float min;
  for (uint64_t i = 0; i < n / ANE_QK; i++, src += ANE_QK) {
    b[i].d = ane_f32_f16(quantise_range(src, q, 15, &min));
    b[i].m = ane_f32_f16(min);
    pack(q, b[i].qs, NULL);
  }
}

void ane_q5_1_encode(const float *src, void *dst, uint64_t n) {
  ane_block_q5_1 *b = dst;
  uint8_t q[ANE_QK];
  float min;
  for (uint64_t i = 0; i < n / ANE_QK; i++, src += ANE_QK) {
    b[i].d = ane_f32_f16(quantise_range(src, q, 31, &min));
    b[i].m = ane_f32_f16(min);
    pack(q, b[i].qs, b[i].qh);
  }
}

void ane_q8_0_encode(const float *src, void *dst, uint64_t n) {
  ane_block_q8_0 *b = dst;
  for (uint64_t i = 0; i < n / ANE_QK; i++, src += ANE_QK) {
    float d = fabsf(largest(src)) / 127, id = inverse(d);
    b[i].d = ane_f32_f16(d);
    for (int l = 0; l < ANE_QK; l++) {
      float v = roundf(src[l] * id); /* halves away from zero */
      b[i].qs[l] = (int8_t)(v > -127 ? v < 127 ? (int)v : 127 : v <= -127 ? -127 : 0);
    }
  }
}
