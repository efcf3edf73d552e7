/* Unpacks blocks of 32 columns to vectors, for one vector of rows at a time. A template: include the lanes first.
 *
 * Rows are counted in vectors: vector vc holds rows [LANES vc, LANES (vc + 1)), a part of group vc / PARTS. Layouts are
 * constants wherever these functions are inlined, so the compiler removes every switch (matmul_layouts.h). */
#ifndef ANE_KERNELS_X86_MATMUL_UNPACK_H
#define ANE_KERNELS_X86_MATMUL_UNPACK_H

#include "kernels/x86/matmul_prefetch.h"
#include "quant/quant.h"

enum { PARTS = ANE_GROUP / LANES };

/* Returns log2 of the zero of unsigned codes. */
INLINE int zero_shift(ane_layout f) { return layout_zero(f) ? __builtin_ctz((unsigned)layout_zero(f)) : 0; }
/* Returns whether the dot needs a correction by the sum of q. */
INLINE bool has_zero(ane_layout f) { return layout_zero(f) && !(SIGNED_BYTES && layout_width(f) == 8); }

/* Prefetches all lines of the block that is PREFETCH_BYTES after block b. far: to the second level cache. */
INLINE void prefetch_block(ane_layout f, const struct ane_packed *w, const uint8_t *group, int groups, int64_t b, bool far) {
  const size_t at = (size_t)b * (size_t)block_bytes(f);
  const int lines = (block_bytes(f) + 63) / 64;
  if (far)
    prefetch_packed_far(group, w->group_bytes, groups, at, lines);
  else
    prefetch_packed(group, w->group_bytes, groups, at, lines);
}

/* For layouts with a table: the values that codes index (bytes, signed or with 128 added), and the factor of the scales. */
struct code_table {
  vi values;
  vf factor;
};
INLINE struct code_table code_table(ane_layout f, const struct ane_packed *w, bool make_signed) {
  if (!layout_has_table(f)) return (struct code_table){vi_zero(), v_set(0)};
  const struct ane_code_values *k = ane_code_values(w->dtype);
  return (struct code_table){vi_xor(vi_table(k->value), vi_byte(make_signed ? 0 : 0x80)), v_set(k->factor)};
}

/* Unpacks codes of 2 or 3 bits. */
INLINE void unpack_2_bits(ane_layout f, const uint8_t *p, vi c[8]) {
  const vi two_bits = vi_byte(0x03), third = vi_byte(0x04);
#pragma GCC unroll 2
  for (int half = 0; half < 2; half++) {
    vi x = vi_load(p + 64 * half), *to = c + 4 * half;
    to[0] = vi_and(x, two_bits);
    to[1] = vi_and(vi_shr(x, 2), two_bits);
    to[2] = vi_and(vi_shr(x, 4), two_bits);
    to[3] = vi_and(vi_shr(x, 6), two_bits);
  }
  if (layout_bits(f) == 2) return;
  vi h = vi_load(p + 128); /* bit v to bit 2 */
  c[0] = vi_or_and(c[0], vi_shl(h, 2), third);
  c[1] = vi_or_and(c[1], vi_shl(h, 1), third);
  c[2] = vi_or_and(c[2], h, third);
  c[3] = vi_or_and(c[3], vi_shr(h, 1), third);
  c[4] = vi_or_and(c[4], vi_shr(h, 2), third);
  c[5] = vi_or_and(c[5], vi_shr(h, 3), third);
  c[6] = vi_or_and(c[6], vi_shr(h, 4), third);
  c[7] = vi_or_and(c[7], vi_shr(h, 5), third);
}

/* Unpacks the eight planes of a block, without applying a table. part: index of the vector in the group. */
INLINE void unpack_codes(ane_layout f, const uint8_t *p, int part, bool make_signed, vi c[8]) {
  const vi nibble = vi_byte(0x0F), fifth = vi_byte(0x10), two_bits = vi_byte(0x30);
  p += part * LANES * 4;
  if (layout_bits(f) <= 3) {
    unpack_2_bits(f, p, c);
    return;
  }
  if (layout_bits(f) == 8) {
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) c[v] = make_signed ? vi_xor(vi_load(p + 64 * v), vi_byte(0x80)) : vi_load(p + 64 * v);
    return;
  }
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) {
    vi x = vi_load(p + 64 * v);
    c[v] = vi_and(x, nibble);
    c[v + 4] = vi_and(vi_shr(x, 4), nibble);
  }
  if (layout_bits(f) == 5) { /* moves bit v to bit 4; a 16-bit shift moves no bit of the other byte there */
    vi h = vi_load(p + 256);
    c[0] = vi_or_and(c[0], vi_shl(h, 4), fifth);
    c[1] = vi_or_and(c[1], vi_shl(h, 3), fifth);
    c[2] = vi_or_and(c[2], vi_shl(h, 2), fifth);
    c[3] = vi_or_and(c[3], vi_shl(h, 1), fifth);
    c[4] = vi_or_and(c[4], h, fifth);
    c[5] = vi_or_and(c[5], vi_shr(h, 1), fifth);
    c[6] = vi_or_and(c[6], vi_shr(h, 2), fifth);
    c[7] = vi_or_and(c[7], vi_shr(h, 3), fifth);
  }
  if (layout_bits(f) == 6) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      vi h = vi_load(p + 256 + 64 * half);
      vi *to = c + 4 * half;
      to[0] = vi_or_and(to[0], vi_shl(h, 4), two_bits);
      to[1] = vi_or_and(to[1], vi_shl(h, 2), two_bits);
      to[2] = vi_or_and(to[2], h, two_bits);
      to[3] = vi_or_and(to[3], vi_shr(h, 2), two_bits);
    }
  }
}

/* Unpacks the eight planes of block b of group g. codes: the block's codes (block_at). Codes of a layout with a table become its
 * values. */
INLINE void unpack_block(ane_layout f, const struct ane_packed *w, int64_t g, int64_t b, const uint8_t *codes, int part,
                         bool make_signed, struct code_table table, vi c[8]) {
  if (!layout_is_split(f)) {
    unpack_codes(f, codes, part, make_signed, c);
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++)
      if (layout_has_table(f)) c[v] = vi_lookup(table.values, c[v]);
    return;
  }
  const vi nibble = vi_byte(0x0F), above = vi_byte(0xF0), flip = vi_byte(make_signed ? 0x80 : 0);
  const size_t stride = ane_low_stride(w->cols, b);
  vi l[4];
  if (part == 0) prefetch_low(w->low_nibbles + g * ANE_GROUP * (w->cols / 2) + b * ANE_GROUP * 16);
  vi_rows(ane_low_nibbles(w, g * ANE_GROUP, b) + (size_t)part * LANES * stride, stride, l);
#pragma GCC unroll 4
  for (int v = 0; v < 4; v++) {
    vi u = vi_load(codes + part * LANES * 4 + 64 * v);
    c[v] = vi_or_and(vi_and(l[v], nibble), vi_shl(u, 4), above);
    c[v + 4] = vi_or_and(vi_and(vi_shr(l[v], 4), nibble), u, above);
    if (make_signed) c[v] = vi_xor(c[v], flip), c[v + 4] = vi_xor(c[v + 4], flip);
  }
}

/* Returns the scales of half `half` of the columns; 1 if the layout has none. */
INLINE vf unpack_scale(ane_layout f, struct block_parts a, struct code_table table, int part, int half) {
  const uint8_t *p = a.scales + (layout_subs(f) == 2 ? half : 0) * numbers_bytes(layout_scale(f));
  vf unit = layout_is_k(f) ? v_load_f16(a.unit + part * LANES * 2) : v_set(0);
  if (layout_is_k(f) && layout_has_table(f)) unit = v_mul(unit, table.factor);
  switch (layout_scale(f)) {
    case LAYOUT_F16: return v_load_f16(p + part * LANES * 2);
    case LAYOUT_F32: return v_load((const float *)(const void *)(p + part * LANES * 4));
    case LAYOUT_F16_U8: return v_mul(unit, v_load_u8(p + part * LANES));
    case LAYOUT_F16_I8: return v_mul(unit, v_load_i8(p + part * LANES));
    case LAYOUT_F16_U4: return v_mul(unit, v_load_low(p + part * LANES));
    case LAYOUT_UNIT: return unit;
    case LAYOUT_E8M0: return v_load_e8m0(p + part * LANES);
    default: return v_set(1);
  }
}

/* Returns zero - zero point of each row: integers as floats. */
INLINE vf unpack_offset(ane_layout f, struct block_parts a, int part) {
  return v_fma(v_load_u8(a.minima + part * LANES), v_set(-1), v_set((float)layout_zero(f)));
}

INLINE vf unpack_min(ane_layout f, struct block_parts a, int part) {
  switch (layout_min(f)) {
    case LAYOUT_POINT:
      return v_mul(v_load((const float *)(const void *)(a.scales + part * LANES * 4)), unpack_offset(f, a, part));
    case LAYOUT_F16: return v_load_f16(a.minima + part * LANES * 2);
    default: return v_mul(v_load_f16(a.unit + 32 + part * LANES * 2), v_load_u8(a.minima + part * LANES));
  }
}

/* Returns the minima of half `half` of the columns. */
INLINE vf unpack_sub_min(struct block_parts a, int part, int half) {
  return v_mul(v_load_f16(a.unit + 32 + part * LANES * 2), v_load_high(a.scales + 16 * half + part * LANES));
}

/* Returns the number of 16-bit products that may be added without overflow, by code width: 15 * 127 * 2 * 8, 31 * 127 * 2 * 4 and
 * 63 * 127 * 2 * 2 are below 32768. Products of bytes are not added. */
INLINE int layout_run(ane_layout f) {
  switch (layout_width(f)) {
    case 2:
    case 3:
    case 4: return 8 / layout_subs(f);
    case 5: return 4;
    case 6: return 2;
    default: return 1;
  }
}

#endif
