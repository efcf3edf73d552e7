#include "kernels/x86/limits_asm.h"

#define DOT(n) "vpdpbusd %%zmm14, %%zmm15, %%zmm" #n "\n"
#define BF16(n) "vdpbf16ps %%zmm14, %%zmm15, %%zmm" #n "\n"
#define FMA(n) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #n "\n"

LIMIT(limit_dot_avx512, FOUR_BLOCKS(ZMM), 4 * 1024)
LIMIT(limit_dot_avx512vnni, TWELVE(DOT), 12 * 128)
LIMIT(limit_bf16_avx512, TWELVE(BF16), 12 * 64)
LIMIT(limit_fma_avx512, TWELVE(FMA), 12 * 32)
