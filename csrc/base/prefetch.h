/* Prefetching of memory that will soon be used. */
#ifndef ANE_BASE_PREFETCH_H
#define ANE_BASE_PREFETCH_H

#include <stdint.h>

/* Prefetches the cache lines (of 64 bytes) of `bytes` bytes, for writing. A write to a line that another thread has used is a
 * cache miss; prefetches of several lines overlap. On x86 the instruction is written as assembly, because GCC emits it only if
 * the target CPU is known to have it. CPUs that do not have it ignore it. */
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

/* Prefetches the cache lines of `bytes` bytes: to be read, or to be written where no other thread has used them. */
static inline void ane_prefetch(const void *at, int64_t bytes) {
  for (const char *line = (const char *)((uintptr_t)at & ~(uintptr_t)63), *end = (const char *)at + bytes; line < end; line += 64)
    __builtin_prefetch(line);
}

#endif
