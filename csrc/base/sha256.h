/* SHA-256 (FIPS 180-4). */
#ifndef ANE_BASE_SHA256_H
#define ANE_BASE_SHA256_H

#include "base/attr.h"

struct ane_sha256 {
  uint32_t h[8];
  uint64_t size;
  uint8_t block[64];
};
void ane_sha256_begin(struct ane_sha256 *s);
void ane_sha256_add(struct ane_sha256 *s, const void *data, size_t size);
/* Writes the hash to `out`: 64 lower-case hexadecimal digits and a NUL. The state cannot be used afterwards. */
enum { ANE_SHA256_TEXT = 65 };
void ane_sha256_end(struct ane_sha256 *s, char out[ANE_SHA256_TEXT]);

#endif
