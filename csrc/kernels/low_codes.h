/* Shared by the files of kernels/ that read or write the B of adapters in 8-bit codes. */
#ifndef ANE_KERNELS_LOW_CODES_H
#define ANE_KERNELS_LOW_CODES_H

#include "kernels/kernels_internal.h"

#define ANE_LOW_CODE 32767.0f /* the largest code of x */

/* Bytes of one block of `ranks` ranks: scales and codes. */
static inline size_t low_block_bytes(int64_t ranks) {
  return ANE_GROUP * sizeof(float) + (size_t)((ranks + 1) / 2) * 2 * ANE_GROUP;
}

#endif
