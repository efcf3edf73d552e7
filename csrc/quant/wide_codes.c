/* Products of panels of 16-bit codes (wide.h). */
#include "quant/wide.h"
#include "quant/compensate.h"

#ifdef ANE_WIDE_X86
#include <immintrin.h>
#endif

/* Adds the sums of a row of 32 columns. */
static void add_scaled(float *acc, const int32_t *sum, float a_scale, const float *b_scale) {
  for (int l = 0; l < ANE_PANEL; l++) acc[l] += (float)sum[l] * (a_scale * b_scale[l]);
}

static void strip_plain(float *acc, int64_t ld_acc, const int16_t *a, const float *a_scale, const int16_t *b,
                        const float *b_scale, int64_t pairs) {
  for (int k = 0; k < ANE_STRIP; k++) {
    int32_t sum[ANE_PANEL] = {0};
    for (int64_t p = 0; p < pairs; p++) {
      const int16_t *x = a + p * 2 * ANE_PANEL + 2 * k, *y = b + p * 2 * ANE_PANEL;
      for (int l = 0; l < ANE_PANEL; l++) sum[l] += x[0] * y[2 * l] + x[1] * y[2 * l + 1];
    }
    add_scaled(acc + k * ld_acc, sum, a_scale[k], b_scale);
  }
}

#ifdef ANE_WIDE_X86
/* The products of a pair with 16 columns, for each of 4 rows: vpmaddwd multiplies two codes by two and adds both products. */
#define ADD_PAIR(k)                                                                                                              \
  do {                                                                                                                           \
    int32_t both;                                                                                                                \
    memcpy(&both, x + 2 * (k), sizeof both);                                                                                     \
    __m256i left = _mm256_set1_epi32(both);                                                                                      \
    lo##k = _mm256_add_epi32(lo##k, _mm256_madd_epi16(left, lo));                                                                \
    hi##k = _mm256_add_epi32(hi##k, _mm256_madd_epi16(left, hi));                                                                \
  } while (0)
#define STORE_ROW(k)                                                                                                             \
  do {                                                                                                                           \
    _mm256_storeu_si256((__m256i *)(void *)(sum[k] + first), lo##k);                                                             \
    _mm256_storeu_si256((__m256i *)(void *)(sum[k] + first + 8), hi##k);                                                         \
  } while (0)

__attribute__((target("avx2"))) static void strip_avx2(float *acc, int64_t ld_acc, const int16_t *a, const float *a_scale,
                                                       const int16_t *b, const float *b_scale, int64_t pairs) {
  int32_t sum[ANE_STRIP][ANE_PANEL];
  for (int first = 0; first < ANE_PANEL; first += 16) {
    const int16_t *x = a, *y = b + 2 * first;
    __m256i lo0 = _mm256_setzero_si256(), lo1 = lo0, lo2 = lo0, lo3 = lo0, hi0 = lo0, hi1 = lo0, hi2 = lo0, hi3 = lo0;
    for (int64_t p = 0; p < pairs; p++, x += 2 * ANE_PANEL, y += 2 * ANE_PANEL) {
      __m256i lo = _mm256_loadu_si256((const __m256i *)(const void *)y);
      __m256i hi = _mm256_loadu_si256((const __m256i *)(const void *)(y + 16));
      ADD_PAIR(0);
      ADD_PAIR(1);
      ADD_PAIR(2);
      ADD_PAIR(3);
    }
    STORE_ROW(0);
    STORE_ROW(1);
    STORE_ROW(2);
    STORE_ROW(3);
  }
  for (int k = 0; k < ANE_STRIP; k++) add_scaled(acc + k * ld_acc, sum[k], a_scale[k], b_scale);
}
#endif

void ane_strip_codes(float *acc, int64_t ld_acc, const int16_t *a, const float *a_scale, const int16_t *b, const float *b_scale,
                     int64_t pairs) {
#ifdef ANE_WIDE_X86
  if (ane_wide_most >= 32 && __builtin_cpu_supports("avx2")) {
    strip_avx2(acc, ld_acc, a, a_scale, b, b_scale, pairs);
    return;
  }
#endif
  strip_plain(acc, ld_acc, a, a_scale, b, b_scale, pairs);
}
