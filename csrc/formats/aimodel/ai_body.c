/* Builds the bodies of operations that are not primitives: their decompositions, which an asset carries beside them. A compiler
 * that knows the operation may ignore its body. The inputs of a body are the operands of the operation. Where an operand is a
 * constant (axes), the body uses its value, not the input. */
#include "formats/aimodel/ai_internal.h"

#include <float.h>
#include <string.h>

struct body_builder {
  struct ane_ai_build b;
  const struct ane_ai_op *op;
  ane_ai_value in[2]; /* the body's inputs */
};

static ane_ai_value emit_binary(struct ane_ai_build *b, ane_ai_op_id id, ane_ai_value x, ane_ai_value y) {
  ane_ai_value in[] = {x, y};
  return ane_ai_op(b, id, in, 2);
}

static ane_ai_value broadcast_if_needed(struct ane_ai_build *b, ane_ai_value x, int32_t rank, const int64_t *dim) {
  bool same = x->type.rank == rank && memcmp(x->type.dim, dim, (size_t)rank * sizeof *dim) == 0;
  return same ? x : ane_ai_broadcast_to(b, x, rank, dim);
}

/* The operation of the same meaning whose operands must have equal shapes. */
static ane_ai_op_id primitive(ane_ai_op_id id) {
  switch (id) {
    case ANE_AI_BROADCASTING_SUB: return ANE_AI_SUB;
    case ANE_AI_BROADCASTING_MUL: return ANE_AI_MUL;
    case ANE_AI_BROADCASTING_DIVIDE: return ANE_AI_DIVIDE;
    case ANE_AI_BROADCASTING_POW: return ANE_AI_POW;
    case ANE_AI_BROADCASTING_MAXIMUM: return ANE_AI_MAXIMUM;
    case ANE_AI_BROADCASTING_MINIMUM: return ANE_AI_MINIMUM;
    case ANE_AI_BROADCASTING_EQUAL: return ANE_AI_EQUAL;
    case ANE_AI_BROADCASTING_NOT_EQUAL: return ANE_AI_NOT_EQUAL;
    case ANE_AI_BROADCASTING_GREATER: return ANE_AI_GREATER;
    default: return ANE_AI_ADD;
  }
}

static ane_ai_value body_broadcast(struct body_builder *m) {
  const struct ane_ai_type *t = &m->op->out->type;
  ane_ai_value x = broadcast_if_needed(&m->b, m->in[0], t->rank, t->dim),
               y = broadcast_if_needed(&m->b, m->in[1], t->rank, t->dim);
  return emit_binary(&m->b, primitive(m->op->id), x, y);
}

/* Broadcasts the leading dimensions of both operands, but not the last two. */
static ane_ai_value body_broadcast_matmul(struct body_builder *m) {
  const struct ane_ai_type *t = &m->op->out->type;
  ane_ai_value in[2];
  for (int i = 0; i < 2; i++) {
    const struct ane_ai_type *own = &m->in[i]->type;
    int64_t dim[ANE_AI_RANK];
    memcpy(dim, t->dim, sizeof dim);
    memcpy(dim + t->rank - 2, own->dim + own->rank - 2, 2 * sizeof *dim);
    in[i] = broadcast_if_needed(&m->b, m->in[i], t->rank, dim);
  }
  return emit_binary(&m->b, ANE_AI_BATCH_MATMUL, in[0], in[1]);
}

static ane_ai_value body_sigmoid(struct body_builder *m) {
  struct ane_ai_build *b = &m->b;
  ane_ai_value x = m->in[0], one = ane_ai_number(b, x->type.dtype, 1), zero = ane_ai_number(b, x->type.dtype, 0);
  ane_ai_value e = ane_ai_unary(b, ANE_AI_EXP, ane_ai_binary(b, ANE_AI_SUB, zero, x));
  return ane_ai_binary(b, ANE_AI_DIVIDE, one, ane_ai_binary(b, ANE_AI_ADD, e, one));
}

static ane_ai_value body_silu(struct body_builder *m) {
  return emit_binary(&m->b, ANE_AI_MUL, m->in[0], ane_ai_unary(&m->b, ANE_AI_SIGMOID, m->in[0]));
}

static ane_ai_value body_relu(struct body_builder *m) {
  return ane_ai_binary(&m->b, ANE_AI_MAXIMUM, m->in[0], ane_ai_number(&m->b, m->in[0]->type.dtype, 0));
}

/* ---- Reductions -----------------------------------------------------------------------------------------------------*/

struct reduction {
  ane_ai_op_id id, combine;
  double first; /* initial value; -1 and 1 stand for the lowest and the largest number */
};
static const struct reduction reductions[] = {
    {ANE_AI_REDUCE_SUM, ANE_AI_ADD, 0},
    {ANE_AI_REDUCE_MAX, ANE_AI_MAXIMUM, -1},
    {ANE_AI_REDUCE_MIN, ANE_AI_MINIMUM, 1},
};

/* The largest finite number of fp16, fp32 or int32. */
static double largest(ane_ai_dtype t) { return t == ANE_AI_FP16 ? 65504 : t == ANE_AI_FP32 ? (double)FLT_MAX : INT32_MAX; }

/* The function that combines the accumulator (type `sum`) with an element. */
static ane_status combiner(struct ane_arena *arena, ane_ai_op_id id, ane_ai_dtype sum, ane_ai_dtype element,
                           struct ane_ai_function *out, struct ane_error *err) {
  struct ane_ai_build b;
  ane_ai_build_begin(&b, arena, "", err);
  ane_ai_value x = ane_ai_input(&b, "", ane_ai_tensor(sum, 0, NULL)), y = ane_ai_input(&b, "", ane_ai_tensor(element, 0, NULL));
  ane_ai_output(&b, "", emit_binary(&b, id, x, ane_ai_cast(&b, y, sum)));
  return ane_ai_build_end(&b, out);
}

static ane_ai_value body_reduce(struct body_builder *m) {
  struct ane_ai_build *b = &m->b;
  const struct reduction *r = reductions;
  while (r->id != m->op->id) r++; /* all rows of ai_op.def with the body REDUCE are listed */
  /* sums of fp16 are accumulated in fp32 */
  ane_ai_dtype element = m->in[0]->type.dtype, sum = element == ANE_AI_FP16 && r->combine == ANE_AI_ADD ? ANE_AI_FP32 : element;
  struct ane_ai_function *f = ane_arena_alloc(b->arena, sizeof *f);
  ane_status st = f ? combiner(b->arena, r->combine, sum, element, f, b->err) : ane_fail(b->err, ANE_NOMEM, "not enough memory");
  ane_ai_build_fail(b, st);
  ane_ai_value in[] = {m->in[0], m->in[1], ane_ai_number(b, sum, r->first * largest(element))};
  ane_ai_value x = ane_ai_typed(b, ANE_AI_REDUCE, in, 3, m->op->out->type);
  if (!b->status) ((struct ane_ai_op *)(uintptr_t)x->op)->body = f;
  return x;
}

/* Index of the largest element, the first of equal ones: an element replaces the best one only if it is greater. */
static ane_ai_value body_argmax(struct body_builder *m) {
  struct ane_ai_build *b = &m->b, c;
  ane_ai_dtype t = m->in[0]->type.dtype;
  struct ane_ai_function *f = ane_arena_alloc(b->arena, sizeof *f);
  if (!f) return ane_ai_build_fail(b, ane_fail(b->err, ANE_NOMEM, "not enough memory")), m->in[0];
  ane_ai_build_begin(&c, b->arena, "", b->err);
  ane_ai_value best = ane_ai_input(&c, "", ane_ai_tensor(t, 0, NULL)), next = ane_ai_input(&c, "", ane_ai_tensor(t, 0, NULL));
  ane_ai_output(&c, "", emit_binary(&c, ANE_AI_GREATER, next, best));
  ane_ai_build_fail(b, ane_ai_build_end(&c, f));
  ane_ai_value in[] = {m->in[0], m->in[1], ane_ai_number(b, t, -largest(t)), ane_ai_int(b, ANE_AI_UINT32, 0)};
  ane_ai_value x = ane_ai_typed(b, ANE_AI_REDUCE_INDEX, in, 4, m->op->out->type);
  if (!b->status) ((struct ane_ai_op *)(uintptr_t)x->op)->body = f;
  return x;
}

static ane_ai_value body_mean(struct body_builder *m) {
  struct ane_ai_build *b = &m->b;
  uint64_t all, kept;
  if (!ane_ai_count(&m->in[0]->type, &all) || !ane_ai_count(&m->op->out->type, &kept) || !kept) all = kept = 1;
  struct ane_ai_op sum = *m->op;
  ane_ai_value in[] = {m->in[0], m->in[1]};
  ane_ai_value x = ane_ai_typed(b, ANE_AI_REDUCE_SUM, in, 2, sum.out->type);
  return ane_ai_binary(b, ANE_AI_DIVIDE, x, ane_ai_number(b, m->in[0]->type.dtype, (double)(all / kept)));
}

static ane_ai_value body_softmax(struct body_builder *m) {
  struct ane_ai_build *b = &m->b;
  int64_t axis = 0;
  (void)ai_constant_int(m->op->in[1], 0, &axis);
  ane_ai_value top = ane_ai_reduce(b, ANE_AI_REDUCE_MAX, m->in[0], (int32_t)axis);
  ane_ai_value e = ane_ai_unary(b, ANE_AI_EXP, ane_ai_binary(b, ANE_AI_SUB, m->in[0], top));
  return ane_ai_binary(b, ANE_AI_DIVIDE, e, ane_ai_reduce(b, ANE_AI_REDUCE_SUM, e, (int32_t)axis));
}

/* ---- Interface ------------------------------------------------------------------------------------------------------*/

ane_status ai_body_make(struct ane_arena *arena, const struct ane_ai_op *op, struct ane_ai_function *out, struct ane_error *err) {
  struct body_builder m = {.op = op};
  ane_ai_value x;
  ane_ai_build_begin(&m.b, arena, "", err);
  for (uint32_t i = 0; i < op->n_in && i < ANE_COUNT(m.in); i++) m.in[i] = ane_ai_input(&m.b, "", op->in[i]->type);
  switch (ai_rows[op->id].body) {
    case AI_BODY_SIGMOID: x = body_sigmoid(&m); break;
    case AI_BODY_SILU: x = body_silu(&m); break;
    case AI_BODY_RELU: x = body_relu(&m); break;
    case AI_BODY_BROADCAST: x = body_broadcast(&m); break;
    case AI_BODY_BROADCAST_MATMUL: x = body_broadcast_matmul(&m); break;
    case AI_BODY_SOFTMAX: x = body_softmax(&m); break;
    case AI_BODY_ARGMAX: x = body_argmax(&m); break;
    case AI_BODY_REDUCE: x = body_reduce(&m); break;
    case AI_BODY_MEAN: x = body_mean(&m); break;
    default: x = m.in[0]; ane_ai_build_fail(&m.b, ane_fail(err, ANE_UNSUPPORTED, "%s has no body", op->name));
  }
  ane_ai_output(&m.b, "", x);
  return ane_ai_build_end(&m.b, out);
}
