/* Tables of 16 entries that leave the least weighted squared error: k-means in one dimension. */
#ifndef ANE_QUANT_PALETTE_H
#define ANE_QUANT_PALETTE_H

#include "base/attr.h"

/* Values are counted by their nearest fp16, which is 64 times finer than a sixteenth of any binade; 16 entries lose far more.
 * Keys order as the values do; key 0 is the NaN of all ones. */
enum { ANE_PALETTE_KEYS = 65536, ANE_PALETTE_SIZE = 16 };
uint32_t ane_palette_key(float x);

/* Bytes of memory that ane_palette wants. */
size_t ane_palette_scratch(void);

/* The table for weights by key; the weights add up to less than 2^63. Entries are ascending fp16; the last one is repeated
 * where there are fewer than 16 values. Finds the best split of at most 2048 runs of neighbours (dynamic programming), then
 * moves its edges among all values until nothing changes (Lloyd). Keys of infinities and NaN must have weight 0. */
void ane_palette(const uint64_t weight[ANE_PALETTE_KEYS], void *scratch, uint16_t lut[ANE_PALETTE_SIZE]);

/* The nearest entry for each of n elements; of two equally near ones the lower. */
void ane_palette_assign(const float *x, int64_t n, const uint16_t lut[ANE_PALETTE_SIZE], uint8_t *index);

#endif
