/* A hash of 64 bits of all bytes added, in order, however they are divided into calls. Zero-initialised: nothing added. It
 * does not resist deliberate collisions. */
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
