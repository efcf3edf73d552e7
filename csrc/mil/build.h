/* Builds the operations of one MIL function, with one call per operation, so that a lowering reads like its formula:
 *
 *   y = mil_binary(b, "mul", mil_unary(b, "sigmoid", g), u);
 *
 * Result types are inferred from the arguments. Everything lives in the arena. The builder records the first failure. Later calls
 * then do nothing and return a placeholder, so the caller checks the status once, at the end.
 *
 * A value is named after the scope (the node that is being lowered) and its operation: "layers_0_attn_matmul". A number is added
 * if the name is taken. */
#ifndef ANE_MIL_BUILD_H
#define ANE_MIL_BUILD_H

#include "base/arena.h"
#include "base/bytes.h"
#include "base/strmap.h"
#include "formats/formats.h"
#include "mil/lower.h"

/* A value of the function. */
typedef const struct ane_mil_named_type *mil_value;

struct mil_build {
  struct ane_arena *arena;
  struct ane_error *err;
  ane_status status;
  int32_t version;                    /* of the specification: it decides which parameters operations have */
  ane_mil_dtype dtype;                /* of activations */
  const char *scope;                  /* an identifier */
  struct ane_buffer ops;              /* of struct ane_mil_op */
  struct ane_strmap names, constants; /* names in use; small constants by their text -> index into shared */
  struct ane_buffer shared;           /* of mil_value */
};

void mil_build_init(struct mil_build *b, struct ane_arena *arena, int32_t version, ane_mil_dtype dtype, struct ane_error *err);
/* Frees everything that is not in the arena. */
void mil_build_free(struct mil_build *b);
/* Records a failure, an expression of ane_fail: the first one of a program, whose message stays. */
#define mil_build_fail(b, failure)                                                                                               \
  do {                                                                                                                           \
    if (!(b)->status) (b)->status = (failure);                                                                                   \
  } while (0)
/* Records an out-of-memory failure. */
void mil_build_no_memory(struct mil_build *b);

/* Returns a name that no other value has: `name`, or name_2, ... */
const char *mil_name(struct mil_build *b, const char *name);
/* Makes an input of the function: a value of the given type that no operation makes. `name` comes from mil_name. */
mil_value mil_given(struct mil_build *b, const char *name, struct ane_mil_type type);

/* ---- Constants: equal small constants are shared ------------------------------------------------------------------- */

mil_value mil_ints(struct mil_build *b, const int32_t *v, int n); /* int32 [n] */
mil_value mil_int(struct mil_build *b, int32_t v);                /* int32, a scalar */
mil_value mil_flags(struct mil_build *b, const bool *v, int n);   /* bool [n] */
mil_value mil_flag(struct mil_build *b, bool v);
mil_value mil_text(struct mil_build *b, const char *s);
mil_value mil_number(struct mil_build *b, ane_mil_dtype t, double v); /* a scalar: fp16 or fp32 */
/* Makes a tensor of fp16 or fp32, rounded from `data`; or of int32, for which `data` must hold whole numbers. Fails with
 * ANE_INVALID if a number is not finite in the type. */
mil_value mil_tensor(struct mil_build *b, const char *name, ane_mil_dtype t, int32_t rank, const int64_t *dim, const float *data);
/* Makes the constant that a weight provider returned: const or constexpr. */
mil_value mil_weight(struct mil_build *b, const char *name, const struct ane_mil_weight *w, struct ane_mil_type type);

/* ---- Operations -------------------------------------------------------------------------------------------------------*/

/* One parameter: a value, or a list of n > 0 values. A NULL value without a list omits the parameter. */
struct mil_arg {
  const char *name;
  mil_value value;
  const mil_value *list;
  int n;
};
/* Appends any operation with one output, of type `out`. `type` is the operation's name in MIL. If name is NULL, the output is
 * named after the operation. */
mil_value mil_op(struct mil_build *b, const char *type, const char *name, struct ane_mil_type out, const struct mil_arg *args,
                 int n);

mil_value mil_unary(struct mil_build *b, const char *type, mil_value x);               /* the result has the type of x */
mil_value mil_binary(struct mil_build *b, const char *type, mil_value x, mil_value y); /* broadcast */
static inline mil_value mil_add(struct mil_build *b, mil_value x, mil_value y) { return mil_binary(b, "add", x, y); }
static inline mil_value mil_mul(struct mil_build *b, mil_value x, mil_value y) { return mil_binary(b, "mul", x, y); }
/* Returns x if `by` is 1. Fails with ANE_INVALID if the type of x has no such number. */
mil_value mil_scale(struct mil_build *b, mil_value x, double by);
mil_value mil_equal(struct mil_build *b, mil_value x, mil_value y); /* bool, broadcast */
/* type: equal, greater or greater_equal */
mil_value mil_compare(struct mil_build *b, const char *type, mil_value x, mil_value y);
mil_value mil_rsqrt(struct mil_build *b, mil_value x, double eps);
mil_value mil_clip(struct mil_build *b, mil_value x, double low, double high);
mil_value mil_cast(struct mil_build *b, mil_value x, ane_mil_dtype t); /* returns x if it has that type already */
/* "silu", "gelu_tanh", "gelu_erf", "sigmoid" */
mil_value mil_activation(struct mil_build *b, const char *act, mil_value x);
mil_value mil_softmax(struct mil_build *b, mil_value x, int axis);
mil_value mil_layer_norm(struct mil_build *b, mil_value x, int axis, double eps);
/* reduce_mean, reduce_sum or reduce_max. The reduced axis stays, with one element. */
mil_value mil_reduce(struct mil_build *b, const char *type, mil_value x, int axis);
mil_value mil_argmax(struct mil_build *b, mil_value x, int axis); /* int32; the axis is removed */
/* Returns the int32 indices of the k largest elements along the axis, the largest first. */
mil_value mil_topk(struct mil_build *b, mil_value x, int k, int axis);
mil_value mil_concat(struct mil_build *b, const mil_value *list, int n, int axis, bool interleave);
mil_value mil_concat2(struct mil_build *b, mil_value x, mil_value y, int axis);
/* Takes elements from, from + stride, ... below `to` of one axis; the other axes are kept whole. to = MIL_END: up to the end.
 * Negative indices count from the end (stride 1). */
enum { MIL_END = INT32_MAX };
mil_value mil_slice(struct mil_build *b, mil_value x, int axis, int64_t from, int64_t to, int64_t stride);
/* Takes `count` elements of an axis, starting at `begin`. begin: int32 [rank], zero except at the axis. */
mil_value mil_slice_size(struct mil_build *b, mil_value x, int axis, mil_value begin, int64_t count);
/* Returns x after x[.., begin : end, ..] = update. begin and end: int32 [rank]; only their elements at the axis are used. */
mil_value mil_slice_update(struct mil_build *b, mil_value x, mil_value update, int axis, mil_value begin, mil_value end);
/* Reshapes x. At most one dimension is -1, which is inferred. Returns x itself if it has that shape already. */
mil_value mil_reshape(struct mil_build *b, mil_value x, int rank, const int64_t *dim);
mil_value mil_reshape4(struct mil_build *b, mil_value x, int64_t d0, int64_t d1, int64_t d2, int64_t d3);
mil_value mil_transpose(struct mil_build *b, mil_value x, const int32_t *perm);
mil_value mil_swap(struct mil_build *b, mil_value x); /* the last two axes of four */
mil_value mil_tile(struct mil_build *b, mil_value x, int axis, int64_t times);
mil_value mil_matmul(struct mil_build *b, mil_value x, mil_value y, bool transpose_y); /* equal leading dimensions */
/* A convolution with stride 1, no padding and no dilation. bias NULL: none. weight: [C_out, C_in / groups, kh, kw]. */
mil_value mil_conv(struct mil_build *b, mil_value x, mil_value weight, mil_value bias, int64_t groups);
/* Returns dimension `axis` of x as int32 [1], computed at run time if it is not known. */
mil_value mil_size(struct mil_build *b, mil_value x, int axis);
/* Returns x[indices] along an axis of x; indices: int32 [n], not negative. */
mil_value mil_gather(struct mil_build *b, mil_value x, mil_value indices, int axis);
mil_value mil_identity(struct mil_build *b, mil_value x, const char *name); /* gives the value this name, from mil_name */
mil_value mil_read_state(struct mil_build *b, mil_value state);
void mil_write_state(struct mil_build *b, mil_value state, mil_value data);

/* analyser: x is never NULL: after a failure it is a placeholder. */
static inline int64_t mil_dim(mil_value x, int axis) { return x->type.dim[axis]; }

#endif
