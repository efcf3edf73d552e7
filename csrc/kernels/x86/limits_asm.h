/* Loops of instructions on registers, for limits_*.c. They are assembly, so that the compiler moves, merges and removes nothing.
 * Each function repeats a body `steps` times, from registers that are all zero, and returns the operations of the bodies. */
#ifndef ANE_KERNELS_X86_LIMITS_ASM_H
#define ANE_KERNELS_X86_LIMITS_ASM_H

#include "kernels/kernels_internal.h"

#define CLOBBERED                                                                                                                \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",   \
      "xmm15"

#define LIMIT(name, body, ops)                                                                                                   \
  double name(int64_t steps) {                                                                                                   \
    int64_t left = steps;                                                                                                        \
    if (steps > 0)                                                                                                               \
      __asm__ volatile("vzeroall\n1:\n" body "dec %0\njnz 1b\nvzeroupper\n" : "+r"(left) : : "cc", "memory", CLOBBERED);         \
    return (double)steps * (ops);                                                                                                \
  }

/* Twelve independent sums: two units with a latency of four cycles need only eight. */
#define TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

/* 32 columns of 4-bit codes of R(n)'s lanes: 16-bit sums in n, products in t, sums in s; 14 and 15 are read only. */
#define STEP(R, n, t) "vpmaddubsw " R(14) ", " R(15) ", " R(t) "\nvpaddw " R(t) ", " R(n) ", " R(n) "\n"
#define BLOCK(R, n, t, s)                                                                                                        \
  "vpmaddubsw " R(14) ", " R(15) ", " R(n) "\n" STEP(R, n, t) STEP(R, n, t) STEP(R, n, t) STEP(R, n, t) STEP(R, n, t)            \
      STEP(R, n, t) STEP(R, n, t) "vpmaddwd " R(14) ", " R(n) ", " R(n) "\nvpaddd " R(n) ", " R(s) ", " R(s) "\n"
#define FOUR_BLOCKS(R) BLOCK(R, 0, 4, 8) BLOCK(R, 1, 5, 9) BLOCK(R, 2, 6, 10) BLOCK(R, 3, 7, 11)

#define YMM(n) "%%ymm" #n
#define ZMM(n) "%%zmm" #n

#endif
