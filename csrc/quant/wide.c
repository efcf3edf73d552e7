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

#ifdef ANE_WIDE_X86
static bool has_avx512f(void) { return ane_wide_most >= 64 && __builtin_cpu_supports("avx512f"); }
static bool has_avx2(void) { return ane_wide_most >= 32 && __builtin_cpu_supports("avx2"); }
#define WIDEST(name) (has_avx512f() ? name##_avx512f : has_avx2() ? name##_avx2 : name##_plain)
#else
#define WIDEST(name) name##_plain
#endif

void ane_strip(float *acc, int64_t ld_acc, const float *a, int64_t lda, const float *b, int64_t n) {
  WIDEST(float_strip)(acc, ld_acc, a, lda, b, ANE_PANEL, n);
}

void ane_strip_d(double *acc, int64_t ld_acc, const double *a, const double *b, int64_t ld, int64_t n) {
  WIDEST(double_strip)(acc, ld_acc, a, ld, b, ld, n);
}
