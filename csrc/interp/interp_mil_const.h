/* What the importers of constexpr_* operations share. Stored values and results live in the graph's arena. */
#ifndef ANE_INTERP_MIL_CONST_H
#define ANE_INTERP_MIL_CONST_H

#include "interp/interp_mil.h"

/* ---- interp_mil_const.c --------------------------------------------------------------------------------------------*/

static inline bool mil_is_float(ane_mil_dtype t) { return t == ANE_MIL_FP16 || t == ANE_MIL_FP32; }

/* Returns the value of a parameter: an attribute, an input bound to a value, or the output of another constexpr operation. NULL:
 * it is none of these. */
const struct ane_mil_value *mil_const_stored(const struct mil_import *t, const struct ane_mil_op *op, const char *name);
/* Returns a parameter that is a tensor of numbers of at most `rank` dimensions, with its data; NULL: the error is set. */
const struct ane_mil_value *mil_const_tensor(const struct mil_import *t, const struct ane_mil_op *op, const char *name,
                                             int32_t rank);
/* Returns all elements as floats; NULL: out of memory, and the error is set. */
float *mil_const_floats(struct mil_import *t, const struct ane_mil_value *v);

/* Output k becomes n floats of this shape. Other constexpr operations may read it too. data lies in
 * the arena and may be rounded in place. */
ane_status mil_const_give_floats(struct mil_import *t, const struct ane_mil_op *op, uint32_t k, int32_t rank, const int64_t *dim,
                                 float *data, uint64_t n);
/* Output k becomes a stored value, unchanged. */
ane_status mil_const_give_stored(struct mil_import *t, const struct ane_mil_op *op, uint32_t k, const struct ane_mil_value *v);
/* Output 0 becomes codes, which primitives decode. */
ane_status mil_const_give_codes(struct mil_import *t, const struct ane_mil_op *op, struct ane_coded *w);
/* Makes codes of a stored value, without scales or tables; NULL: the error is set. */
struct ane_coded *mil_const_codes(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *v);

/* Divides each dimension of the codes into groups[k] equal blocks. ANE_SHAPE: they do not divide it. */
ane_status mil_const_set_blocks(const struct mil_import *t, const struct ane_mil_op *op, struct ane_coded *w,
                                const int64_t *groups);
/* Makes codes of `data` with the operation's scale and offset. */
ane_status mil_const_scaled(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *data,
                            struct ane_coded **out);

/* ---- interp_mil_lut.c ----------------------------------------------------------------------------------------------*/

/* constexpr_lut_to_dense */
ane_status mil_const_lut(struct mil_import *t, const struct ane_mil_op *op);
/* Makes codes of `index` with tables [*groups, 2^n, V] (iOS18). V > 1: use mil_const_vectors to decode them. */
ane_status mil_const_table(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *index,
                           const struct ane_mil_value *lut, struct ane_coded **out);
/* Decodes tables of vectors: each index gives V elements along vector_axis. *data: *total floats of shape dim, in the arena. */
ane_status mil_const_vectors(struct mil_import *t, const struct ane_mil_op *op, const struct ane_coded *w,
                             const struct ane_mil_value *lut, float **data, int64_t *dim, int64_t *total);

/* ---- interp_mil_sparse.c -------------------------------------------------------------------------------------------*/

/* constexpr_sparse_to_dense, constexpr_sparse_blockwise_shift_scale, constexpr_lut_to_sparse */
ane_status mil_const_sparse(struct mil_import *t, const struct ane_mil_op *op);
ane_status mil_const_sparse_scaled(struct mil_import *t, const struct ane_mil_op *op);
ane_status mil_const_sparse_lut(struct mil_import *t, const struct ane_mil_op *op);

#endif
