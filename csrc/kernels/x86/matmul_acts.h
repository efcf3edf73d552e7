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

/* Each block's largest value to its scale and its inverse, 0 where the block is zero. */
INLINE void scales_of(const float *amax, float *d, float *inverse) {
  vf m = vf_load(amax), limit = vf_set(127);
#if defined(__AVX512F__)
  vf_store(inverse, _mm512_maskz_div_ps(_mm512_cmp_ps_mask(m, vf_zero(), _CMP_GT_OQ), limit, m));
  vf_store(d, _mm512_div_ps(m, limit));
#else
  vf_store(inverse, _mm256_and_ps(_mm256_cmp_ps(m, vf_zero(), _CMP_GT_OQ), _mm256_div_ps(limit, m)));
  vf_store(d, _mm256_div_ps(m, limit));
#endif
}

/* n <= LANES blocks: the divisions of all at once. */
INLINE void quantise_run(const float *x, int n, int8_t *q, float *d, int32_t *isum, float *dsum) {
  float scale[3][LANES] = {{0}}; /* amax, d, inverse */
  for (int b = 0; b < n; b++) scale[0][b] = block_max(x + b * ANE_BLOCK);
  scales_of(scale[0], scale[1], scale[2]);
  for (int b = 0; b < n; b++) {
    __m256i codes = block_codes(x + b * ANE_BLOCK, scale[2][b]);
    __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4E));
    sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xB1)); /* each half: the sum of its 16 codes, four times */
    __m128i first = _mm256_castsi256_si128(sums), second = _mm256_extracti128_si256(sums, 1);
    _mm256_storeu_si256((__m256i *)(q + b * ANE_BLOCK), codes);
    _mm_storel_epi64((__m128i *)(isum + 2 * b), _mm_unpacklo_epi32(first, second));
    d[b] = scale[1][b];
    dsum[b] = scale[1][b] * (float)_mm_cvtsi128_si32(_mm_add_epi32(first, second));
  }
}

static void acts_i8(const struct ane_acts *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to) {
  int64_t nb = (int64_t)ane_div_up((size_t)a->cols, ANE_BLOCK), whole = a->cols / ANE_BLOCK;
  for (int64_t t = t_from; t < t_to; t++) {
    int8_t *q = (int8_t *)a->q + t * nb * ANE_BLOCK;
    float *d = (float *)a->d + t * nb, *dsum = (float *)a->dsum + t * nb;
    int32_t *isum = (int32_t *)a->isum + t * nb * 2;
    const float *row = x + t * ld;
    for (int64_t b = 0; b < whole; b += LANES)
      quantise_run(row + b * ANE_BLOCK, (int)ANE_MIN(whole - b, LANES), q + b * ANE_BLOCK, d + b, isum + 2 * b, dsum + b);
    if (whole < nb) {
      float last[ANE_BLOCK] = {0};
      memcpy(last, row + whole * ANE_BLOCK, sizeof(float) * (size_t)(a->cols - whole * ANE_BLOCK));
      quantise_run(last, 1, q + whole * ANE_BLOCK, d + whole, isum + 2 * whole, dsum + whole);
    }
  }
}

#endif
