/* A 64-bit hash of a sequence of bytes. It does not depend on how the bytes are divided among calls. Zero-initialised = no bytes.
 * It does not resist deliberate collisions. */
#ifndef ANE_BASE_HASH64_H
#define ANE_BASE_HASH64_H

#include <stddef.h>
#include <stdint.h>

struct ane_hash64 {
  uint64_t sum, pending, size;
};
void ane_hash64_add(struct ane_hash64 *h, const void *data, size_t size);
uint64_t ane_hash64_end(const struct ane_hash64 *h);

#endif
