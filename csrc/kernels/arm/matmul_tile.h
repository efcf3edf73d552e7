/* Sizes that the 8-bit kernels of all ARM levels share, and the panel and tile functions of levels whose dot() takes one token.
 */
#ifndef ANE_KERNELS_ARM_MATMUL_TILE_H
#define ANE_KERNELS_ARM_MATMUL_TILE_H

#include "kernels/arm/matmul_unpack.h"

enum {
  FUSED_NT = 3,  /* most tokens of `fused`: 4 parts x 3 sums and the codes of one part fit in registers */
  TILE_PARTS = 2 /* parts of a tile: 8 rows x TILE_NT tokens, with a block's sum and a total each */
};

/* Defines panel_codes and tile_dots of a level from its TILE_NT and dot() (matmul_i8.h). Planes keep their order. It is a macro
 * because dot() must be defined before it and inlined. */
#define ANE_TILE_BY_DOT                                                                                                          \
  INLINE void panel_codes(const int8x16_t c[8], int8_t *to) {                                                                    \
    for (int v = 0; v < 8; v++) vst1q_s8(to + 16 * v, c[v]);                                                                     \
  }                                                                                                                              \
  INLINE void tile_dots(ane_layout f, int nt, int planes, int from, const int32_t *start, const int8_t *codes,                   \
                        const int8_t *const q[], int32x4_t sum[TILE_PARTS][TILE_NT]) {                                           \
    _Pragma("GCC unroll 2") for (int i = 0; i < TILE_PARTS; i++) {                                                               \
      int8x16_t c[8];                                                                                                            \
      _Pragma("GCC unroll 8") for (int v = 0; v < planes; v++) c[v] = vld1q_s8(codes + 128 * i + 16 * (from + v));               \
      _Pragma("GCC unroll 4") for (int t = 0; t < nt; t++) sum[i][t] =                                                           \
          dot(f, planes, vdupq_n_s32(start[t]), c, q[t] + 4 * from);                                                             \
    }                                                                                                                            \
  }

#endif
