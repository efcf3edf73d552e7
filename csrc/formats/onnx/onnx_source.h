/* Sources that are made of an ONNX source: a part of its graph, or its weights by other names. */
#ifndef ANE_FORMATS_ONNX_SOURCE_H
#define ANE_FORMATS_ONNX_SOURCE_H

#include "formats/source.h"

/* A part of the graph as a source of its own (which keeps s): what the values `want` are made of, up to the values `given`,
 * which become inputs beside those inputs of the graph that are needed. Inputs and outputs are called "v" and their number.
 * Values of subgraphs are not available. Errors: ANE_INVALID (the number is not that of a value). */
ane_status ane_onnx_part(struct ane_source **out, struct ane_source *s, const int32_t *want, int32_t n_want, const int32_t *given,
                         int32_t n_given, struct ane_error *err);

/* How a weight is stored: constants by value number, -1: none. */
typedef enum {
  ANE_ONNX_PLAIN,      /* floats [rows, cols], transposed: [cols, rows]; any shape where neither transposed nor cut */
  ANE_ONNX_NBITS,      /* MatMulNBits, GatherBlockQuantized, QMoE: codes [rows, blocks, ..] as uint8 with bits and block */
  ANE_ONNX_DEQUANTIZE, /* DequantizeLinear [rows, cols] or transposed, axis and block as there */
} ane_onnx_kind;
struct ane_onnx_piece {
  ane_onnx_kind kind;
  int32_t data, scales, zeros, g_idx;
  bool transposed;
  bool padded;           /* NBITS: each row of codes is filled up to whole blocks */
  int64_t rows, cols;    /* of one matrix as seen by the product: [out, in] */
  int64_t matrix;        /* which one of a stack along the outermost dimension; 0 */
  int64_t from, step, n; /* rows from, from + step, ...: n of them */
  int bits;
  int64_t block, axis; /* block 0: one scale a row (NBITS), one for each place of the axis or a single one (DEQUANTIZE) */
  float zero_default;
};
struct ane_onnx_weight {
  const char *name;
  const struct ane_onnx_piece *pieces; /* their rows one after the other */
  uint32_t n_pieces;
  struct ane_shape shape; /* of all */
};
/* The weights of a graph by other names, as a source that keeps s. Every size is checked. ANE_SHAPE, ANE_UNSUPPORTED. */
ane_status ane_onnx_weights(struct ane_source **out, struct ane_source *s, const struct ane_onnx_weight *list, uint32_t n,
                            struct ane_error *err);

#endif
