/* The heap, through one door, so that specs can make the n-th allocation fail. */
#ifndef ANE_BASE_ALLOC_H
#define ANE_BASE_ALLOC_H

#include "base/attr.h"

/* As malloc, calloc, realloc and free; sizes of 0 give a unique pointer. NULL where there is no memory. */
void *ane_malloc(size_t size) __attribute__((malloc));
void *ane_calloc(size_t count, size_t size) __attribute__((malloc));
void *ane_realloc(void *old, size_t size);
void ane_free(void *p);

/* A copy of the first `len` bytes of s with a NUL behind. */
char *ane_strndup(const char *s, size_t len) __attribute__((malloc));

/* Test hook: after `after` more successful allocations the next one fails, once. Negative: never (the start value).
 * Returns how many allocations have been made since the process began. */
uint64_t ane_alloc_fail_after(int64_t after);

#endif
