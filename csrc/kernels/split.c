/* Q8_0_SPLIT: packing of Q8_0 into high and low nibbles, and the terms of bounds that depend on activations only. */
#include "kernels/kernels_internal.h"

#include <math.h>
#include <string.h>

typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint16_t halves8 __attribute__((vector_size(16)));

static inline bytes16 load16(const void *p) {
  bytes16 v;
  memcpy(&v, p, 16);
  return v;
}

/* Returns the sum of l (15 - l) over 16 values l of 0 .. 15, as four 16-bit sums. */
static inline uint64_t products(bytes16 low) {
  halves8 even = (halves8)low & 0x00FF, odd = (halves8)low >> 8;
  halves8 sum = even * (15 - even) + odd * (15 - odd);
  uint64_t parts[2];
  memcpy(parts, &sum, 16);
  return parts[0] + parts[1];
}

/* Splits 32 stored codes + 128 into high and low nibbles. Returns the norm of low - 7.5 over the block, in steps of 1 /
 * ANE_BOUND_STEPS, rounded up. */
static inline uint8_t pack_block(const uint8_t *codes, uint8_t *high_nibbles, uint8_t *low_nibbles) {
  bytes16 a = load16(codes) ^ 0x80, b = load16(codes + 16) ^ 0x80, low = a & 15, high = b & 15;
  bytes16 u = (a >> 4) | (b & 0xF0), l = low | (high << 4);
  memcpy(high_nibbles, &u, 16);
  memcpy(low_nibbles, &l, 16);
  /* The sum of (2 l - 15)^2 = 225 - 4 l (15 - l) over all 32. */
  uint64_t taken = ((products(low) + products(high)) * 0x0001000100010001) >> 48;
  float norm = sqrtf((float)(32 * 225 - 4 * (int)taken)) * (0.5f * ANE_BOUND_STEPS); /* at most 255 */
  uint8_t down = (uint8_t)norm;
  return (uint8_t)(down + ((float)down < norm));
}

void ane_pack_split(const struct ane_packed *w, const uint8_t *rows, size_t stride, int n_rows, int64_t g) {
  const size_t nb = (size_t)w->cols / ANE_BLOCK;
  uint8_t *group = (uint8_t *)w->data + (size_t)g * w->group_bytes;
  if (n_rows < ANE_GROUP) memset(group, 0, w->group_bytes);
  for (int r = 0; r < ANE_GROUP; r++) {
    uint8_t *scales = (uint8_t *)w->scales + (size_t)(g * ANE_GROUP + r) * nb * 2;
    if (r >= n_rows) {
      for (size_t b = 0; b < nb; b++) memset((uint8_t *)ane_low_nibbles(w, g * ANE_GROUP + r, (int64_t)b), 0, 16);
      memset(scales, 0, nb * 2);
      continue;
    }
    for (size_t b = 0; b < nb; b++) {
      const uint8_t *src = rows + (size_t)r * stride + 34 * b;
      uint8_t high[16], *to = group + 304 * b;
      to[288 + r] = pack_block(src + 2, high, (uint8_t *)ane_low_nibbles(w, g * ANE_GROUP + r, (int64_t)b));
      for (int v = 0; v < 4; v++) ane_put_word(to + 64 * v + 4 * r, ane_word(high + 4 * v));
      ane_put_half(to + 256 + 2 * r, ane_half(src));
      ane_put_half(scales + 2 * b, ane_half(src));
    }
  }
}

void ane_bound_prepare(const struct ane_activations *x, struct ane_bound_block *out) {
  int64_t nb = x->cols / ANE_BLOCK;
  float rounding = (float)(4 * nb + 16) * 0x1p-23f * 128;
  for (int64_t b = 0; b < nb; b++) {
    const int8_t *q = x->q + b * ANE_BLOCK, *residual = x->residual + b * x->outlier_ld * ANE_BLOCK;
    int32_t sum = 0, size = 0;
    int64_t squares = 0;
    for (int i = 0; i < ANE_BLOCK; i++) {
      int32_t v = x->outlier[b * x->outlier_ld] ? q[i] + 128 * residual[i] : q[i];
      sum += v;
      size += v < 0 ? -v : v;
      squares += (int64_t)v * v;
    }
    float d = x->d[b];
    out[b] = (struct ane_bound_block){.by = 0.5f * d,
                                      .norm = (float)((double)d * sqrt((double)squares) * (1.000001 / ANE_BOUND_STEPS)),
                                      .slack = d * (float)size * rounding,
                                      .start = -241 * sum,
                                      .start_low = -15 * sum};
  }
}
