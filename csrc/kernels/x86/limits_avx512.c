#include "kernels/kernels_internal.h"

/* Twelve sums are more than two units of four cycles need. */
#define CLOBBERED "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"
#define REGISTERS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

double limit_dot_avx512(int64_t steps) {
  if (!__builtin_cpu_supports("avx512vnni")) return 0;
  for (int64_t i = 0; i < steps; i++) {
#define STEP(n) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #n "\n"
    __asm__ volatile(REGISTERS(STEP) : : : "memory", CLOBBERED);
#undef STEP
  }
  return (double)steps * 12 * 64 * 2;
}

double limit_bf16_avx512(int64_t steps) {
  if (!__builtin_cpu_supports("avx512bf16")) return 0;
  for (int64_t i = 0; i < steps; i++) {
#define STEP(n) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #n "\n"
    __asm__ volatile(REGISTERS(STEP) : : : "memory", CLOBBERED);
#undef STEP
  }
  return (double)steps * 12 * 32 * 2;
}

double limit_fma_avx512(int64_t steps) {
  if (!__builtin_cpu_supports("avx512f")) return 0;
  for (int64_t i = 0; i < steps; i++) {
#define STEP(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n"
    __asm__ volatile(REGISTERS(STEP) : : : "memory", CLOBBERED);
#undef STEP
  }
  return (double)steps * 12 * 16 * 2;
}
