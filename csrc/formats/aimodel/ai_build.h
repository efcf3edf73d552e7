/* Builds one function of a Core AI program, with one call per operation:
 *
 *   y = ane_ai_binary(b, ANE_AI_MUL, ane_ai_unary(b, ANE_AI_SIGMOID, g), u);
 *
 * Result types are inferred. Everything lives in the arena. The builder keeps the first failure; all later calls do nothing and
 * return a harmless value, so the caller checks the status once, in ane_ai_build_end. */
#ifndef ANE_FORMATS_AI_BUILD_H
#define ANE_FORMATS_AI_BUILD_H

#include "base/strmap.h"
#include "formats/aimodel/ai_spec.h"

typedef const struct ane_ai_value *ane_ai_value;

struct ane_ai_build {
  struct ane_arena *arena;
  struct ane_error *err;
  ane_status status;
  const char *scope; /* what is being built, for messages; NULL: nothing */
  struct ane_ai_function f;
  struct ane_buffer ops, inputs, outputs; /* of struct ane_ai_op *, ane_ai_port, ane_ai_port */
  struct ane_buffer states;               /* of struct ane_ai_state */
  struct ane_buffer shared;               /* of ane_ai_value: small constants */
  struct ane_strmap constants;            /* type and bytes -> index into shared */
};

void ane_ai_build_begin(struct ane_ai_build *b, struct ane_arena *arena, const char *function, struct ane_error *err);
/* Records a failure, if it is the first one. */
void ane_ai_build_fail(struct ane_ai_build *b, ane_status status);
/* Closes the function: a token output for each state that was written comes before the tensors. Frees everything that is not in
 * the arena, also on failure. */
ane_status ane_ai_build_end(struct ane_ai_build *b, struct ane_ai_function *out);

/* ---- Features ------------------------------------------------------------------------------------------------------*/

/* The next input, at any time before the end. Returns its tensor, without a layout. */
ane_ai_value ane_ai_input(struct ane_ai_build *b, const char *name, struct ane_ai_type type);
/* The next input, a state that holds a tensor of this type. */
ane_ai_value ane_ai_state(struct ane_ai_build *b, const char *name, struct ane_ai_type type);
/* The next output. */
void ane_ai_output(struct ane_ai_build *b, const char *name, ane_ai_value x);
/* The state's tensor after the writes so far; and a new one. Tokens that order them are made here. */
ane_ai_value ane_ai_read(struct ane_ai_build *b, ane_ai_value state);
void ane_ai_write(struct ane_ai_build *b, ane_ai_value state, ane_ai_value data);

/* ---- Constants -------------------------------------------------------------------------------------------------------*/

/* Elements in the program, copied: as ane_ai_bytes says. Equal ones up to 256 bytes are shared.
 * Elements below a byte must all be equal; others belong in a resource. */
ane_ai_value ane_ai_constant(struct ane_ai_build *b, struct ane_ai_type type, const void *data);
/* Elements in the resource that ane_aimodel_blob numbered. Several functions may use one resource. */
ane_ai_value ane_ai_resource(struct ane_ai_build *b, struct ane_ai_type type, int32_t resource);
/* [n] of an integer type, fp16 or fp32; a scalar (rank 0). */
ane_ai_value ane_ai_ints(struct ane_ai_build *b, ane_ai_dtype t, const int64_t *v, int32_t n);
ane_ai_value ane_ai_int(struct ane_ai_build *b, ane_ai_dtype t, int64_t v);
ane_ai_value ane_ai_number(struct ane_ai_build *b, ane_ai_dtype t, double v);

/* ---- Operations --------------------------------------------------------------------------------------------------------*/

/* Any operation of ai_op.def with one result; its first result if it has several (they are an array). */
ane_ai_value ane_ai_op(struct ane_ai_build *b, ane_ai_op_id id, const ane_ai_value *in, uint32_t n);
/* An operation whose result type the operands do not say in full: a cast, a slice with bounds that are computed. */
ane_ai_value ane_ai_typed(struct ane_ai_build *b, ane_ai_op_id id, const ane_ai_value *in, uint32_t n, struct ane_ai_type type);
/* Calls another function of the asset, with results of these types; returns the first. */
ane_ai_value ane_ai_invoke(struct ane_ai_build *b, const struct ane_ai_function *callee, const ane_ai_value *in, uint32_t n);

ane_ai_value ane_ai_unary(struct ane_ai_build *b, ane_ai_op_id id, ane_ai_value x);
ane_ai_value ane_ai_gelu(struct ane_ai_build *b, ane_ai_gelu_kind kind, ane_ai_value x);
/* id: ANE_AI_ADD, SUB, MUL, DIVIDE, POW, MAXIMUM, MINIMUM, EQUAL, GREATER; operands of other shapes are broadcast
 * (broadcasting_add_v1 and so on). */
ane_ai_value ane_ai_binary(struct ane_ai_build *b, ane_ai_op_id id, ane_ai_value x, ane_ai_value y);
/* x [.., M, K] times y [.., K, N]; leading dimensions are broadcast. */
ane_ai_value ane_ai_matmul(struct ane_ai_build *b, ane_ai_value x, ane_ai_value y);
ane_ai_value ane_ai_cast(struct ane_ai_build *b, ane_ai_value x, ane_ai_dtype t); /* x itself if it has the type */
/* ANE_AI_REDUCE_SUM, REDUCE_MEAN, REDUCE_MAX, REDUCE_MIN; the axis stays, with one element. */
ane_ai_value ane_ai_reduce(struct ane_ai_build *b, ane_ai_op_id id, ane_ai_value x, int32_t axis);
ane_ai_value ane_ai_softmax(struct ane_ai_build *b, ane_ai_value x, int32_t axis);
ane_ai_value ane_ai_argmax(struct ane_ai_build *b, ane_ai_value x, int32_t axis); /* uint32; the axis stays, with one element */
/* The indices, int32, that sort x along the axis; equal elements keep their order. */
ane_ai_value ane_ai_argsort(struct ane_ai_build *b, ane_ai_value x, int32_t axis, bool descending);
ane_ai_value ane_ai_reshape(struct ane_ai_build *b, ane_ai_value x, int32_t rank, const int64_t *dim); /* no -1 */
ane_ai_value ane_ai_transpose(struct ane_ai_build *b, ane_ai_value x, const int32_t *perm);
ane_ai_value ane_ai_concat(struct ane_ai_build *b, const ane_ai_value *list, uint32_t n, int32_t axis);
/* Elements from, from + stride, ... below `to` of one axis. */
ane_ai_value ane_ai_slice(struct ane_ai_build *b, ane_ai_value x, int32_t axis, int64_t from, int64_t to, int64_t stride);
/* x[begin : end] along each axis; begin and end: int32 [rank], known when the function runs. type: of the result. */
ane_ai_value ane_ai_slice_at(struct ane_ai_build *b, ane_ai_value x, ane_ai_value begin, ane_ai_value end,
                             struct ane_ai_type type);
/* x with [begin : end] = update along each axis; begin and end: int32 [rank], any values. */
ane_ai_value ane_ai_slice_update(struct ane_ai_build *b, ane_ai_value x, ane_ai_value begin, ane_ai_value end,
                                 ane_ai_value update);
ane_ai_value ane_ai_broadcast_to(struct ane_ai_build *b, ane_ai_value x, int32_t rank, const int64_t *dim);
/* x[rows, ..] along the first axis of x; rows: int32, of any rank: the result has rows' shape before the rest of x's. */
ane_ai_value ane_ai_gather(struct ane_ai_build *b, ane_ai_value x, ane_ai_value rows);
/* Stride 1, no padding. weight [C_out, C_in / groups, kh, kw]. */
ane_ai_value ane_ai_conv(struct ane_ai_build *b, ane_ai_value x, ane_ai_value weight, int64_t groups);

/* Weights: scale * codes, a scale for each block; scale has the rank of the codes and divides their shape. The result has the
 * type of scale. And tables[codes]: tables [d0 / block, .., 2^bits, 1] of two dimensions more than the codes [d0, ..]. */
ane_ai_value ane_ai_blockwise(struct ane_ai_build *b, ane_ai_value codes, ane_ai_value scale);
ane_ai_value ane_ai_lut(struct ane_ai_build *b, ane_ai_value codes, ane_ai_value tables);

static inline int64_t ane_ai_dim(ane_ai_value x, int axis) { return x->type.dim[axis]; }

#endif
