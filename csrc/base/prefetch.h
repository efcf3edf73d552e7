/* Prefetching of memory that is written soon. */
#ifndef ANE_BASE_PREFETCH_H
#define ANE_BASE_PREFETCH_H

#include <stdint.h>

/* Prefetches the cache lines (of 64 bytes) of `bytes` bytes, for writing. A line that another thread has used costs a miss when
 * it is written; several prefetches wait at the same time. GCC emits the instruction only for CPUs that are sure to have it;
 * others ignore it. */
static inline void ane_prefetch_to_write(const void *at, int64_t bytes) {
  for (const char *line = (const char *)((uintptr_t)at & ~(uintptr_t)63), *end = (const char *)at + bytes; line < end;
       line += 64) {
#ifdef __x86_64__
    __asm__ volatile("prefetchw %0" : : "m"(*line));
#else
    __builtin_prefetch(line, 1);
#endif
  }
}

#endif
