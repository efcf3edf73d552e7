/* Weights of a scheme in blocks of GGUF types that hold the same numbers. */
#include "quant/blocks.h"
#include "quant/weight_schemes.h"

#include "tensor/half.h"

#include <string.h>

ane_dtype ane_weight_container(struct ane_weight_spec s, int64_t cols) {
  bool blocks = cols % ANE_QK == 0;
  switch (s.scheme) {
    case ANE_WEIGHT_INT8:
    case ANE_WEIGHT_INT8_CHANNEL:
    case ANE_WEIGHT_INT8_BLOCK: return blocks ? ANE_Q8_0 : ANE_F32;
    case ANE_WEIGHT_INT4_BLOCK: return blocks ? ANE_Q4_0 : ANE_F32;
    case ANE_WEIGHT_UINT4_BLOCK: return blocks ? ANE_Q4_1 : ANE_F32;
    case ANE_WEIGHT_FP16:
    case ANE_WEIGHT_LUT: break;
  }
  return ANE_F16;
}

/* Codes and scales of INT8* as Q8_0. size: columns per scale. */
static void q8_row(const uint8_t *codes, const uint16_t *scales, int64_t size, int64_t cols, ane_block_q8_0 *b) {
  for (int64_t c = 0; c < cols; c += ANE_QK, b++) {
    b->d = scales[c / size];
    memcpy(b->qs, codes + c, ANE_QK);
  }
}

/* Codes -8 .. 7 of INT4_BLOCK as Q4_0, whose nibbles are 0 .. 15. size: columns per scale. */
static void q4_row(const uint8_t *codes, const uint16_t *scales, int64_t size, int64_t cols, ane_block_q4_0 *b) {
  for (int64_t c = 0; c < cols; c += ANE_QK, b++) {
    b->d = scales[c / size];
    for (int l = 0; l < 16; l++) b->qs[l] = (uint8_t)(((codes[c + l] + 8) & 15) | ((codes[c + l + 16] + 8) & 15) << 4);
  }
}

uint16_t ane_weight_minimum(uint16_t scale, uint16_t offset) { return ane_f32_f16(0 - ane_f16_f32(scale) * ane_f16_f32(offset)); }

/* Codes 0 .. 15 of UINT4_BLOCK as Q4_1. */
static void q4_1_row(const uint8_t *codes, const uint16_t *scales, const uint16_t *offsets, int64_t cols, ane_block_q4_1 *b) {
  for (int64_t c = 0; c < cols; c += ANE_QK, b++) {
    b->d = scales[c / ANE_QK], b->m = ane_weight_minimum(scales[c / ANE_QK], offsets[c / ANE_QK]);
    for (int l = 0; l < 16; l++) b->qs[l] = (uint8_t)(codes[c + l] | codes[c + l + 16] << 4);
  }
}

void ane_weight_contain_row(const struct ane_weight_spec *s, const struct ane_weight_tile *tile, int row, int64_t cols,
                            ane_dtype t, void *dst) {
  const int64_t size = ane_weight_has_blocks(*s) ? s->size : cols, first = row * (cols / size);
  const uint8_t *codes = tile->codes + row * cols;
  if (t == ANE_Q8_0)
    q8_row(codes, tile->scales + first, size, cols, dst);
  else if (t == ANE_Q4_0)
    q4_row(codes, tile->scales + first, size, cols, dst);
  else
    q4_1_row(codes, tile->scales + first, tile->offsets + first, cols, dst);
}

void ane_weight_tile_contain(const struct ane_weight_fit *fit, const struct ane_weight_tile *tile, int n, int64_t cols,
                             float *values, void *dst, size_t stride) {
  struct ane_weight_spec s = fit->spec;
  ane_dtype t = ane_weight_container(s, cols);
  uint8_t *to = dst;
  ane_weight_decode_tile(fit, tile, n, cols, values);
  for (int r = 0; r < n; r++, to += stride) {
    if (t == ANE_Q8_0 || t == ANE_Q4_0 || t == ANE_Q4_1)
      ane_weight_contain_row(&s, tile, r, cols, t, to);
    else
      ane_encoder(t)(values + r * cols, to, (uint64_t)cols);
  }
}
