/* Vectors of one float: the operations that mathfn.h and the other scalar kernels of `ref` need. vec_avx512.h documents the set.
 */
#ifndef ANE_KERNELS_VEC_SCALAR_H
#define ANE_KERNELS_VEC_SCALAR_H

#include "tensor/half.h"

#include <math.h>

#define V_FN static inline __attribute__((always_inline))

typedef float vf;

V_FN vf v_set(float x) { return x; }
V_FN vf v_add(vf a, vf b) { return a + b; }
V_FN vf v_sub(vf a, vf b) { return a - b; }
V_FN vf v_mul(vf a, vf b) { return a * b; }
V_FN vf v_div(vf a, vf b) { return a / b; }
V_FN vf v_fma(vf a, vf b, vf c) { return fmaf(a, b, c); }
/* Return b if one operand is NaN or both are zero, as the x86 instructions do. */
V_FN vf v_min(vf a, vf b) { return a < b ? a : b; }
V_FN vf v_max(vf a, vf b) { return a > b ? a : b; }
V_FN vf v_abs(vf a) { return ane_bits_f32(ane_f32_bits(a) & 0x7FFFFFFF); }
V_FN vf v_neg(vf a) { return ane_bits_f32(ane_f32_bits(a) ^ 0x80000000); }
V_FN vf v_copysign(vf a, vf s) { return ane_bits_f32((ane_f32_bits(a) & 0x7FFFFFFF) | (ane_f32_bits(s) & 0x80000000)); }
V_FN vf v_select_lt(vf a, vf b, vf yes, vf no) { return a < b ? yes : no; }

/* 2^n for n in -126 .. 127, from t = 1.5 * 2^23 + n. */
V_FN vf v_pow2(vf t) { return ane_bits_f32((ane_f32_bits(t) + 127) << 23); }
/* p 2^n, for a normal result and t as above. */
V_FN vf v_shift_exponent(vf p, vf t) { return ane_bits_f32(ane_f32_bits(p) + (ane_f32_bits(t) << 23)); }
/* p 2^n, n in -152 .. 130 and t as above: by two powers, so that only the second product can round. */
V_FN vf v_ldexp(vf p, vf t, ANE_UNUSED vf n) {
  int32_t i = (int32_t)(ane_f32_bits(t) - 0x4B400000), half = i >> 1;
  return p * ane_bits_f32((uint32_t)(half + 127) << 23) * ane_bits_f32((uint32_t)(i - half + 127) << 23);
}

#endif
