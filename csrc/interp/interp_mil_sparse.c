/* constexpr_sparse_*: a mask of bits says which elements are stored, plain, scaled or by table. All others are zero. */
#include "interp/interp_mil_const.h"

#include <inttypes.h>

static bool bit(const struct ane_mil_value *mask, uint64_t i) { return ((const uint8_t *)mask->data)[i >> 3] >> (i & 7) & 1; }

/* Spreads the nonzero data by a mask of n bits. */
static ane_status spread(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *mask,
                         const struct ane_mil_value *data, uint64_t n, float **out) {
  uint64_t at = 0;
  float *v = mil_const_floats(t, data), *all = v ? ane_arena_array(&t->g->arena, (size_t)n + 1, sizeof *all) : NULL;
  if (!all) return interp_no_memory(t->err);
  if ((n + 7) / 8 > mask->bytes)
    return mil_op_fail(t, op, ANE_SHAPE, "mask has %" PRIu64 " bytes for %" PRIu64 " elements", mask->bytes, n);
  for (uint64_t i = 0; i < n; i++) {
    if (!bit(mask, i)) continue;
    if (at == data->count)
      return mil_op_fail(t, op, ANE_SHAPE, "mask has more bits than the %" PRIu64 " elements of nonzero data", data->count);
    all[i] = v[at++];
  }
  if (at != data->count)
    return mil_op_fail(t, op, ANE_SHAPE, "mask has %" PRIu64 " bits for %" PRIu64 " elements of nonzero data", at, data->count);
  *out = all;
  return ANE_OK;
}

ane_status mil_const_sparse(struct mil_import *t, const struct ane_mil_op *op) {
  bool old = ane_mil_op_attr(op, "shape");
  const struct ane_mil_value *mask = mil_const_tensor(t, op, "mask", ANE_DYN_RANK),
                             *data = mil_const_tensor(t, op, "nonzero_data", 1),
                             *shape = old ? mil_const_tensor(t, op, "shape", 1) : NULL;
  int64_t dim[ANE_DYN_RANK], n = 1;
  float *all;
  if (!mask || !data || (old && !shape)) return t->err->code;
  if (!old && mask->type.dtype != ANE_MIL_UINT1)
    return mil_op_fail(t, op, ANE_FORMAT, "mask must be uint1, but is %s", ane_mil_dtype_name(mask->type.dtype));
  int32_t rank = old ? (int32_t)ANE_MIN(shape->count, (uint64_t)ANE_DYN_RANK + 1) : mask->type.rank;
  if (rank > ANE_DYN_RANK) return mil_op_fail(t, op, ANE_UNSUPPORTED, "%d dimensions", (int)rank);
  for (int32_t i = 0; i < rank; i++) {
    dim[i] = old ? ane_mil_integer(shape, (uint64_t)i) : mask->type.dim[i];
    if (dim[i] < 0 || __builtin_mul_overflow(n, dim[i], &n) || n > INT64_MAX / 16)
      return mil_op_fail(t, op, ANE_SHAPE, "shape holds %" PRId64, dim[i]);
  }
  if ((uint64_t)n > mask->bytes * 8)
    return mil_op_fail(t, op, ANE_SHAPE, "mask has %" PRIu64 " bytes for %" PRId64 " elements", mask->bytes, n);
  ane_status st = spread(t, op, mask, data, (uint64_t)n, &all);
  return st ? st : mil_const_give_floats(t, op, 0, rank, dim, all, (uint64_t)n);
}

/* Output 1 becomes the elements of `all` under the mask, output 0 the mask. */
static ane_status give_sparse(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *mask, float *all) {
  uint64_t n = 0;
  if (op->n_outputs != 2) return mil_op_fail(t, op, ANE_FORMAT, "has %" PRIu32 " outputs, but must have two", op->n_outputs);
  for (uint64_t i = 0; i < mask->count; i++)
    if (bit(mask, i)) all[n++] = all[i];
  int64_t dim[1] = {(int64_t)n};
  ane_status st = mil_const_give_stored(t, op, 0, mask);
  return st ? st : mil_const_give_floats(t, op, 1, 1, dim, all, n);
}

/* Decodes codes under a mask and sets the outputs. */
static ane_status give_decoded(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *mask,
                               struct ane_coded *w) {
  float *all = ane_arena_array(&t->g->arena, (size_t)mask->count + 1, sizeof *all);
  if (!all) return interp_no_memory(t->err);
  ane_coded_simplify(w);
  if (mask->count) ane_coded_read(w, 0, (int64_t)mask->count, all);
  return give_sparse(t, op, mask, all);
}

ane_status mil_const_sparse_scaled(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *mask = mil_const_tensor(t, op, "data_mask", ANE_DYN_RANK),
                             *data = mil_const_tensor(t, op, "nonzero_data", 1);
  struct ane_coded *w;
  float *codes;
  if (!mask || !data) return t->err->code;
  if (mask->type.dtype != ANE_MIL_UINT1) return mil_op_fail(t, op, ANE_FORMAT, "data_mask is not uint1");
  ane_status st = spread(t, op, mask, data, mask->count, &codes);
  if (st) return st;
  struct ane_mil_value dense = {.type = ane_mil_tensor_type(ANE_MIL_FP32, mask->type.rank, mask->type.dim),
                                .kind = ANE_MIL_NUMBERS,
                                .count = mask->count,
                                .data = codes,
                                .bytes = mask->count * sizeof *codes};
  st = mil_const_scaled(t, op, &dense, &w);
  return st ? st : give_decoded(t, op, mask, w);
}

/* Spreads the indices by a mask, one byte each; 0 if the bit is not set. */
static ane_status dense_indices(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *mask,
                                const struct ane_mil_value *data, struct ane_mil_value *out) {
  float *all;
  ane_status st = spread(t, op, mask, data, mask->count, &all);
  if (st) return st;
  uint8_t *codes = ane_arena_alloc(&t->g->arena, (size_t)mask->count + 1);
  if (!codes) return interp_no_memory(t->err);
  /* analyser: spread() sets `all` where it returns ANE_OK. */
  for (uint64_t i = 0; i < mask->count; i++) codes[i] = (uint8_t)all[i];
  *out = (struct ane_mil_value){.type = ane_mil_tensor_type(ANE_MIL_UINT8, mask->type.rank, mask->type.dim),
                                .kind = ANE_MIL_NUMBERS,
                                .count = mask->count,
                                .data = codes,
                                .bytes = mask->count};
  return ANE_OK;
}

/* Makes the mask of `total` elements, in vectors of v, from the mask of their indices. NULL: the error is set. */
static struct ane_mil_value *mask_of_vectors(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *mask,
                                             int64_t v, const int64_t *dim, int64_t total) {
  struct ane_mil_value *wide = ane_arena_alloc(&t->g->arena, sizeof *wide);
  uint8_t *map = ane_arena_alloc(&t->g->arena, (size_t)total / 8 + 2);
  if (!wide || !map) {
    interp_no_memory(t->err);
    return NULL;
  }
  int64_t axis = ane_mil_integer(mil_const_stored(t, op, "vector_axis"), 0), inner = 1;
  if (axis < 0) axis += mask->type.rank;
  for (int32_t i = (int32_t)axis + 1; i < mask->type.rank; i++) inner *= mask->type.dim[i];
  for (int64_t i = 0; i < total; i++) {
    int64_t from = i / (inner * v) * inner + i % inner;
    if (bit(mask, (uint64_t)from)) map[i >> 3] = (uint8_t)(map[i >> 3] | 1 << (i & 7));
  }
  *wide = (struct ane_mil_value){.type = ane_mil_tensor_type(ANE_MIL_UINT1, mask->type.rank, dim),
                                 .kind = ANE_MIL_NUMBERS,
                                 .count = (uint64_t)total,
                                 .data = map,
                                 .bytes = ((uint64_t)total + 7) / 8};
  return wide;
}

/* Makes codes of one byte with tables of 2^bits entries; the type of the indices gives `bits`. */
static ane_status table_of_bytes(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *index,
                                 uint32_t bits, const struct ane_mil_value *lut, struct ane_coded **w) {
  /* analyser: dense_indices() has set the type, or its code was returned. */
  int32_t rank = index->type.rank;
  struct ane_mil_value full = *lut;
  if (lut->type.rank != rank + 2 || lut->type.dim[rank] != INT64_C(1) << bits)
    return mil_op_fail(t, op, ANE_SHAPE, "lut does not fit the indices");
  full.type.dim[rank] = 256; /* codes of a byte need 256 entries */
  ane_status st = mil_const_table(t, op, index, &full, w);
  /* analyser: mil_const_table() sets *w where it returns ANE_OK. */
  if (!st) (*w)->entries = INT64_C(1) << bits;
  return st;
}

ane_status mil_const_sparse_lut(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *mask = mil_const_tensor(t, op, "indices_mask", ANE_DYN_RANK - 2),
                             *data = mil_const_tensor(t, op, "indices_nonzero_data", 1),
                             *lut = mil_const_tensor(t, op, "lut", ANE_MIL_RANK);
  if (!mask || !data || !lut) return t->err->code;
  if (mask->type.dtype != ANE_MIL_UINT1) return mil_op_fail(t, op, ANE_FORMAT, "indices_mask is not uint1");
  ane_mil_dtype d = data->type.dtype;
  uint32_t bits = ane_mil_dtype_bits(d);
  if (d != ANE_MIL_UINT1 && d != ANE_MIL_UINT2 && d != ANE_MIL_UINT3 && d != ANE_MIL_UINT4 && d != ANE_MIL_UINT6 &&
      d != ANE_MIL_UINT8)
    return mil_op_fail(t, op, ANE_UNSUPPORTED, "indices of type %s", ane_mil_dtype_name(d));
  struct ane_mil_value index;
  struct ane_coded *w;
  ane_status st = dense_indices(t, op, mask, data, &index);
  if (st || (st = table_of_bytes(t, op, &index, bits, lut, &w))) return st;
  int64_t v = lut->type.dim[lut->type.rank - 1], total, dim[ANE_DYN_RANK];
  float *all;
  /* analyser: table_of_bytes() has set w, or mil_op_fail() has returned its code. */
  if (v == 1) return give_decoded(t, op, mask, w);
  /* analyser: table_of_bytes() has set w, or mil_op_fail() has returned its code. */
  st = mil_const_vectors(t, op, w, lut, &all, dim, &total);
  if (st) return st;
  const struct ane_mil_value *wide = mask_of_vectors(t, op, mask, v, dim, total);
  return wide ? give_sparse(t, op, wide, all) : t->err->code;
}
