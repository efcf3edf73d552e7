/* Block codecs: rows of any stored type to float32 and back, whole tensors from one type to another. The layouts are those of the
 * GGUF specification (ggml/docs/gguf.md) and of ggml's block structs; quant/blocks.h draws them. */
#ifndef ANE_QUANT_QUANT_H
#define ANE_QUANT_QUANT_H

#include "platform/platform.h"
#include "tensor/tensor.h"

/* Decodes n elements of one row, where n is a multiple of the type's block. src needs no alignment. Cannot fail: every bit
 * pattern decodes to some value (infinity and NaN included), and table indices are masked. */
typedef void (*ane_decode_fn)(const void *src, float *dst, uint64_t n);

/* The decoder of a type, plain types included. NULL: the type has none (bool, int4, uint4, 64-bit integers). */
ane_decode_fn ane_decoder(ane_dtype t);

/* Encodes n elements (a multiple of the block). ane_encoder returns NULL if the type has no encoder. Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
 * and MXFP4 follow the plain rounding rules of the GGUF reference; fp16 and bf16 round to nearest even; Q2_K .. Q6_K, IQ4_NL and
 * IQ4_XS search for the scales and minima with the least squared error. */
typedef void (*ane_encode_fn)(const float *src, void *dst, uint64_t n);
ane_encode_fn ane_encoder(ane_dtype t);
/* Does importance change what ane_encode writes in this type? */
bool ane_encoder_weighs(ane_dtype t);

/* Encodes n elements of a row with a weight >= 0 for the squared error of each: importance has n values, such as the mean
 * square of what each column is multiplied by; NULL: all equal. Encoders that do not search ignore it. False if no encoder
 * exists. */
bool ane_encode(ane_dtype t, const float *src, const float *importance, void *dst, uint64_t n);

/* The index of the first of n elements of a row that is not finite; if the scale of a block is not finite, the first element of
 * that block. -1: all are finite, or the type has no decoder. n is a multiple of the block. */
int64_t ane_find_not_finite(ane_dtype t, const void *src, uint64_t n);

/* ---- Codes ---------------------------------------------------------------------------------------------------------*/

/* 32 columns of a block whose codes have at most four bits. Packed layouts are made from them. */
struct ane_codes {
  uint8_t code[32];
  uint16_t d[2]; /* fp16 scale of the block (NVFP4: of each 16 columns; MXFP4: the e8m0 byte) */
  uint16_t min;  /* Q2_K: fp16, of the minima that are subtracted */
  int8_t sub[2]; /* integers that multiply d: one for all columns, or one per 16; Q2_K: low nibbles scales, high nibbles minima */
};
/* Reads the s-th 32 columns of a block. Fields that the type does not have stay as they are. */
typedef void (*ane_codes_fn)(const void *block, int s, struct ane_codes *out);
ane_codes_fn ane_codes_reader(ane_dtype t); /* NULL: the type has none */

/* The values of codes that are table indices: value = scale * factor * value[code], where factor is a power of two. */
struct ane_code_values {
  int8_t value[16];
  float factor;
};
const struct ane_code_values *ane_code_values(ane_dtype t); /* NULL: codes are numbers */

/* ---- Adapters ------------------------------------------------------------------------------------------------------*/

/* What an adapter changes in a matrix. */
struct ane_lora {
  int64_t rank;
  float scale;            /* of B A */
  float blend;            /* fraction of the change that is applied, 0 .. 1 */
  const float *a, *b;     /* [rank][cols], [rows][rank]; NULL: there is no product */
  const float *magnitude; /* DoRA: [rows], the norms of the changed rows (Liu et al. 2024); NULL: LoRA */
  const float *values;    /* [rows][cols]: the whole matrix that takes the place of w; NULL: w stays */
};
/* w [rows][cols] += blend * (what the adapter makes of w - w). Sums over ranks ascending, in fp32; norms in double. temp: [cols].
 */
void ane_lora_merge(float *w, int64_t rows, int64_t cols, const struct ane_lora *l, float *temp);

/* ---- Rotations ---------------------------------------------------------------------------------------------------*/

enum { ANE_ROTATION_MOST = 1 << 16, ANE_ROTATION_ODD = 4095 }; /* most elements; largest odd factor, whose matrix is dense */

/* An orthogonal matrix Q [n][n]: random signs, then the Kronecker product of a Hadamard matrix and, for the odd factor of n, the
 * matrix of the discrete cosine transform (DCT-II). Hadamard rotations with random signs spread outliers over all elements: Tseng
 * et al. 2024 (QuIP#, arXiv 2402.04396), Ashkboos et al. 2024 (QuaRot, arXiv 2404.00456). */
struct ane_rotation {
  int64_t n, odd;  /* n = odd * a power of two */
  double *sign;    /* [n]: +-(odd / n)^0.5; owns the memory of all three */
  double *cosines; /* [odd][odd] */
  double *temp;    /* working memory, so a rotation is for one thread at a time */
};

/* Makes the rotation of n elements, 1 <= n <= ANE_ROTATION_MOST; their odd factor is at most ANE_ROTATION_ODD. The same seed
 * gives the same matrix. Free it with ane_rotation_free. Errors: ANE_SHAPE (n), ANE_NOMEM. */
ane_status ane_rotation_make(struct ane_rotation *r, int64_t n, uint64_t seed, struct ane_error *err);
void ane_rotation_free(struct ane_rotation *r);
/* Rotate w [rows][cols] in place. ane_rotate_columns: w (I x Q); cols must be a multiple of n. ane_rotate_rows: (I x Q)' w; rows
 * must be a multiple of n. */
void ane_rotate_columns(const struct ane_rotation *r, float *w, int64_t rows, int64_t cols);
void ane_rotate_rows(const struct ane_rotation *r, float *w, int64_t rows, int64_t cols);

/* ---- Whole tensors -----------------------------------------------------------------------------------------------*/

struct ane_factor;
struct ane_weight_fit;
/* How rows of a tensor (all dimensions but the innermost; rank 0 and 1: one row) become another type. */
struct ane_recode {
  const struct ane_tensor *src; /* a checked view */
  int64_t from, to;             /* its rows [from, to); to < 0: to the end */
  int64_t pair; /* 0; or even, the rows of a head: row 2t comes from t, row 2t + 1 from t + pair / 2 of each head (permuted rope).
                   from and to are multiples of it. The rows of a 1-D tensor are then its elements */
  float add;    /* added to every element */
  float by;     /* 0: none; else every element is multiplied by it, after the sum */
  ane_dtype dtype;                  /* the type to write: the same type (bytes are copied), or one with an encoder */
  const float *importance;          /* a weight for each column, or NULL: see ane_encode */
  const struct ane_factor *factor;  /* of the inputs, with the groups of dtype: rows are rounded with compensation
                                       (quant/compensate.h); NULL: each weight by itself */
  const struct ane_weight_fit *fit; /* NULL; or rows are first encoded by this scheme (its factor counts, not the one above), and
                                       dtype is its container (quant/weight_schemes.h). from is a multiple of 32 */
};

/* Sums over all converted elements, added to the present values. Copied bytes add no error and no signal. */
struct ane_recode_error {
  uint64_t count;
  double max_abs;       /* largest |before - after| */
  double error, signal; /* sums of the squares of before - after, and of before */
};

/* Errors of n elements, summed in one fixed order. bad: index of the first element of want that is not finite, else of the first
 * such element of got; -1: none. */
struct ane_measure {
  double max_abs, error, signal;
  int64_t bad;
};
struct ane_measure ane_measure(const float *want, const float *got, int64_t n);
/* Adds the errors of n elements. */
static inline void ane_recode_add(struct ane_recode_error *total, const struct ane_measure *m, uint64_t n) {
  if (m->max_abs > total->max_abs) total->max_abs = m->max_abs;
  total->error += m->error;
  total->signal += m->signal;
  total->count += n;
}

/* Receives `size` bytes, the next rows. */
typedef ane_status (*ane_recode_sink)(void *arg, const void *data, size_t size, struct ane_error *err);

/* Converts the rows on all threads of the pool, about a million elements at a time, and passes them to the sink in order, on the
 * caller's thread. Bytes and sums do not depend on the number of threads. Errors: those of the sink; ANE_INVALID (an element is
 * not finite or does not fit the new type), ANE_SHAPE (a row is not whole blocks), ANE_UNSUPPORTED (no decoder or encoder),
 * ANE_NOMEM. Messages do not name the tensor. */
ane_status ane_recode_rows(struct ane_pool *pool, const struct ane_recode *r, ane_recode_sink sink, void *arg,
                           struct ane_recode_error *total, struct ane_error *err);

#endif
