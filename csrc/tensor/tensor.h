/* Element types, shapes and tensors that own or borrow their memory. */
#ifndef ANE_TENSOR_TENSOR_H
#define ANE_TENSOR_TENSOR_H

#include "base/status.h"

typedef enum {
#define ANE_DTYPE(id, ...) ANE_##id,
#include "tensor/dtype.def"
#undef ANE_DTYPE
  ANE_DTYPE_COUNT
} ane_dtype;

struct ane_dtype_info {
  const char *name;        /* as users write it: "fp16", "q4_k" */
  uint32_t block;          /* elements per block */
  uint32_t bytes;          /* bytes per block */
  int gguf;                /* GGUF tensor type id, -1: none */
  const char *safetensors; /* NULL: none */
  int onnx, mil;           /* 0: none */
  int file_type, mixed;    /* LLAMA_FTYPE of GGUF files mostly of this type (-1: none is written), of mixed ones (0: none) */
  const char *nearest;     /* type for rows that are not whole blocks of this one; NULL: none */
};

enum { ANE_MAX_BLOCK = 256 }; /* maximum elements of a block */

/* Returns the facts about a type. `t` must be one of the enumerators. */
const struct ane_dtype_info *ane_dtype_info(ane_dtype t);
/* Returns the type with this GGUF id, or ANE_DTYPE_COUNT. */
ane_dtype ane_dtype_from_gguf(uint32_t id);
/* Returns the type of this name ("fp16"), or ANE_DTYPE_COUNT. */
ane_dtype ane_dtype_from_name(const char *name, size_t len);
/* Sets *bytes to the bytes of n elements in whole blocks; false: n is not a multiple of the block, or the size overflows. */
bool ane_dtype_bytes(ane_dtype t, uint64_t n, uint64_t *bytes);

enum { ANE_MAX_RANK = 5 };

/* dim[0] is the outermost (row-major, as NumPy; GGUF lists its dimensions the other way round). Rank 0 = one element. */
struct ane_shape {
  uint32_t rank;
  int64_t dim[ANE_MAX_RANK];
};

/* The most elements of a tensor. Their bits, and products of a few dimensions, fit 64 bits. */
#define ANE_MOST_ELEMENTS (INT64_C(1) << 57)
/* Sets *count to the product of the dimensions. false: one is negative, or those that are not 0 have a product above
 * ANE_MOST_ELEMENTS: a dimension of 0 must not hide that the others overflow. */
bool ane_count_elements(uint32_t rank, const int64_t *dim, uint64_t *count);
/* The same for a shape. */
bool ane_shape_count(const struct ane_shape *s, uint64_t *count);
bool ane_shape_equal(const struct ane_shape *a, const struct ane_shape *b);
/* Writes "[1, 576, 4, 1]" to out and returns it. Unknown dimensions (negative) print as "?". */
enum { ANE_SHAPE_TEXT = 112 };
const char *ane_shape_text(const struct ane_shape *s, char out[ANE_SHAPE_TEXT]);

/* A matrix whose rows are made when they are read: transposed, every n-th row of another, or codes whose scales and zero
 * points lie elsewhere. Stored elements are counted from `data`; element (r, c) is number base + r * row_step + c * col_step.
 * They are plain floats (bits 0), numbers of a block type (bits 0, decode), or codes of 2, 3, 4, 6 or 8 bits, lower bits first.
 * The value of a code is (code - zero) * scale, one product of two floats. Scale and zero point of (r, c) have the index
 * k = scale_base + r / row_block * scale_row + (g_idx ? g_idx[c] : c / block) * scale_col. With a table, the value of a code is
 * entry r / row_block * 2^bits + code of the table.
 *
 * A matrix may consist of pieces, one below the other, each with a gather of its own. */
struct ane_gather {
  const void *data;
  uint64_t bytes;                                          /* of data */
  ane_dtype dtype;                                         /* of plain elements and of blocks */
  void (*decode)(const void *src, float *dst, uint64_t n); /* of blocks: n numbers, whole blocks; NULL: they are plain */
  int bits;
  bool is_signed, fp4; /* fp4: codes are E2M1 floats in blocks of 32; the scale of a block is a byte s for 2^(s - 127) */
  int64_t base, row_step, col_step;
  const void *scales;
  ane_dtype scale_dtype;
  int64_t scale_base, scale_row, scale_col, block, row_block;
  const void *zeros;    /* NULL: zero_default everywhere */
  ane_dtype zero_dtype; /* of one element each; U4, I4: nibbles over the flat array */
  int zero_bits;        /* or packed, the codes of a row of `zero_blocks` blocks padded to whole bytes; 0: not packed */
  int64_t zero_row_bytes, zero_blocks;
  float zero_default;
  const int32_t *g_idx; /* maybe unaligned; NULL: none */
  const void *table;    /* floats of type table_dtype; NULL: none */
  ane_dtype table_dtype;
  int64_t rows;                  /* of this piece, whose row 0 is the first; 0: all */
  const struct ane_gather *next; /* the piece below, NULL: none; its rows are counted from 0 again */
};

/* A dense row-major tensor. It is only a view: the maker of a tensor says who owns `data`. Rows of block types are whole blocks:
 * dim[rank-1] is a multiple of the block. */
struct ane_tensor {
  ane_dtype dtype;
  struct ane_shape shape;
  const void *data;
  uint64_t bytes;
  bool transposed; /* a matrix [R, C] whose element (r, c) lies at data + (c * ld + r) * size; plain types only */
  int64_t ld;
  const struct ane_gather *gather; /* not NULL: row r is row row0 + r of this, made in dtype by ane_gather_row;
                                    * data and bytes are what is stored of it, for those who hash or drop it */
  int64_t row0;
};

/* Returns the type that holds rows of a matrix [rows, cols] without loss: that of plain elements, a block type whose scales and
 * zero points can hold the stored ones, else fp32. */
ane_dtype ane_gather_dtype(const struct ane_gather *g, int64_t rows, int64_t cols);
/* Read row `row` of a tensor [rows, cols] with a gather, in the tensor's type or as floats. Rows of stacked matrices
 * [..., rows, cols] are numbered across all matrices. */
void ane_gather_row(const struct ane_tensor *t, int64_t row, void *dst);
void ane_gather_floats(const struct ane_tensor *t, int64_t row, float *dst);
/* Do all pieces of a matrix have tables of at most 16 numbers, and does each table serve a multiple of `rows` rows? */
bool ane_gather_has_tables(const struct ane_gather *g, int64_t rows);
/* Reads row `row` of such a matrix: its codes, one byte each, and the 16 values that they stand for. */
void ane_gather_codes(const struct ane_tensor *t, int64_t row, uint8_t *codes, float table[16]);

/* Compares n floats: largest |a - b|, largest |a - b| / (1 + |b|), root mean square of a - b, cosine of the angle (1 if both are
 * zero). NaN on either side makes max_abs and max_scaled infinite and cosine NaN. */
struct ane_difference {
  double max_abs, max_scaled, rms, cosine;
  uint64_t worst; /* index of max_abs */
};
struct ane_difference ane_compare_f32(const float *a, const float *b, uint64_t n);

/* Converts n elements of a plain type (floats, integers, bool; no block types) to float32. */
ane_status ane_to_f32(ane_dtype t, const void *src, float *dst, uint64_t n, struct ane_error *err);

#endif
