/* Products with the A and B matrices of adapters in scalar C. The other levels are tested against this file. */
#include "kernels/low_codes.h"
#include "tensor/half.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

static void low_rank(const void *a, bool half, int64_t rank, const float *x, int64_t ldx, int64_t n, int64_t cols, float *y,
                     int64_t ldy) {
  const int64_t four =
      4 * (int64_t)ane_align_up((size_t)cols, LANES); /* elements of 4 rows, which are interleaved by 16 columns */
  const uint16_t *halves = a;
  const float *floats = a;
  for (int64_t t = 0; t < n; t++)
    for (int64_t r = 0; r < rank; r++) {
      float l[LANES] = {0};
      for (int64_t c = 0; c < cols; c++) {
        int64_t at = r / 4 * four + c / LANES * 4 * LANES + r % 4 * LANES + c % LANES;
        l[c % LANES] = fmaf(half ? ane_f16_f32(halves[at]) : floats[at], x[t * ldx + c], l[c % LANES]);
      }
      for (int w = LANES / 2; w; w /= 2)
        for (int i = 0; i < w; i++) l[i] += l[i + w];
      y[t * ldy + r] = l[0];
    }
}

static void low_rank_add(const struct ane_packed *b, const float *x, int64_t g_from, int64_t g_to, float *y) {
  const bool half = b->layout == ANE_LAYOUT_F16;
  for (int64_t r = g_from * ANE_GROUP; r < ANE_MIN(g_to * ANE_GROUP, b->rows); r++) {
    const uint8_t *group = b->data + (size_t)(r / ANE_GROUP) * b->group_bytes;
    float sum = 0;
    for (int64_t k = 0; k < b->cols; k++) {
      int64_t at = k * ANE_GROUP + r % ANE_GROUP;
      sum = fmaf(half ? ane_f16_f32(((const uint16_t *)(const void *)group)[at]) : ((const float *)(const void *)group)[at], x[k],
                 sum);
    }
    y[r - g_from * ANE_GROUP] += sum;
  }
}

/* Codes of n values at x; returns their scale. */
static float codes_of(const float *x, int64_t n, int32_t *q) {
  float amax = 0;
  for (int64_t k = 0; k < n; k++) amax = fabsf(x[k]) > amax ? fabsf(x[k]) : amax;
  const bool some = amax > 0x1p-100f && amax < INFINITY;
  const float inverse = some ? ANE_LOW_CODE / amax : 0;
  for (int64_t k = 0; k < n; k++) {
    const float v = x[k] * inverse;
    q[k] = v > ANE_LOW_CODE ? (int32_t)ANE_LOW_CODE : v >= -ANE_LOW_CODE ? (int32_t)rintf(v) : -(int32_t)ANE_LOW_CODE;
  }
  return some ? amax / ANE_LOW_CODE : 0;
}

static void low_codes_add(const struct ane_low_codes *b, const float *x, int64_t ldx, int64_t n, int64_t g_from, int64_t g_to,
                          float *y, int64_t ldy) {
  for (int64_t t = 0; t < n; t++)
    for (int64_t r = g_from * ANE_GROUP; r < ANE_MIN(g_to * ANE_GROUP, b->rows); r++) {
      const uint8_t *block = b->data + (size_t)(r / ANE_GROUP) * b->group_bytes;
      const int64_t lane = r % ANE_GROUP;
      float acc = 0;
      for (int64_t k = 0; k < b->rank; k += ANE_BLOCK) {
        const int64_t here = ANE_MIN(b->rank - k, (int64_t)ANE_BLOCK);
        const int8_t *codes = (const int8_t *)block + ANE_GROUP * sizeof(float);
        int32_t q[ANE_BLOCK], sum = 0;
        float scale;
        const float d = codes_of(x + t * ldx + k, here, q);
        for (int64_t i = 0; i < here; i++) sum += codes[i / 2 * 2 * ANE_GROUP + 2 * lane + i % 2] * q[i];
        memcpy(&scale, block + (size_t)lane * sizeof scale, sizeof scale);
        acc = fmaf((float)sum * scale, d, acc);
        block += low_block_bytes(here);
      }
      y[t * ldy + r - g_from * ANE_GROUP] += acc;
    }
}

void ane_low_rank_ref(struct ane_kernels *k) {
  k->low_rank = low_rank;
  k->low_rank_add = low_rank_add;
  k->low_codes_add = low_codes_add;
}
