/* Builder functions of the operations that lowerings use. They make the constant operands: axes, bounds and shapes. */
#include "formats/aimodel/ai_internal.h"

#include <string.h>

ane_ai_value ane_ai_unary(struct ane_ai_build *b, ane_ai_op_id id, ane_ai_value x) { return ane_ai_op(b, id, &x, 1); }

ane_ai_value ane_ai_gelu(struct ane_ai_build *b, ane_ai_gelu_kind kind, ane_ai_value x) {
  ane_ai_value y = ane_ai_op(b, ANE_AI_GELU, &x, 1);
  if (!b->status) ((struct ane_ai_op *)(uintptr_t)y->op)->gelu = kind;
  return y;
}

static bool same_shape(ane_ai_value x, ane_ai_value y) {
  return x->type.rank == y->type.rank && memcmp(x->type.dim, y->type.dim, (size_t)x->type.rank * sizeof *x->type.dim) == 0;
}

/* The operation of the same meaning that broadcasts its operands. */
static ane_ai_op_id broadcasting(ane_ai_op_id id) {
  switch (id) {
    case ANE_AI_ADD: return ANE_AI_BROADCASTING_ADD;
    case ANE_AI_SUB: return ANE_AI_BROADCASTING_SUB;
    case ANE_AI_MUL: return ANE_AI_BROADCASTING_MUL;
    case ANE_AI_DIVIDE: return ANE_AI_BROADCASTING_DIVIDE;
    case ANE_AI_POW: return ANE_AI_BROADCASTING_POW;
    case ANE_AI_MAXIMUM: return ANE_AI_BROADCASTING_MAXIMUM;
    case ANE_AI_MINIMUM: return ANE_AI_BROADCASTING_MINIMUM;
    case ANE_AI_EQUAL: return ANE_AI_BROADCASTING_EQUAL;
    case ANE_AI_NOT_EQUAL: return ANE_AI_BROADCASTING_NOT_EQUAL;
    case ANE_AI_GREATER: return ANE_AI_BROADCASTING_GREATER;
    default: return id;
  }
}

ane_ai_value ane_ai_binary(struct ane_ai_build *b, ane_ai_op_id id, ane_ai_value x, ane_ai_value y) {
  ane_ai_value in[] = {x, y};
  return ane_ai_op(b, same_shape(x, y) ? id : broadcasting(id), in, 2);
}

ane_ai_value ane_ai_matmul(struct ane_ai_build *b, ane_ai_value x, ane_ai_value y) {
  ane_ai_value in[] = {x, y};
  const struct ane_ai_type *s = &x->type, *t = &y->type;
  bool plain = s->rank == t->rank && s->rank >= 2 && memcmp(s->dim, t->dim, (size_t)(s->rank - 2) * sizeof *s->dim) == 0;
  return ane_ai_op(b, plain ? ANE_AI_BATCH_MATMUL : ANE_AI_BROADCASTING_BATCH_MATMUL, in, 2);
}

ane_ai_value ane_ai_cast(struct ane_ai_build *b, ane_ai_value x, ane_ai_dtype t) {
  struct ane_ai_type type = x->type;
  type.dtype = t;
  return x->type.dtype == t ? x : ane_ai_typed(b, ANE_AI_CAST, &x, 1, type);
}

ane_ai_value ane_ai_reduce(struct ane_ai_build *b, ane_ai_op_id id, ane_ai_value x, int32_t axis) {
  ane_ai_value in[] = {x, ane_ai_ints(b, ANE_AI_INT32, &(int64_t){axis}, 1)};
  return ane_ai_op(b, id, in, 2);
}

ane_ai_value ane_ai_softmax(struct ane_ai_build *b, ane_ai_value x, int32_t axis) {
  ane_ai_value in[] = {x, ane_ai_int(b, ANE_AI_INT32, axis)};
  return ane_ai_op(b, ANE_AI_SOFTMAX, in, 2);
}

ane_ai_value ane_ai_argmax(struct ane_ai_build *b, ane_ai_value x, int32_t axis) {
  ane_ai_value in[] = {x, ane_ai_int(b, ANE_AI_INT32, axis)};
  return ane_ai_op(b, ANE_AI_ARGMAX, in, 2);
}

ane_ai_value ane_ai_argsort(struct ane_ai_build *b, ane_ai_value x, int32_t axis, bool descending) {
  ane_ai_value in[] = {x, ane_ai_int(b, ANE_AI_INT32, axis), ane_ai_int(b, ANE_AI_BOOL, descending),
                       ane_ai_int(b, ANE_AI_BOOL, 1)};
  return ane_ai_op(b, ANE_AI_ARGSORT, in, 4);
}

ane_ai_value ane_ai_reshape(struct ane_ai_build *b, ane_ai_value x, int32_t rank, const int64_t *dim) {
  bool same = x->type.rank == rank && memcmp(x->type.dim, dim, (size_t)rank * sizeof *dim) == 0;
  ane_ai_value in[] = {x, same ? x : ane_ai_ints(b, ANE_AI_UINT32, dim, rank)};
  return same ? x : ane_ai_op(b, ANE_AI_RESHAPE, in, 2);
}

ane_ai_value ane_ai_transpose(struct ane_ai_build *b, ane_ai_value x, const int32_t *perm) {
  int64_t wide[ANE_AI_RANK];
  for (int32_t i = 0; i < x->type.rank; i++) wide[i] = perm[i];
  ane_ai_value in[] = {x, ane_ai_ints(b, ANE_AI_UINT32, wide, x->type.rank)};
  return ane_ai_op(b, ANE_AI_TRANSPOSE, in, 2);
}

ane_ai_value ane_ai_concat(struct ane_ai_build *b, const ane_ai_value *list, uint32_t n, int32_t axis) {
  if (n == 1) return list[0];
  ane_ai_value *in = ane_arena_array(b->arena, (size_t)n + 1, sizeof *in);
  if (!in) return ane_ai_build_fail(b, ane_fail(b->err, ANE_NOMEM, "no memory for the program")), list[0];
  in[0] = ane_ai_int(b, ANE_AI_INT32, axis);
  memcpy(in + 1, list, n * sizeof *in);
  return ane_ai_op(b, ANE_AI_CONCAT, in, n + 1);
}

ane_ai_value ane_ai_slice(struct ane_ai_build *b, ane_ai_value x, int32_t axis, int64_t from, int64_t to, int64_t stride) {
  int64_t begin[ANE_AI_RANK] = {0}, end[ANE_AI_RANK], step[ANE_AI_RANK];
  int32_t rank = x->type.rank;
  for (int32_t i = 0; i < rank; i++) {
    begin[i] = i == axis ? from : 0;
    end[i] = i == axis ? to : x->type.dim[i];
    step[i] = i == axis ? stride : 1;
  }
  ane_ai_value in[] = {x, ane_ai_ints(b, ANE_AI_INT32, begin, rank), ane_ai_ints(b, ANE_AI_INT32, end, rank),
                       ane_ai_ints(b, ANE_AI_INT32, step, rank)};
  return ane_ai_op(b, ANE_AI_SLICE, in, 4);
}

ane_ai_value ane_ai_slice_at(struct ane_ai_build *b, ane_ai_value x, ane_ai_value begin, ane_ai_value end,
                             struct ane_ai_type type) {
  int64_t step[ANE_AI_RANK];
  for (int i = 0; i < ANE_AI_RANK; i++) step[i] = 1;
  ane_ai_value in[] = {x, begin, end, ane_ai_ints(b, ANE_AI_INT32, step, x->type.rank)};
  return ane_ai_typed(b, ANE_AI_SLICE, in, 4, type);
}

ane_ai_value ane_ai_slice_update(struct ane_ai_build *b, ane_ai_value x, ane_ai_value begin, ane_ai_value end,
                                 ane_ai_value update) {
  int64_t step[ANE_AI_RANK];
  for (int i = 0; i < ANE_AI_RANK; i++) step[i] = 1;
  ane_ai_value in[] = {x, begin, end, ane_ai_ints(b, ANE_AI_INT32, step, x->type.rank), update};
  return ane_ai_op(b, ANE_AI_SLICE_UPDATE, in, 5);
}

ane_ai_value ane_ai_broadcast_to(struct ane_ai_build *b, ane_ai_value x, int32_t rank, const int64_t *dim) {
  ane_ai_value in[] = {x, ane_ai_ints(b, ANE_AI_UINT32, dim, rank)};
  return ane_ai_op(b, ANE_AI_BROADCAST_TO, in, 2);
}

ane_ai_value ane_ai_gather(struct ane_ai_build *b, ane_ai_value x, ane_ai_value rows) {
  int64_t dim[ANE_AI_RANK] = {0};
  int32_t rank = rows->type.rank;
  if (rank >= ANE_AI_RANK) rank = ANE_AI_RANK - 1; /* rule_GATHER_ND refuses it */
  memcpy(dim, rows->type.dim, (size_t)rank * sizeof *dim);
  dim[rank] = 1;
  ane_ai_value in[] = {x, ane_ai_reshape(b, rows, rank + 1, dim)};
  return ane_ai_op(b, ANE_AI_GATHER_ND, in, 2);
}

ane_ai_value ane_ai_conv(struct ane_ai_build *b, ane_ai_value x, ane_ai_value weight, int64_t groups) {
  static const int64_t ones[] = {1, 1};
  ane_ai_value one = ane_ai_ints(b, ANE_AI_UINT32, ones, 2);
  ane_ai_value in[] = {x, weight, one, one, ane_ai_int(b, ANE_AI_UINT32, groups)};
  return ane_ai_op(b, ANE_AI_CONV2D, in, 5);
}

ane_ai_value ane_ai_blockwise(struct ane_ai_build *b, ane_ai_value codes, ane_ai_value scale, ane_ai_value minimum) {
  const struct ane_ai_type *s = &scale->type;
  uint64_t n = 0, bytes = 0;
  struct ane_ai_type first = ane_ai_tensor(codes->type.dtype, s->rank, s->dim);
  bool fits = ane_ai_count(&first, &n) && ane_ai_bytes(s->dtype, n, &bytes); /* the larger of both: scales are floats */
  void *zeros = fits ? ane_arena_alloc(b->arena, (size_t)bytes + 1) : NULL;
  if (!zeros) return ane_ai_build_fail(b, ane_fail(b->err, ANE_NOMEM, "no memory for the program")), codes;
  ane_ai_value in[] = {codes, scale, ane_ai_constant(b, first, zeros), minimum ? minimum : ane_ai_constant(b, *s, zeros)};
  return ane_ai_op(b, ANE_AI_BLOCKWISE, in, 4);
}

ane_ai_value ane_ai_lut(struct ane_ai_build *b, ane_ai_value codes, ane_ai_value tables) {
  ane_ai_value in[] = {codes, tables, ane_ai_int(b, ANE_AI_INT16, 0)};
  return ane_ai_op(b, ANE_AI_LUT, in, 3);
}
