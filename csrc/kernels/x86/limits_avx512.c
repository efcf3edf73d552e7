#include "kernels/kernels_internal.h"

/* Twelve sums are more than two units of four cycles need. */
#define CLOBBERED "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11"
#define REGISTERS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

/* A function that repeats twelve of an instruction; each does `ops` operations on 64 bytes. */
#define LIMIT(name, feature, instruction, ops)                                                                                   \
  double name(int64_t steps) {                                                                                                   \
    if (!__builtin_cpu_supports(feature)) return 0;                                                                              \
    for (int64_t i = 0; i < steps; i++) __asm__ volatile(REGISTERS(instruction) : : : "memory", CLOBBERED);                      \
    return (double)steps * 12 * (ops);                                                                                           \
  }

#define DOT(n) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #n "\n"
#define BF16(n) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #n "\n"
#define FMA(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n"

LIMIT(limit_dot_avx512, "avx512vnni", DOT, 128)
LIMIT(limit_bf16_avx512, "avx512bf16", BF16, 64)
LIMIT(limit_fma_avx512, "avx512f", FMA, 32)
