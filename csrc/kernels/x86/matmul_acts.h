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

/* The same in 14 bits, as q and low. */
INLINE __m256i block_fine(const float *x, float inverse, __m256i *low) {
#if defined(__AVX512F__)
  const __m512 by = _mm512_set1_ps(inverse);
  __m512i v[2], q[2];
  for (int i = 0; i < 2; i++) {
    v[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), by));
    v[i] = _mm512_max_epi32(_mm512_min_epi32(v[i], _mm512_set1_epi32(ANE_FINE_MAX)), _mm512_set1_epi32(-ANE_FINE_MAX));
    q[i] = _mm512_srai_epi32(_mm512_add_epi32(v[i], _mm512_set1_epi32(64)), 7);
    v[i] = _mm512_sub_epi32(v[i], _mm512_slli_epi32(q[i], 7));
  }
  *low = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(v[0])), _mm512_cvtepi32_epi8(v[1]), 1);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(q[0])), _mm512_cvtepi32_epi8(q[1]), 1);
#else
  const __m256 by = _mm256_set1_ps(inverse);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packs works in 128-bit halves */
  __m256i v[4], q[4];
  for (int i = 0; i < 4; i++) {
    v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), by));
    v[i] = _mm256_max_epi32(_mm256_min_epi32(v[i], _mm256_set1_epi32(ANE_FINE_MAX)), _mm256_set1_epi32(-ANE_FINE_MAX));
    q[i] = _mm256_srai_epi32(_mm256_add_epi32(v[i], _mm256_set1_epi32(64)), 7);
    v[i] = _mm256_sub_epi32(v[i], _mm256_slli_epi32(q[i], 7));
  }
  *low = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
  *low = _mm256_permutevar8x32_epi32(*low, order);
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])), order);
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

/* Each block's largest value and the largest code to the scale of one code and its inverse, 0 where the block is tiny. */
INLINE void scales_of(const float *amax, const float *limits, float *d, float *inverse) {
  vf m = vf_load(amax), limit = vf_load(limits), tiny = vf_set(ANE_TINY);
#if defined(__AVX512F__)
  __mmask16 some = _mm512_cmp_ps_mask(m, tiny, _CMP_GE_OQ);
  vf_store(inverse, _mm512_maskz_div_ps(some, limit, m));
  vf_store(d, _mm512_maskz_div_ps(some, m, limit));
#else
  __m256 some = _mm256_cmp_ps(m, tiny, _CMP_GE_OQ);
  vf_store(inverse, _mm256_and_ps(some, _mm256_div_ps(limit, m)));
  vf_store(d, _mm256_and_ps(some, _mm256_div_ps(m, limit)));
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

/* Block `at`, whose mark is at `mark`, from 32 values. */
INLINE void quantise_block(const struct ane_acts *a, int64_t at, int64_t mark, const float *x, bool fine, float inverse, float d) {
  __m256i low = _mm256_setzero_si256(), codes = fine ? block_fine(x, inverse, &low) : block_codes(x, inverse);
  int32_t *low_isum = (int32_t *)a->low_isum + 2 * at, sum = 128 * half_sums(codes, (int32_t *)a->isum + 2 * at);
  low_isum[0] = low_isum[1] = 0;
  if (fine) sum += half_sums(low, low_isum), d *= 128;
  _mm256_storeu_si256((__m256i *)(a->q + at * ANE_BLOCK), codes);
  _mm256_storeu_si256((__m256i *)(a->low + at * ANE_BLOCK), low);
  ((float *)a->d)[at] = d;
  ((float *)a->d_low)[at] = d * 0x1p-7f;
  ((uint8_t *)a->fine)[mark] = fine;
  ((float *)a->dsum)[at] = d * 0x1p-7f * (float)sum;
}

/* n <= LANES blocks from block b of column t on, their largest values in d: the divisions of all at once. */
INLINE void quantise_run(const struct ane_acts *a, int64_t t, int64_t nb, int64_t b0, const float *x, int n, float limit) {
  int64_t at = t * nb + b0;
  float scale[4][LANES] = {{0}}; /* amax, largest code, d, inverse */
  for (int b = 0; b < LANES; b++) {
    scale[0][b] = b < n ? a->d[at + b] : 0;
    scale[1][b] = scale[0][b] * scale[0][b] > limit ? ANE_FINE_MAX : ANE_CODE_MAX;
  }
  scales_of(scale[0], scale[1], scale[2], scale[3]);
  for (int b = 0; b < n; b++)
    quantise_block(a, at + b, (b0 + b) * a->fine_ld + t, x + b * ANE_BLOCK, scale[1][b] > ANE_CODE_MAX, scale[3][b], scale[2][b]);
}

static void acts_i8(const struct ane_acts *a, const float *x, int64_t ld, int64_t t_from, int64_t t_to) {
  int64_t nb = (int64_t)ane_div_up((size_t)a->cols, ANE_BLOCK), whole = a->cols / ANE_BLOCK;
  for (int64_t t = t_from; t < t_to; t++) {
    const float *row = x + t * ld;
    float last[ANE_BLOCK] = {0}, *amax = (float *)a->d + t * nb;
    if (whole < nb) memcpy(last, row + whole * ANE_BLOCK, sizeof(float) * (size_t)(a->cols - whole * ANE_BLOCK));
    for (int64_t b = 0; b < nb; b++) amax[b] = block_max(b < whole ? row + b * ANE_BLOCK : last);
    float limit = ane_fine_limit(amax, nb, a->fine_over);
    for (int64_t b = 0; b < whole; b += LANES) quantise_run(a, t, nb, b, row + b * ANE_BLOCK, (int)ANE_MIN(whole - b, LANES), limit);
    if (whole < nb) quantise_run(a, t, nb, whole, last, 1, limit);
  }
}

#endif
