/* What the matrix kernels of all machines know of the quantised layouts: columns of layout.def and offsets drawn in pack.c, as
 * functions that are decided when compiling, for a layout is a constant wherever a kernel is inlined. */
#ifndef ANE_KERNELS_MATMUL_LAYOUTS_H
#define ANE_KERNELS_MATMUL_LAYOUTS_H

#include "kernels/kernels_internal.h"

#define INLINE static inline __attribute__((always_inline))

/* Bits of a code: 4, 5, 6 or 8. */
INLINE int layout_bits(ane_layout f) {
  switch (f) {
    case ANE_LAYOUT_Q4_0:
    case ANE_LAYOUT_Q4_1:
    case ANE_LAYOUT_Q4_K:
    case ANE_LAYOUT_LUT4:
    case ANE_LAYOUT_N4:
    case ANE_LAYOUT_N4H: return 4;
    case ANE_LAYOUT_Q5_0:
    case ANE_LAYOUT_Q5_1:
    case ANE_LAYOUT_Q5_K: return 5;
    case ANE_LAYOUT_Q6_K: return 6;
    default: return 8;
  }
}
INLINE bool layout_is_k(ane_layout f) { return f == ANE_LAYOUT_Q4_K || f == ANE_LAYOUT_Q5_K || f == ANE_LAYOUT_Q6_K; }
/* Has each block a zero point of its own? Then the minimum is scale * (zero - zero point). */
INLINE bool layout_has_offset(ane_layout f) { return f == ANE_LAYOUT_N4 || f == ANE_LAYOUT_N8; }
INLINE bool layout_has_min(ane_layout f) {
  return layout_has_offset(f) || f == ANE_LAYOUT_Q4_1 || f == ANE_LAYOUT_Q5_1 || f == ANE_LAYOUT_Q4_K || f == ANE_LAYOUT_Q5_K;
}
INLINE int layout_zero(ane_layout f) {
  switch (f) {
    case ANE_LAYOUT_Q4_0:
    case ANE_LAYOUT_N4:
    case ANE_LAYOUT_N4H: return 8;
    case ANE_LAYOUT_Q5_0: return 16;
    case ANE_LAYOUT_Q6_K: return 32;
    case ANE_LAYOUT_Q8_0:
    case ANE_LAYOUT_Q8_0_SPLIT:
    case ANE_LAYOUT_I8:
    case ANE_LAYOUT_N8:
    case ANE_LAYOUT_N8H: return 128;
    default: return 0;
  }
}
INLINE int layout_subs(ane_layout f) { return f == ANE_LAYOUT_Q6_K || f == ANE_LAYOUT_N4H || f == ANE_LAYOUT_N8H ? 2 : 1; }

/* Bytes of a block of 32 columns, its share of the unit's head included. */
INLINE int block_bytes(ane_layout f) {
  switch (f) {
    case ANE_LAYOUT_LUT4: return 256;
    case ANE_LAYOUT_Q4_0: return 288;
    case ANE_LAYOUT_Q4_1: return 320;
    case ANE_LAYOUT_Q5_0: return 352;
    case ANE_LAYOUT_Q5_1: return 384;
    case ANE_LAYOUT_Q8_0: return 544;
    case ANE_LAYOUT_Q8_0_SPLIT: return 304;
    case ANE_LAYOUT_Q4_K: return 2368 / 8;
    case ANE_LAYOUT_Q5_K: return 2880 / 8;
    case ANE_LAYOUT_Q6_K: return 3360 / 8;
    case ANE_LAYOUT_N4: return 336;
    case ANE_LAYOUT_N8: return 592;
    case ANE_LAYOUT_N4H: return 384;
    case ANE_LAYOUT_N8H: return 640;
    default: return 512;
  }
}

/* Where block b of a group lies: its unit, its codes, its number in the unit. */
struct at {
  const uint8_t *unit, *codes;
  int s;
};
INLINE struct at block_at(ane_layout f, const uint8_t *group, int64_t b) {
  int s = layout_is_k(f) ? (int)(b & 7) : 0;
  group += (b - s) * block_bytes(f);
  switch (f) {
    case ANE_LAYOUT_Q4_K: return (struct at){group, group + 320 + 256 * s, s};
    case ANE_LAYOUT_Q5_K: return (struct at){group, group + 320 + 320 * s, s};
    case ANE_LAYOUT_Q6_K: return (struct at){group, group + 288 + 384 * s, s};
    default: return (struct at){group, group, 0};
  }
}

#endif
