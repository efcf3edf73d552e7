/* Packed layouts: their bytes, the layout of each stored type, and repacking. All repacking is lossless.
 *
 * A group is 16 rows, r = 0..15; a unit covers `unit` columns of all of them. The plane of four columns 4v .. 4v + 3 is
 * 64 bytes, byte 4 r + i for row r and column 4v + i: the operand of one 8-bit dot of 16 lanes. Planes of 32 columns are
 * held in these pieces:
 *
 *   nibbles (256 bytes)     for p = 0..3 64 bytes: low nibbles are plane p, high nibbles plane p + 4
 *   fifth bits (64 bytes)   bit v of byte 4 r + i is bit 4 of the code at plane v
 *   bits 4 and 5 (128 bytes)  for h = 0, 1 64 bytes: bits 2k, 2k + 1 are bits 4 and 5 of the code at plane 4 h + k
 *   low bits (128 bytes)    for h = 0, 1 64 bytes: bits 2k, 2k + 1 are bits 0 and 1 of the code at plane 4 h + k
 *   third bits (64 bytes)   bit v of byte 4 r + i is bit 2 of the code at plane v
 *   codes (512 bytes)       eight planes of whole bytes
 *   fp16 (32 bytes)         a number of each row
 *
 * Byte offsets within a unit:
 *
 *   F32    0 float[16]
 *   F16    0 fp16[16]
 *   BF16   0 for each row the two columns of the pair
 *   Q4_0   0 nibbles   256 scale
 *   Q4_1   0 nibbles   256 scale     288 min
 *   Q5_0   0 nibbles   256 fifth     320 scale
 *   Q5_1   0 nibbles   256 fifth     320 scale   352 min
 *   Q8_0   0 codes     512 scale
 *   Q8_0_SPLIT   0 high nibbles   256 scale   288 u8[16] norms; low nibbles and scales are stored after all groups (kernels.h)
 *   I8     0 codes
 *   LUT4   0 nibbles
 *   N4     0 nibbles   256 float[16] scales   320 u8[16] zero points
 *   N8     0 codes     512 float[16] scales   576 u8[16] zero points
 *   N4H    0 nibbles   256 float[16] scales of the first 16 columns   320 of the others
 *   N8H    0 codes     512 float[16]                                  576
 *   Q4_K   0 scale     32 min     64 + 32 b: u8[16] sub-scales, u8[16] sub-minima     320 + 256 b: nibbles
 *   Q5_K   0 scale     32 min     64 + 32 b: u8[16] sub-scales, u8[16] sub-minima     320 + 320 b: nibbles, fifth
 *   Q6_K   0 scale     32 + 32 b: 2 x i8[16] sub-scales     288 + 384 b: nibbles, bits 4 and 5
 *
 *   IQ4_NL 0 nibbles   256 scale
 *   MXFP4  0 nibbles   256 u8[16] exponents
 *   NVFP4  0 nibbles   256 scale of the first 16 columns   288 of the others
 *   T4_K   0 scale     32 + 16 b: i8[16] sub-scales        160 + 256 b: nibbles
 *   T3_K   0 scale     32 + 16 b: i8[16] sub-scales        160 + 192 b: low, third
 *   T3_KH  0 scale     32 + 32 b: 2 x i8[16] sub-scales    288 + 192 b: low, third
 *   Q3_K   0 scale     32 + 32 b: 2 x i8[16] sub-scales    288 + 192 b: low, third
 *   Q2_K   0 scale     32 min     64 + 32 b: 2 x u8[16], low nibbles sub-scales, high nibbles sub-minima     320 + 128 b: low
 *   TQ     0 scale     32 + 128 b: low
 *
 * b = 0..7 is the block of 32 columns. The min of Q4_K, Q5_K and Q2_K is the negated stored one, so that it is added. Codes of
 * Q8_0 and I8 are the stored ones + 128; codes of the others are as stored. Stored blocks: quant/blocks.h. */
#include "kernels/matmul_layouts.h"

#include "tensor/half.h"

#include <string.h>

static const struct ane_layout_info layouts[ANE_LAYOUT_COUNT] = {
#define ANE_LAYOUT(id, name, unit, bits, table, zero, subs, scale, min, int8)                                                    \
  [ANE_LAYOUT_##id] = {name,                                                                                                     \
                       unit,                                                                                                     \
                       zero,                                                                                                     \
                       subs,                                                                                                     \
                       LAYOUT_##min != LAYOUT_NONE && LAYOUT_##min != LAYOUT_NORM && LAYOUT_##min != LAYOUT_F16_U4,              \
                       int8},
#include "kernels/layout.def"
#undef ANE_LAYOUT
};

const struct ane_layout_info *ane_layout_info(ane_layout f) { return &layouts[f]; }

static const ane_layout of_dtype[ANE_DTYPE_COUNT] = {
#define ANE_DTYPE(id, name, block, bytes, gguf, st, onnx, mil, codec, layout, ...) [ANE_##id] = ANE_LAYOUT_##layout,
#include "tensor/dtype.def"
#undef ANE_DTYPE
};

ane_layout ane_layout_for(ane_dtype t, int64_t cols) {
  ane_layout f = of_dtype[t];
  if (f == ANE_LAYOUT_BF16 || f == ANE_LAYOUT_I8) return f; /* like LUT4, their last unit may be padded */
  return cols % layouts[f].unit ? ANE_LAYOUT_ROWS : f;
}

bool ane_layout_group_bytes(ane_layout f, int64_t cols, size_t *bytes) {
  *bytes = 0;
  return cols >= 0 && ane_mul_size(ane_div_up((size_t)cols, layouts[f].unit), (size_t)unit_bytes(f), bytes);
}

/* ---- Floats ------------------------------------------------------------------------------------------------------*/

/* Copies in tiles of 16 columns, so that source and destination stay in the L1 cache for any row stride. */
static void pack_f32(const uint8_t *rows, size_t stride, int n_rows, int64_t cols, uint8_t *dst) {
  for (int64_t k = 0; k < cols; k += 16) {
    int64_t n = ANE_MIN(cols - k, 16);
    for (int r = 0; r < n_rows; r++) {
      const uint8_t *src = rows + (size_t)r * stride + 4 * k;
      for (int64_t j = 0; j < n; j++) ane_put_word(dst + 64 * (k + j) + 4 * r, ane_word(src + 4 * j));
    }
  }
}

static void pack_f16(const uint8_t *rows, size_t stride, int n_rows, int64_t cols, uint8_t *dst) {
  for (int64_t k = 0; k < cols; k += 32) {
    int64_t n = ANE_MIN(cols - k, 32);
    for (int r = 0; r < n_rows; r++) {
      const uint8_t *src = rows + (size_t)r * stride + 2 * k;
      for (int64_t j = 0; j < n; j++) ane_put_half(dst + 32 * (k + j) + 2 * r, ane_half(src + 2 * j));
    }
  }
}

static void pack_bf16(const uint8_t *rows, size_t stride, int n_rows, int64_t cols, uint8_t *dst) {
  for (int64_t k = 0; k < cols; k += 32) {
    int64_t pairs = ANE_MIN(cols - k, 32) / 2;
    for (int r = 0; r < n_rows; r++) {
      const uint8_t *src = rows + (size_t)r * stride + 2 * k;
      uint8_t *to = dst + 32 * k + 4 * r;
      for (int64_t j = 0; j < pairs; j++) ane_put_word(to + 64 * j, ane_word(src + 4 * j));
    }
  }
  if (cols & 1)
    for (int r = 0; r < n_rows; r++)
      ane_put_word(dst + 32 * (cols - 1) + 4 * r, ane_half(rows + (size_t)r * stride + 2 * (cols - 1)));
}

/* ---- Blocks of 32 ------------------------------------------------------------------------------------------------*/

/* Moves bit i of the low nibble of byte b to bit 8 i, bit i of its high nibble to bit 8 i + 1. */
#define SPREAD(b)                                                                                                                \
  (((b)&1u) | ((b)&2u) << 7 | ((b)&4u) << 14 | ((b)&8u) << 21 | ((b)&16u) >> 3 | ((b)&32u) << 4 | ((b)&64u) << 11 |              \
   ((b)&128u) << 18)
#define SPREAD_4(b) SPREAD(b), SPREAD((b) + 1), SPREAD((b) + 2), SPREAD((b) + 3)
#define SPREAD_16(b) SPREAD_4(b), SPREAD_4((b) + 4), SPREAD_4((b) + 8), SPREAD_4((b) + 12)
#define SPREAD_64(b) SPREAD_16(b), SPREAD_16((b) + 16), SPREAD_16((b) + 32), SPREAD_16((b) + 48)
static const uint32_t spread[256] = {SPREAD_64(0u), SPREAD_64(64u), SPREAD_64(128u), SPREAD_64(192u)};

/* Moves bit 4 v + i of x to bit 8 i + v: the fifth bits of 32 columns of one row, from column order to plane order. The table
 * makes loading faster. */
static inline uint32_t fifth_bits(uint32_t x) {
  return spread[x & 255] | spread[x >> 8 & 255] << 2 | spread[x >> 16 & 255] << 4 | spread[x >> 24] << 6;
}

/* Offsets of the parts of a stored block and of a packed unit; 0: no such part. */
struct legacy {
  uint8_t block, min_at, fifth_at, low_at;
  uint16_t fifth, scale, min;
};
static const struct legacy q4_0 = {18, 0, 0, 2, 0, 256, 0}, q4_1 = {20, 2, 0, 4, 0, 256, 288}, q5_0 = {22, 0, 2, 6, 256, 320, 0},
                           q5_1 = {24, 2, 4, 8, 256, 320, 352};

/* Stored nibble bytes j = 0..15 hold columns j and j + 16, as a packed piece does: words move unchanged. */
static inline __attribute__((always_inline)) void pack_legacy(const struct legacy *l, size_t unit, const uint8_t *rows,
                                                              size_t stride, int n_rows, int64_t cols, uint8_t *dst) {
  for (int64_t u = 0; u < cols / 32; u++, dst += unit)
    for (int r = 0; r < n_rows; r++) {
      const uint8_t *src = rows + (size_t)r * stride + (size_t)u * l->block;
      for (int p = 0; p < 4; p++) ane_put_word(dst + 64 * p + 4 * r, ane_word(src + l->low_at + 4 * p));
      if (l->fifth) ane_put_word(dst + l->fifth + 4 * r, fifth_bits(ane_word(src + l->fifth_at)));
      ane_put_half(dst + l->scale + 2 * r, ane_half(src));
      if (l->min) ane_put_half(dst + l->min + 2 * r, ane_half(src + l->min_at));
    }
}

static void pack_q8_0(const uint8_t *rows, size_t stride, int n_rows, int64_t cols, uint8_t *dst) {
  for (int64_t u = 0; u < cols / 32; u++, dst += 544)
    for (int r = 0; r < n_rows; r++) {
      const uint8_t *src = rows + (size_t)r * stride + 34 * (size_t)u;
      for (int v = 0; v < 8; v++) ane_put_word(dst + 64 * v + 4 * r, ane_word(src + 2 + 4 * v) ^ 0x80808080);
      ane_put_half(dst + 512 + 2 * r, ane_half(src));
    }
}

/* Stored blocks: one or two scales, the zero point where there is one scale, the codes. */
static void pack_nbits(int bits, bool two_scales, const uint8_t *rows, size_t stride, int n_rows, int64_t cols, uint8_t *dst) {
  size_t codes = bits == 4 ? 256 : 512, head = two_scales ? 8 : 5, block = head + (bits == 4 ? 16 : 32);
  for (int64_t u = 0; u < cols / 32; u++, dst += codes + (two_scales ? 128 : 80))
    for (int r = 0; r < n_rows; r++) {
      const uint8_t *src = rows + (size_t)r * stride + block * (size_t)u;
      for (int v = 0; v < (bits == 4 ? 4 : 8); v++) ane_put_word(dst + 64 * v + 4 * r, ane_word(src + head + 4 * (size_t)v));
      ane_put_word(dst + codes + 4 * r, ane_word(src));
      if (two_scales)
        ane_put_word(dst + codes + 64 + 4 * r, ane_word(src + 4));
      else
        dst[codes + 64 + (size_t)r] = src[4];
    }
}

/* Columns and rows beyond the last are code 128: zero. */
static void pack_i8(const uint8_t *rows, size_t stride, int n_rows, int64_t cols, uint8_t *dst) {
  if (n_rows < ANE_GROUP || cols % ANE_BLOCK) memset(dst, 128, 512 * ane_div_up((size_t)cols, ANE_BLOCK));
  for (int64_t k = 0; k < cols; k += 64)
    for (int r = 0; r < n_rows; r++) {
      const uint8_t *src = rows + (size_t)r * stride;
      int64_t end = ANE_MIN(cols, k + 64), c = k;
      for (; c + 4 <= end; c += 4) ane_put_word(dst + 16 * c + 4 * r, ane_word(src + c) ^ 0x80808080);
      for (; c < end; c++) dst[16 * (c - c % 4) + 4 * r + c % 4] = src[c] ^ 0x80;
    }
}

static void pack_lut4(const uint8_t *rows, size_t stride, int n_rows, int64_t cols, uint8_t *dst) {
  if (cols % ANE_BLOCK) memset(dst, 0, 256 * ane_div_up((size_t)cols, ANE_BLOCK));
  for (int64_t k = 0; k < cols; k += ANE_BLOCK, dst += 256)
    for (int r = 0; r < n_rows; r++) {
      uint8_t codes[ANE_BLOCK] = {0};
      memcpy(codes, rows + (size_t)r * stride + k, (size_t)ANE_MIN(cols - k, ANE_BLOCK));
      for (int p = 0; p < 4; p++) ane_put_word(dst + 64 * p + 4 * r, ane_word(codes + 4 * p) | ane_word(codes + 16 + 4 * p) << 4);
    }
}

/* ---- Blocks of 256 -----------------------------------------------------------------------------------------------*/

/* The eight 6-bit scales s and minima m of a Q4_K or Q5_K block, which are stored in 12 bytes. Sub-blocks 0..3: s is the lower
 * six bits of bytes 0..3, m those of bytes 4..7. Sub-blocks 4..7: the lower four bits of s are the low nibbles of bytes 8..11,
 * those of m the high nibbles; the upper two bits are the top two bits of bytes 0..3 (s) and 4..7 (m). */
static inline void k_scales(const uint8_t *src, uint8_t s[8], uint8_t m[8]) {
  uint32_t a = ane_word(src), b = ane_word(src + 4), c = ane_word(src + 8);
  ane_put_word(s, a & 0x3F3F3F3F);
  ane_put_word(m, b & 0x3F3F3F3F);
  ane_put_word(s + 4, (c & 0x0F0F0F0F) | (a >> 2 & 0x30303030));
  ane_put_word(m + 4, (c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030));
}

/* Sub-blocks 2j and 2j + 1 are the low and the high nibbles of 32 stored bytes. */
static inline void k_nibbles(const uint8_t *q, uint8_t *even, uint8_t *odd) {
  for (int p = 0; p < 4; p++) {
    uint32_t a = ane_word(q + 4 * p), b = ane_word(q + 16 + 4 * p);
    ane_put_word(even + 64 * p, (a & 0x0F0F0F0F) | (b & 0x0F0F0F0F) << 4);
    ane_put_word(odd + 64 * p, (a >> 4 & 0x0F0F0F0F) | (b & 0xF0F0F0F0));
  }
}

static inline void k_header(const uint8_t *src, uint8_t *dst, int r) {
  uint8_t s[8], m[8];
  ane_put_half(dst + 2 * r, ane_half(src));
  ane_put_half(dst + 32 + 2 * r, ane_half(src + 2) ^ 0x8000);
  k_scales(src + 4, s, m);
  for (int b = 0; b < 8; b++) {
    dst[64 + 32 * b + r] = s[b];
    dst[80 + 32 * b + r] = m[b];
  }
}

static void pack_q4_k(const uint8_t *rows, size_t stride, int n_rows, int64_t cols, uint8_t *dst) {
  for (int64_t u = 0; u < cols / 256; u++, dst += 2368)
    for (int r = 0; r < n_rows; r++) {
      const uint8_t *src = rows + (size_t)r * stride + 144 * (size_t)u;
      k_header(src, dst, r);
      for (int j = 0; j < 4; j++) {
        uint8_t *to = dst + 320 + 512 * j + 4 * r;
        k_nibbles(src + 16 + 32 * j, to, to + 256);
      }
    }
}

/* Stored byte l = 0..31 of the fifth bits has bit b for column l of sub-block b. */
static void pack_q5_k(const uint8_t *rows, size_t stride, int n_rows, int64_t cols, uint8_t *dst) {
  for (int64_t u = 0; u < cols / 256; u++, dst += 2880)
    for (int r = 0; r < n_rows; r++) {
      const uint8_t *src = rows + (size_t)r * stride + 176 * (size_t)u;
      k_header(src, dst, r);
      for (int j = 0; j < 4; j++) {
        uint8_t *to = dst + 320 + 640 * j + 4 * r;
        k_nibbles(src + 48 + 32 * j, to, to + 320);
      }
      for (int b = 0; b < 8; b++) {
        uint32_t bits = 0;
        for (int v = 0; v < 8; v++) bits |= (ane_word(src + 16 + 4 * v) >> b & 0x01010101) << v;
        ane_put_word(dst + 320 + 320 * b + 256 + 4 * r, bits);
      }
    }
}

/* A half h of 128 columns is stored as 64 bytes of nibbles and 32 bytes of bits 4 and 5. The low nibbles are bits 0 .. 3 of the
 * codes of sub-blocks 4h and 4h + 1, the high nibbles those of 4h + 2 and 4h + 3. Bits 2j and 2j + 1 of the 32 bytes are bits 4
 * and 5 of the codes of sub-block 4h + j. */
static void pack_q6_k(const uint8_t *rows, size_t stride, int n_rows, int64_t cols, uint8_t *dst) {
  for (int64_t u = 0; u < cols / 256; u++, dst += 3360)
    for (int r = 0; r < n_rows; r++) {
      const uint8_t *src = rows + (size_t)r * stride + 210 * (size_t)u;
      ane_put_half(dst + 2 * r, ane_half(src + 208));
      for (int s = 0; s < 16; s++) dst[32 + 16 * s + r] = src[192 + s];
      for (int h = 0; h < 2; h++) {
        const uint8_t *low = src + 64 * h, *high = src + 128 + 32 * h;
        uint8_t *to = dst + 288 + 1536 * h + 4 * r;
        for (int j = 0; j < 2; j++) k_nibbles(low + 32 * j, to + 384 * j, to + 384 * (j + 2));
        for (int j = 0; j < 4; j++)
          for (int half = 0; half < 2; half++) {
            uint32_t bits = 0;
            for (int k = 0; k < 4; k++) bits |= (ane_word(high + 16 * half + 4 * k) >> 2 * j & 0x03030303) << 2 * k;
            ane_put_word(to + 384 * j + 256 + 64 * half, bits);
          }
      }
    }
}

/* ---- By layout -----------------------------------------------------------------------------------------------------*/

void ane_pack_group(ane_layout f, ane_dtype t, const void *rows, size_t row_bytes, int n_rows, int64_t cols, void *dst) {
  const uint8_t *src = rows;
  if (n_rows < ANE_GROUP) {
    size_t bytes;
    if (ane_layout_group_bytes(f, cols, &bytes)) memset(dst, 0, bytes);
  }
  switch (f) {
    case ANE_LAYOUT_F32: pack_f32(src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_F16: pack_f16(src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_BF16: pack_bf16(src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_Q4_0: pack_legacy(&q4_0, 288, src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_Q4_1: pack_legacy(&q4_1, 320, src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_Q5_0: pack_legacy(&q5_0, 352, src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_Q5_1: pack_legacy(&q5_1, 384, src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_Q8_0: pack_q8_0(src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_Q4_K: pack_q4_k(src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_Q5_K: pack_q5_k(src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_Q6_K: pack_q6_k(src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_N4: pack_nbits(4, false, src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_N8: pack_nbits(8, false, src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_N4H: pack_nbits(4, true, src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_N8H: pack_nbits(8, true, src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_I8: pack_i8(src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_LUT4: pack_lut4(src, row_bytes, n_rows, cols, dst); break;
    case ANE_LAYOUT_Q8_0_SPLIT: /* ane_pack_rows */
    case ANE_LAYOUT_ROWS: break;
    default: ane_pack_codes(f, t, rows, row_bytes, n_rows, cols, dst); /* types with codes of at most four bits */
  }
}

/* ---- In memory ------------------------------------------------------------------------------------------------*/

/* Bytes of the groups, of low_nibbles and of scales. low_nibbles begin at a multiple of 64 bytes. */
static bool part_bytes(const struct ane_packed *w, size_t *groups, size_t *low_nibbles, size_t *scales) {
  size_t rows = (size_t)w->groups * ANE_GROUP, cols = w->layout == ANE_LAYOUT_Q8_0_SPLIT ? (size_t)w->cols : 0;
  if (!ane_mul_size((size_t)w->groups, w->group_bytes, groups) || *groups > SIZE_MAX - 63) return false;
  if (cols) *groups = ane_align_up(*groups, 64);
  return ane_mul_size(rows, cols / 2, low_nibbles) && ane_mul_size(rows, cols / ANE_BLOCK * 2, scales);
}

bool ane_packed_bytes(const struct ane_packed *w, size_t *bytes) {
  size_t low_nibbles, scales;
  return part_bytes(w, bytes, &low_nibbles, &scales) && ane_add_size(*bytes, low_nibbles, bytes) &&
         ane_add_size(*bytes, scales, bytes);
}

void ane_packed_place(struct ane_packed *w, const void *memory) {
  size_t groups, low_nibbles, scales;
  w->data = memory;
  if (w->layout != ANE_LAYOUT_Q8_0_SPLIT || !part_bytes(w, &groups, &low_nibbles, &scales)) return;
  w->low_nibbles = w->data + groups;
  w->scales = w->low_nibbles + low_nibbles;
}

void ane_pack_rows(const struct ane_packed *w, ane_dtype t, const void *rows, size_t row_bytes, int n_rows, int64_t g) {
  uint8_t *group = (uint8_t *)w->data + (size_t)g * w->group_bytes;
  if (w->layout == ANE_LAYOUT_Q8_0_SPLIT)
    ane_pack_split(w, rows, row_bytes, n_rows, g);
  else
    ane_pack_group(w->layout, t, rows, row_bytes, n_rows, w->cols, group);
}
