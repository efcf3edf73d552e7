/* Prefetching of packed groups. Include the lanes first. */
#ifndef ANE_KERNELS_X86_MATMUL_PREFETCH_H
#define ANE_KERNELS_X86_MATMUL_PREFETCH_H

/* The prefetch distance. Measured on Zen 5 with one token: 4096 is 10 % slower, 16384 is 5 % slower. */
enum { PREFETCH_BYTES = 8192 };

/* Returns the byte that a pass over `groups` groups prefetches at byte `at` of a group. Past the end of the group it continues in
 * the group that follows those of the pass. */
INLINE const char *prefetched(const uint8_t *group, size_t group_bytes, int groups, size_t at) {
  at += PREFETCH_BYTES;
  if (at >= group_bytes) at += (size_t)(groups - 1) * group_bytes;
  return (const char *)((uintptr_t)group + at);
}

/* Prefetches `lines` cache lines, PREFETCH_BYTES after byte `at` of a group, to the first level cache. Hardware prefetchers do
 * not follow these short runs with gaps: explicit prefetches make the product 1.1 to 3 times as fast. */
INLINE void prefetch_packed(const uint8_t *group, size_t group_bytes, int groups, size_t at, int lines) {
  const char *p = prefetched(group, group_bytes, groups, at);
#pragma GCC unroll 9
  for (int i = 0; i < lines; i++) _mm_prefetch(p + 64 * (ptrdiff_t)i, _MM_HINT_T0);
}

/* Does the same to the second level cache. */
INLINE void prefetch_packed_far(const uint8_t *group, size_t group_bytes, int groups, size_t at, int lines) {
  const char *p = prefetched(group, group_bytes, groups, at);
#pragma GCC unroll 9
  for (int i = 0; i < lines; i++) _mm_prefetch(p + 64 * (ptrdiff_t)i, _MM_HINT_T1);
}

/* Prefetches the four lines that are PREFETCH_BYTES / 2 after the low nibbles of a block, which are read together with a block of
 * the high nibbles. Measured on Zen 4 with one token: PREFETCH_BYTES is 5 % slower. */
INLINE void prefetch_low(const uint8_t *low) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) _mm_prefetch((const char *)((uintptr_t)low + PREFETCH_BYTES / 2 + 64 * (uintptr_t)i), _MM_HINT_T0);
}

#endif
