/* See hash64.h. */
#include "base/hash64.h"

#include "base/bytes.h"

/* A step of FNV-1a (Fowler, Noll, Vo) on words of eight bytes instead of bytes, followed by a shift that mixes the high bits into
 * the low ones. ane_hash64_end finishes with fmix64 of MurmurHash3 (Appleby, 2011). */
static uint64_t hash_step(uint64_t sum, uint64_t word) {
  sum = (sum ^ word) * 0x100000001b3u;
  return sum ^ sum >> 32;
}

void ane_hash64_add(struct ane_hash64 *h, const void *data, size_t size) {
  const uint8_t *p = data;
  size_t i = 0;
  for (; i < size && h->size % 8; i++) {
    h->pending |= (uint64_t)p[i] << 8 * (h->size % 8);
    if (++h->size % 8 == 0) h->sum = hash_step(h->sum, h->pending), h->pending = 0;
  }
  for (; size - i >= 8; i += 8, h->size += 8) h->sum = hash_step(h->sum, ane_load_u64(p + i));
  for (; i < size; i++, h->size++) h->pending |= (uint64_t)p[i] << 8 * (h->size % 8);
}

uint64_t ane_hash64_end(const struct ane_hash64 *h) {
  uint64_t s = hash_step(hash_step(h->sum ^ 0xcbf29ce484222325u, h->pending), h->size);
  s = (s ^ s >> 33) * 0xff51afd7ed558ccdu;
  s = (s ^ s >> 33) * 0xc4ceb9fe1a85ec53u;
  return s ^ s >> 33;
}
