/* Prefetching of packed groups. Include the lanes first. */
#ifndef ANE_KERNELS_X86_MATMUL_PREFETCH_H
#define ANE_KERNELS_X86_MATMUL_PREFETCH_H

enum { AHEAD = 8192 }; /* bytes; measured on Zen 5: 4096 loses a tenth of the speed of one column, 16384 a twentieth */

/* Asks for `lines` lines at AHEAD bytes behind byte `at` of a group; behind its end comes the group that follows all those
 * walked beside it. Explicit, since the processor sees only short runs and gaps: worth a tenth to a factor of three. */
INLINE void look_ahead(const uint8_t *group, size_t group_bytes, int groups, size_t at, int lines) {
  at += AHEAD;
  if (at >= group_bytes) at += (size_t)(groups - 1) * group_bytes;
#pragma GCC unroll 9
  for (int i = 0; i < lines; i++) _mm_prefetch((const char *)((uintptr_t)group + at + 64 * (size_t)i), _MM_HINT_T0);
}

/* The same lines of the group behind. */
INLINE void look_ahead_group(const uint8_t *group, size_t group_bytes, size_t at, int lines) {
#pragma GCC unroll 4
  for (int i = 0; i < lines; i++) _mm_prefetch((const char *)((uintptr_t)group + group_bytes + at + 64 * (size_t)i), _MM_HINT_T0);
}

#endif
