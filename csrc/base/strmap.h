/* Map from byte strings to 32-bit indices: open addressing, FNV-1a, keys are not copied. Each map hashes from a start of
 * its own (where its first table lay in memory), so that a file cannot be made whose keys all collide. */
#ifndef ANE_BASE_STRMAP_H
#define ANE_BASE_STRMAP_H

#include "base/attr.h"

struct ane_strmap_slot {
  const char *key; /* NULL = free */
  uint32_t len, value;
};

/* Zero-initialised = empty. Keys must stay alive and unchanged for as long as the map. */
struct ane_strmap {
  struct ane_strmap_slot *slots;
  size_t count, room; /* room is 0 or a power of two */
  uint64_t seed;
};

/* Adds or finds: false where there is no memory. *old is set to the value already there, or to UINT32_MAX when key is
 * new (it then maps to value). old may be NULL. */
ANE_NODISCARD bool ane_strmap_put(struct ane_strmap *m, const char *key, size_t len, uint32_t value, uint32_t *old);
/* The value of key, or UINT32_MAX. */
uint32_t ane_strmap_get(const struct ane_strmap *m, const char *key, size_t len);
/* Makes room for `count` keys in all. */
ANE_NODISCARD bool ane_strmap_reserve(struct ane_strmap *m, size_t count);
void ane_strmap_free(struct ane_strmap *m);

#endif
