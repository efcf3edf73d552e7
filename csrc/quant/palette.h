/* Tables that leave the least weighted squared error: k-means in one dimension. */
#ifndef ANE_QUANT_PALETTE_H
#define ANE_QUANT_PALETTE_H

#include "base/attr.h"

/* Values are counted by their nearest fp16, the type of the entries. Keys order as the values do; key 0 is the NaN of all
 * ones. */
enum { ANE_PALETTE_KEYS = 65536, ANE_PALETTE_MAX = 256 }; /* most entries */
uint32_t ane_palette_key(float x);

/* Bytes of scratch memory that ane_palette needs. */
size_t ane_palette_scratch(void);

/* The table of n entries, 2 <= n <= 256, for weights by key; the weights add up to less than 2^63. Entries are ascending fp16;
 * the last one is repeated if there are fewer than n values. Finds the best split of at most 2048 runs of neighbours (dynamic
 * programming), then moves its edges among all values until nothing changes (Lloyd). Keys of infinities and NaN must have weight
 * 0. */
void ane_palette(const uint64_t weight[ANE_PALETTE_KEYS], int n, void *scratch, uint16_t *lut);

/* The nearest of `entries` entries for each of n elements; of two equally near ones the lower. */
void ane_palette_assign(const float *x, int64_t n, const uint16_t *lut, int entries, uint8_t *index);

#endif
