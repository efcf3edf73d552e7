/* Sources that are made of an ONNX source: a part of its graph, or its weights by other names. */
#ifndef ANE_FORMATS_ONNX_SOURCE_H
#define ANE_FORMATS_ONNX_SOURCE_H

#include "formats/source.h"

/* Makes a source of a part of the graph: the nodes that compute the values `want` from the values `given` and the inputs of the
 * graph. Its inputs are the given values and the inputs of the graph that are needed. Inputs and outputs are named "v" with the
 * number of the value. Values of subgraphs are not available. The source is an owner of s. Errors: ANE_INVALID (s has no graph,
 * or no value has this number), ANE_NOMEM. */
ane_status ane_onnx_part(struct ane_source **out, struct ane_source *s, const int32_t *want, int32_t n_want, const int32_t *given,
                         int32_t n_given, struct ane_error *err);

/* How a weight is stored: constants by value number, -1: none. */
typedef enum {
  ANE_ONNX_PLAIN,      /* floats [rows, cols], transposed: [cols, rows]; any shape if neither transposed nor cut into rows */
  ANE_ONNX_NBITS,      /* MatMulNBits, GatherBlockQuantized, QMoE: codes [rows, blocks, ..] as uint8 with bits and block */
  ANE_ONNX_DEQUANTIZE, /* DequantizeLinear [rows, cols] or transposed, axis and block as there */
} ane_onnx_kind;
struct ane_onnx_piece {
  ane_onnx_kind kind;
  int32_t data, scales, zeros, g_idx;
  bool transposed;
  bool padded;           /* NBITS: each row of codes is padded to whole blocks */
  int64_t rows, cols;    /* of one matrix as seen by the product: [out, in] */
  int64_t matrix;        /* which one of a stack along the outermost dimension; 0 */
  int64_t from, step, n; /* rows from, from + step, ...: n of them */
  int bits;
  int64_t block, axis; /* block 0: one scale per row (NBITS); one per index of the axis, or a single one (DEQUANTIZE) */
  float zero_default;
};
struct ane_onnx_weight {
  const char *name;
  const struct ane_onnx_piece *pieces; /* their rows one after the other */
  uint32_t n_pieces;
  struct ane_shape shape; /* of all */
};
/* Makes a source of weights of a graph under other names. The source is an owner of s. All sizes and indices are checked. Errors:
 * ANE_SHAPE, ANE_RANGE (g_idx), ANE_UNSUPPORTED, ANE_INVALID (s has no graph), ANE_NOMEM. */
ane_status ane_onnx_weights(struct ane_source **out, struct ane_source *s, const struct ane_onnx_weight *list, uint32_t n,
                            struct ane_error *err);

#endif
