/* Products with 8-bit activations for NEON with matrix instructions. An smmla takes eight columns (two planes) of two rows and
 * two tokens. With one token half of it would be wasted, so `fused` takes single tokens, with sdot. */
#include "kernels/arm/matmul_tile.h"

enum { FEW = 1, TILE_NT = 4 };

INLINE int32x4_t dot(ANE_UNUSED ane_layout f, int planes, int32x4_t sum, const int8x16_t *c, const int8_t *q) {
#pragma GCC unroll 8
  for (int v = 0; v < planes; v++) sum = vdotq_s32(sum, c[v], vreinterpretq_s8_u32(vdupq_n_u32(ane_word(q + 4 * v))));
  return sum;
}

/* Writes, for each pair of planes, rows 0 and 1, then rows 2 and 3, eight columns of each. */
INLINE void panel_codes(const int8x16_t c[8], int8_t *to) {
#pragma GCC unroll 4
  for (int v = 0; v < 8; v += 2) {
    const int32x4_t a = vreinterpretq_s32_s8(c[v]), b = vreinterpretq_s32_s8(c[v + 1]);
    vst1q_s8(to + 16 * v, vreinterpretq_s8_s32(vzip1q_s32(a, b)));
    vst1q_s8(to + 16 * v + 16, vreinterpretq_s8_s32(vzip2q_s32(a, b)));
  }
}

/* If nt is odd, the last token is computed twice. The sums of rows a, b and tokens t, u are [at, au, bt, bu]. */
INLINE void tile_dots(ANE_UNUSED ane_layout f, int nt, int planes, int from, const int32_t *start, const int8_t *codes,
                      const int8_t *const q[], int32x4_t sum[TILE_PARTS][TILE_NT]) {
  int32x4_t pair[TILE_PARTS][2][TILE_NT / 2];
#pragma GCC unroll 2
  for (int t = 0; t < nt; t += 2) {
    const int u = t + 1 < nt ? t + 1 : t;
    const int32x4_t both = vzip1q_s32(vdupq_n_s32(start[t]), vdupq_n_s32(start[u]));
#pragma GCC unroll 2
    for (int i = 0; i < TILE_PARTS; i++) pair[i][0][t / 2] = pair[i][1][t / 2] = both;
  }
#pragma GCC unroll 4
  for (int v = from; v < from + planes; v += 2) {
    int8x16_t w[TILE_PARTS][2];
#pragma GCC unroll 2
    for (int i = 0; i < TILE_PARTS; i++)
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) w[i][h] = vld1q_s8(codes + 128 * i + 16 * (v + h));
#pragma GCC unroll 2
    for (int t = 0; t < nt; t += 2) {
      const int u = t + 1 < nt ? t + 1 : t;
      const int8x16_t columns = vcombine_s8(vld1_s8(q[t] + 4 * v), vld1_s8(q[u] + 4 * v));
#pragma GCC unroll 2
      for (int i = 0; i < TILE_PARTS; i++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) pair[i][h][t / 2] = vmmlaq_s32(pair[i][h][t / 2], w[i][h], columns);
    }
  }
#pragma GCC unroll 2
  for (int i = 0; i < TILE_PARTS; i++)
#pragma GCC unroll 4
    for (int t = 0; t < nt; t++) {
      const int32x4_t a = pair[i][0][t / 2], b = pair[i][1][t / 2];
      sum[i][t] = t % 2 ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b);
    }
}

#include "kernels/arm/matmul_i8.h"

void ane_matmul_i8mm(struct ane_kernels *k) { overlay_i8(k); }
