/* Products of panels: one version for each width of vectors (wide.h). */
#include "quant/wide.h"
#include "quant/compensate.h"

#define BYTES 16
#define ATTRIBUTE
#define NAME(x) x##_plain
#include "quant/wide_strip.h"

#ifdef ANE_WIDE_X86
#define BYTES 32
#define ATTRIBUTE __attribute__((target("avx2")))
#define NAME(x) x##_avx2
#include "quant/wide_strip.h"

#define BYTES 64
#define ATTRIBUTE __attribute__((target("avx512f")))
#define NAME(x) x##_avx512f
#include "quant/wide_strip.h"
#endif

int ane_wide_most = 64;

void ane_strip(float *acc, int64_t ld_acc, const float *a, int64_t lda, const float *b, int64_t n) {
#ifdef ANE_WIDE_X86
  if (ane_wide_most >= 64 && __builtin_cpu_supports("avx512f")) {
    float_strip_avx512f(acc, ld_acc, a, lda, b, ANE_PANEL, n);
    return;
  }
  if (ane_wide_most >= 32 && __builtin_cpu_supports("avx2")) {
    float_strip_avx2(acc, ld_acc, a, lda, b, ANE_PANEL, n);
    return;
  }
#endif
  float_strip_plain(acc, ld_acc, a, lda, b, ANE_PANEL, n);
}

void ane_strip_d(double *acc, int64_t ld_acc, const double *a, const double *b, int64_t ld, int64_t n) {
#ifdef ANE_WIDE_X86
  if (ane_wide_most >= 64 && __builtin_cpu_supports("avx512f")) {
    double_strip_avx512f(acc, ld_acc, a, ld, b, ld, n);
    return;
  }
  if (ane_wide_most >= 32 && __builtin_cpu_supports("avx2")) {
    double_strip_avx2(acc, ld_acc, a, ld, b, ld, n);
    return;
  }
#endif
  double_strip_plain(acc, ld_acc, a, ld, b, ld, n);
}
