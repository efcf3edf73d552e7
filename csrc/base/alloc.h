/* The heap. All allocations go through these functions, so that specs can make the n-th one fail. */
#ifndef ANE_BASE_ALLOC_H
#define ANE_BASE_ALLOC_H

#include "base/attr.h"

/* Like malloc, calloc, realloc and free, except that a size of 0 gives a unique pointer. NULL: out of memory. */
void *ane_malloc(size_t size) __attribute__((malloc));
void *ane_calloc(size_t count, size_t size) __attribute__((malloc));
void *ane_realloc(void *old, size_t size);
void ane_free(void *p);

/* A NUL-terminated copy of s[0..len), from ane_malloc. NULL: out of memory. */
char *ane_strndup(const char *s, size_t len) __attribute__((malloc));

/* Test hook: after `after` more successful allocations the next one fails, once. Negative: never, which is the initial value.
 * Returns the number of allocations since the process began. */
uint64_t ane_alloc_fail_after(int64_t after);

#endif
