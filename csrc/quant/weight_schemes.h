/* The schemes that weights have in Core ML packages, and in memory where a model is loaded with `weights=` of the same name:
 * one encoder for both, so that an exported model and a loaded one hold the same numbers.
 *
 *   FP16           w = fp16(x)
 *   INT8           w = scale * q                 one scale for the matrix       constexpr_affine_dequantize, zero point 0
 *   INT8_CHANNEL   w = scale[r] * q              one for each row               the same with axis 0
 *   INT8_BLOCK     w = scale[r, c / size] * q    one for `size` columns         constexpr_blockwise_shift_scale, no offset
 *   INT4_BLOCK     the same                      the same                       the same
 *   UINT4_BLOCK    w = scale[..] * (q - offset[..])  both for `size` columns    the same with an offset
 *   LUT            w = lut[r / size][q]          2^bits entries for `size`      constexpr_lut_to_dense
 *                                                rows, or the matrix (size 0)
 *
 * Rows are outputs, columns inputs: element (r, c) is [r, c, 0, 0] of a convolution's weight. Scales, offsets and entries are
 * fp16. q of INT8* is -127 .. 127, of INT4_BLOCK -8 .. 7, of UINT4_BLOCK 0 .. 15, of LUT an index 0 .. 2^bits - 1. Every w is
 * exact in float32: scale * q is a product of 11 and at most 7 bits. Offsets are chosen so that scale * offset is exact in fp16,
 * and so is q - offset (quant/exact_line.h): a block of UINT4_BLOCK is a block of Q4_1. A package declared fp16 rounds that
 * product to fp16; run in fp32 it does not.
 *
 * Bytes depend on the weights, the scheme and the importance alone: not on the number of threads, not on which rows are
 * encoded together. */
#ifndef ANE_QUANT_WEIGHT_SCHEMES_H
#define ANE_QUANT_WEIGHT_SCHEMES_H

#include "quant/quant.h"

typedef enum {
  ANE_WEIGHT_FP16,
  ANE_WEIGHT_INT8,
  ANE_WEIGHT_INT8_CHANNEL,
  ANE_WEIGHT_INT8_BLOCK,
  ANE_WEIGHT_INT4_BLOCK,
  ANE_WEIGHT_UINT4_BLOCK,
  ANE_WEIGHT_LUT,
} ane_weight_scheme;

struct ane_weight_spec {
  ane_weight_scheme scheme;
  int32_t size; /* columns per block: 32 (INT8_BLOCK, UINT4_BLOCK), 32 or 64 (INT4_BLOCK); rows per table: 8, 16, 32, or 0 for all
                   (LUT); else 0 */
  int32_t bits; /* LUT: of a code, 2, 3, 4, 6 or 8; else 0 */
};

/* The scheme of a name of weight_scheme.def, such as "int8" or "lut4-g16". false: there is no such name. */
bool ane_weight_spec_from_name(const char *name, struct ane_weight_spec *out);
const char *ane_weight_spec_name(struct ane_weight_spec s);
/* Name i of the list, NULL after the last. */
const char *ane_weight_spec_list(int i);

bool ane_weight_spec_equal(struct ane_weight_spec a, struct ane_weight_spec b);

/* Does each block of `size` columns have a scale? */
bool ane_weight_has_blocks(struct ane_weight_spec s);

/* The scheme that a matrix of this shape gets if `s` is requested. Blocks must divide the columns: if cols is not a multiple of
 * the block size, a block of 64 is replaced by one of 32, and that by INT8_CHANNEL. Tables must divide the rows: while rows is
 * not a multiple of a table's rows, these are halved, down to 8; after that there is one table for all rows. Idempotent. */
struct ane_weight_spec ane_weight_spec_fit(struct ane_weight_spec s, int64_t rows, int64_t cols);

/* Sizes of the parts of a matrix in a scheme that fits it; false on overflow. */
struct ane_weight_sizes {
  uint64_t payload;              /* codes, or the fp16 weights themselves */
  uint64_t scales, offsets, lut; /* numbers of fp16 values, not bytes */
  uint64_t bytes;                /* all together */
};
bool ane_weight_sizes(struct ane_weight_spec s, int64_t rows, int64_t cols, struct ane_weight_sizes *out);

/* ---- Where weights come from -----------------------------------------------------------------------------------------*/

/* A matrix as rows of float32. `read` writes rows [from, from + n) densely to dst; called from several threads at once. */
struct ane_weight_rows {
  int64_t rows, cols; /* >= 1 */
  void (*read)(const void *arg, int64_t from, int64_t n, float *dst);
  const void *arg;
};
/* The rows of a tensor of any stored type with a decoder, transposed or not. Dimensions after the second must be 1; a vector is
 * one column. The tensor is borrowed. Errors: ANE_UNSUPPORTED, ANE_SHAPE; the message does not name the tensor. */
ane_status ane_weight_rows_of(const struct ane_tensor *t, struct ane_weight_rows *out, struct ane_error *err);

/* ---- Encoding --------------------------------------------------------------------------------------------------------*/

/* Parameters of the whole matrix, which are made once and used for all its rows. */
enum { ANE_WEIGHT_LUT_MAX = 256 }; /* entries of a table, and of the tables of a tile */
struct ane_factor;
struct ane_weight_fit {
  struct ane_weight_spec spec;     /* fits the matrix */
  const struct ane_factor *factor; /* borrowed; NULL: each weight is rounded by itself. Else codes compensate the errors of others
                                      (quant/compensate.h). ane_weight_fit clears it; the caller sets it afterwards */
  float scale;                     /* INT8 */
  uint16_t lut[ANE_WEIGHT_LUT_MAX]; /* LUT of size 0, ascending fp16 */
};
/* Fits the parameters. spec: adapted to the shape first (ane_weight_spec_fit). importance: cols weights >= 0 for the squared
 * error of each column (the mean squares of its inputs), or NULL. It guides INT4_BLOCK, UINT4_BLOCK and LUT; the others ignore
 * it. Reads all rows for INT8 and LUT of size 0, none for the others. Errors: ANE_INVALID (an element is not finite), ANE_SHAPE,
 * ANE_NOMEM. */
ane_status ane_weight_fit(struct ane_weight_fit *out, struct ane_pool *pool, const struct ane_weight_rows *src,
                          struct ane_weight_spec spec, const float *importance, struct ane_error *err);

/* Encoded rows of a matrix, as MIL stores them. */
struct ane_weights {
  struct ane_weight_spec spec;
  int64_t rows, cols;
  uint8_t *payload; /* FP16: fp16 [rows, cols]; INT8*: int8 [rows, cols]; codes of b bits: element i in bits b i .. b (i + 1) - 1,
                       lower bits first, two's complement (INT4_BLOCK) or unsigned (UINT4_BLOCK, LUT); unused last bits are 0 */
  uint16_t *scales; /* fp16: [1], [rows] or, of blocks, [rows, cols / size]; NULL if there are none */
  uint16_t *offsets; /* fp16, UINT4_BLOCK: [rows, cols / size]; else NULL */
  uint16_t *lut;     /* fp16: [rows / size, 2^bits] or [2^bits]; NULL if there is none. Entries ascend */
  struct ane_weight_sizes sizes;
  struct ane_recode_error error; /* against the rows as they were read */
};
/* Encodes rows [from, to); to < 0: to the end. With tables of `size` rows, from must be a multiple of size, and so must `to`
 * unless it is the end. Free the result with ane_weights_free, also after an error. Errors: ANE_NOMEM, ANE_RANGE (from, to);
 * ANE_INVALID (an element is not finite, or too large for fp16). */
ane_status ane_weights_encode(struct ane_weights *out, struct ane_pool *pool, const struct ane_weight_rows *src,
                              const struct ane_weight_fit *fit, int64_t from, int64_t to, const float *importance,
                              struct ane_error *err);
void ane_weights_free(struct ane_weights *w); /* a zeroed one is fine */

/* Float32 values of rows [from, from + n), exact, to dst [n, cols]. */
void ane_weights_decode(const struct ane_weights *w, int64_t from, int64_t n, float *dst);

/* ---- A few rows at a time ---------------------------------------------------------------------------------------------*/

/* n <= ANE_WEIGHT_TILE rows that are encoded together; they are whole tables. A code is one byte (INT8*, INT4_BLOCK: two's
 * complement; UINT4_BLOCK, LUT: unsigned). FP16 has no codes. */
enum { ANE_WEIGHT_TILE = 32 };
struct ane_weight_tile {
  uint8_t *codes;    /* [n, cols] */
  uint16_t *scales;  /* INT8, INT8_CHANNEL: [n] (INT8: all the same); of blocks: [n, cols / size] */
  uint16_t *offsets; /* UINT4_BLOCK: [n, cols / size] */
  uint16_t *lut;     /* LUT: [tables, 2^bits], tables = n / size rounded up, or 1 */
};
/* Bytes of scratch memory that one thread needs for ane_weight_encode_tile, aligned as malloc aligns it. */
size_t ane_weight_tile_scratch(const struct ane_weight_fit *fit, int64_t cols);
/* Encodes rows [n, cols] on one thread. The number of the first row must be a multiple of the rows of a table. Elements that are
 * not finite give arbitrary codes. */
void ane_weight_encode_tile(const struct ane_weight_fit *fit, const float *rows, int n, int64_t cols, const float *importance,
                            void *scratch, struct ane_weight_tile *out);
/* Decodes a tile to dst [n, cols]. */
void ane_weight_decode_tile(const struct ane_weight_fit *fit, const struct ane_weight_tile *tile, int n, int64_t cols,
                            float *dst);

/* ---- In GGUF files -------------------------------------------------------------------------------------------------------*/

/* The GGUF type that holds the numbers of a scheme exactly: Q8_0 for INT8* (with the scale of the row or the matrix in each
 * block), Q4_0 for INT4_BLOCK, Q4_1 for UINT4_BLOCK, fp16 for tables; fp32 if cols is not a multiple of 32. */
ane_dtype ane_weight_container(struct ane_weight_spec s, int64_t cols);
/* Writes a tile in that type, rows `stride` bytes apart. values: scratch [n, cols]; it gets the decoded tile. */
void ane_weight_tile_contain(const struct ane_weight_fit *fit, const struct ane_weight_tile *tile, int n, int64_t cols,
                             float *values, void *dst, size_t stride);
/* -scale * offset of a block of UINT4_BLOCK, which is exact. Arguments and result are bits of fp16 numbers. */
uint16_t ane_weight_minimum(uint16_t scale, uint16_t offset);
/* Writes one row of a tile as blocks of t: Q8_0 (INT8*), Q4_0 (INT4_BLOCK) or Q4_1 (UINT4_BLOCK). cols: a multiple of 32. */
void ane_weight_contain_row(const struct ane_weight_spec *s, const struct ane_weight_tile *tile, int row, int64_t cols,
                            ane_dtype t, void *dst);

#endif
