/* What the matrix kernels of all machines know of the quantised forms: columns of form.def and offsets drawn in pack.c, as
 * functions that are decided when compiling, for a form is a constant wherever a kernel is inlined. */
#ifndef ANE_KERNELS_MATMUL_FORMS_H
#define ANE_KERNELS_MATMUL_FORMS_H

#include "kernels/kernels_internal.h"

#define INLINE static inline __attribute__((always_inline))

/* Bits of a code: 4, 5, 6 or 8. */
INLINE int form_bits(ane_form f) {
  switch (f) {
    case ANE_FORM_Q4_0: case ANE_FORM_Q4_1: case ANE_FORM_Q4_K: case ANE_FORM_LUT4: case ANE_FORM_N4: case ANE_FORM_N4H: return 4;
    case ANE_FORM_Q5_0: case ANE_FORM_Q5_1: case ANE_FORM_Q5_K: return 5;
    case ANE_FORM_Q6_K: return 6;
    default: return 8;
  }
}
INLINE bool form_is_k(ane_form f) { return f == ANE_FORM_Q4_K || f == ANE_FORM_Q5_K || f == ANE_FORM_Q6_K; }
/* Has each block a zero point of its own? Then the minimum is scale * (zero - zero point). */
INLINE bool form_has_offset(ane_form f) { return f == ANE_FORM_N4 || f == ANE_FORM_N8; }
INLINE bool form_has_min(ane_form f) {
  return form_has_offset(f) || f == ANE_FORM_Q4_1 || f == ANE_FORM_Q5_1 || f == ANE_FORM_Q4_K || f == ANE_FORM_Q5_K;
}
INLINE int form_zero(ane_form f) {
  switch (f) {
    case ANE_FORM_Q4_0: case ANE_FORM_N4: case ANE_FORM_N4H: return 8;
    case ANE_FORM_Q5_0: return 16;
    case ANE_FORM_Q6_K: return 32;
    case ANE_FORM_Q8_0: case ANE_FORM_P8: case ANE_FORM_I8: case ANE_FORM_N8: case ANE_FORM_N8H: return 128;
    default: return 0;
  }
}
INLINE int form_subs(ane_form f) { return f == ANE_FORM_Q6_K || f == ANE_FORM_N4H || f == ANE_FORM_N8H ? 2 : 1; }

/* Bytes of a block of 32 columns, its share of the unit's head included. */
INLINE int block_bytes(ane_form f) {
  switch (f) {
    case ANE_FORM_LUT4: return 256;
    case ANE_FORM_Q4_0: return 288;
    case ANE_FORM_Q4_1: return 320;
    case ANE_FORM_Q5_0: return 352;
    case ANE_FORM_Q5_1: return 384;
    case ANE_FORM_Q8_0: return 544;
    case ANE_FORM_P8: return 304;
    case ANE_FORM_Q4_K: return 2368 / 8;
    case ANE_FORM_Q5_K: return 2880 / 8;
    case ANE_FORM_Q6_K: return 3360 / 8;
    case ANE_FORM_N4: return 336;
    case ANE_FORM_N8: return 592;
    case ANE_FORM_N4H: return 384;
    case ANE_FORM_N8H: return 640;
    default: return 512;
  }
}

/* Where block b of a group lies: its unit, its codes, its number in the unit. */
struct at {
  const uint8_t *unit, *codes;
  int s;
};
INLINE struct at block_at(ane_form f, const uint8_t *group, int64_t b) {
  int s = form_is_k(f) ? (int)(b & 7) : 0;
  group += (b - s) * block_bytes(f);
  switch (f) {
    case ANE_FORM_Q4_K: return (struct at){group, group + 320 + 256 * s, s};
    case ANE_FORM_Q5_K: return (struct at){group, group + 320 + 320 * s, s};
    case ANE_FORM_Q6_K: return (struct at){group, group + 288 + 384 * s, s};
    default: return (struct at){group, group, 0};
  }
}

#endif
