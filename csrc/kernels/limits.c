#include "kernels/kernels.h"

#include "base/alloc.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* Twelve sums are more than two units of four cycles need. */
#define CLOBBERED "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"
#define REGISTERS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

double ane_limit_dot(int64_t steps) {
  if (!__builtin_cpu_supports("avx512vnni")) return 0;
  for (int64_t i = 0; i < steps; i++) {
#define STEP(n) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #n "\n"
    __asm__ volatile(REGISTERS(STEP) : : : "memory", CLOBBERED);
#undef STEP
  }
  return (double)steps * 12 * 64 * 2;
}

double ane_limit_bf16(int64_t steps) {
  if (!__builtin_cpu_supports("avx512bf16")) return 0;
  for (int64_t i = 0; i < steps; i++) {
#define STEP(n) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #n "\n"
    __asm__ volatile(REGISTERS(STEP) : : : "memory", CLOBBERED);
#undef STEP
  }
  return (double)steps * 12 * 32 * 2;
}

double ane_limit_fma(int64_t steps) {
  if (!__builtin_cpu_supports("avx512f")) return 0;
  for (int64_t i = 0; i < steps; i++) {
#define STEP(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n"
    __asm__ volatile(REGISTERS(STEP) : : : "memory", CLOBBERED);
#undef STEP
  }
  return (double)steps * 12 * 16 * 2;
}

__attribute__((target("avx2"))) uint64_t ane_limit_read(const void *p, size_t size) {
  const char *at = p;
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (size_t i = 0; i + 128 <= size; i += 128) {
    a = _mm256_xor_si256(a, _mm256_loadu_si256((const __m256i *)(at + i)));
    b = _mm256_xor_si256(b, _mm256_loadu_si256((const __m256i *)(at + i + 32)));
    c = _mm256_xor_si256(c, _mm256_loadu_si256((const __m256i *)(at + i + 64)));
    d = _mm256_xor_si256(d, _mm256_loadu_si256((const __m256i *)(at + i + 96)));
  }
  a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  return (uint64_t)_mm256_extract_epi64(a, 0) ^ (uint64_t)_mm256_extract_epi64(a, 3);
}

#else
double ane_limit_dot(int64_t steps) { return (void)steps, 0; }
double ane_limit_bf16(int64_t steps) { return (void)steps, 0; }
double ane_limit_fma(int64_t steps) { return (void)steps, 0; }
uint64_t ane_limit_read(const void *p, size_t size) {
  const uint64_t *at = p;
  uint64_t x = 0;
  for (size_t i = 0; i < size / 8; i++) x ^= at[i];
  return x;
}
#endif

/* ---- Measuring -----------------------------------------------------------------------------------------------------*/

struct job {
  enum { READ, DOT, BF16, FMA } what;
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
  j->ops[thread] = j->what == DOT ? ane_limit_dot(j->steps) : j->what == BF16 ? ane_limit_bf16(j->steps) : ane_limit_fma(j->steps);
}

/* Operations (or bytes) a second: the best of several runs. */
static double best(struct ane_pool *pool, struct job *j, int runs) {
  double rate = 0;
  for (int r = 0; r < runs; r++) {
    double start = ane_clock(), sum = 0;
    ane_pool_run(pool, work, j);
    double seconds = ane_clock() - start;
    for (int t = 0; t < ane_pool_threads(pool); t++) sum += j->ops[t];
    if (seconds > 0) rate = ANE_MAX(rate, sum / seconds);
  }
  return rate;
}

ane_status ane_limits_measure(struct ane_pool *pool, struct ane_limits *out, struct ane_error *err) {
  enum { RUNS = 5 };
  struct job j = {.bytes = ANE_LIMIT_BYTES, .steps = 2000000};
  *out = (struct ane_limits){0};
  if (ane_pool_threads(pool) > ANE_LIMIT_THREADS) return ane_fail(err, ANE_RANGE, "limits are measured with at most %d threads", ANE_LIMIT_THREADS);
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
