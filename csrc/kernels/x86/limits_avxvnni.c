#include "kernels/x86/limits_asm.h"

#define DOT(n) "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm" #n "\n"

LIMIT(limit_dot_avxvnni, TWELVE(DOT), 12 * 64)
