/* Packed units read back in plain C: the base of the reference kernels. Layouts: pack.c. */
#include "kernels/kernels_internal.h"

#include "quant/quant.h"
#include "tensor/half.h"

#include <string.h>

/* Codes of 32 columns from their pieces; fifth or upper may be NULL. */
static void read_nibbles(const uint8_t *low, const uint8_t *fifth, const uint8_t *upper, struct ane_block *out) {
  for (int c = 0; c < ANE_BLOCK; c++)
    for (int r = 0; r < ANE_GROUP; r++) {
      int v = c / 4, at = 4 * r + c % 4;
      int code = v < 4 ? low[64 * v + at] & 15 : low[64 * (v - 4) + at] >> 4;
      if (fifth) code |= (fifth[at] >> v & 1) << 4;
      if (upper) code |= (upper[64 * (v / 4) + at] >> 2 * (v % 4) & 3) << 4;
      out->code[c][r] = (uint8_t)code;
    }
}

static void read_codes(const uint8_t *codes, struct ane_block *out) {
  for (int c = 0; c < ANE_BLOCK; c++)
    for (int r = 0; r < ANE_GROUP; r++) out->code[c][r] = codes[64 * (c / 4) + 4 * r + c % 4];
}

/* fp16 of each row at `halves` times that row's entry of `sub`, NULL: 1. */
static void read_scale(const uint8_t *halves, const uint8_t *sub, bool is_signed, float out[ANE_GROUP]) {
  for (int r = 0; r < ANE_GROUP; r++) {
    int factor = !sub ? 1 : is_signed ? (int8_t)sub[r] : sub[r];
    out[r] = ane_f16_f32(ane_half(halves + 2 * r)) * (float)factor;
  }
}

static void read_legacy(const uint8_t *u, const uint8_t *fifth, const uint8_t *scale, const uint8_t *min, struct ane_block *out) {
  read_nibbles(u, fifth, NULL, out);
  read_scale(scale, NULL, false, out->scale[0]);
  if (min) read_scale(min, NULL, false, out->min);
}

static void read_halves(const struct ane_packed *w, int64_t g, int64_t b, const uint8_t *u, struct ane_block *out) {
  const uint8_t *low = w->low_nibbles + g * ANE_GROUP * (w->cols / 2) + 16 * b;
  read_nibbles(u, NULL, NULL, out);
  for (int c = 0; c < ANE_BLOCK; c++)
    for (int r = 0; r < ANE_GROUP; r++)
      out->code[c][r] = (uint8_t)(out->code[c][r] << 4 | (low[r * (w->cols / 2) + c % 16] >> (c < 16 ? 0 : 4) & 15));
  read_scale(u + 256, NULL, false, out->scale[0]);
}

/* N layouts: `bytes` of codes, then scales, then the others or zero points. */
static void read_nbits(const uint8_t *u, size_t bytes, bool halves, const struct ane_layout_info *f, struct ane_block *out) {
  if (bytes == 256)
    read_nibbles(u, NULL, NULL, out);
  else
    read_codes(u, out);
  memcpy(out->scale[0], u + bytes, sizeof out->scale[0]);
  memcpy(out->scale[1], u + bytes + (halves ? 64 : 0), sizeof out->scale[1]);
  for (int r = 0; r < ANE_GROUP && !halves; r++) {
    out->offset[r] = (float)(f->zero - u[bytes + 64 + (size_t)r]);
    out->min[r] = out->scale[0][r] * out->offset[r];
  }
}

void ane_read_block(const struct ane_packed *w, int64_t g, int64_t b, struct ane_block *out) {
  const struct ane_layout_info *f = ane_layout_info(w->layout);
  int64_t per_unit = f->unit / ANE_BLOCK;
  const uint8_t *u = w->data + (size_t)g * w->group_bytes + (size_t)(b / per_unit) * f->bytes;
  size_t s = (size_t)(b % per_unit);
  memset(out->min, 0, sizeof out->min);
  memset(out->offset, 0, sizeof out->offset);
  switch (w->layout) {
    case ANE_LAYOUT_Q4_0: read_legacy(u, NULL, u + 256, NULL, out); break;
    case ANE_LAYOUT_Q4_1: read_legacy(u, NULL, u + 256, u + 288, out); break;
    case ANE_LAYOUT_Q5_0: read_legacy(u, u + 256, u + 320, NULL, out); break;
    case ANE_LAYOUT_Q5_1: read_legacy(u, u + 256, u + 320, u + 352, out); break;
    case ANE_LAYOUT_Q8_0:
      read_codes(u, out);
      read_scale(u + 512, NULL, false, out->scale[0]);
      break;
    case ANE_LAYOUT_Q8_0_SPLIT: read_halves(w, g, b, u, out); break;
    case ANE_LAYOUT_I8:
      read_codes(u, out);
      for (int r = 0; r < ANE_GROUP; r++) out->scale[0][r] = 1;
      break;
    case ANE_LAYOUT_Q4_K:
    case ANE_LAYOUT_Q5_K: {
      const uint8_t *low = u + 320 + (w->layout == ANE_LAYOUT_Q5_K ? 320 : 256) * s;
      read_nibbles(low, w->layout == ANE_LAYOUT_Q5_K ? low + 256 : NULL, NULL, out);
      read_scale(u, u + 64 + 32 * s, false, out->scale[0]);
      read_scale(u + 32, u + 80 + 32 * s, false, out->min);
      break;
    }
    case ANE_LAYOUT_Q6_K:
      read_nibbles(u + 288 + 384 * s, NULL, u + 288 + 384 * s + 256, out);
      read_scale(u, u + 32 + 32 * s, true, out->scale[0]);
      read_scale(u, u + 48 + 32 * s, true, out->scale[1]);
      return;
    case ANE_LAYOUT_N4: read_nbits(u, 256, false, f, out); return;
    case ANE_LAYOUT_N8: read_nbits(u, 512, false, f, out); return;
    case ANE_LAYOUT_N4H: read_nbits(u, 256, true, f, out); return;
    case ANE_LAYOUT_N8H: read_nbits(u, 512, true, f, out); return;
    default: memset(out, 0, sizeof *out);
  }
  memcpy(out->scale[1], out->scale[0], sizeof out->scale[1]);
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
  bool min = f->has_min && w->layout != ANE_LAYOUT_N4 && w->layout != ANE_LAYOUT_N8;
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
        panel[(j + c) * ANE_GROUP + r] = min ? value + b.min[r] : value;
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
