/* Products of panels: the inner loops of second moments, factors and compensated rounding. Sums run over one index in ascending
 * order, one product and one addition a step, and lanes never mix. So the result has the same bits at each width of vectors, and
 * compilers may make a copy of a function for each width. */
#ifndef ANE_QUANT_WIDE_H
#define ANE_QUANT_WIDE_H

#include "base/attr.h"

#include <string.h>

/* A function with one copy for each width of vectors; the loader of glibc picks one. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define ANE_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ANE_WIDE
#endif
#define ANE_ALWAYS_INLINE static inline __attribute__((always_inline))

typedef float ane_f16x __attribute__((vector_size(64)));   /* 16 floats */
typedef double ane_d8x __attribute__((vector_size(64)));   /* 8 doubles */
typedef int32_t ane_i16x __attribute__((vector_size(64))); /* 16 masks */

/* Columns of a panel of floats, and of one of doubles; rows that are computed together. */
enum { ANE_PANEL = 32, ANE_PANEL_D = 16, ANE_STRIP = 4 };

/* acc[k][l] += sum over t in 0 .. n - 1 of a[lda t + k] * b[32 t + l], k < 4, l < 32. The sums are in variables of their own,
 * since compilers leave an array in memory. */
ANE_ALWAYS_INLINE void ane_strip(ane_f16x acc[ANE_STRIP][2], const float *a, int64_t lda, const float *b, int64_t n) {
  ane_f16x l0 = acc[0][0], h0 = acc[0][1], l1 = acc[1][0], h1 = acc[1][1]; /* analyser: callers set all of acc. */
  ane_f16x l2 = acc[2][0], h2 = acc[2][1], l3 = acc[3][0], h3 = acc[3][1];
  for (int64_t t = 0; t < n; t++, a += lda, b += ANE_PANEL) {
    ane_f16x lo, hi;
    memcpy(&lo, b, sizeof lo);
    memcpy(&hi, b + 16, sizeof hi);
    l0 += a[0] * lo, h0 += a[0] * hi;
    l1 += a[1] * lo, h1 += a[1] * hi;
    l2 += a[2] * lo, h2 += a[2] * hi;
    l3 += a[3] * lo, h3 += a[3] * hi;
  }
  acc[0][0] = l0, acc[0][1] = h0, acc[1][0] = l1, acc[1][1] = h1;
  acc[2][0] = l2, acc[2][1] = h2, acc[3][0] = l3, acc[3][1] = h3;
}

/* acc[k][l] -= sum over t in 0 .. n - 1 of a[ld t + k] * b[ld t + l], k < 4, l < 16. */
ANE_ALWAYS_INLINE void ane_strip_d(ane_d8x acc[ANE_STRIP][2], const double *a, const double *b, int64_t ld, int n) {
  ane_d8x l0 = acc[0][0], h0 = acc[0][1], l1 = acc[1][0], h1 = acc[1][1]; /* analyser: callers set all of acc. */
  ane_d8x l2 = acc[2][0], h2 = acc[2][1], l3 = acc[3][0], h3 = acc[3][1];
  for (int t = 0; t < n; t++, a += ld, b += ld) {
    ane_d8x lo, hi;
    memcpy(&lo, b, sizeof lo);
    memcpy(&hi, b + 8, sizeof hi);
    l0 -= a[0] * lo, h0 -= a[0] * hi;
    l1 -= a[1] * lo, h1 -= a[1] * hi;
    l2 -= a[2] * lo, h2 -= a[2] * hi;
    l3 -= a[3] * lo, h3 -= a[3] * hi;
  }
  acc[0][0] = l0, acc[0][1] = h0, acc[1][0] = l1, acc[1][1] = h1;
  acc[2][0] = l2, acc[2][1] = h2, acc[3][0] = l3, acc[3][1] = h3;
}

#endif
