/* Products with 8-bit activations for NEON without dot product instructions. Products are first summed in 16-bit lanes, one
 * product of each plane. The largest sums are 8 * 31 * 127 (5 bits), 4 * 63 * 127 (6 bits, a scale for each half) and
 * 2 * 128 * 127 (bytes), all below 32768. */
#include "kernels/arm/matmul_tile.h"

/* The two 16-bit sums of a dot need registers: with more tokens the compiler spills sums to memory. */
enum { FEW = 2, TILE_NT = 2 };

INLINE int32x4_t dot(ane_layout f, int planes, int32x4_t sum, const int8x16_t *c, const int8_t *q) {
  const int run = layout_width(f) == 8 ? 2 : planes;
#pragma GCC unroll 4
  for (int from = 0; from < planes; from += run) {
    int16x8_t low, high; /* rows 0 and 1, rows 2 and 3: four sums each */
#pragma GCC unroll 8
    for (int v = from; v < from + run; v++) {
      const int8x16_t columns = vreinterpretq_s8_u32(vdupq_n_u32(ane_word(q + 4 * v)));
      if (v == from) {
        low = vmull_s8(vget_low_s8(c[v]), vget_low_s8(columns));
        high = vmull_high_s8(c[v], columns);
      } else {
        low = vmlal_s8(low, vget_low_s8(c[v]), vget_low_s8(columns));
        high = vmlal_high_s8(high, c[v], columns);
      }
    }
    sum = vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
  }
  return sum;
}

ANE_TILE_BY_DOT

#include "kernels/arm/matmul_i8.h"

/* Each 16-bit sum has four products of at most 15 * 127. */
INLINE int32x4_t row_dot(const int8x16_t c[2], const int8_t *q) {
  const int8x16_t a = vld1q_s8(q), b = vld1q_s8(q + 16);
  int16x8_t sum = vmull_s8(vget_low_s8(c[0]), vget_low_s8(a));
  sum = vmlal_high_s8(sum, c[0], a);
  sum = vmlal_s8(sum, vget_low_s8(c[1]), vget_low_s8(b));
  return vpaddlq_s16(vmlal_high_s8(sum, c[1], b));
}

#include "kernels/arm/matmul_bound.h"

void ane_matmul_neon(struct ane_kernels *k) {
  overlay_i8(k);
  k->upper_bound = upper_bound;
  k->row_bound = row_bound;
}
