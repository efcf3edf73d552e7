/* Vectors of 16 floats in AVX-512: the operations of vec_scalar.h, and those that the kernels in vec/ need in addition.
 *
 * vec_*.h serve the templates in vec/ and mathfn.h (attention, norms, elementwise functions, low rank, recurrent blocks). All
 * levels have the same names, so one template serves x86 and NEON. The elements are fp32; fp16, int8 and int16 are loaded and
 * stored; int16 pairs have a dot. x86/matmul_lanes_*.h adds what the x86 matmul templates need: operations on 8-bit codes. */
#ifndef ANE_KERNELS_VEC_AVX512_H
#define ANE_KERNELS_VEC_AVX512_H

#include "base/attr.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define V_FN static inline __attribute__((always_inline))

#define V_REGISTERS 32

typedef __m512 vf;
enum {
  VL = 16,
  V_PARTS = 1 /* vectors that hold 16 floats */
};

V_FN vf v_set(float x) { return _mm512_set1_ps(x); }
V_FN vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
V_FN vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
V_FN vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
V_FN vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
V_FN vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
V_FN vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
V_FN vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
V_FN vf v_abs(vf a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
V_FN vf v_neg(vf a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
V_FN vf v_copysign(vf a, vf s) { return _mm512_or_ps(v_abs(a), _mm512_and_ps(s, _mm512_set1_ps(-0.0f))); }
V_FN vf v_select_lt(vf a, vf b, vf yes, vf no) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes); }

V_FN vf v_pow2(vf t) {
  __m512i i = _mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(i, 23));
}
V_FN vf v_shift_exponent(vf p, vf t) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}
V_FN vf v_ldexp(vf p, ANE_UNUSED vf t, vf n) { return _mm512_scalef_ps(p, n); }

/* Loads and stores need no alignment. _n: only the first n floats; a load sets the others to 0, a store leaves them unchanged.
 * n <= 0 means none. n >= VL means all, by the plain instruction, so a constant n costs nothing. */
V_FN __mmask16 v_first_lanes(int64_t n) { return n <= 0 ? 0 : n >= 16 ? 0xFFFF : (__mmask16)((1u << n) - 1); }
V_FN vf v_load(const float *p) { return _mm512_loadu_ps(p); }
V_FN void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
V_FN vf v_load_n(const float *p, int64_t n) { return n >= VL ? v_load(p) : _mm512_maskz_loadu_ps(v_first_lanes(n), p); }
V_FN void v_store_n(float *p, vf a, int64_t n) {
  if (n >= VL)
    v_store(p, a);
  else
    _mm512_mask_storeu_ps(p, v_first_lanes(n), a);
}
V_FN vf v_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
V_FN vf v_load_i8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))); }
/* Store VL fp16 or int8, rounded to nearest even. Floats for int8 must be in -127 .. 127. */
V_FN void v_store_f16(uint16_t *p, vf a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
V_FN void v_store_i8(int8_t *p, vf a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a))); }

/* vi: VL int32. vpairs: VL pairs of int16, or one pair repeated VL times. v_dot adds to each lane the dot product of its pairs.
 * v_load_pairs_i8 widens VL pairs of int8. */
typedef __m512i vi;
typedef __m512i vpairs;
V_FN vi vi_zero(void) { return _mm512_setzero_si512(); }
V_FN vpairs v_load_pairs(const int16_t *p) { return _mm512_loadu_si512(p); }
V_FN vpairs v_load_pairs_i8(const int8_t *p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p)); }
V_FN vpairs v_set_pair(const int16_t *p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  return _mm512_set1_epi32(pair);
}
#ifdef V_VNNI
V_FN vi v_dot(vi sum, vpairs a, vpairs b) { /* with the intrinsic, GCC 12 copies and spills every sum at every step */
  __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}
#else
V_FN vi v_dot(vi sum, vpairs a, vpairs b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }
#endif
V_FN vf v_float(vi a) { return _mm512_cvtepi32_ps(a); }
/* Stores VL pairs of the integers in the low 16 bits of a's and of b's lanes. */
V_FN void v_store_pairs(int16_t *p, vf a, vf b) {
  const __m512i high = _mm512_slli_epi32(_mm512_castps_si512(b), 16);
  _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_castps_si512(a), high));
}
/* Stores VL int16, rounded to nearest even. The floats must be in -32767 .. 32767. */
V_FN void v_store_i16(int16_t *p, vf a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a))); }

/* a in the lanes i with first <= base + i <= last, -inf elsewhere. */
V_FN vf v_keep_range(vf a, int64_t base, int64_t first, int64_t last) {
  __mmask16 keep = v_first_lanes(last + 1 - base) & (__mmask16)~v_first_lanes(first - base);
  return _mm512_mask_blend_ps(keep, _mm512_set1_ps(-__builtin_inff()), a);
}
/* a in the lanes i with first <= base + i <= last, 0 elsewhere. */
V_FN vf v_zero_range(vf a, int64_t base, int64_t first, int64_t last) {
  return _mm512_maskz_mov_ps(v_first_lanes(last + 1 - base) & (__mmask16)~v_first_lanes(first - base), a);
}
/* a in the first n lanes, 0 elsewhere. */
V_FN vf v_keep_n(vf a, int64_t n) { return _mm512_maskz_mov_ps(v_first_lanes(n), a); }

V_FN float v_largest(vf a) { return _mm512_reduce_max_ps(a); }
/* The first lane in which a equals b, or -1. */
V_FN int v_find(vf a, vf b) {
  __mmask16 m = _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
  return m ? __builtin_ctz(m) : -1;
}
/* The sum of 16 lanes in the order of kernels.h. */
V_FN float v_fold(const vf l[V_PARTS]) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(l[0]), _mm512_extractf32x8_ps(l[0], 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

/* Interleave rows a and b for a reduction that adds lane i to lane i + 8 (halves), i + 4 (quarters) or i + 2 (pairs): the result
 * holds the lower lanes of both, *high the upper ones. */
V_FN vf v_halves(vf a, vf b, vf *high) {
  *high = _mm512_shuffle_f32x4(a, b, 0xEE);
  return _mm512_shuffle_f32x4(a, b, 0x44);
}
V_FN vf v_quarters(vf a, vf b, vf *high) {
  *high = _mm512_shuffle_f32x4(a, b, 0xDD);
  return _mm512_shuffle_f32x4(a, b, 0x88);
}
V_FN vf v_pairs(vf a, vf b, vf *high) {
  *high = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
V_FN vf v_join(const bool largest, vf a, vf b) { return largest ? v_max(a, b) : v_add(a, b); }
/* Reduces the lanes of each of up to 8 rows to one value, in the order of v_fold: two rows share a vector after halves, four
 * after quarters, eight after pairs. */
V_FN void v_reduce_each(const vf *x, const int rows, const bool largest, float *out) {
  vf two[4], four[2], low, high;
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const int a = 2 * i < rows ? 2 * i : 0, b = a + 1 < rows ? a + 1 : a;
    low = v_halves(x[a], x[b], &high);
    two[i] = v_join(largest, low, high);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    low = v_quarters(two[2 * i], two[2 * i + 1], &high);
    four[i] = v_join(largest, low, high);
  }
  low = v_pairs(four[0], four[1], &high);
  low = v_join(largest, low, high);
  low = v_join(largest, _mm512_moveldup_ps(low), _mm512_movehdup_ps(low));
  v_store(out, _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 4, 8, 12, 2, 6, 10, 14), low));
}
/* The largest lane, and the sum, of each of up to 8 rows; 16 floats of `out` may be written. */
V_FN void v_largest_each(const vf *x, const int rows, float *out) { v_reduce_each(x, rows, true, out); }
V_FN void v_fold_each(const vf (*l)[V_PARTS], const int rows, float *out) { v_reduce_each(l[0], rows, false, out); }

/* Even and odd elements of the 2 VL floats (a, b), and back. */
V_FN void v_unzip(vf a, vf b, vf *even, vf *odd) {
  const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  *even = _mm512_permutex2var_ps(a, e, b);
  *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(e, _mm512_set1_epi32(1)), b);
}
V_FN void v_zip(vf even, vf odd, vf *a, vf *b) {
  const __m512i i = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  *a = _mm512_permutex2var_ps(even, i, odd);
  *b = _mm512_permutex2var_ps(even, _mm512_add_epi32(i, _mm512_set1_epi32(8)), odd);
}

/* x[i][j] becomes x[j][i]. */
V_FN void v_transpose(vf x[VL]) {
  __m512d y[VL];
  __m512 z[VL];
#pragma GCC unroll 4
  for (int i = 0; i < VL; i += 4) {
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[i], x[i + 1])),
                  b = _mm512_castps_pd(_mm512_unpackhi_ps(x[i], x[i + 1]));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(x[i + 2], x[i + 3])),
                  d = _mm512_castps_pd(_mm512_unpackhi_ps(x[i + 2], x[i + 3]));
    y[i] = _mm512_unpacklo_pd(a, c), y[i + 1] = _mm512_unpackhi_pd(a, c);
    y[i + 2] = _mm512_unpacklo_pd(b, d), y[i + 3] = _mm512_unpackhi_pd(b, d);
  }
  /* y[4 i + j], quarter q: column 4 q + j of rows 4 i .. 4 i + 3. */
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    const __m512 a = _mm512_castpd_ps(y[j]), b = _mm512_castpd_ps(y[4 + j]), c = _mm512_castpd_ps(y[8 + j]),
                 d = _mm512_castpd_ps(y[12 + j]);
    z[j] = _mm512_shuffle_f32x4(a, b, 0x88), z[4 + j] = _mm512_shuffle_f32x4(c, d, 0x88);
    z[8 + j] = _mm512_shuffle_f32x4(a, b, 0xDD), z[12 + j] = _mm512_shuffle_f32x4(c, d, 0xDD);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    x[j] = _mm512_shuffle_f32x4(z[j], z[4 + j], 0x88), x[8 + j] = _mm512_shuffle_f32x4(z[j], z[4 + j], 0xDD);
    x[4 + j] = _mm512_shuffle_f32x4(z[8 + j], z[12 + j], 0x88), x[12 + j] = _mm512_shuffle_f32x4(z[8 + j], z[12 + j], 0xDD);
  }
}

#endif
