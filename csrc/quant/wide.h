/* Products of panels: the inner loops of second moments, factors and compensated rounding. Sums run over one index in ascending
 * order, one product and one addition a step, and lanes never mix. So the result has the same bits at each width of vectors. */
#ifndef ANE_QUANT_WIDE_H
#define ANE_QUANT_WIDE_H

#include "base/attr.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define ANE_ALWAYS_INLINE static inline __attribute__((always_inline))

/* 8 floats, and 8 masks: the vectors of AVX2. For vectors wider than those of the CPU, GCC would compute each lane alone. */
typedef float ane_f8x __attribute__((vector_size(32)));
typedef int32_t ane_i8x __attribute__((vector_size(32)));

/* Columns of a panel of floats, and of one of doubles; rows that are computed together. */
enum { ANE_PANEL = 32, ANE_PANEL_D = 16, ANE_STRIP = 4 };

/* acc[ld_acc k + l] += sum over t in 0 .. n - 1 of a[lda t + k] * b[32 t + l], k < 4, l < 32. */
void ane_strip(float *acc, int64_t ld_acc, const float *a, int64_t lda, const float *b, int64_t n);
/* Codes of 16 bits: at most ANE_CODE_MOST, so that the sum of ANE_CODE_TOKENS products stays below 2^31. */
enum { ANE_CODE_MOST = 4095, ANE_CODE_TOKENS = 128 };
/* Computes the codes of a panel of 32 columns of x - less, n numbers each: code [(n + 1) / 2][32][2], and a scale for each
 * column. A number is near code * scale. x, less: n rows, ld apart, of which `width` <= 32 columns are read; the codes of the
 * other columns are zeros, and so is the partner of the last number if n is odd. less NULL: none. false: a number is not finite;
 * code is then unspecified. */
bool ane_codes_of(const float *x, const float *less, int64_t ld, int64_t n, int64_t width, int16_t *code, float *scale);
/* acc[ld_acc k + l] += a_scale[k] b_scale[l] * sum over p < pairs, i < 2 of a[64 p + 2 k + i] * b[64 p + 2 l + i], k < 4, l < 32.
 * pairs <= ANE_CODE_TOKENS / 2. The sum is exact, and is rounded once to fp32. */
void ane_strip_codes(float *acc, int64_t ld_acc, const int16_t *a, const float *a_scale, const int16_t *b, const float *b_scale,
                     int64_t pairs);
/* acc[ld_acc k + l] -= sum over t in 0 .. n - 1 of a[ld t + k] * b[ld t + l], k < 4, l < 16. */
void ane_strip_d(double *acc, int64_t ld_acc, const double *a, const double *b, int64_t ld, int64_t n);

#endif
