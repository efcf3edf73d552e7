/* Vectors of 8 floats in AVX2 with FMA and F16C. vec_avx512.h documents the operations. */
#ifndef ANE_KERNELS_VEC_AVX2_H
#define ANE_KERNELS_VEC_AVX2_H

#include "base/attr.h"

#include <immintrin.h>
#include <stdint.h>

#define V_FN static inline __attribute__((always_inline))

#define V_REGISTERS 16

typedef __m256 vf;
enum { VL = 8, V_PARTS = 2 };

V_FN vf v_set(float x) { return _mm256_set1_ps(x); }
V_FN vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
V_FN vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
V_FN vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
V_FN vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
V_FN vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
V_FN vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
V_FN vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
V_FN vf v_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
V_FN vf v_neg(vf a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
V_FN vf v_copysign(vf a, vf s) { return _mm256_or_ps(v_abs(a), _mm256_and_ps(s, _mm256_set1_ps(-0.0f))); }
V_FN vf v_select_lt(vf a, vf b, vf yes, vf no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ)); }

V_FN vf v_pow2(vf t) {
  __m256i i = _mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(i, 23));
}
V_FN vf v_shift_exponent(vf p, vf t) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
V_FN vf v_ldexp(vf p, vf t, ANE_UNUSED vf n) {
  const __m256i bias = _mm256_set1_epi32(127);
  __m256i i = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(0x4B400000)), half = _mm256_srai_epi32(i, 1);
  __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}

V_FN __m256i v_lane_numbers(void) { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
V_FN __m256i v_first_lanes(int64_t n) {
  int32_t count = n < 0 ? 0 : n > VL ? VL : (int32_t)n;
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), v_lane_numbers());
}
V_FN vf v_load(const float *p) { return _mm256_loadu_ps(p); }
V_FN void v_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
V_FN vf v_load_n(const float *p, int64_t n) { return n >= VL ? v_load(p) : _mm256_maskload_ps(p, v_first_lanes(n)); }
V_FN void v_store_n(float *p, vf a, int64_t n) {
  if (n >= VL)
    v_store(p, a);
  else
    _mm256_maskstore_ps(p, v_first_lanes(n), a);
}
V_FN vf v_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
V_FN vf v_load_i8(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p))); }
V_FN void v_store_f16(uint16_t *p, vf a) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)); }
V_FN void v_store_i8(int8_t *p, vf a) {
  __m256i i = _mm256_cvtps_epi32(a);
  __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1));
  _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(w, w));
}

typedef __m256i vi;
typedef __m256i vpairs;
V_FN vi vi_zero(void) { return _mm256_setzero_si256(); }
V_FN vpairs v_load_pairs(const int16_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
V_FN vpairs v_load_pairs_i8(const int8_t *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)); }
V_FN vpairs v_set_pair(const int16_t *p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, 4);
  return _mm256_set1_epi32(pair);
}
V_FN vi v_dot(vi sum, vpairs a, vpairs b) { /* with the intrinsic, GCC 12 gives each sum a second register, and spills */
  const __m256i products = _mm256_madd_epi16(a, b);
  __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));
  return sum;
}
V_FN vf v_float(vi a) { return _mm256_cvtepi32_ps(a); }
V_FN void v_store_pairs(int16_t *p, vf a, vf b) {
  const __m256i high = _mm256_slli_epi32(_mm256_castps_si256(b), 16);
  _mm256_storeu_si256((__m256i *)p, _mm256_blend_epi16(_mm256_castps_si256(a), high, 0xAA));
}
V_FN void v_store_i16(int16_t *p, vf a) {
  __m256i i = _mm256_cvtps_epi32(a);
  _mm_storeu_si128((__m128i *)p, _mm_packs_epi32(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1)));
}

V_FN vf v_keep_range(vf a, int64_t base, int64_t first, int64_t last) {
  __m256 keep = _mm256_castsi256_ps(_mm256_andnot_si256(v_first_lanes(first - base), v_first_lanes(last + 1 - base)));
  return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), a, keep);
}
V_FN vf v_zero_range(vf a, int64_t base, int64_t first, int64_t last) {
  return _mm256_and_ps(a, _mm256_castsi256_ps(_mm256_andnot_si256(v_first_lanes(first - base), v_first_lanes(last + 1 - base))));
}
V_FN vf v_keep_n(vf a, int64_t n) { return _mm256_and_ps(a, _mm256_castsi256_ps(v_first_lanes(n))); }

V_FN float v_largest(vf a) {
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
V_FN int v_find(vf a, vf b) {
  int m = _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ));
  return m ? __builtin_ctz((unsigned)m) : -1;
}
V_FN float v_fold(const vf l[V_PARTS]) {
  __m256 h = _mm256_add_ps(l[0], l[1]);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

V_FN void v_largest_each(const vf *x, const int rows, float *out) {
  for (int r = 0; r < rows; r++) out[r] = v_largest(x[r]);
}
V_FN void v_fold_each(const vf (*l)[V_PARTS], const int rows, float *out) {
  for (int r = 0; r < rows; r++) out[r] = v_fold(l[r]);
}

V_FN void v_unzip(vf a, vf b, vf *even, vf *odd) {
  __m256d e = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), o = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xDD));
  *even = _mm256_castpd_ps(_mm256_permute4x64_pd(e, 0xD8));
  *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(o, 0xD8));
}
V_FN void v_zip(vf even, vf odd, vf *a, vf *b) {
  __m256 lo = _mm256_unpacklo_ps(even, odd), hi = _mm256_unpackhi_ps(even, odd);
  *a = _mm256_permute2f128_ps(lo, hi, 0x20);
  *b = _mm256_permute2f128_ps(lo, hi, 0x31);
}

V_FN void v_transpose(vf x[VL]) {
  __m256 y[VL];
#pragma GCC unroll 2
  for (int i = 0; i < VL; i += 4) {
    const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(x[i], x[i + 1])),
                  b = _mm256_castps_pd(_mm256_unpackhi_ps(x[i], x[i + 1]));
    const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(x[i + 2], x[i + 3])),
                  d = _mm256_castps_pd(_mm256_unpackhi_ps(x[i + 2], x[i + 3]));
    y[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c)), y[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
    y[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d)), y[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    x[j] = _mm256_permute2f128_ps(y[j], y[4 + j], 0x20);
    x[4 + j] = _mm256_permute2f128_ps(y[j], y[4 + j], 0x31);
  }
}

#endif
