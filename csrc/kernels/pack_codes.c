/* Repacks types with codes of at most four bits. quant/codes.c reads them; the columns of layout.def determine where the parts
 * go. */
#include "kernels/matmul_layouts.h"

#include "quant/quant.h"

/* Writes the codes of a row's 32 columns to their planes. to: the row's word in the first plane. */
static void put_codes(int bits, const uint8_t *code, uint8_t *to) {
  if (bits == 4) {
    for (int p = 0; p < 4; p++) ane_put_word(to + 64 * p, ane_word(code + 4 * p) | ane_word(code + 16 + 4 * p) << 4);
    return;
  }
  uint32_t third = 0;
  for (int h = 0; h < 2; h++) {
    uint32_t word = 0;
    for (int k = 0; k < 4; k++) {
      const uint32_t four = ane_word(code + 16 * h + 4 * k);
      word |= (four & 0x03030303) << 2 * k;
      third |= (four >> 2 & 0x01010101) << (4 * h + k);
    }
    ane_put_word(to + 64 * h, word);
  }
  if (bits == 3) ane_put_word(to + 128, third);
}

/* Writes the scales of row r of a block, and with the first block of a unit those of the unit. */
static void put_scales(ane_layout f, const struct ane_codes *c, int r, bool first, uint8_t *unit, uint8_t *scales) {
  if (layout_is_k(f) && first) {
    ane_put_half(unit + 2 * r, c->d[0]);
    if (layout_has_sub_min(f)) ane_put_half(unit + 32 + 2 * r, c->min ^ 0x8000);
  }
  for (int half = 0; half < layout_subs(f); half++) switch (layout_scale(f)) {
      case LAYOUT_F16: ane_put_half(scales + 32 * half + 2 * r, c->d[half]); break;
      case LAYOUT_E8M0: scales[r] = (uint8_t)c->d[0]; break;
      case LAYOUT_UNIT: break;
      default: scales[16 * half + r] = (uint8_t)c->sub[half];
    }
}

void ane_pack_codes(ane_layout f, ane_dtype t, const uint8_t *rows, size_t stride, int n_rows, int64_t cols, uint8_t *dst) {
  const struct ane_dtype_info *info = ane_dtype_info(t);
  const ane_codes_fn read = ane_codes_reader(t);
  const int64_t per_block = info->block / ANE_BLOCK;
  for (int64_t b = 0; b < cols / ANE_BLOCK; b++) {
    const struct block_parts at = block_at(f, dst, b);
    const size_t to_codes = (size_t)(at.codes - dst), to_scales = (size_t)(at.scales - dst), to_unit = (size_t)(at.unit - dst);
    for (int r = 0; r < n_rows; r++) {
      struct ane_codes c;
      read(rows + (size_t)r * stride + (size_t)(b / per_block) * info->bytes, (int)(b % per_block), &c);
      put_codes(layout_bits(f), c.code, dst + to_codes + 4 * r);
      put_scales(f, &c, r, b % per_block == 0, dst + to_unit, dst + to_scales);
    }
  }
}
