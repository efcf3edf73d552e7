/* Quantises activations by blocks of 32. A template: include the lanes first. The same steps as acts_i8 of ref. */
#ifndef ANE_KERNELS_X86_MATMUL_ACTS_H
#define ANE_KERNELS_X86_MATMUL_ACTS_H

#include <string.h>

INLINE float max_of_8(__m256 m) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

/* 32 codes of x * inverse in column order. What is no number or beyond an int32 becomes the least int32 and then -127. */
INLINE __m256i block_codes(const float *x, float inverse) {
#if defined(__AVX512F__)
  const __m512 by = _mm512_set1_ps(inverse);
  __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), by));
  __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), by));
  __m256i packed = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtsepi32_epi8(a)), _mm512_cvtsepi32_epi8(b), 1);
#else
  const __m256 by = _mm256_set1_ps(inverse);
  __m256i q[4];
  for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), by));
  __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)); /* packs works in 128-bit halves */
#endif
  return _mm256_max_epi8(packed, _mm256_set1_epi8(-127));
}

/* Where any of four neighbouring bits of m is set: the lowest of the four. */
INLINE uint32_t fours(uint32_t m) {
  m |= m >> 1;
  return (m | m >> 2) & 0x11111111;
}

/* Every fourth bit of m, together. */
INLINE uint32_t every_fourth(uint32_t m) {
  m = (m | m >> 3) & 0x03030303;
  m = (m | m >> 6) & 0x000F000F;
  return (m | m >> 12) & 0xFF;
}

/* The same of a wide block: which fours of columns have high codes, these, and the codes. */
INLINE __m256i block_wide(const float *x, float inverse, uint32_t *wide, __m256i *high) {
#if defined(__AVX512F__)
  const __m512 by = _mm512_set1_ps(inverse);
  const __m512i most = _mm512_set1_epi32(ANE_WIDE_MAX), least = _mm512_set1_epi32(-ANE_WIDE_MAX), plain = _mm512_set1_epi32(ANE_CODE_MAX);
  __m512i v[2], h[2];
  uint32_t beyond = 0;
  for (int i = 0; i < 2; i++) {
    v[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), by));
    v[i] = _mm512_max_epi32(_mm512_min_epi32(v[i], most), least);
    beyond |= (uint32_t)_mm512_cmpgt_epi32_mask(_mm512_abs_epi32(v[i]), plain) << 16 * i;
  }
  beyond = fours(beyond);
  *wide = every_fourth(beyond);
  for (int i = 0; i < 2; i++) {
    __mmask16 four = (__mmask16)((beyond >> 16 * i & 0x1111) * 15);
    h[i] = _mm512_maskz_srai_epi32(four, _mm512_add_epi32(v[i], _mm512_set1_epi32(64)), 7);
    v[i] = _mm512_sub_epi32(v[i], _mm512_slli_epi32(h[i], 7));
  }
  *high = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(h[0])), _mm512_cvtepi32_epi8(h[1]), 1);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(v[0])), _mm512_cvtepi32_epi8(v[1]), 1);
#else
  const __m256 by = _mm256_set1_ps(inverse);
  const __m256i most = _mm256_set1_epi32(ANE_WIDE_MAX), least = _mm256_set1_epi32(-ANE_WIDE_MAX), plain = _mm256_set1_epi32(ANE_CODE_MAX);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packs works in 128-bit halves */
  __m256i v[4], h[4];
  uint32_t beyond = 0;
  for (int i = 0; i < 4; i++) {
    v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), by));
    v[i] = _mm256_max_epi32(_mm256_min_epi32(v[i], most), least);
    __m256i four = _mm256_cmpgt_epi32(_mm256_abs_epi32(v[i]), plain); /* a half of the vector is four columns */
    four = _mm256_or_si256(four, _mm256_shuffle_epi32(four, 0x4E));
    four = _mm256_or_si256(four, _mm256_shuffle_epi32(four, 0xB1));
    beyond |= (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(four)) << 8 * i;
    h[i] = _mm256_and_si256(four, _mm256_srai_epi32(_mm256_add_epi32(v[i], _mm256_set1_epi32(64)), 7));
    v[i] = _mm256_sub_epi32(v[i], _mm256_slli_epi32(h[i], 7));
  }
  *wide = every_fourth(beyond & 0x11111111);
  *high = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(_mm256_packs_epi32(h[0], h[1]), _mm256_packs_epi32(h[2], h[3])), order);
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3])), order);
#endif
}

INLINE float block_max(const float *x) {
#if defined(__AVX512F__)
  __m512 m = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(x)), _mm512_abs_ps(_mm512_loadu_ps(x + 16)));
  return max_of_8(_mm256_max_ps(_mm512_castps512_ps256(m), _mm512_extractf32x8_ps(m, 1)));
#else
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 m = _mm256_andnot_ps(sign, _mm256_loadu_ps(x));
  for (int i = 1; i < 4; i++) m = _mm256_max_ps(m, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + 8 * i)));
  return max_of_8(m);
#endif
}

/* What 127 steps of each block come to, to the step and its inverse, 0 where the block is tiny. */
INLINE void scales_of(const float *spans, float *d, float *inverse) {
  vf m = vf_load(spans), most = vf_set(ANE_CODE_MAX), tiny = vf_set(ANE_TINY);
#if defined(__AVX512F__)
  __mmask16 some = _mm512_cmp_ps_mask(m, tiny, _CMP_GE_OQ);
  vf_store(inverse, _mm512_maskz_div_ps(some, most, m));
  vf_store(d, _mm512_maskz_div_ps(some, m, most));
#else
  __m256 some = _mm256_cmp_ps(m, tiny, _CMP_GE_OQ);
  vf_store(inverse, _mm256_and_ps(some, _mm256_div_ps(most, m)));
  vf_store(d, _mm256_and_ps(some, _mm256_div_ps(m, most)));
#endif
}

/* Sums of each half of 32 codes to isum; returns that of all. */
INLINE int32_t half_sums(__m256i codes, int32_t *isum) {
  __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4E));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xB1)); /* each half: the sum of its 16 codes, four times */
  __m128i first = _mm256_castsi256_si128(sums), second = _mm256_extracti128_si256(sums, 1);
  _mm_storel_epi64((__m128i *)isum, _mm_unpacklo_epi32(first, second));
  return _mm_cvtsi128_si32(_mm_add_epi32(first, second));
}

/* Block `at`, `at_wide` among those that go by blocks, from 32 values. */
INLINE void quantise_block(const struct ane_acts *a, int64_t at, int64_t at_wide, const float *x, bool is_wide, float inverse, float d) {
  __m256i high, codes;
  uint32_t wide = 0;
  int32_t sum = 0;
  if (is_wide) {
    codes = block_wide(x, inverse, &wide, &high);
    _mm256_storeu_si256((__m256i *)(a->high + at_wide * ANE_BLOCK), high);
    sum = 128 * half_sums(high, (int32_t *)a->high_isum + 2 * at_wide);
    ((float *)a->d_high)[at_wide] = 128 * d;
  } else codes = block_codes(x, inverse);
  sum += half_sums(codes, (int32_t *)a->isum + 2 * at);
  _mm256_storeu_si256((__m256i *)(a->q + at * ANE_BLOCK), codes);
  ((uint8_t *)a->wide)[at_wide] = (uint8_t)wide;
  ((float *)a->d)[at] = d;
  ((float *)a->dsum)[at] = d * (float)sum;
}

/* n <= LANES blocks from block b of column t on, their largest values in d: the divisions of all at once. root: of limit. */
INLINE void quantise_run(const struct ane_acts *a, int64_t t, int64_t nb, int64_t b0, const float *x, int n, float limit, float root) {
  int64_t at = t * nb + b0;
  float span[LANES] = {0}, d[LANES], inverse[LANES];
  uint32_t wide = 0;
  for (int b = 0; b < n; b++) {
    span[b] = a->d[at + b];
    if (span[b] * span[b] <= limit) continue;
    wide |= 1u << b;
    span[b] = ane_wide_span(span[b], root);
  }
  scales_of(span, d, inverse);
  for (int b = 0; b < n; b++) quantise_block(a, at + b, (b0 + b) * a->wide_ld + t, x + b * ANE_BLOCK, wide >> b & 1, inverse[b], d[b]);
}

static void acts_i8(const struct ane_acts *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to) {
  int64_t nb = (int64_t)ane_div_up((size_t)a->cols, ANE_BLOCK), whole = a->cols / ANE_BLOCK;
  for (int64_t t = t_from; t < t_to; t++) {
    const float *row = x + t * ld;
    float last[ANE_BLOCK] = {0}, *amax = (float *)a->d + t * nb;
    if (whole < nb) memcpy(last, row + whole * ANE_BLOCK, sizeof(float) * (size_t)(a->cols - whole * ANE_BLOCK));
    for (int64_t b = 0; b < nb; b++) amax[b] = block_max(b < whole ? row + b * ANE_BLOCK : last);
    float limit = ane_wide_limit(amax, nb), root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(limit)));
    for (int64_t b = 0; b < whole; b += LANES) quantise_run(a, t, nb, b, row + b * ANE_BLOCK, (int)ANE_MIN(whole - b, LANES), limit, root);
    if (whole < nb) quantise_run(a, t, nb, whole, last, 1, limit, root);
  }
}

#endif
