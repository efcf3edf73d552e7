/* Reads packed units back in plain C, for the reference kernels. pack.c describes the layouts. */
#include "kernels/matmul_layouts.h"

#include "quant/quant.h"
#include "tensor/half.h"

#include <math.h>
#include <string.h>

/* Reads codes of 32 columns from their pieces. fifth: bit 4; two_bits: bits 4 and 5. Both may be NULL. */
static void read_nibbles(const uint8_t *low, const uint8_t *fifth, const uint8_t *two_bits, struct ane_block *out) {
  for (int c = 0; c < ANE_BLOCK; c++)
    for (int r = 0; r < ANE_GROUP; r++) {
      int v = c / 4, at = 4 * r + c % 4;
      int code = v < 4 ? low[64 * v + at] & 15 : low[64 * (v - 4) + at] >> 4;
      if (fifth) code |= (fifth[at] >> v & 1) << 4;
      if (two_bits) code |= (two_bits[64 * (v / 4) + at] >> 2 * (v % 4) & 3) << 4;
      out->code[c][r] = (uint8_t)code;
    }
}

/* Reads codes of 2 or 3 bits. third may be NULL. */
static void read_2_bits(const uint8_t *low_bits, const uint8_t *third, struct ane_block *out) {
  for (int c = 0; c < ANE_BLOCK; c++)
    for (int r = 0; r < ANE_GROUP; r++) {
      int v = c / 4, at = 4 * r + c % 4, code = low_bits[64 * (v / 4) + at] >> 2 * (v % 4) & 3;
      out->code[c][r] = (uint8_t)(third ? code | (third[at] >> v & 1) << 2 : code);
    }
}

static void read_codes(const uint8_t *codes, struct ane_block *out) {
  for (int c = 0; c < ANE_BLOCK; c++)
    for (int r = 0; r < ANE_GROUP; r++) out->code[c][r] = codes[64 * (c / 4) + 4 * r + c % 4];
}

/* Reads a number for each row, which `kind` stores at `p`; numbers of two levels are multiplied by the fp16 numbers at `unit`. */
static void read_numbers(enum layout_numbers kind, const uint8_t *unit, const uint8_t *p, float out[ANE_GROUP]) {
  for (int r = 0; r < ANE_GROUP; r++) switch (kind) {
      case LAYOUT_F16: out[r] = ane_f16_f32(ane_half(p + 2 * r)); break;
      case LAYOUT_F32: memcpy(&out[r], p + 4 * r, sizeof out[r]); break;
      case LAYOUT_F16_U8: out[r] = ane_f16_f32(ane_half(unit + 2 * r)) * (float)p[r]; break;
      case LAYOUT_F16_I8: out[r] = ane_f16_f32(ane_half(unit + 2 * r)) * (float)(int8_t)p[r]; break;
      case LAYOUT_F16_U4: out[r] = ane_f16_f32(ane_half(unit + 2 * r)) * (float)(p[r] & 15); break;
      case LAYOUT_UNIT: out[r] = ane_f16_f32(ane_half(unit + 2 * r)); break;
      case LAYOUT_E8M0: out[r] = ldexpf(1, p[r] - 128); break;
      default: out[r] = 1;
    }
}

/* Reads block b of a split layout: high nibbles at u, low nibbles after all groups. */
static void read_split(const struct ane_packed *w, int64_t g, int64_t b, const uint8_t *u, struct ane_block *out) {
  read_nibbles(u, NULL, NULL, out);
  for (int r = 0; r < ANE_GROUP; r++) {
    const uint8_t *low = ane_low_nibbles(w, g * ANE_GROUP + r, b);
    for (int c = 0; c < ANE_BLOCK; c++)
      out->code[c][r] = (uint8_t)(out->code[c][r] << 4 | (low[c % 16] >> (c < 16 ? 0 : 4) & 15));
  }
}

/* Replaces codes that are indices by their values, with 128 added. */
static void read_values(ane_layout f, const struct ane_code_values *k, struct ane_block *out) {
  for (int c = 0; c < ANE_BLOCK; c++)
    for (int r = 0; r < ANE_GROUP; r++) out->code[c][r] = (uint8_t)(k->value[out->code[c][r]] + 128);
  for (int half = 0; half < 2 && layout_is_k(f); half++)
    for (int r = 0; r < ANE_GROUP; r++) out->scale[half][r] *= k->factor;
}

void ane_read_block(const struct ane_packed *w, int64_t g, int64_t b, struct ane_block *out) {
  const ane_layout f = w->layout;
  const struct block_parts at = block_at(f, w->data + (size_t)g * w->group_bytes, b);
  const int bits = layout_bits(f);
  memset(out, 0, sizeof *out);
  if (layout_is_split(f))
    read_split(w, g, b, at.codes, out);
  else if (bits <= 3)
    read_2_bits(at.codes, bits == 3 ? at.codes + 128 : NULL, out);
  else if (bits == 8)
    read_codes(at.codes, out);
  else
    read_nibbles(at.codes, bits == 5 ? at.codes + 256 : NULL, bits == 6 ? at.codes + 256 : NULL, out);
  for (int half = 0; half < 2; half++)
    read_numbers(layout_scale(f), at.unit, at.scales + (layout_subs(f) == 2 ? half : 0) * numbers_bytes(layout_scale(f)),
                 out->scale[half]);
  if (layout_has_table(f)) read_values(f, ane_code_values(w->dtype), out);
  for (int half = 0; half < 2 && layout_has_sub_min(f); half++)
    for (int r = 0; r < ANE_GROUP; r++)
      out->sub_min[half][r] = ane_f16_f32(ane_half(at.unit + 32 + 2 * r)) * (float)(at.scales[16 * half + r] >> 4);
  if (layout_has_offset(f))
    for (int r = 0; r < ANE_GROUP; r++) {
      out->offset[r] = (float)(layout_zero(f) - at.minima[r]);
      out->min[r] = out->scale[0][r] * out->offset[r];
    }
  else if (layout_has_min(f))
    read_numbers(layout_min(f), at.unit + 32, at.minima, out->min);
}

static void read_rows(const struct ane_packed *w, int64_t g, int64_t k, int n, float *panel, float *tmp) {
  const struct ane_dtype_info *t = ane_dtype_info(w->dtype);
  ane_decode_fn decode = ane_decoder(w->dtype);
  int rows = ane_group_rows(w, g);
  const uint8_t *row = w->data + (size_t)(g * ANE_GROUP) * w->row_bytes + (size_t)(k / t->block) * t->bytes;
  for (int r = 0; r < rows; r++, row += w->row_bytes) decode(row, tmp + r * ANE_PANEL, (uint64_t)n);
  for (int j = 0; j < n; j++)
    for (int r = 0; r < ANE_GROUP; r++) panel[j * ANE_GROUP + r] = r < rows ? tmp[r * ANE_PANEL + j] : 0;
}

static void read_quantised(const struct ane_packed *w, int64_t g, int64_t k, int n, float *panel) {
  const struct ane_layout_info *f = ane_layout_info(w->layout);
  bool min = f->has_min && !layout_has_offset(w->layout), sub_min = layout_has_sub_min(w->layout);
  for (int j = 0; j < n; j += ANE_BLOCK) {
    struct ane_block b;
    ane_read_block(w, g, (k + j) / ANE_BLOCK, &b);
    if (w->layout == ANE_LAYOUT_I8) {
      memcpy(b.scale[0], w->row_scale + g * ANE_GROUP, sizeof b.scale[0]);
      memcpy(b.scale[1], b.scale[0], sizeof b.scale[1]);
    }
    for (int c = 0; c < ANE_MIN(n - j, ANE_BLOCK); c++)
      for (int r = 0; r < ANE_GROUP; r++) {
        float value = b.scale[c / 16][r] * ((float)(b.code[c][r] - f->zero) + b.offset[r]);
        panel[(j + c) * ANE_GROUP + r] = min ? value + b.min[r] : sub_min ? value + b.sub_min[c / 16][r] : value;
      }
  }
}

static void read_lut4(const struct ane_packed *w, int64_t g, int64_t k, int n, float *panel) {
  for (int j = 0; j < n; j += ANE_BLOCK) {
    struct ane_block b;
    read_nibbles(w->data + (size_t)g * w->group_bytes + (size_t)((k + j) / ANE_BLOCK) * 256, NULL, NULL, &b);
    for (int c = 0; c < ANE_MIN(n - j, ANE_BLOCK); c++)
      for (int r = 0; r < ANE_GROUP; r++) panel[(j + c) * ANE_GROUP + r] = w->lut[(2 * g + r / 8) * 16 + b.code[c][r]];
  }
}

void ane_read_panel(const struct ane_packed *w, int64_t g, int64_t k, int n, float *panel, float *tmp) {
  const uint8_t *data = w->data + (size_t)g * w->group_bytes;
  switch (w->layout) {
    case ANE_LAYOUT_ROWS: read_rows(w, g, k, n, panel, tmp); break;
    case ANE_LAYOUT_F32: memcpy(panel, data + 64 * (size_t)k, 64 * (size_t)n); break;
    case ANE_LAYOUT_F16:
      for (int i = 0; i < n * ANE_GROUP; i++) panel[i] = ane_f16_f32(ane_half(data + 32 * (size_t)k + 2 * i));
      break;
    case ANE_LAYOUT_BF16:
      for (int j = 0; j < n; j++)
        for (int r = 0; r < ANE_GROUP; r++)
          panel[j * ANE_GROUP + r] = ane_bf16_f32(ane_half(data + 64 * ((size_t)(k + j) / 2) + 4 * r + 2 * ((k + j) & 1)));
      break;
    case ANE_LAYOUT_LUT4: read_lut4(w, g, k, n, panel); break;
    default: read_quantised(w, g, k, n, panel);
  }
}
