/* Rows of matrices that are not stored as rows: see struct ane_gather. */
#include "tensor/half.h"
#include "tensor/rows.h"

#include <math.h>
#include <string.h>

static float float_at(const void *p, ane_dtype t, int64_t i) {
  float f = 0;
  if (t == ANE_U4 || t == ANE_I4) {
    int q = ((const uint8_t *)p)[i / 2] >> 4 * (i & 1) & 15;
    return (float)(t == ANE_I4 ? (q ^ 8) - 8 : q);
  }
  (void)!ane_to_f32(t, (const char *)p + (size_t)i * ane_dtype_info(t)->bytes, &f, 1, NULL); /* plain types: cannot fail */
  return f;
}

/* Returns number i of a matrix in blocks. `block` caches the decoded block *kept (-1: none) for the calls that follow. */
static float decoded_at(const struct ane_gather *g, int64_t i, float block[ANE_MAX_BLOCK], int64_t *kept) {
  const struct ane_dtype_info *d = ane_dtype_info(g->dtype);
  int64_t b = i / (int64_t)d->block;
  if (b != *kept) g->decode((const char *)g->data + (size_t)b * d->bytes, block, d->block);
  *kept = b;
  return block[i % (int64_t)d->block];
}

/* The values of E2M1: a sign, two bits of exponent, one of mantissa. */
static const float FP4[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

static int unsigned_code(const void *data, int bits, int64_t i) {
  const uint8_t *p = (const uint8_t *)data + i * bits / 8;
  int shift = (int)(i * bits & 7), v = *p;
  if (shift + bits > 8) v |= p[1] << 8;
  return v >> shift & ((1 << bits) - 1);
}

/* Returns what is added to signed codes and to their zero points to make them unsigned; 0 for unsigned codes. */
static int lift_of(const struct ane_gather *g) { return g->is_signed ? 1 << (g->bits - 1) : 0; }

static int code_at(const struct ane_gather *g, int64_t i) {
  int q = unsigned_code(g->data, g->bits, i);
  return g->is_signed ? q ^ (1 << (g->bits - 1)) : q;
}

static int64_t block_of(const struct ane_gather *g, int64_t c) {
  if (!g->g_idx) return c / g->block;
  int32_t b;
  memcpy(&b, g->g_idx + c, sizeof b);
  return b;
}

static int64_t scale_index(const struct ane_gather *g, int64_t r, int64_t c) {
  return g->scale_base + r / g->row_block * g->scale_row + block_of(g, c) * g->scale_col;
}

/* Returns zero point number k, without what lift_of adds. */
static float zero_at(const struct ane_gather *g, int64_t k) {
  if (!g->zeros) return g->zero_default;
  if (!g->zero_bits) return float_at(g->zeros, g->zero_dtype, k);
  return (float)unsigned_code((const uint8_t *)g->zeros + k / g->zero_blocks * g->zero_row_bytes, g->zero_bits,
                              k % g->zero_blocks);
}

/* ---- The type ------------------------------------------------------------------------------------------------------*/

static bool zeros_are(const struct ane_gather *g, int64_t rows, int64_t blocks, float least, float most) {
  float lift = (float)lift_of(g);
  if (!g->zeros)
    return g->zero_default + lift >= least && g->zero_default + lift <= most && floorf(g->zero_default) == g->zero_default;
  for (int64_t r = 0; r < rows; r += g->row_block)
    for (int64_t b = 0; b < blocks; b++) {
      float z = zero_at(g, g->scale_base + r / g->row_block * g->scale_row + b * g->scale_col) + lift;
      if (!(z >= least && z <= most) || floorf(z) != z) return false;
    }
  return true;
}

/* Returns the minimum of a block of Q4_1 for scale number k. */
static float minimum(const struct ane_gather *g, int64_t k) {
  return 0 - float_at(g->scales, g->scale_dtype, k) * (zero_at(g, k) + (float)lift_of(g));
}

/* Are all values of 4-bit codes exact as scale * q + minimum, with a minimum in fp16? */
static bool minima_are_exact(const struct ane_gather *g, int64_t rows, int64_t blocks) {
  for (int64_t r = 0; r < rows; r += g->row_block)
    for (int64_t b = 0; b < blocks; b++) {
      int64_t k = g->scale_base + r / g->row_block * g->scale_row + b * g->scale_col;
      float scale = float_at(g->scales, g->scale_dtype, k), zero = zero_at(g, k) + (float)lift_of(g), m = minimum(g, k);
      bool exact = ane_f16_f32(ane_f32_f16(m)) == m;
      for (int q = 0; q < 16; q++) exact &= ((float)q - zero) * scale == scale * (float)q + m;
      if (!exact) return false;
    }
  return true;
}

static ane_dtype piece_dtype(const struct ane_gather *g, int64_t rows, int64_t cols) {
  if (g->table) return g->table_dtype == ANE_F16 ? ANE_F16 : ANE_F32;
  if (!g->bits) return g->dtype == ANE_F16 || g->dtype == ANE_BF16 ? g->dtype : ANE_F32;
  int64_t blocks = (cols + g->block - 1) / g->block;
  if (g->fp4) return cols % 32 ? ANE_F32 : ANE_MXFP4;
  if (g->g_idx || cols % 32 || (blocks > 1 && g->block % 16)) return ANE_F32;
  bool wide = blocks == 1 || g->block % 32 == 0;
  float half = g->bits == 8 ? 128 : 8;
  bool plain = zeros_are(g, rows, blocks, half, half);
  if (wide && plain && g->scale_dtype == ANE_F16) return g->bits == 8 ? ANE_Q8_0 : ANE_Q4_0;
  if (wide && zeros_are(g, rows, blocks, 0, 255)) return g->bits == 8 ? ANE_N8 : ANE_N4;
  if (wide && g->bits == 4 && g->scale_dtype == ANE_F16 && minima_are_exact(g, rows, blocks)) return ANE_Q4_1;
  if (!wide && plain) return g->bits == 8 ? ANE_N8H : ANE_N4H;
  return ANE_F32;
}

ane_dtype ane_gather_dtype(const struct ane_gather *g, int64_t rows, int64_t cols) {
  ane_dtype t = piece_dtype(g, g->rows ? g->rows : rows, cols);
  for (g = g->next; g; g = g->next)
    if (piece_dtype(g, g->rows, cols) != t) return ANE_F32;
  return t;
}

/* Returns the piece that has row *r. *r becomes the row's number in that piece. */
static const struct ane_gather *piece_of(const struct ane_gather *g, int64_t *r) {
  for (; g->next && *r >= g->rows; g = g->next) *r -= g->rows;
  return g;
}

/* ---- Rows ----------------------------------------------------------------------------------------------------------*/

/* Returns the columns of a matrix, or of stacked matrices. */
static int64_t columns_of(const struct ane_tensor *t) { return t->shape.dim[t->shape.rank > 2 ? t->shape.rank - 1 : 1]; }

void ane_gather_floats(const struct ane_tensor *t, int64_t row, float *dst) {
  int64_t r = t->row0 + row, cols = columns_of(t), seen = -1;
  const struct ane_gather *g = piece_of(t->gather, &r);
  int64_t at = g->base + r * g->row_step;
  float scale = 0, zero = 0, block[ANE_MAX_BLOCK];
  for (int64_t c = 0; c < cols; c++, at += g->col_step) {
    if (g->decode) {
      dst[c] = decoded_at(g, at, block, &seen);
      continue;
    }
    if (g->table) {
      dst[c] = float_at(g->table, g->table_dtype, (r / g->row_block << g->bits) + unsigned_code(g->data, g->bits, at));
      continue;
    }
    if (!g->bits) {
      dst[c] = float_at(g->data, g->dtype, at);
      continue;
    }
    int64_t k = scale_index(g, r, c);
    if (g->fp4) {
      dst[c] = ldexpf(FP4[unsigned_code(g->data, 4, at)], ((const uint8_t *)g->scales)[k] - 127);
      continue;
    }
    if (k != seen) {
      scale = float_at(g->scales, g->scale_dtype, k);
      zero = zero_at(g, k) + (float)lift_of(g);
      seen = k;
    }
    dst[c] = ((float)code_at(g, at) - zero) * scale;
  }
}

/* Reads the codes of 32 columns from column c on, unsigned. */
static void block_codes(const struct ane_gather *g, int64_t r, int64_t c, uint8_t q[32]) {
  int64_t at = g->base + r * g->row_step + c * g->col_step;
  if (g->bits == 4 && g->col_step == 1 && !(at & 1)) {
    const uint8_t *p = (const uint8_t *)g->data + at / 2;
    uint8_t flip = g->is_signed ? 8 : 0;
    for (int i = 0; i < 16; i++) q[2 * i] = (p[i] & 15) ^ flip, q[2 * i + 1] = (uint8_t)(p[i] >> 4) ^ flip;
    return;
  }
  for (int i = 0; i < 32; i++) q[i] = (uint8_t)code_at(g, at + i * g->col_step);
}

static void nibbles(const uint8_t q[32], uint8_t out[16]) {
  for (int i = 0; i < 16; i++) out[i] = (uint8_t)(q[i] | q[i + 16] << 4);
}

/* Writes the head of the block from column c on: its scales, as the type has them, and its zero point. Returns the bytes
 * written. */
static size_t block_head(const struct ane_gather *g, ane_dtype t, int64_t r, int64_t c, uint8_t *dst) {
  int64_t k = scale_index(g, r, c);
  if (t == ANE_MXFP4) {
    *dst = ((const uint8_t *)g->scales)[k];
    return 1;
  }
  if (t == ANE_Q4_0 || t == ANE_Q8_0) {
    memcpy(dst, (const char *)g->scales + 2 * k, 2);
    return 2;
  }
  if (t == ANE_Q4_1) {
    uint16_t m = ane_f32_f16(minimum(g, k));
    memcpy(dst, (const char *)g->scales + 2 * k, 2);
    memcpy(dst + 2, &m, 2);
    return 4;
  }
  float scale = float_at(g->scales, g->scale_dtype, k);
  memcpy(dst, &scale, 4);
  if (t == ANE_N4 || t == ANE_N8) {
    dst[4] = (uint8_t)(zero_at(g, k) + (float)lift_of(g));
    return 5;
  }
  scale = float_at(g->scales, g->scale_dtype, scale_index(g, r, c + 16));
  memcpy(dst + 4, &scale, 4);
  return 8;
}

static void block_row(const struct ane_gather *g, ane_dtype t, int64_t r, int64_t cols, uint8_t *dst) {
  bool narrow = t == ANE_Q4_0 || t == ANE_Q4_1 || t == ANE_N4 || t == ANE_N4H || t == ANE_MXFP4;
  for (int64_t c = 0; c < cols; c += 32) {
    uint8_t q[32];
    block_codes(g, r, c, q);
    dst += block_head(g, t, r, c, dst);
    for (int i = 0; t == ANE_Q8_0 && i < 32; i++) q[i] ^= 0x80; /* to signed codes */
    if (narrow)
      nibbles(q, dst);
    else
      memcpy(dst, q, 32);
    dst += narrow ? 16 : 32;
  }
}

bool ane_gather_has_tables(const struct ane_gather *g, int64_t rows) {
  for (int64_t at = 0; g; at += g->rows, g = g->next)
    if (!g->table || g->bits > 4 || at % rows || (g->row_block % rows && g->row_block < g->rows)) return false;
  return true;
}

void ane_gather_codes(const struct ane_tensor *t, int64_t row, uint8_t *codes, float table[16]) {
  int64_t r = t->row0 + row, cols = t->shape.dim[1];
  const struct ane_gather *g = piece_of(t->gather, &r);
  for (int i = 0; i < 16; i++)
    table[i] = i < 1 << g->bits ? float_at(g->table, g->table_dtype, (r / g->row_block << g->bits) + i) : 0;
  for (int64_t c = 0; c < cols; c++)
    codes[c] = (uint8_t)unsigned_code(g->data, g->bits, g->base + r * g->row_step + c * g->col_step);
}

static inline __attribute__((always_inline)) void copy_elements(const uint8_t *src, size_t size, int64_t row_step,
                                                                int64_t col_step, int64_t rows, int64_t cols, uint8_t *dst,
                                                                size_t dst_step) {
  for (int64_t c = 0; c < cols; c++)
    for (int64_t r = 0; r < rows; r++)
      memcpy(dst + (size_t)r * dst_step + (size_t)c * size, src + (size_t)(r * row_step + c * col_step) * size, size);
}

void ane_copy_matrix(const void *src, size_t size, int64_t row_step, int64_t col_step, int64_t rows, int64_t cols, void *dst,
                     size_t dst_step) {
  switch (size) { /* constants: copies without calls */
    case 1: copy_elements(src, 1, row_step, col_step, rows, cols, dst, dst_step); break;
    case 2: copy_elements(src, 2, row_step, col_step, rows, cols, dst, dst_step); break;
    case 4: copy_elements(src, 4, row_step, col_step, rows, cols, dst, dst_step); break;
    default: copy_elements(src, 8, row_step, col_step, rows, cols, dst, dst_step); break;
  }
}

void ane_gather_row(const struct ane_tensor *t, int64_t row, void *dst) {
  int64_t r = t->row0 + row, cols = columns_of(t);
  const struct ane_gather *g = piece_of(t->gather, &r);
  if (t->dtype == ANE_F32) {
    ane_gather_floats(t, row, dst);
  } else if (g->table) {
    for (int64_t c = 0; c < cols; c++) {
      int64_t at = g->base + r * g->row_step + c * g->col_step;
      memcpy((char *)dst + 2 * c,
             (const char *)g->table + 2 * ((r / g->row_block << g->bits) + unsigned_code(g->data, g->bits, at)), 2);
    }
  } else if (!g->bits) {
    size_t size = ane_dtype_info(t->dtype)->bytes;
    ane_copy_matrix((const char *)g->data + (size_t)(g->base + r * g->row_step) * size, size, 0, g->col_step, 1, cols, dst, 0);
  } else {
    block_row(g, t->dtype, r, cols, dst);
  }
}

const void *ane_tensor_rows(const struct ane_tensor *t, int64_t from, int64_t n, size_t row_bytes, void *copy) {
  if (t->gather) {
    for (int64_t i = 0; i < n; i++) ane_gather_row(t, from + i, (char *)copy + (size_t)i * row_bytes);
    return copy;
  }
  if (!t->transposed) return (const char *)t->data + (size_t)from * row_bytes;
  size_t size = ane_dtype_info(t->dtype)->bytes;
  ane_copy_matrix((const char *)t->data + (size_t)from * size, size, 1, t->ld, n, t->shape.dim[1], copy, row_bytes);
  return copy;
}
