/* Blocks of 32 columns with fp32 scales: codes, scales and zero points that files store in separate tensors are gathered into
 * them. blocks.h draws the blocks. */
#include "quant/quant_internal.h"

#include "quant/blocks.h"

#include <string.h>

static float scale_at(const uint8_t *p) {
  float f;
  memcpy(&f, p, sizeof f);
  return f;
}

static int nibble(const uint8_t *q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

void ane_nbits4_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_n4 *b = src;
  for (uint64_t i = 0; i < n / 32; i++, b++, dst += 32)
    for (int k = 0; k < 32; k++) dst[k] = scale_at(b->d) * (float)(nibble(b->q, k) - b->zero);
}

void ane_nbits8_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_n8 *b = src;
  for (uint64_t i = 0; i < n / 32; i++, b++, dst += 32)
    for (int k = 0; k < 32; k++) dst[k] = scale_at(b->d) * (float)(b->q[k] - b->zero);
}

void ane_nbits4_16_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_n4h *b = src;
  for (uint64_t i = 0; i < n / 32; i++, b++, dst += 32)
    for (int k = 0; k < 32; k++) dst[k] = scale_at(b->d + k / 16 * 4) * (float)(nibble(b->q, k) - 8);
}

void ane_nbits8_16_decode(const void *src, float *dst, uint64_t n) {
  const ane_block_n8h *b = src;
  for (uint64_t i = 0; i < n / 32; i++, b++, dst += 32)
    for (int k = 0; k < 32; k++) dst[k] = scale_at(b->d + k / 16 * 4) * (float)(b->q[k] - 128);
}
