/* The upper halves of the codes of a Q8_0 matrix: packing them, and the parts of a bound that depend on x only. */
#include "kernels/kernels_internal.h"

#include <math.h>
#include <string.h>

bool ane_upper_group_bytes(int64_t cols, size_t *bytes) {
  return ane_mul_size((size_t)ane_div_up((size_t)cols, ANE_BLOCK), ANE_UPPER_BLOCK, bytes);
}

/* Sums of (2 low - 15)^2 over the 32 columns of each row: at most 32 * 225. */
static void low_squares(const uint8_t *codes, int32_t out[ANE_GROUP]) {
  uint16_t sum[64] = {0};
  for (int v = 0; v < 8; v++)
    for (int i = 0; i < 64; i++) {
      int16_t twice = (int16_t)(2 * (codes[64 * v + i] & 15) - 15);
      sum[i] = (uint16_t)(sum[i] + twice * twice);
    }
  for (int r = 0; r < ANE_GROUP; r++) out[r] = sum[4 * r] + sum[4 * r + 1] + sum[4 * r + 2] + sum[4 * r + 3];
}

void ane_upper_pack(const struct ane_packed *w, int64_t g, void *dst) {
  const uint8_t *from = w->data + (size_t)g * w->group_bytes;
  uint8_t *to = dst;
  for (int64_t b = 0; b < w->cols / ANE_BLOCK; b++, from += 544, to += ANE_UPPER_BLOCK) {
    int32_t squares[ANE_GROUP];
    for (int i = 0; i < 256; i++) to[i] = (uint8_t)(from[i] >> 4 | (from[256 + i] & 0xF0));
    memcpy(to + 256, from + 512, 32);
    low_squares(from, squares);
    for (int r = 0; r < ANE_GROUP; r++) to[288 + r] = (uint8_t)ceilf(sqrtf((float)squares[r]) * (0.5f * ANE_UPPER_STEPS));
  }
}

void ane_upper_prepare(const struct ane_acts *x, struct ane_upper_x *out) {
  int64_t nb = x->cols / ANE_BLOCK;
  float rounding = (float)(4 * nb + 16) * 0x1p-23f * 128;
  for (int64_t b = 0; b < nb; b++) {
    const int8_t *q = x->q + b * ANE_BLOCK, *low = x->low + b * ANE_BLOCK;
    int32_t sum = 0, size = 0;
    int64_t squares = 0;
    for (int i = 0; i < ANE_BLOCK; i++) {
      int32_t v = x->fine[b] ? 128 * q[i] + low[i] : q[i];
      sum += v;
      size += v < 0 ? -v : v;
      squares += (int64_t)v * v;
    }
    float d = x->fine[b] ? x->d_low[b] : x->d[b];
    out[b] = (struct ane_upper_x){.by = 0.5f * d, .norm = (float)((double)d * sqrt((double)squares) * (1.000001 / ANE_UPPER_STEPS)),
                                  .slack = d * (float)size * rounding, .start = -241 * sum};
  }
}
