/* Products of panels of 16-bit codes (wide.h). */
#include "quant/wide.h"
#include "quant/compensate.h"

#include <math.h>

#ifdef ANE_WIDE_X86
#include <immintrin.h>
#endif

/* ---- Codes -------------------------------------------------------------------------------------------------------------*/

/* A panel of x - less (ane_codes_of). */
struct panel {
  const float *x, *less;
  int64_t ld, n, width;
};

enum { VECTORS = ANE_PANEL / 8 };

/* Reads row t of a panel, with zeros after the last column and for rows after the last. */
ANE_ALWAYS_INLINE void read_row(const struct panel *p, int64_t t, ane_f8x to[VECTORS]) {
  const int64_t count = t < p->n ? p->width : 0, at = t * p->ld;
  if (count == ANE_PANEL) {
    ane_f8x less[VECTORS];
    memcpy(to, p->x + at, sizeof less);
    if (!p->less) return;
    memcpy(less, p->less + at, sizeof less);
    for (int i = 0; i < VECTORS; i++) to[i] -= less[i];
  } else {
    float row[ANE_PANEL] = {0};
    for (int64_t c = 0; c < count; c++) row[c] = p->less ? p->x[at + c] - p->less[at + c] : p->x[at + c];
    memcpy(to, row, sizeof row);
  }
}

/* Computes the scales and their inverses, which are 0 for columns of zeros. false: a number is not finite. */
static ANE_WIDE bool find_scales(const struct panel *p, float *scale, float *inverse) {
  ane_f8x v[VECTORS], none[VECTORS] = {0}; /* none: 0, or NaN after a number that is not finite */
  ane_i8x most[VECTORS] = {0};             /* the bits of the largest sizes, which have the order of the numbers */
  for (int64_t t = 0; t < p->n; t++) {
    read_row(p, t, v);
    for (int i = 0; i < VECTORS; i++) {
      ane_i8x size, more;
      memcpy(&size, &v[i], sizeof size);
      size &= 0x7fffffff;
      more = size > most[i];
      most[i] = (size & more) | (most[i] & ~more);
      none[i] += v[i] * 0.0f;
    }
  }
  float peak[ANE_PANEL], zero[ANE_PANEL];
  bool fine = true;
  memcpy(peak, most, sizeof peak), memcpy(zero, none, sizeof zero);
  for (int c = 0; c < ANE_PANEL; c++) {
    fine &= zero[c] == 0;
    scale[c] = peak[c] / ANE_CODE_MOST;
    inverse[c] = peak[c] > 1e-30f ? ANE_CODE_MOST / peak[c] : 0;
  }
  return fine;
}

/* Rounds numbers of at most 2^22 to the nearest integers, which are in the low bits of the sums. */
ANE_ALWAYS_INLINE void nearest(const ane_f8x *v, ane_i8x *to) {
  ane_f8x sum = *v + 12582912.0f; /* 1.5 * 2^23 */
  memcpy(to, &sum, sizeof sum);
  *to -= 0x4b400000;
}

static ANE_WIDE void make_codes(const struct panel *p, const float *inverse, int16_t *code) {
  ane_f8x even[VECTORS], odd[VECTORS], factor[VECTORS];
  memcpy(factor, inverse, sizeof factor);
  for (int64_t t = 0; t < p->n; t += 2, code += 2 * ANE_PANEL) {
    ane_i8x both[VECTORS], high;
    read_row(p, t, even);
    read_row(p, t + 1, odd);
    for (int i = 0; i < VECTORS; i++) {
      even[i] *= factor[i], odd[i] *= factor[i];
      nearest(&even[i], &both[i]);
      nearest(&odd[i], &high);
      /* analyser: these are vectors of 32-bit numbers. */
      both[i] = (both[i] & 0xffff) | high << 16;
    }
    memcpy(code, both, sizeof both);
  }
}

bool ane_codes_of(const float *x, const float *less, int64_t ld, int64_t n, int64_t width, int16_t *code, float *scale) {
  const struct panel p = {x, less, ld, n, width};
  float inverse[ANE_PANEL];
  if (!find_scales(&p, scale, inverse)) return false;
  make_codes(&p, inverse, code);
  return true;
}

/* ---- Products ----------------------------------------------------------------------------------------------------------*/

/* Adds the sums of a row of 32 columns. */
ANE_ALWAYS_INLINE void add_scaled(float *acc, const int32_t *sum, float a_scale, const float *b_scale) {
  for (int l = 0; l < ANE_PANEL; l += 8) {
    ane_i8x sums;
    ane_f8x to, scale;
    memcpy(&sums, sum + l, sizeof sums);
    memcpy(&scale, b_scale + l, sizeof scale);
    memcpy(&to, acc + l, sizeof to);
    to += __builtin_convertvector(sums, ane_f8x) * (a_scale * scale);
    memcpy(acc + l, &to, sizeof to);
  }
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

/* The same for 32 columns with vpdpwssd, which also adds. Pairs at even and at odd positions have sums of their own, because a
 * result is ready only after several cycles. */
#define DOT_PAIR(half, at, k)                                                                                                    \
  do {                                                                                                                           \
    int32_t both;                                                                                                                \
    memcpy(&both, (at) + 2 * (k), sizeof both);                                                                                  \
    __m512i left = _mm512_set1_epi32(both);                                                                                      \
    half##lo##k = _mm512_dpwssd_epi32(half##lo##k, left, lo);                                                                    \
    half##hi##k = _mm512_dpwssd_epi32(half##hi##k, left, hi);                                                                    \
  } while (0)
#define DOT_ROWS(half, x, y)                                                                                                     \
  do {                                                                                                                           \
    __m512i lo = _mm512_loadu_si512(y), hi = _mm512_loadu_si512((y) + 32);                                                       \
    DOT_PAIR(half, x, 0);                                                                                                        \
    DOT_PAIR(half, x, 1);                                                                                                        \
    DOT_PAIR(half, x, 2);                                                                                                        \
    DOT_PAIR(half, x, 3);                                                                                                        \
  } while (0)
#define STORE_BOTH(k)                                                                                                            \
  do {                                                                                                                           \
    _mm512_storeu_si512(sum[k], _mm512_add_epi32(e_lo##k, o_lo##k));                                                             \
    _mm512_storeu_si512(sum[k] + 16, _mm512_add_epi32(e_hi##k, o_hi##k));                                                        \
  } while (0)

__attribute__((target("avx512f,avx512vnni"))) static void strip_avx512vnni(float *acc, int64_t ld_acc, const int16_t *a,
                                                                           const float *a_scale, const int16_t *b,
                                                                           const float *b_scale, int64_t pairs) {
  enum { STEP = 2 * ANE_PANEL };
  int32_t sum[ANE_STRIP][ANE_PANEL];
  __m512i e_lo0 = _mm512_setzero_si512(), e_lo1 = e_lo0, e_lo2 = e_lo0, e_lo3 = e_lo0;
  __m512i e_hi0 = e_lo0, e_hi1 = e_lo0, e_hi2 = e_lo0, e_hi3 = e_lo0;
  __m512i o_lo0 = e_lo0, o_lo1 = e_lo0, o_lo2 = e_lo0, o_lo3 = e_lo0, o_hi0 = e_lo0, o_hi1 = e_lo0, o_hi2 = e_lo0, o_hi3 = e_lo0;
  int64_t p = 0;
  for (; p + 2 <= pairs; p += 2, a += 2 * STEP, b += 2 * STEP) {
    DOT_ROWS(e_, a, b);
    DOT_ROWS(o_, a + STEP, b + STEP);
  }
  if (p < pairs) DOT_ROWS(e_, a, b);
  STORE_BOTH(0);
  STORE_BOTH(1);
  STORE_BOTH(2);
  STORE_BOTH(3);
  for (int k = 0; k < ANE_STRIP; k++) add_scaled(acc + k * ld_acc, sum[k], a_scale[k], b_scale);
}

static bool has_avx512vnni(void) {
  return ane_wide_most >= 64 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni");
}
#endif

void ane_strip_codes(float *acc, int64_t ld_acc, const int16_t *a, const float *a_scale, const int16_t *b, const float *b_scale,
                     int64_t pairs) {
#ifdef ANE_WIDE_X86
  if (has_avx512vnni()) {
    strip_avx512vnni(acc, ld_acc, a, a_scale, b, b_scale, pairs);
    return;
  }
  if (ane_wide_most >= 32 && __builtin_cpu_supports("avx2")) {
    strip_avx2(acc, ld_acc, a, a_scale, b, b_scale, pairs);
    return;
  }
#endif
  strip_plain(acc, ld_acc, a, a_scale, b, b_scale, pairs);
}
