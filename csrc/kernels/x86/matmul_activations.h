/* Quantises activations by blocks of 32, in the same steps as quantise_i8 of ref. A template: include the lanes first. */
#ifndef ANE_KERNELS_X86_MATMUL_ACTIVATIONS_H
#define ANE_KERNELS_X86_MATMUL_ACTIVATIONS_H

#include "base/prefetch.h"

#include <string.h>

/* Returns 32 codes of x * inverse in column order. NaN and values beyond int32 become INT32_MIN, then -127. */
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

/* Bit 4 i of the result is set if any of bits 4 i .. 4 i + 3 of m is set. */
INLINE uint32_t fours(uint32_t m) {
  m |= m >> 1;
  return (m | m >> 2) & 0x11111111;
}

/* Returns bits 0, 4, 8 .. 28 of m as eight bits. */
INLINE uint32_t every_fourth(uint32_t m) {
  m = (m | m >> 3) & 0x03030303;
  m = (m | m >> 6) & 0x000F000F;
  return (m | m >> 12) & 0xFF;
}

/* Returns the codes q of an outlier block. outlier: a bit for each four columns with residual codes. residual: the residual
 * codes. */
INLINE __m256i block_outlier(const float *x, float inverse, uint32_t *outlier, __m256i *residual) {
#if defined(__AVX512F__)
  const __m512 by = _mm512_set1_ps(inverse);
  const __m512i most = _mm512_set1_epi32(ANE_OUTLIER_MAX), least = _mm512_set1_epi32(-ANE_OUTLIER_MAX),
                plain = _mm512_set1_epi32(ANE_CODE_MAX);
  __m512i v[2], h[2];
  uint32_t beyond = 0;
  for (int i = 0; i < 2; i++) {
    v[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * i), by));
    v[i] = _mm512_max_epi32(_mm512_min_epi32(v[i], most), least);
    beyond |= (uint32_t)_mm512_cmpgt_epi32_mask(_mm512_abs_epi32(v[i]), plain) << 16 * i;
  }
  beyond = fours(beyond);
  *outlier = every_fourth(beyond);
  for (int i = 0; i < 2; i++) {
    __mmask16 four = (__mmask16)((beyond >> 16 * i & 0x1111) * 15);
    h[i] = _mm512_maskz_srai_epi32(four, _mm512_add_epi32(v[i], _mm512_set1_epi32(64)), 7);
    v[i] = _mm512_sub_epi32(v[i], _mm512_slli_epi32(h[i], 7));
  }
  *residual = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(h[0])), _mm512_cvtepi32_epi8(h[1]), 1);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(v[0])), _mm512_cvtepi32_epi8(v[1]), 1);
#else
  const __m256 by = _mm256_set1_ps(inverse);
  const __m256i most = _mm256_set1_epi32(ANE_OUTLIER_MAX), least = _mm256_set1_epi32(-ANE_OUTLIER_MAX),
                plain = _mm256_set1_epi32(ANE_CODE_MAX);
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
  *outlier = every_fourth(beyond & 0x11111111);
  *residual =
      _mm256_permutevar8x32_epi32(_mm256_packs_epi16(_mm256_packs_epi32(h[0], h[1]), _mm256_packs_epi32(h[2], h[3])), order);
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3])), order);
#endif
}

/* Up to LANES blocks of a token: `whole` of them at x, then `last` where n > whole. */
struct blocks {
  const float *x, *last;
  int n, whole;
};
INLINE const float *block_of(const struct blocks *k, int b) { return b < k->whole ? k->x + b * ANE_BLOCK : k->last; }

/* Returns in lane b the largest magnitude of block b, or 0 if there is no such block. */
INLINE vf run_max(const struct blocks *k) {
  vf m[LANES];
#pragma GCC unroll 16
  for (int b = 0; b < LANES; b++) {
    m[b] = v_set(0);
    if (b >= k->n) continue;
    const float *x = block_of(k, b);
#pragma GCC unroll 4
    for (int i = 0; i < ANE_BLOCK; i += LANES) m[b] = v_max(m[b], v_abs(v_load(x + i)));
  }
  return v_max_each(m);
}

/* Returns what ane_outlier_limit does, from the lanes' sums of squares. */
INLINE float limit_of(const vf sums[16 / LANES], int64_t nb, bool precise) {
  float l[16];
#pragma GCC unroll 2
  for (int i = 0; i < 16 / LANES; i++) v_store(l + LANES * i, sums[i]);
  __m128 a = _mm_add_ps(_mm_loadu_ps(l), _mm_loadu_ps(l + 8)), b = _mm_add_ps(_mm_loadu_ps(l + 4), _mm_loadu_ps(l + 12));
  a = _mm_add_ps(a, b);
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps(a, a, 1))) * (ane_outlier_over(precise) / (float)nb);
}

/* Returns the sums of each four of 32 codes. */
INLINE __m256i four_sums(__m256i codes) {
  return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
}

/* Writes the sum of each half of 32 codes to isum and returns the sum of all. */
INLINE int32_t half_sums(__m256i codes, int32_t *isum) {
  __m256i sums = four_sums(codes);
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4E));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xB1)); /* each half: the sum of its 16 codes, four times */
  __m128i first = _mm256_castsi256_si128(sums), second = _mm256_extracti128_si256(sums, 1);
  _mm_storel_epi64((__m128i *)isum, _mm_unpacklo_epi32(first, second));
  return _mm_cvtsi128_si32(_mm_add_epi32(first, second));
}

/* Sets the outlier bits of a block. Threads that quantise other tokens use the same cache lines, and nearly all bits stay 0: a
 * line is written only where it changes. */
INLINE void set_outlier(const struct ane_activations *a, int64_t at, uint32_t bits) {
  uint8_t *outlier = (uint8_t *)a->outlier + at;
  if (*outlier != bits) *outlier = (uint8_t)bits;
}

/* Prefetches the lines that a token's codes, sums and scales are written to: other threads have read them. */
INLINE void prefetch_token(const struct ane_activations *a, int64_t t, int64_t nb) {
  ane_prefetch_to_write(a->q + t * nb * ANE_BLOCK, nb * ANE_BLOCK);
  ane_prefetch_to_write(a->isum + 2 * t * nb, 2 * nb * (int64_t)sizeof *a->isum);
  ane_prefetch_to_write(a->minus_sum + t * nb, nb * (int64_t)sizeof *a->minus_sum);
  ane_prefetch_to_write(a->dsum + t * nb, nb * (int64_t)sizeof *a->dsum);
  ane_prefetch_to_write(a->d + t * nb, nb * (int64_t)sizeof *a->d);
}

/* Quantises one block of 32 values. at: its index by tokens; at_outlier: by blocks. */
INLINE void quantise_block(const struct ane_activations *a, int64_t at, int64_t at_outlier, const float *x, bool is_outlier,
                           float inverse, float d) {
  __m256i residual, codes;
  uint32_t outlier = 0;
  int32_t sum = 0;
  if (is_outlier) {
    codes = block_outlier(x, inverse, &outlier, &residual);
    _mm256_storeu_si256((__m256i *)(a->residual + at_outlier * ANE_BLOCK), residual);
    sum = 128 * half_sums(residual, (int32_t *)a->residual_isum + 2 * at_outlier);
    ((float *)a->d_residual)[at_outlier] = 128 * d;
  } else
    codes = block_codes(x, inverse);
  const int32_t low = half_sums(codes, (int32_t *)a->isum + 2 * at);
  ((int32_t *)a->minus_sum)[at] = -low;
  _mm256_storeu_si256((__m256i *)(a->q + at * ANE_BLOCK), codes);
  set_outlier(a, at_outlier, outlier);
  ((float *)a->dsum)[at] = d * (float)(sum + low);
}

/* Quantises four blocks without outliers. at, at_outlier: the first block by tokens and by blocks; step: their scales. */
INLINE void quantise_four(const struct ane_activations *a, int64_t at, int64_t at_outlier, const float *x, const float *inverse,
                          const float *step) {
  __m256i sums[4];
#pragma GCC unroll 4
  for (int b = 0; b < 4; b++) {
    const __m256i codes = block_codes(x + b * ANE_BLOCK, inverse[b]);
    _mm256_storeu_si256((__m256i *)(a->q + (at + b) * ANE_BLOCK), codes);
    sums[b] = four_sums(codes);
    set_outlier(a, at_outlier + b * a->outlier_ld, 0);
  }
  const __m256i halves = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
  const __m128i first = _mm256_castsi256_si128(halves), second = _mm256_extracti128_si256(halves, 1),
                all = _mm_add_epi32(first, second);
  __m128i *isum = (__m128i *)(a->isum + 2 * at);
  _mm_storeu_si128(isum, _mm_unpacklo_epi32(first, second));
  _mm_storeu_si128(isum + 1, _mm_unpackhi_epi32(first, second));
  _mm_storeu_si128((__m128i *)(a->minus_sum + at), _mm_sub_epi32(_mm_setzero_si128(), all));
  _mm_storeu_ps((float *)a->dsum + at, _mm_mul_ps(_mm_loadu_ps(step), _mm_cvtepi32_ps(all)));
}

/* Computes the scales d of LANES blocks with the largest magnitudes amax, and inverse = 127 / span; both are 0 for tiny blocks.
 * Returns a bit for each outlier block. least: lower limit of the span of an outlier block. */
INLINE uint32_t scales_of(vf amax, float limit, float least, vf *d, vf *inverse) {
  const vf most = v_set(ANE_CODE_MAX), tiny = v_set(ANE_TINY);
  vf span = v_max(v_mul(amax, v_set((float)ANE_CODE_MAX / (float)ANE_OUTLIER_MAX)), v_set(least));
#if defined(__AVX512F__)
  __mmask16 plain = _mm512_cmp_ps_mask(v_mul(amax, amax), v_set(limit), _CMP_LE_OQ);
  span = _mm512_mask_mov_ps(span, plain, amax);
  __mmask16 some = _mm512_cmp_ps_mask(span, tiny, _CMP_GE_OQ);
  *inverse = _mm512_maskz_div_ps(some, most, span);
  *d = _mm512_maskz_div_ps(some, span, most);
  return (uint16_t)~plain;
#else
  __m256 plain = _mm256_cmp_ps(v_mul(amax, amax), v_set(limit), _CMP_LE_OQ);
  span = _mm256_blendv_ps(span, amax, plain);
  __m256 some = _mm256_cmp_ps(span, tiny, _CMP_GE_OQ);
  *inverse = _mm256_and_ps(some, _mm256_div_ps(most, span));
  *d = _mm256_and_ps(some, _mm256_div_ps(span, most));
  return (uint8_t)~_mm256_movemask_ps(plain);
#endif
}

/* Quantises the blocks k, from block b0 of token t on. amax: their largest values. */
INLINE void quantise_run(const struct ane_activations *a, int64_t t, int64_t nb, int64_t b0, const struct blocks *k, vf amax,
                         float limit, float least) {
  float *d = (float *)a->d + t * nb + b0, inverse[LANES], step[LANES];
  vf steps, inverses;
  const uint32_t outlier = scales_of(amax, limit, least, &steps, &inverses);
  v_store(inverse, inverses);
  v_store(step, steps);
  v_store_masked(d, steps, k->n);
  for (int b = 0; b < k->n;) {
    const int64_t at = t * nb + b0 + b, at_outlier = (b0 + b) * a->outlier_ld + t;
    if (b + 4 <= k->whole && !(outlier >> b & 15)) {
      quantise_four(a, at, at_outlier, block_of(k, b), inverse + b, step + b);
      b += 4;
    } else {
      quantise_block(a, at, at_outlier, block_of(k, b), outlier >> b & 1, inverse[b], step[b]);
      b++;
    }
  }
}

/* Returns the blocks of the token at row, from block b on. */
INLINE struct blocks blocks_at(const float *row, const float *last, int64_t b, int64_t nb, int64_t whole) {
  return (struct blocks){row + b * ANE_BLOCK, last, (int)ANE_MIN(nb - b, LANES), (int)ANE_MIN(whole - b, LANES)};
}

/* Returns the largest magnitudes of the blocks k. A call with LANES whole blocks is unrolled. */
INLINE vf blocks_max(const struct blocks *k) {
  return k->whole == LANES ? run_max(&(struct blocks){k->x, NULL, LANES, LANES}) : run_max(k);
}

/* Blocks of a token whose largest magnitudes are stored; those of later blocks are computed twice. */
#define STORED_BLOCKS 512

static void quantise_i8(const struct ane_activations *activations, const float *x, int64_t ld, int64_t t_from, int64_t t_to) {
  const struct ane_activations own = *activations, *a = &own; /* a copy: stores cannot change its pointers */
  const int64_t nb = (int64_t)ane_div_up((size_t)a->cols, ANE_BLOCK), whole = a->cols / ANE_BLOCK;
  for (int64_t t = t_from; t < t_to; t++) {
    const float *row = x + t * ld;
    float last[ANE_BLOCK] = {0}, amax[STORED_BLOCKS];
    vf sums[16 / LANES];
    prefetch_token(a, t, nb);
    for (int i = 0; i < 16 / LANES; i++) sums[i] = v_set(0);
    if (whole < nb) memcpy(last, row + whole * ANE_BLOCK, sizeof(float) * (size_t)(a->cols - whole * ANE_BLOCK));
    for (int64_t b = 0; b < nb; b += LANES) {
      const struct blocks k = blocks_at(row, last, b, nb, whole);
      const vf m = blocks_max(&k);
      vf *sum = &sums[b / LANES % (16 / LANES)];
      if (b < STORED_BLOCKS) v_store(amax + b, m);
      *sum = v_add(*sum, v_mul(m, m));
    }
    const float limit = limit_of(sums, nb, a->precise),
                least = ane_outlier_part(a->precise) * _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(limit)));
    for (int64_t b = 0; b < nb; b += LANES) {
      const struct blocks k = blocks_at(row, last, b, nb, whole);
      quantise_run(a, t, nb, b, &k, b < STORED_BLOCKS ? v_load(amax + b) : blocks_max(&k), limit, least);
    }
  }
}

#endif
