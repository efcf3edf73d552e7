/* Builds one function of a Core AI program, with one call per operation:
 *
 *   y = ane_ai_binary(b, ANE_AI_MUL, ane_ai_unary(b, ANE_AI_SIGMOID, g), u);
 *
 * Result types are inferred. Everything is allocated in the arena. The builder records the first failure. Later calls then do
 * nothing and return a placeholder, so the caller checks the status once, in ane_ai_build_end. */
#ifndef ANE_FORMATS_AI_BUILD_H
#define ANE_FORMATS_AI_BUILD_H

#include "base/strmap.h"
#include "formats/aimodel/ai_spec.h"

typedef const struct ane_ai_value *ane_ai_value;

struct ane_ai_build {
  struct ane_arena *arena;
  struct ane_error *err;
  ane_status status;
  const char *scope; /* prefix of messages: the name of what is being built; NULL: none */
  struct ane_ai_function f;
  struct ane_buffer ops, inputs, outputs; /* of struct ane_ai_op *, ane_ai_port, ane_ai_port */
  struct ane_buffer states;               /* of struct ane_ai_state */
  struct ane_buffer shared;               /* of ane_ai_value: small constants, which are deduplicated */
  struct ane_strmap constants;            /* type and bytes -> index into shared */
};

/* Begins a function of this name. The arena and err outlive the builder. */
void ane_ai_build_begin(struct ane_ai_build *b, struct ane_arena *arena, const char *function, struct ane_error *err);
/* Records a failure unless there is one already. */
void ane_ai_build_fail(struct ane_ai_build *b, ane_status status);
/* Ends the function and returns the first failure. Outputs are one token per written state, then the tensors. Frees everything
 * outside the arena, also on failure. Errors: ANE_NOMEM, ANE_INVALID, those of ane_ai_infer. */
ane_status ane_ai_build_end(struct ane_ai_build *b, struct ane_ai_function *out);

/* ---- Inputs, outputs and states -----------------------------------------------------------------*/

/* Adds an input, at any time before the end. Returns its tensor, copied if the type has a layout. */
ane_ai_value ane_ai_input(struct ane_ai_build *b, const char *name, struct ane_ai_type type);
/* Adds an input that is a state with a tensor of this type. */
ane_ai_value ane_ai_state(struct ane_ai_build *b, const char *name, struct ane_ai_type type);
/* Adds an output. */
void ane_ai_output(struct ane_ai_build *b, const char *name, ane_ai_value x);
/* Reads the state's tensor after the writes so far; writes a new one. The builder makes the tokens that order them. */
ane_ai_value ane_ai_read(struct ane_ai_build *b, ane_ai_value state);
void ane_ai_write(struct ane_ai_build *b, ane_ai_value state, ane_ai_value data);

/* ---- Constants ------------------------------------------------------------------------------------------------------*/

/* A constant inside the program. data: as many bytes as ane_ai_bytes gives; copied. Equal constants up to 256 bytes are shared.
 * Sub-byte elements must all be equal; others belong in a resource. */
ane_ai_value ane_ai_constant(struct ane_ai_build *b, struct ane_ai_type type, const void *data);
/* A constant whose elements are the resource with the number that ane_aimodel_blob gave. Several functions may use it. */
ane_ai_value ane_ai_resource(struct ane_ai_build *b, struct ane_ai_type type, int32_t resource);
/* ane_ai_ints gives a vector [n], ane_ai_int and ane_ai_number a scalar (rank 0). t: an integer type, fp16 or fp32. */
ane_ai_value ane_ai_ints(struct ane_ai_build *b, ane_ai_dtype t, const int64_t *v, int32_t n);
ane_ai_value ane_ai_int(struct ane_ai_build *b, ane_ai_dtype t, int64_t v);
ane_ai_value ane_ai_number(struct ane_ai_build *b, ane_ai_dtype t, double v);

/* ---- Operations -----------------------------------------------------------------------------------------------------*/

/* Adds any operation of ai_op.def. Returns its first result; further results follow it in memory. */
ane_ai_value ane_ai_op(struct ane_ai_build *b, ane_ai_op_id id, const ane_ai_value *in, uint32_t n);
/* The same for operations whose operands do not determine the result type: a cast, a slice with computed bounds. */
ane_ai_value ane_ai_typed(struct ane_ai_build *b, ane_ai_op_id id, const ane_ai_value *in, uint32_t n, struct ane_ai_type type);
/* Calls another function of the asset. Returns its first result. */
ane_ai_value ane_ai_invoke(struct ane_ai_build *b, const struct ane_ai_function *callee, const ane_ai_value *in, uint32_t n);

ane_ai_value ane_ai_unary(struct ane_ai_build *b, ane_ai_op_id id, ane_ai_value x);
ane_ai_value ane_ai_gelu(struct ane_ai_build *b, ane_ai_gelu_kind kind, ane_ai_value x);
/* id: ANE_AI_ADD, SUB, MUL, DIVIDE, POW, MAXIMUM, MINIMUM, EQUAL, NOT_EQUAL or GREATER. Operands of unequal shapes are broadcast
 * (broadcasting_add_v1 and so on). */
ane_ai_value ane_ai_binary(struct ane_ai_build *b, ane_ai_op_id id, ane_ai_value x, ane_ai_value y);
/* x [.., M, K] times y [.., K, N] -> [.., M, N]; leading dimensions are broadcast. */
ane_ai_value ane_ai_matmul(struct ane_ai_build *b, ane_ai_value x, ane_ai_value y);
ane_ai_value ane_ai_cast(struct ane_ai_build *b, ane_ai_value x, ane_ai_dtype t); /* x itself if it is of type t */
/* id: ANE_AI_REDUCE_SUM, REDUCE_MEAN, REDUCE_MAX or REDUCE_MIN. The axis is kept, with size 1. */
ane_ai_value ane_ai_reduce(struct ane_ai_build *b, ane_ai_op_id id, ane_ai_value x, int32_t axis);
ane_ai_value ane_ai_softmax(struct ane_ai_build *b, ane_ai_value x, int32_t axis);
ane_ai_value ane_ai_argmax(struct ane_ai_build *b, ane_ai_value x, int32_t axis); /* uint32; the axis is kept, with size 1 */
/* The indices (int32) that sort x along the axis. The sort is stable. */
ane_ai_value ane_ai_argsort(struct ane_ai_build *b, ane_ai_value x, int32_t axis, bool descending);
ane_ai_value ane_ai_reshape(struct ane_ai_build *b, ane_ai_value x, int32_t rank, const int64_t *dim); /* without -1 */
ane_ai_value ane_ai_transpose(struct ane_ai_build *b, ane_ai_value x, const int32_t *perm);
ane_ai_value ane_ai_concat(struct ane_ai_build *b, const ane_ai_value *list, uint32_t n, int32_t axis);
/* Elements from, from + stride, ..., below `to`, of one axis. */
ane_ai_value ane_ai_slice(struct ane_ai_build *b, ane_ai_value x, int32_t axis, int64_t from, int64_t to, int64_t stride);
/* x[begin : end] along each axis, with computed bounds: begin and end are int32 [rank]. type: of the result. */
ane_ai_value ane_ai_slice_at(struct ane_ai_build *b, ane_ai_value x, ane_ai_value begin, ane_ai_value end,
                             struct ane_ai_type type);
/* x with x[begin : end] = update along each axis. begin and end: int32 [rank], constants or computed. */
ane_ai_value ane_ai_slice_update(struct ane_ai_build *b, ane_ai_value x, ane_ai_value begin, ane_ai_value end,
                                 ane_ai_value update);
ane_ai_value ane_ai_broadcast_to(struct ane_ai_build *b, ane_ai_value x, int32_t rank, const int64_t *dim);
/* x[rows] along the first axis of x. rows: int32 [r..]. x [n, d..] -> [r.., d..]. */
ane_ai_value ane_ai_gather(struct ane_ai_build *b, ane_ai_value x, ane_ai_value rows);
/* 2-D convolution with stride 1 and without padding. weight [C_out, C_in / groups, kh, kw]. */
ane_ai_value ane_ai_conv(struct ane_ai_build *b, ane_ai_value x, ane_ai_value weight, int64_t groups);

/* Dequantised weights: scale * codes + minimum, one scale per block. Each dimension of scale divides that of the codes. The
 * result has the type of scale, and so has minimum, with one element per scale. NULL: zeros. */
ane_ai_value ane_ai_blockwise(struct ane_ai_build *b, ane_ai_value codes, ane_ai_value scale, ane_ai_value minimum);
/* Dequantised weights: tables[codes]. codes [d0, ..], tables [d0 / block, .., 2^bits, 1]. */
ane_ai_value ane_ai_lut(struct ane_ai_build *b, ane_ai_value codes, ane_ai_value tables);

/* analyser: x is never NULL: after a failure it is a placeholder. */
static inline int64_t ane_ai_dim(ane_ai_value x, int axis) { return x->type.dim[axis]; }

#endif
