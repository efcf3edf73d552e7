#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int64_t fail_after = -1;
static _Atomic uint64_t made;

static bool refused(void) {
  atomic_fetch_add_explicit(&made, 1, memory_order_relaxed);
  if (atomic_load_explicit(&fail_after, memory_order_relaxed) < 0) return false;
  return atomic_fetch_sub_explicit(&fail_after, 1, memory_order_relaxed) == 0;
}

void *ane_malloc(size_t size) { return refused() ? NULL : malloc(size ? size : 1); }

void *ane_calloc(size_t count, size_t size) {
  if (refused()) return NULL;
  return count && size ? calloc(count, size) : calloc(1, 1);
}

void *ane_realloc(void *old, size_t size) { return refused() ? NULL : realloc(old, size ? size : 1); }

void ane_free(void *p) { free(p); }

char *ane_strndup(const char *s, size_t len) {
  char *copy = ane_malloc(len + 1);
  if (!copy) return NULL;
  memcpy(copy, s, len);
  copy[len] = '\0';
  return copy;
}

uint64_t ane_alloc_fail_after(int64_t after) {
  atomic_store_explicit(&fail_after, after, memory_order_relaxed);
  return atomic_load_explicit(&made, memory_order_relaxed);
}
