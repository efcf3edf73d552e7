/* The B of adapters in 8-bit codes: sizes and encoding (kernels.h describes the bytes). */
#include "kernels/low_codes.h"

#include <math.h>
#include <string.h>

bool ane_low_codes_shape(struct ane_low_codes *b, int64_t rows, int64_t rank, size_t *bytes) {
  const int64_t blocks = rank / ANE_BLOCK, rest = rank % ANE_BLOCK;
  *b = (struct ane_low_codes){.rows = rows, .rank = rank, .groups = (rows + ANE_GROUP - 1) / ANE_GROUP};
  if (!ane_mul_size((size_t)blocks, low_block_bytes(ANE_BLOCK), &b->group_bytes)) return false;
  if (rest && !ane_add_size(b->group_bytes, low_block_bytes(rest), &b->group_bytes)) return false;
  return ane_mul_size((size_t)b->groups, b->group_bytes, bytes);
}

/* Encodes n values of one row into lane `lane` of a block. */
static void encode_row(const float *x, int64_t n, int64_t lane, uint8_t *block) {
  int8_t *codes = (int8_t *)block + ANE_GROUP * sizeof(float);
  float amax = 0;
  for (int64_t k = 0; k < n; k++) amax = fmaxf(amax, fabsf(x[k]));
  const float scale = amax / 127, inverse = amax > 0 && scale > 0 ? 127 / amax : 0;
  for (int64_t k = 0; k < n; k++) codes[k / 2 * 2 * ANE_GROUP + 2 * lane + k % 2] = (int8_t)rintf(x[k] * inverse);
  memcpy(block + (size_t)lane * sizeof scale, &scale, sizeof scale);
}

void ane_low_codes_encode(const struct ane_low_codes *b, const float *values, uint8_t *data) {
  memset(data, 0, (size_t)b->groups * b->group_bytes);
  for (int64_t r = 0; r < b->rows; r++) {
    uint8_t *block = data + (size_t)(r / ANE_GROUP) * b->group_bytes;
    for (int64_t k = 0; k < b->rank; k += ANE_BLOCK) {
      const int64_t here = ANE_MIN(b->rank - k, (int64_t)ANE_BLOCK);
      encode_row(values + r * b->rank + k, here, r % ANE_GROUP, block);
      block += low_block_bytes(here);
    }
  }
}
