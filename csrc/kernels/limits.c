#include "kernels/kernels_internal.h"

#include "base/alloc.h"

#include <string.h>

#if defined(__x86_64__)
/* The level must be available. */
double ane_limit_dot(ane_isa isa, int64_t steps) {
  switch (isa) {
    case ANE_ISA_AVX2: return limit_dot_avx2(steps);
    case ANE_ISA_AVXVNNI: return limit_dot_avxvnni(steps);
    case ANE_ISA_AVX512: return limit_dot_avx512(steps);
    case ANE_ISA_AVX512VNNI: return limit_dot_avx512vnni(steps);
    default: return 0;
  }
}
double ane_limit_bf16(ane_isa isa, int64_t steps) {
  return isa == ANE_ISA_AVX512VNNI && ane_cpu_has_bf16_dot() ? limit_bf16_avx512(steps) : 0;
}
double ane_limit_fma(ane_isa isa, int64_t steps) {
  switch (isa) {
    case ANE_ISA_AVX2:
    case ANE_ISA_AVXVNNI: return limit_fma_avx2(steps);
    case ANE_ISA_AVX512:
    case ANE_ISA_AVX512VNNI: return limit_fma_avx512(steps);
    default: return 0;
  }
}
#else
double ane_limit_dot(ane_isa isa, int64_t steps) { return (void)isa, (void)steps, 0; }
double ane_limit_bf16(ane_isa isa, int64_t steps) { return (void)isa, (void)steps, 0; }
double ane_limit_fma(ane_isa isa, int64_t steps) { return (void)isa, (void)steps, 0; }
#endif

uint64_t ane_limit_read(const void *p, size_t size) {
#if defined(__x86_64__)
  if (ane_isa_available(ANE_ISA_AVX2)) return limit_read_avx2(p, size);
#endif
  const uint64_t *at = p;
  uint64_t x = 0;
  for (size_t i = 0; i < size / 8; i++) x ^= at[i];
  return x;
}

/* ---- Measuring -----------------------------------------------------------------------------------------------------*/

struct job {
  enum { READ, DOT, BF16, FMA } what;
  ane_isa isa;
  int64_t steps;
  const char *data;
  size_t bytes;
  double ops[ANE_LIMIT_THREADS];
  uint64_t sink[ANE_LIMIT_THREADS];
};

static void work(void *arg, int thread, int threads) {
  struct job *j = arg;
  if (j->what == READ) {
    size_t part = j->bytes / (size_t)threads / 128 * 128;
    j->sink[thread] = ane_limit_read(j->data + part * (size_t)thread, part);
    j->ops[thread] = (double)part;
    return;
  }
  j->ops[thread] = j->what == DOT    ? ane_limit_dot(j->isa, j->steps)
                   : j->what == BF16 ? ane_limit_bf16(j->isa, j->steps)
                                     : ane_limit_fma(j->isa, j->steps);
}

/* Returns operations (or bytes) per second: the best of several runs. */
static double best(struct ane_pool *pool, struct job *j, int runs) {
  double rate = 0;
  for (int r = 0; r < runs; r++) {
    memset(j->ops, 0, sizeof j->ops); /* a thread may take no part */
    double start = ane_clock(), sum = 0;
    ane_pool_run(pool, work, j);
    double seconds = ane_clock() - start;
    for (int t = 0; t < ane_pool_threads(pool); t++) sum += j->ops[t];
    if (seconds > 0) rate = ANE_MAX(rate, sum / seconds);
  }
  return rate;
}

ane_status ane_limits_measure(struct ane_pool *pool, ane_isa isa, struct ane_limits *out, struct ane_error *err) {
  enum { RUNS = 5 };
  struct job j = {.isa = isa, .bytes = ANE_LIMIT_BYTES, .steps = 2000000};
  *out = (struct ane_limits){0};
  if (ane_pool_threads(pool) > ANE_LIMIT_THREADS)
    return ane_fail(err, ANE_RANGE, "limits are measured with at most %d threads", ANE_LIMIT_THREADS);
  char *data = ane_malloc(j.bytes);
  if (!data) return ane_fail(err, ANE_NOMEM, "no memory for %zu bytes to read", j.bytes);
  memset(data, 1, j.bytes);
  j.data = data;
  out->read = best(pool, &j, RUNS);
  ane_free(data);
  j.what = DOT, out->dot = best(pool, &j, RUNS);
  j.what = BF16, out->bf16 = best(pool, &j, RUNS);
  j.what = FMA, out->fma = best(pool, &j, RUNS);
  return ANE_OK;
}
