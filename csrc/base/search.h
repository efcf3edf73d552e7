/* Search in sorted lists. */
#ifndef ANE_BASE_SEARCH_H
#define ANE_BASE_SEARCH_H

#include <stdint.h>

/* Returns the lowest index of `key` among n numbers in ascending order; UINT32_MAX: it is not among them. */
static inline uint32_t ane_find_u64(const uint64_t *sorted, uint32_t n, uint64_t key) {
  uint32_t from = 0, to = n;
  while (from < to) {
    uint32_t mid = from + (to - from) / 2;
    if (sorted[mid] < key)
      from = mid + 1;
    else
      to = mid;
  }
  return from < n && sorted[from] == key ? from : UINT32_MAX;
}

#endif
