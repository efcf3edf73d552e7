/* Unpacks blocks of 32 columns to NEON vectors. A group of 16 rows has four parts of 4 rows. Byte 4 r + i of a part's plane is
 * row r and column i of the plane's four. pack.c describes the layouts. */
#ifndef ANE_KERNELS_ARM_MATMUL_UNPACK_H
#define ANE_KERNELS_ARM_MATMUL_UNPACK_H

#include "kernels/matmul_layouts.h"
#include "kernels/vec/vec_neon.h"
#include "quant/quant.h"

enum { LANES = VL, PARTS = ANE_GROUP / LANES };

/* ---- Memory ------------------------------------------------------------------------------------------------------*/

/* Load four numbers as floats: fp16, unsigned bytes, signed bytes. */
INLINE float32x4_t load_half(const uint8_t *p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
INLINE uint32x4_t load_bytes(const uint8_t *p) { return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(ane_word(p))))); }
INLINE float32x4_t load_u8(const uint8_t *p) { return vcvtq_f32_u32(load_bytes(p)); }
INLINE float32x4_t load_s8(const uint8_t *p) { return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(ane_word(p)))))); }

/* Returns 2^(byte - 128) for four bytes. Bytes 0 and 1 give subnormal numbers (`subnormal`). */
INLINE float32x4_t load_e8m0(const uint8_t *p) {
  const int32x4_t e = vreinterpretq_s32_u32(load_bytes(p));
  const int32x4_t normal = vshlq_n_s32(vsubq_s32(e, vdupq_n_s32(1)), 23),
                  subnormal = vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(1)), 21);
  return vreinterpretq_f32_s32(vmaxq_s32(normal, subnormal));
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------*/

/* Returns the zero of unpacked codes. Codes of 8 bits are signed after unpacking, so theirs is 0. */
INLINE int zero_left(ane_layout f) { return layout_width(f) == 8 ? 0 : layout_zero(f); }

/* Returns c with the bits of h that mask selects. */
INLINE uint8x16_t with_bits(uint8x16_t c, uint8x16_t h, uint8x16_t mask) { return vbslq_u8(mask, h, c); }

/* For layouts with a table: the values that codes index, and the factor of the scales. */
struct code_table {
  int8x16_t values;
  float factor;
};
INLINE struct code_table code_table(ane_layout f, const struct ane_packed *w) {
  if (!layout_has_table(f)) return (struct code_table){vdupq_n_s8(0), 0};
  const struct ane_code_values *k = ane_code_values(w->dtype);
  return (struct code_table){vld1q_s8(k->value), k->factor};
}

/* Unpacks codes of 2 or 3 bits. p: the part's codes. */
INLINE void unpack_2_bits(ane_layout f, const uint8_t *p, uint8x16_t c[8]) {
  const uint8x16_t two_bits = vdupq_n_u8(3), third = vdupq_n_u8(4);
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    const uint8x16_t x = vld1q_u8(p + 64 * half);
    uint8x16_t *to = c + 4 * half;
    to[0] = vandq_u8(x, two_bits);
    to[1] = vandq_u8(vshrq_n_u8(x, 2), two_bits);
    to[2] = vandq_u8(vshrq_n_u8(x, 4), two_bits);
    to[3] = vshrq_n_u8(x, 6);
  }
  if (layout_bits(f) == 2) return;
  const uint8x16_t h = vld1q_u8(p + 128); /* bit v becomes bit 2 */
  c[0] = with_bits(c[0], vshlq_n_u8(h, 2), third);
  c[1] = with_bits(c[1], vshlq_n_u8(h, 1), third);
  c[2] = with_bits(c[2], h, third);
  c[3] = with_bits(c[3], vshrq_n_u8(h, 1), third);
  c[4] = with_bits(c[4], vshrq_n_u8(h, 2), third);
  c[5] = with_bits(c[5], vshrq_n_u8(h, 3), third);
  c[6] = with_bits(c[6], vshrq_n_u8(h, 4), third);
  c[7] = with_bits(c[7], vshrq_n_u8(h, 5), third);
}

/* Unpacks the eight planes of part `part` of the block whose codes are at p. Codes of 8 bits become signed; the others stay
 * unsigned, 0 .. 63. */
INLINE void unpack_codes(ane_layout f, const uint8_t *p, int part, int8x16_t code[8]) {
  uint8x16_t c[8];
  p += 16 * part;
  if (layout_bits(f) <= 3) {
    unpack_2_bits(f, p, c);
  } else if (layout_bits(f) == 8) {
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) c[v] = veorq_u8(vld1q_u8(p + 64 * v), vdupq_n_u8(0x80));
  } else {
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
      uint8x16_t x = vld1q_u8(p + 64 * v);
      c[v] = vandq_u8(x, vdupq_n_u8(0x0F));
      c[v + 4] = vshrq_n_u8(x, 4);
    }
  }
  if (layout_bits(f) == 5) { /* bit v becomes bit 4 */
    const uint8x16_t h = vld1q_u8(p + 256), bit = vdupq_n_u8(0x10);
    c[0] = with_bits(c[0], vshlq_n_u8(h, 4), bit);
    c[1] = with_bits(c[1], vshlq_n_u8(h, 3), bit);
    c[2] = with_bits(c[2], vshlq_n_u8(h, 2), bit);
    c[3] = with_bits(c[3], vshlq_n_u8(h, 1), bit);
    c[4] = with_bits(c[4], h, bit);
    c[5] = with_bits(c[5], vshrq_n_u8(h, 1), bit);
    c[6] = with_bits(c[6], vshrq_n_u8(h, 2), bit);
    c[7] = with_bits(c[7], vshrq_n_u8(h, 3), bit);
  }
  if (layout_bits(f) == 6) { /* bits 2k, 2k + 1 become bits 4, 5 */
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const uint8x16_t h = vld1q_u8(p + 256 + 64 * half), bits = vdupq_n_u8(0x30);
      uint8x16_t *to = c + 4 * half;
      to[0] = with_bits(to[0], vshlq_n_u8(h, 4), bits);
      to[1] = with_bits(to[1], vshlq_n_u8(h, 2), bits);
      to[2] = with_bits(to[2], h, bits);
      to[3] = with_bits(to[3], vshrq_n_u8(h, 2), bits);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < 8; v++) code[v] = vreinterpretq_s8_u8(c[v]);
}

/* Loads four rows of 16 bytes, `stride` bytes apart. out[v]: bytes 4v .. 4v + 3 of each row. */
INLINE void load_rows(const uint8_t *p, size_t stride, uint8x16_t out[4]) {
  uint32x4_t a[4];
#pragma GCC unroll 4
  for (size_t r = 0; r < 4; r++) a[r] = vreinterpretq_u32_u8(vld1q_u8(p + r * stride));
  const uint64x2_t b = vreinterpretq_u64_u32(vtrn1q_u32(a[0], a[1])), c = vreinterpretq_u64_u32(vtrn1q_u32(a[2], a[3]));
  const uint64x2_t d = vreinterpretq_u64_u32(vtrn2q_u32(a[0], a[1])), e = vreinterpretq_u64_u32(vtrn2q_u32(a[2], a[3]));
  out[0] = vreinterpretq_u8_u64(vtrn1q_u64(b, c));
  out[1] = vreinterpretq_u8_u64(vtrn1q_u64(d, e));
  out[2] = vreinterpretq_u8_u64(vtrn2q_u64(b, c));
  out[3] = vreinterpretq_u8_u64(vtrn2q_u64(d, e));
}

/* Unpacks the eight planes of part `part` of block b of group g. codes: the block's codes (block_at). Codes of a layout with a
 * table become its values. */
INLINE void unpack_block(ane_layout f, const struct ane_packed *w, int64_t g, int64_t b, const uint8_t *codes, int part,
                         struct code_table table, int8x16_t code[8]) {
  if (!layout_is_split(f)) {
    unpack_codes(f, codes, part, code);
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++)
      if (layout_has_table(f)) code[v] = vqtbl1q_s8(table.values, vreinterpretq_u8_s8(code[v]));
    return;
  }
  const uint8x16_t flip = vdupq_n_u8(0x80);
  uint8x16_t low[4];
  load_rows(ane_low_nibbles(w, g * ANE_GROUP + part * LANES, b), ane_low_stride(w->cols, b), low);
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) { /* shift and insert keeps the other four bits */
    const uint8x16_t high = vld1q_u8(codes + 64 * v + 16 * part);
    code[v] = vreinterpretq_s8_u8(veorq_u8(vsliq_n_u8(low[v], high, 4), flip));
    code[v + 4] = vreinterpretq_s8_u8(veorq_u8(vsriq_n_u8(high, low[v], 4), flip));
  }
}

/* Returns the scales of half `half` of the columns of four rows; 1 where the layout has none. */
INLINE float32x4_t unpack_scale(ane_layout f, struct block_parts a, struct code_table table, int part, int half) {
  const uint8_t *p = a.scales + (layout_subs(f) == 2 ? half : 0) * numbers_bytes(layout_scale(f));
  float32x4_t unit = layout_is_k(f) ? load_half(a.unit + 8 * part) : vdupq_n_f32(0);
  if (layout_is_k(f) && layout_has_table(f)) unit = vmulq_n_f32(unit, table.factor);
  switch (layout_scale(f)) {
    case LAYOUT_F16: return load_half(p + 8 * part);
    case LAYOUT_F32: return vreinterpretq_f32_u8(vld1q_u8(p + 16 * part));
    case LAYOUT_F16_U8: return vmulq_f32(unit, load_u8(p + 4 * part));
    case LAYOUT_F16_I8: return vmulq_f32(unit, load_s8(p + 4 * part));
    case LAYOUT_F16_U4: return vmulq_f32(unit, vcvtq_f32_u32(vandq_u32(load_bytes(p + 4 * part), vdupq_n_u32(15))));
    case LAYOUT_UNIT: return unit;
    case LAYOUT_E8M0: return load_e8m0(p + 4 * part);
    default: return vdupq_n_f32(1);
  }
}

/* Returns zero - zero point of four rows: integers as floats. */
INLINE float32x4_t unpack_offset(ane_layout f, struct block_parts a, int part) {
  return vsubq_f32(vdupq_n_f32((float)layout_zero(f)), load_u8(a.minima + 4 * part));
}

/* Returns the minima of the block for four rows. */
INLINE float32x4_t unpack_min(ane_layout f, struct block_parts a, int part) {
  switch (layout_min(f)) {
    case LAYOUT_POINT: return vmulq_f32(vreinterpretq_f32_u8(vld1q_u8(a.scales + 16 * part)), unpack_offset(f, a, part));
    case LAYOUT_F16: return load_half(a.minima + 8 * part);
    default: return vmulq_f32(load_half(a.unit + 32 + 8 * part), load_u8(a.minima + 4 * part));
  }
}

/* Returns the minima of half `half` of the columns of four rows. */
INLINE float32x4_t unpack_sub_min(struct block_parts a, int part, int half) {
  const uint32x4_t high = vshrq_n_u32(load_bytes(a.scales + 16 * half + 4 * part), 4);
  return vmulq_f32(load_half(a.unit + 32 + 8 * part), vcvtq_f32_u32(high));
}

#endif
