/* The properties of a quantised layout for the matrix kernels: the columns of layout.def, and the offsets of the parts of a block
 * (see pack.c). They are functions that the compiler evaluates, because a layout is a constant wherever a kernel is inlined.
 *
 * Blocks are 32 columns of a group of 16 rows. A unit of 32 columns is: codes, scales, minima. A unit of 256 columns is: fp16
 * scales, fp16 minima (where there are any), for each block the integers of its scales and then of its minima, for each block its
 * codes. Minima of each 16 columns are nibbles above those of the scales. */
#ifndef ANE_KERNELS_MATMUL_LAYOUTS_H
#define ANE_KERNELS_MATMUL_LAYOUTS_H

#include "kernels/kernels_internal.h"

#define INLINE static inline __attribute__((always_inline))

enum layout_numbers {
  LAYOUT_NONE,
  LAYOUT_F16,
  LAYOUT_F32,
  LAYOUT_E8M0,
  LAYOUT_UNIT,
  LAYOUT_F16_U8,
  LAYOUT_F16_I8,
  LAYOUT_F16_U4,
  LAYOUT_POINT,
  LAYOUT_NORM,
};

struct layout_columns {
  int unit, bits, table, zero, subs;
  enum layout_numbers scale, min;
};
INLINE struct layout_columns layout_columns(ane_layout f) {
  switch (f) {
#define ANE_LAYOUT(id, name, unit, bits, table, zero, subs, scale, min, int8)                                                    \
  case ANE_LAYOUT_##id:                                                                                                          \
    return (struct layout_columns){unit, bits, table, zero, subs, LAYOUT_##scale, LAYOUT_##min};
#include "kernels/layout.def"
#undef ANE_LAYOUT
    default: return (struct layout_columns){0};
  }
}

INLINE int layout_bits(ane_layout f) { return layout_columns(f).bits; }
INLINE bool layout_has_table(ane_layout f) { return layout_columns(f).table; }
/* Bits of an unpacked code. A layout with a table has bytes. */
INLINE int layout_width(ane_layout f) { return layout_has_table(f) ? 8 : layout_bits(f); }
INLINE int layout_zero(ane_layout f) { return layout_columns(f).zero; }
INLINE int layout_subs(ane_layout f) { return layout_columns(f).subs; }
INLINE enum layout_numbers layout_scale(ane_layout f) { return layout_columns(f).scale; }
INLINE enum layout_numbers layout_min(ane_layout f) { return layout_columns(f).min; }
/* Whether each block has a zero point of its own. Then the minimum is scale * (zero - zero point). */
INLINE bool layout_has_offset(ane_layout f) { return layout_min(f) == LAYOUT_POINT; }
/* Whether each block has a minimum. */
INLINE bool layout_has_min(ane_layout f) {
  return layout_min(f) == LAYOUT_F16 || layout_min(f) == LAYOUT_F16_U8 || layout_min(f) == LAYOUT_POINT;
}
/* Whether each 16 columns have a minimum. */
INLINE bool layout_has_sub_min(ane_layout f) { return layout_min(f) == LAYOUT_F16_U4; }
INLINE bool layout_is_split(ane_layout f) { return layout_min(f) == LAYOUT_NORM; }
/* Whether units are 256 columns, with scales of two levels. */
INLINE bool layout_is_k(ane_layout f) { return layout_columns(f).unit == 256; }

/* Bytes of one number for each of 16 rows; with scales of two levels, those of the integer. */
INLINE int numbers_bytes(enum layout_numbers kind) {
  switch (kind) {
    case LAYOUT_NONE:
    case LAYOUT_UNIT: return 0;
    case LAYOUT_F16: return 32;
    case LAYOUT_F32: return 64;
    default: return 16;
  }
}
/* Bytes of the codes of a block; a split layout has half of them here. */
INLINE int code_bytes(ane_layout f) { return layout_is_split(f) ? 256 : 64 * layout_bits(f); }
/* Bytes of a block's scales and minima, without those of the unit. */
INLINE int scale_bytes(ane_layout f) { return layout_subs(f) * numbers_bytes(layout_scale(f)); }
INLINE int min_bytes(ane_layout f) { return layout_has_sub_min(f) ? 0 : numbers_bytes(layout_min(f)); }
/* Bytes of a unit's fp16 numbers. */
INLINE int head_bytes(ane_layout f) { return layout_is_k(f) ? layout_min(f) ? 64 : 32 : 0; }
INLINE int unit_bytes(ane_layout f) {
  const struct layout_columns c = layout_columns(f);
  if (c.unit < ANE_BLOCK) return 2 * c.unit * c.bits;
  return head_bytes(f) + c.unit / ANE_BLOCK * (code_bytes(f) + scale_bytes(f) + min_bytes(f));
}
/* Bytes of a block, its share of the unit's head included. */
INLINE int block_bytes(ane_layout f) { return unit_bytes(f) / ANE_MAX(layout_columns(f).unit / ANE_BLOCK, 1); }

/* Pointers to the parts of a block. With scales of two levels, scales and minima are the integers; the fp16 numbers begin the
 * unit.
 */
struct block_parts {
  const uint8_t *unit, *codes, *scales, *minima;
};
/* Returns the parts of block b of a group. */
INLINE struct block_parts block_at(ane_layout f, const uint8_t *group, int64_t b) {
  const int s = layout_is_k(f) ? (int)(b & 7) : 0, beside = scale_bytes(f) + min_bytes(f);
  group += (b - s) * block_bytes(f);
  if (!layout_is_k(f)) return (struct block_parts){group, group, group + code_bytes(f), group + code_bytes(f) + scale_bytes(f)};
  const uint8_t *scales = group + head_bytes(f) + s * beside;
  return (struct block_parts){group, group + head_bytes(f) + 8 * beside + s * code_bytes(f), scales, scales + scale_bytes(f)};
}

#endif
