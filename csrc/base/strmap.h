/* A map from byte strings to 32-bit values: open addressing, FNV-1a, keys are not copied. Each map has its own hash seed, so that
 * no file can be crafted whose keys all collide. */
#ifndef ANE_BASE_STRMAP_H
#define ANE_BASE_STRMAP_H

#include "base/attr.h"

struct ane_strmap_slot {
  const char *key; /* NULL: free */
  uint32_t len, value;
};

/* Zero-initialised = empty. Keys must outlive the map, unchanged. */
struct ane_strmap {
  struct ane_strmap_slot *slots;
  size_t count, room; /* room is 0 or a power of two */
  uint64_t seed;
};

/* Maps a new key to `value` and sets *old to UINT32_MAX. An existing key keeps its value, which *old receives. old may be NULL.
 * false: out of memory. */
ANE_NODISCARD bool ane_strmap_put(struct ane_strmap *m, const char *key, size_t len, uint32_t value, uint32_t *old);
/* The value of key, or UINT32_MAX. */
uint32_t ane_strmap_get(const struct ane_strmap *m, const char *key, size_t len);
/* Makes room for `count` keys in total. */
ANE_NODISCARD bool ane_strmap_reserve(struct ane_strmap *m, size_t count);
void ane_strmap_free(struct ane_strmap *m);

#endif
