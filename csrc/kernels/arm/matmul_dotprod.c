/* Products with 8-bit activations for NEON with dot product instructions. An sdot takes four columns of four rows. */
#include "kernels/arm/matmul_tile.h"

enum { FEW = FUSED_NT, TILE_NT = 4 };

INLINE int32x4_t dot(ANE_UNUSED ane_layout f, int planes, int32x4_t sum, const int8x16_t *c, const int8_t *q) {
  int8x16_t columns = vld1q_s8(q);
  sum = vdotq_laneq_s32(sum, c[0], columns, 0);
  sum = vdotq_laneq_s32(sum, c[1], columns, 1);
  sum = vdotq_laneq_s32(sum, c[2], columns, 2);
  sum = vdotq_laneq_s32(sum, c[3], columns, 3);
  if (planes == 4) return sum;
  columns = vld1q_s8(q + 16);
  sum = vdotq_laneq_s32(sum, c[4], columns, 0);
  sum = vdotq_laneq_s32(sum, c[5], columns, 1);
  sum = vdotq_laneq_s32(sum, c[6], columns, 2);
  return vdotq_laneq_s32(sum, c[7], columns, 3);
}

ANE_TILE_BY_DOT

#include "kernels/arm/matmul_i8.h"

INLINE int32x4_t row_dot(const int8x16_t c[2], const int8_t *q) {
  return vdotq_s32(vdotq_s32(vdupq_n_s32(0), c[0], vld1q_s8(q)), c[1], vld1q_s8(q + 16));
}

#include "kernels/arm/matmul_bound.h"

void ane_matmul_dotprod(struct ane_kernels *k) {
  overlay_i8(k);
  k->upper_bound = upper_bound;
  k->row_bound = row_bound;
}
