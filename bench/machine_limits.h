/* What the machine can do at most: the denominators of the kernel benches. x86 with AVX-512, else plain C. */
#ifndef ANE_BENCH_MACHINE_LIMITS_H
#define ANE_BENCH_MACHINE_LIMITS_H

#include "base/attr.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* Loops on registers only; each returns the number of operations (a multiply and an add are two), 0 where the machine
 * lacks the instruction. Twelve sums are more than two units of four cycles need. */
#define REGISTERS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

static inline double bench_dot_loop(int64_t steps) {
  if (!__builtin_cpu_supports("avx512vnni")) return 0;
  for (int64_t i = 0; i < steps; i++) {
#define STEP(n) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #n "\n"
    __asm__ volatile(REGISTERS(STEP) ::: "memory");
#undef STEP
  }
  return (double)steps * 12 * 64 * 2;
}

static inline double bench_bf16_loop(int64_t steps) {
  if (!__builtin_cpu_supports("avx512bf16")) return 0;
  for (int64_t i = 0; i < steps; i++) {
#define STEP(n) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #n "\n"
    __asm__ volatile(REGISTERS(STEP) ::: "memory");
#undef STEP
  }
  return (double)steps * 12 * 32 * 2;
}

static inline double bench_fma_loop(int64_t steps) {
  if (!__builtin_cpu_supports("avx512f")) return 0;
  for (int64_t i = 0; i < steps; i++) {
#define STEP(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n"
    __asm__ volatile(REGISTERS(STEP) ::: "memory");
#undef STEP
  }
  return (double)steps * 12 * 16 * 2;
}

/* Reads every byte of p; the result only keeps the reads alive. */
__attribute__((target("avx2"))) static inline uint64_t bench_read_loop(const void *p, size_t size) {
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
static inline double bench_dot_loop(int64_t steps) { return (void)steps, 0; }
static inline double bench_bf16_loop(int64_t steps) { return (void)steps, 0; }
static inline double bench_fma_loop(int64_t steps) { return (void)steps, 0; }
static inline uint64_t bench_read_loop(const void *p, size_t size) {
  const uint64_t *at = p;
  uint64_t x = 0;
  for (size_t i = 0; i < size / 8; i++) x ^= at[i];
  return x;
}
#endif

#endif
