/* constexpr_lut_to_dense: codes that are indices into tables of numbers or of vectors. */
#include "interp/interp_mil_const.h"

#include <inttypes.h>

static int code_bits(uint64_t entries) {
  for (int n = 1; n <= 8; n++)
    if (entries == UINT64_C(1) << n) return n;
  return 0;
}

/* iOS16: a packed stream of indices and its shape, one table. */
static ane_status lut_stream(struct mil_import *t, const struct ane_mil_op *op) {
  const struct ane_mil_value *index = mil_const_tensor(t, op, "indices", 1), *lut = mil_const_tensor(t, op, "lut", 1),
                             *shape = mil_const_tensor(t, op, "shape", 1);
  if (!index || !lut || !shape) return t->err->code;
  struct ane_coded *w = ane_arena_alloc(&t->g->arena, sizeof *w);
  if (!w) return interp_no_memory(t->err);
  int bits = code_bits(lut->count);
  int64_t count = 1;
  if (!bits || shape->count > ANE_DYN_RANK || ane_mil_dtype_bits(index->type.dtype) != 8)
    return mil_op_fail(t, op, ANE_SHAPE, "a table of %" PRIu64 " entries for %" PRIu64 " dimensions", lut->count, shape->count);
  *w = (struct ane_coded){.codes = index->data, .bits = bits, .rank = (int32_t)shape->count, .entries = (int64_t)lut->count};
  for (int32_t i = 0; i < w->rank; i++) {
    w->dim[i] = w->block[i] = ane_mil_integer(shape, (uint64_t)i);
    if (w->dim[i] < 1 || __builtin_mul_overflow(count, w->dim[i], &count) || count > INT64_MAX / 16)
      return mil_op_fail(t, op, ANE_SHAPE, "shape holds %" PRId64, w->dim[i]);
  }
  if (ane_coded_bytes(w, count) != index->bytes)
    return mil_op_fail(t, op, ANE_SHAPE, "%" PRIu64 " bytes of indices for %" PRId64 " elements of %d bits", index->bytes, count,
                       bits);
  if (!(w->table = mil_const_floats(t, lut))) return ANE_NOMEM;
  return mil_const_give_codes(t, op, w);
}

ane_status mil_const_vectors(struct mil_import *t, const struct ane_mil_op *op, const struct ane_coded *w,
                             const struct ane_mil_value *lut, float **data, int64_t *dim, int64_t *total) {
  const struct ane_mil_value *a = mil_const_tensor(t, op, "vector_axis", 0);
  int64_t v = lut->type.dim[lut->type.rank - 1], n = 1, inner = 1, at[ANE_DYN_RANK] = {0};
  if (!a) return t->err->code;
  int64_t axis = ane_mil_integer(a, 0) < 0 ? ane_mil_integer(a, 0) + w->rank : ane_mil_integer(a, 0);
  if (axis < 0 || axis >= w->rank) return mil_op_fail(t, op, ANE_INVALID, "vector_axis is %" PRId64, ane_mil_integer(a, 0));
  for (int32_t i = 0; i < w->rank; i++) {
    if (__builtin_mul_overflow(w->dim[i], i == axis ? v : 1, &dim[i]))
      return mil_op_fail(t, op, ANE_RANGE, "vectors of %" PRId64 " elements", v);
    n *= w->dim[i];
    if (i > axis) inner *= w->dim[i];
  }
  if (__builtin_mul_overflow(n, v, total) || *total > INT64_MAX / 16)
    return mil_op_fail(t, op, ANE_RANGE, "vectors of %" PRId64 " elements", v);
  float *out = *data = ane_arena_array(&t->g->arena, (size_t)*total + 1, sizeof *out);
  if (!out) return interp_no_memory(t->err);
  for (int64_t i = 0; i < n; i++) {
    int64_t group = 0;
    for (int32_t d = 0; d < w->rank; d++) group += at[d] / w->block[d] * w->step[d];
    int64_t bit = i * w->bits, code = w->codes[bit >> 3] >> (bit & 7);
    if ((bit & 7) + w->bits > 8) code |= (int64_t)w->codes[(bit >> 3) + 1] << (8 - (bit & 7));
    const float *from = w->table + (group * w->entries + (code & ((1 << w->bits) - 1))) * v;
    int64_t outer = i / inner, rest = i % inner;
    for (int64_t j = 0; j < v; j++) out[(outer * v + j) * inner + rest] = from[j];
    for (int32_t d = w->rank - 1; d >= 0 && ++at[d] == w->dim[d]; d--) at[d] = 0;
  }
  return ANE_OK;
}

ane_status mil_const_table(struct mil_import *t, const struct ane_mil_op *op, const struct ane_mil_value *index,
                           const struct ane_mil_value *lut, struct ane_coded **out) {
  struct ane_coded *w = *out = mil_const_codes(t, op, index);
  if (!w) return t->err->code;
  if (lut->type.rank != w->rank + 2 || w->is_signed || w->bits > 8 || lut->type.dim[w->rank] != INT64_C(1) << w->bits ||
      lut->type.dim[w->rank + 1] < 1)
    return mil_op_fail(t, op, ANE_SHAPE, "lut of %d dimensions for indices of %d bits and %d dimensions", (int)lut->type.rank,
                       w->bits, (int)w->rank);
  w->entries = lut->type.dim[w->rank];
  ane_status st = mil_const_set_blocks(t, op, w, lut->type.dim);
  if (!st && !(w->table = mil_const_floats(t, lut))) st = ANE_NOMEM;
  return st;
}

ane_status mil_const_lut(struct mil_import *t, const struct ane_mil_op *op) {
  if (ane_mil_op_attr(op, "shape")) return lut_stream(t, op);
  const struct ane_mil_value *index = mil_const_tensor(t, op, "indices", ANE_DYN_RANK - 2),
                             *lut = mil_const_tensor(t, op, "lut", ANE_MIL_RANK);
  struct ane_coded *w;
  if (!index || !lut) return t->err->code;
  ane_status st = mil_const_table(t, op, index, lut, &w);
  if (st || lut->type.dim[lut->type.rank - 1] == 1) return st ? st : mil_const_give_codes(t, op, w);
  float *data;
  int64_t dim[ANE_DYN_RANK], total;
  st = mil_const_vectors(t, op, w, lut, &data, dim, &total);
  /* analyser: mil_const_vectors() sets `total` where it returns ANE_OK. */
  return st ? st : mil_const_give_floats(t, op, 0, w->rank, dim, data, (uint64_t)total);
}
