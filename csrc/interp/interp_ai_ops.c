/* Translates single operations of Core AI to operations of MIL. */
#include "interp/interp_ai.h"

#include <string.h>

/* ---- Single operations ------------------------------------------------------------------------------------------------------*/

/* Operations that MIL has with the same operands. */
static const struct {
  ane_ai_op_id id;
  const char *type, *params[3];
} plain[] = {
    {ANE_AI_ABS, "abs", {"x"}},
    {ANE_AI_COS, "cos", {"x"}},
    {ANE_AI_SIN, "sin", {"x"}},
    {ANE_AI_EXP, "exp", {"x"}},
    {ANE_AI_ERF, "erf", {"x"}},
    {ANE_AI_SQRT, "sqrt", {"x"}},
    {ANE_AI_TAN, "tan", {"x"}},
    {ANE_AI_ASIN, "asin", {"x"}},
    {ANE_AI_ACOS, "acos", {"x"}},
    {ANE_AI_ATAN, "atan", {"x"}},
    {ANE_AI_SINH, "sinh", {"x"}},
    {ANE_AI_COSH, "cosh", {"x"}},
    {ANE_AI_ASINH, "asinh", {"x"}},
    {ANE_AI_ACOSH, "acosh", {"x"}},
    {ANE_AI_ATANH, "atanh", {"x"}},
    {ANE_AI_ROUND, "round", {"x"}},
    {ANE_AI_TANH, "tanh", {"x"}},
    {ANE_AI_SIGMOID, "sigmoid", {"x"}},
    {ANE_AI_SILU, "silu", {"x"}},
    {ANE_AI_RELU, "relu", {"x"}},
    {ANE_AI_NOT, "logical_not", {"x"}},
    {ANE_AI_ADD, "add", {"x", "y"}},
    {ANE_AI_SUB, "sub", {"x", "y"}},
    {ANE_AI_MUL, "mul", {"x", "y"}},
    {ANE_AI_DIVIDE, "real_div", {"x", "y"}},
    {ANE_AI_POW, "pow", {"x", "y"}},
    {ANE_AI_MAXIMUM, "maximum", {"x", "y"}},
    {ANE_AI_MINIMUM, "minimum", {"x", "y"}},
    {ANE_AI_EQUAL, "equal", {"x", "y"}},
    {ANE_AI_NOT_EQUAL, "not_equal", {"x", "y"}},
    {ANE_AI_GREATER, "greater", {"x", "y"}},
    {ANE_AI_BROADCASTING_ADD, "add", {"x", "y"}},
    {ANE_AI_BROADCASTING_SUB, "sub", {"x", "y"}},
    {ANE_AI_BROADCASTING_MUL, "mul", {"x", "y"}},
    {ANE_AI_BROADCASTING_DIVIDE, "real_div", {"x", "y"}},
    {ANE_AI_BROADCASTING_POW, "pow", {"x", "y"}},
    {ANE_AI_BROADCASTING_MAXIMUM, "maximum", {"x", "y"}},
    {ANE_AI_BROADCASTING_MINIMUM, "minimum", {"x", "y"}},
    {ANE_AI_BROADCASTING_EQUAL, "equal", {"x", "y"}},
    {ANE_AI_BROADCASTING_NOT_EQUAL, "not_equal", {"x", "y"}},
    {ANE_AI_BROADCASTING_GREATER, "greater", {"x", "y"}},
    {ANE_AI_FLOOR_DIVIDE, "floor_div", {"x", "y"}},
    {ANE_AI_BROADCASTING_FLOOR_DIVIDE, "floor_div", {"x", "y"}},
    {ANE_AI_MODULO, "fmod", {"x", "y"}},
    {ANE_AI_BROADCASTING_MODULO, "fmod", {"x", "y"}},
    {ANE_AI_LOGICAL_AND, "logical_and", {"x", "y"}},
    {ANE_AI_BROADCASTING_LOGICAL_AND, "logical_and", {"x", "y"}},
    {ANE_AI_LOGICAL_OR, "logical_or", {"x", "y"}},
    {ANE_AI_BROADCASTING_LOGICAL_OR, "logical_or", {"x", "y"}},
    {ANE_AI_LOGICAL_XOR, "logical_xor", {"x", "y"}},
    {ANE_AI_BROADCASTING_LOGICAL_XOR, "logical_xor", {"x", "y"}},
    {ANE_AI_BITWISE_AND, "bitwise_and", {"x", "y"}},
    {ANE_AI_BROADCASTING_BITWISE_AND, "bitwise_and", {"x", "y"}},
    {ANE_AI_BITWISE_OR, "bitwise_or", {"x", "y"}},
    {ANE_AI_BROADCASTING_BITWISE_OR, "bitwise_or", {"x", "y"}},
    {ANE_AI_BITWISE_XOR, "bitwise_xor", {"x", "y"}},
    {ANE_AI_BROADCASTING_BITWISE_XOR, "bitwise_xor", {"x", "y"}},
    {ANE_AI_WHERE, "select", {"cond", "a", "b"}},
    {ANE_AI_BROADCASTING_WHERE, "select", {"cond", "a", "b"}},
    {ANE_AI_REVERSE, "reverse", {"x", "axes"}},
    {ANE_AI_RANGE, "range_1d", {"start", "end", "step"}},
    {ANE_AI_NON_ZERO, "non_zero", {"x"}},
    {ANE_AI_BATCH_MATMUL, "matmul", {"x", "y"}},
    {ANE_AI_BROADCASTING_BATCH_MATMUL, "matmul", {"x", "y"}},
    {ANE_AI_GATHER_ND, "gather_nd", {"x", "indices"}},
};

static ane_status plain_op(struct translation *t, const struct call *c, bool *done) {
  for (size_t i = 0; i < ANE_COUNT(plain); i++) {
    struct param params[3];
    uint32_t n = 0;
    if (plain[i].id != c->op->id) continue;
    *done = true;
    for (; n < 3 && plain[i].params[n]; n++) params[n] = (struct param){.name = plain[i].params[n], .slot = c->in[n]};
    return ai_emit(t, plain[i].type, params, n, c->out, 1);
  }
  return ANE_OK;
}

static ane_status epsilon_op(struct translation *t, const struct call *c, const char *type) {
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = "epsilon", .value = ai_real(t, 0)}};
  return ai_emit(t, type, p, 2, c->out, 1);
}

static ane_status gelu(struct translation *t, const struct call *c) {
  static const char *const modes[] = {"EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"};
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = "mode", .value = ai_text(t, modes[c->op->gelu])}};
  return ai_emit(t, "gelu", p, 2, c->out, 1);
}

static ane_status pad(struct translation *t, const struct call *c) {
  static const char *const modes[] = {NULL, "constant", "reflect", "replicate", NULL, NULL};
  if (!modes[c->op->pad]) return ai_fail(t, ANE_UNSUPPORTED, "its mode is not supported");
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "pad", .slot = c->in[1]},
                      {.name = "mode", .value = ai_text(t, modes[c->op->pad])},
                      {.name = "constant_val", .slot = c->in[2]}};
  return ai_emit(t, "pad", p, 4, c->out, 1);
}

static ane_status cast(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "dtype", .value = ai_text(t, ane_mil_dtype_name(c->out->type.dtype))}};
  return ai_emit(t, "cast", p, 2, c->out, 1);
}

static ane_status conv(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]},       {.name = "weight", .slot = c->in[1]},
                      {.name = "strides", .slot = c->in[2]}, {.name = "dilations", .slot = c->in[3]},
                      {.name = "groups", .slot = c->in[4]},  {.name = "pad_type", .value = ai_text(t, "valid")}};
  return ai_emit(t, "conv", p, ANE_COUNT(p), c->out, 1);
}

static ane_status softmax(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = "axis", .slot = c->in[1]}};
  return ai_emit(t, "softmax", p, 2, c->out, 1);
}

static ane_status argmax(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "axis", .slot = c->in[1]},
                      {.name = "keep_dims", .value = ai_flag(t, true)},
                      {.name = "output_dtype", .value = ai_text(t, "int32")}};
  return ai_emit(t, "reduce_argmax", p, 4, c->out, 1);
}

static ane_status reduce(struct translation *t, const struct call *c, const char *type) {
  struct param p[] = {
      {.name = "x", .slot = c->in[0]}, {.name = "axes", .slot = c->in[1]}, {.name = "keep_dims", .value = ai_flag(t, true)}};
  return ai_emit(t, type, p, 3, c->out, 1);
}

/* Sorting is topk with k = the size of the axis. descending: largest first. The result is the values, or with `indices` their
 * indices. */
static ane_status sorted(struct translation *t, const struct call *c, bool indices) {
  int32_t axis;
  int64_t n;
  const struct ane_mil_value *order = c->in[2]->raw;
  if (!ai_constant_ints(c->in[1], &axis, 1, &n) || n != 1 || !order || order->count != 1 || order->type.dtype != ANE_MIL_BOOL)
    return ai_fail(t, ANE_UNSUPPORTED, "its axis and order must be constants");
  struct slot two[2] = {{.type = c->in[0]->type}, {.type = c->out->type}};
  two[1].type.dtype = ANE_MIL_INT32;
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "k", .value = ai_integer(t, -1)},
                      {.name = "axis", .slot = c->in[1]},
                      {.name = "ascending", .value = ai_flag(t, *(const uint8_t *)order->data == 0)},
                      {.name = "sort", .value = ai_flag(t, true)},
                      {.name = "output_indices_dtype", .value = ai_text(t, "int32")}};
  ane_status st = ai_emit(t, "topk", p, ANE_COUNT(p), two, 2);
  c->out->name = two[indices].name;
  return st;
}

/* Computes whether any element along the axes is true, or whether all are. type: the reduction of MIL. */
static ane_status quantified(struct translation *t, const struct call *c, const char *type) {
  struct slot x = {.type = c->in[0]->type}, y = {.type = c->out->type};
  x.type.dtype = y.type.dtype = ANE_MIL_INT32;
  struct param widen[] = {{.name = "x", .slot = c->in[0]}, {.name = "dtype", .value = ai_text(t, "int32")}};
  struct param narrow[] = {{.name = "x", .slot = &y}, {.name = "dtype", .value = ai_text(t, "bool")}};
  struct call inner = {.op = c->op, .in = {&x, c->in[1]}, .out = &y};
  ane_status st = ai_emit(t, "cast", widen, 2, &x, 1);
  if (!st) st = reduce(t, &inner, type);
  return st ? st : ai_emit(t, "cast", narrow, 2, c->out, 1);
}

/* Cumulative sums: other scans are refused. */
static ane_status scan(struct translation *t, const struct call *c) {
  if (c->op->mode != 0) return ai_fail(t, ANE_UNSUPPORTED, "only sums are supported");
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "axis", .slot = c->in[1]},
                      {.name = "exclusive", .value = ai_flag(t, false)},
                      {.name = "reverse", .slot = c->in[2]}};
  return ai_emit(t, "cumsum", p, 4, c->out, 1);
}

/* Reshapes to the declared shape of the result. */
static ane_status reshape_to(struct translation *t, const struct slot *x, struct slot *out) {
  int32_t dim[ANE_MIL_RANK];
  for (int32_t i = 0; i < out->type.rank; i++) {
    if (out->type.dim[i] < 0 || out->type.dim[i] > INT32_MAX) return ai_fail(t, ANE_UNSUPPORTED, "its shape is unknown");
    dim[i] = (int32_t)out->type.dim[i];
  }
  struct param p[] = {{.name = "x", .slot = x}, {.name = "shape", .value = ai_ints(t, dim, out->type.rank)}};
  return ai_emit(t, "reshape", p, 2, out, 1);
}

static bool known_shape(const struct ane_mil_type *t) {
  bool known = true;
  for (int32_t i = 0; i < t->rank; i++) known = known && t->dim[i] >= 0;
  return known;
}

/* Reshapes to the declared result, or by the operand if sizes of the result are not known before the run. */
static ane_status reshape(struct translation *t, const struct call *c, const char *type, const char *operand) {
  if (known_shape(&c->out->type)) return reshape_to(t, c->in[0], c->out);
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = operand, .slot = c->in[1]}};
  return ai_emit(t, type, p, 2, c->out, 1);
}

static ane_status transpose(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = "perm", .slot = c->in[1]}};
  return ai_emit(t, "transpose", p, 2, c->out, 1);
}

static ane_status along(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = "indices", .slot = c->in[1]}, {.name = "axis", .slot = c->in[2]}};
  return ai_emit(t, "gather_along_axis", p, 3, c->out, 1);
}

ane_status ai_concat(struct translation *t, const struct slot *const *in, uint32_t n, struct slot *out) {
  struct param p[] = {{.name = "axis", .slot = in[0]},
                      {.name = "interleave", .value = ai_flag(t, false)},
                      {.name = "values", .list = in + 1, .n = n - 1}};
  return ai_emit(t, "concat", p, 3, out, 1);
}

/* Broadcasts to sizes that are not known before the run. The operands are a shape, or sizes and the axes that get them. */
static ane_status expand(struct translation *t, const struct call *c) {
  struct slot own = {.type = ane_mil_tensor_type(ANE_MIL_INT32, 1, (int64_t[]){c->in[0]->type.rank})}, all = {.type = own.type};
  struct param given = {.name = "x", .slot = c->in[0]};
  struct param put[] = {{.name = "data", .slot = &own},
                        {.name = "indices", .slot = c->in[2]},
                        {.name = "updates", .slot = c->in[1]},
                        {.name = "mode", .value = ai_text(t, "update")}};
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = "shape", .slot = c->in[2] ? &all : c->in[1]}};
  ane_status st = c->in[2] ? ai_emit(t, "shape", &given, 1, &own, 1) : ANE_OK;
  if (!st && c->in[2]) st = ai_emit(t, "scatter_along_axis", put, 4, &all, 1);
  return st ? st : ai_emit(t, "broadcast_to", p, 2, c->out, 1);
}

/* Broadcasts: tiles the axes of size 1. */
static ane_status broadcast_to(struct translation *t, const struct call *c) {
  if (!known_shape(&c->in[0]->type) || !known_shape(&c->out->type)) return expand(t, c);
  const struct ane_mil_type *x = &c->in[0]->type, *y = &c->out->type;
  struct slot same = {.type = *x};
  int32_t reps[ANE_MIL_RANK];
  int32_t added = y->rank - x->rank;
  if (added < 0) return ai_fail(t, ANE_SHAPE, "it has more dimensions than its result");
  same.type.rank = y->rank;
  for (int32_t i = 0; i < y->rank; i++) {
    int64_t own = same.type.dim[i] = i < added ? 1 : x->dim[i - added];
    if (own < 0 || y->dim[i] < 0 || y->dim[i] > INT32_MAX || (own != 1 && own != y->dim[i]))
      return ai_fail(t, ANE_SHAPE, "its shape does not fit the shape of its result");
    reps[i] = own == 1 ? (int32_t)y->dim[i] : 1;
  }
  ane_status st = reshape_to(t, c->in[0], &same);
  struct param p[] = {{.name = "x", .slot = &same}, {.name = "reps", .value = ai_ints(t, reps, y->rank)}};
  return st ? st : ai_emit(t, "tile", p, 2, c->out, 1);
}

/* Repeats along the last axes. */
static ane_status tile(struct translation *t, const struct call *c) {
  int32_t given[ANE_MIL_RANK], reps[ANE_MIL_RANK];
  int64_t n, rank = c->in[0]->type.rank;
  if (!ai_constant_ints(c->in[1], given, rank, &n)) return ai_fail(t, ANE_UNSUPPORTED, "its repetitions must be constants");
  for (int64_t i = 0; i < rank; i++) reps[i] = i < rank - n ? 1 : given[i - (rank - n)];
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = "reps", .value = ai_ints(t, reps, rank)}};
  return ai_emit(t, "tile", p, 2, c->out, 1);
}

/* Splits along an axis. The sizes of the parts are those of the declared results. */
static ane_status split(struct translation *t, const struct call *c) {
  int32_t axis, *size = ane_arena_array(t->arena, (size_t)c->op->n_out + 1, sizeof *size);
  int64_t n, rank = c->in[0]->type.rank;
  if (!size) return ai_no_memory(t);
  if (!ai_constant_ints(c->in[2], &axis, 1, &n) || n != 1 || axis < -rank || axis >= rank)
    return ai_fail(t, ANE_UNSUPPORTED, "its axis must be a constant within the rank");
  if (axis < 0) axis += (int32_t)rank;
  for (uint32_t i = 0; i < c->op->n_out; i++) {
    const struct ane_mil_type *y = &c->out[i].type;
    if (y->rank != rank || y->dim[axis] < 0 || y->dim[axis] > INT32_MAX)
      return ai_fail(t, ANE_UNSUPPORTED, "the sizes of its results are unknown");
    size[i] = (int32_t)y->dim[axis];
  }
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "split_sizes", .value = ai_ints(t, size, c->op->n_out)},
                      {.name = "axis", .value = ai_integer(t, axis)}};
  return ai_emit(t, "split", p, 3, c->out, c->op->n_out);
}

/* Gives the sizes of a tensor: a constant if they are known before the run. */
static ane_status shape(struct translation *t, const struct call *c) {
  const struct ane_mil_type *x = &c->in[0]->type;
  int32_t dim[ANE_MIL_RANK];
  bool known = true;
  for (int32_t i = 0; i < x->rank; i++) {
    known = known && x->dim[i] >= 0 && x->dim[i] <= INT32_MAX;
    dim[i] = known ? (int32_t)x->dim[i] : 0;
  }
  if (known) return ai_emit_constant(t, ai_ints(t, dim, x->rank), c->out);
  struct param p = {.name = "x", .slot = c->in[0]};
  return ai_emit(t, "shape", &p, 1, c->out, 1);
}

/* Converts the bounds of Core AI to bounds from 0. Negative bounds have the axis's size added once; then all are clamped. With a
 * negative stride the end may be before element 0: `masks` then marks the axis. */
static bool clamp(int64_t n, int32_t stride, int32_t *begin, int32_t *end, bool *open) {
  int64_t b = *begin, e = *end, low = stride > 0 ? 0 : -1, high = stride > 0 ? n : n - 1;
  if (n < 0 || n > INT32_MAX || stride == 0) return false;
  if (b < 0) b += n;
  if (e < low) e += n;
  b = ANE_MIN(ANE_MAX(b, (int64_t)0), high);
  e = ANE_MIN(ANE_MAX(e, low), high);
  *open = e < 0;
  *begin = (int32_t)b;
  *end = (int32_t)ANE_MAX(e, (int64_t)0);
  return true;
}

/* Sets the parameters of slice_by_index or slice_update: p[0 .. 3] are x, begin, end and stride, p[4] is the mask. */
static ane_status slice_params(struct translation *t, const struct slot *const *in, struct param *p) {
  int32_t begin[ANE_MIL_RANK], end[ANE_MIL_RANK], stride[ANE_MIL_RANK];
  uint8_t mask[ANE_MIL_RANK] = {0};
  int64_t n, rank = in[0]->type.rank;
  bool known = ai_constant_ints(in[1], begin, ANE_MIL_RANK, &n) && n == rank && ai_constant_ints(in[2], end, ANE_MIL_RANK, &n) &&
               n == rank && ai_constant_ints(in[3], stride, ANE_MIL_RANK, &n) && n == rank;
  p[0] = (struct param){.name = "x", .slot = in[0]};
  p[1] = (struct param){.name = "begin", .slot = in[1]};
  p[2] = (struct param){.name = "end", .slot = in[2]};
  p[3] = (struct param){.name = "stride", .slot = in[3]};
  for (int64_t i = 0; known && i < rank; i++) {
    bool open = false;
    if (!clamp(in[0]->type.dim[i], stride[i], &begin[i], &end[i], &open))
      return ai_fail(t, ANE_UNSUPPORTED, "its bounds must be constants");
    mask[i] = open;
  }
  if (known) {
    p[1] = (struct param){.name = "begin", .value = ai_ints(t, begin, rank)};
    p[2] = (struct param){.name = "end", .value = ai_ints(t, end, rank)};
  }
  p[4] =
      (struct param){.name = "end_mask", .value = ai_value(t, ane_mil_tensor_type(ANE_MIL_BOOL, 1, &rank), mask, (uint64_t)rank)};
  return ANE_OK;
}

static ane_status slice(struct translation *t, const struct call *c) {
  bool constant = c->in[1]->raw && c->in[2]->raw && c->in[3]->raw;
  struct param by_axes[] = {{.name = "x", .slot = c->in[0]},
                            {.name = "starts", .slot = c->in[1]},
                            {.name = "ends", .slot = c->in[2]},
                            {.name = "steps", .slot = c->in[3]}};
  struct param p[5];
  if (!constant || !known_shape(&c->in[0]->type)) return ai_emit(t, "slice_by_axes", by_axes, 4, c->out, 1);
  ane_status st = slice_params(t, c->in, p);
  return st ? st : ai_emit(t, "slice_by_index", p, 5, c->out, 1);
}

static ane_status slice_update(struct translation *t, const struct call *c) {
  struct param p[7];
  ane_status st = slice_params(t, c->in, p);
  p[5] = (struct param){.name = "update", .slot = c->in[4]};
  p[6] = (struct param){.name = "clip", .value = ai_value(t, ane_mil_tensor_type(ANE_MIL_BOOL, 0, NULL), &(uint8_t){1}, 1)};
  return st ? st : ai_emit(t, "slice_update", p, 7, c->out, 1);
}

/* Computes the shape to which two shapes are broadcast: the larger size of each axis, once the shorter shape has ones in
 * front. */
static ane_status broadcast_shapes(struct translation *t, const struct call *c) {
  static const int32_t ones[ANE_MIL_RANK] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  int64_t a = c->in[0]->type.rank == 1 ? c->in[0]->type.dim[0] : -1, b = c->in[1]->type.rank == 1 ? c->in[1]->type.dim[0] : -1,
          n = ANE_MAX(a, b);
  if (a < 0 || b < 0 || n > ANE_MIL_RANK) return ai_fail(t, ANE_UNSUPPORTED, "the number of dimensions is unknown");
  struct slot axis, front, longer = {.type = ane_mil_tensor_type(ANE_MIL_INT32, 1, &n)};
  const struct slot *x = c->in[0], *y = c->in[1], *list[3] = {&axis, &front, a < b ? x : y};
  ane_status st = ANE_OK;
  if (a != b) {
    st = ai_emit_constant(t, ai_integer(t, 0), &axis);
    if (!st) st = ai_emit_constant(t, ai_ints(t, ones, n - ANE_MIN(a, b)), &front);
    if (!st) st = ai_concat(t, list, 3, &longer);
  }
  if (a != b) x = a < b ? y : x, y = &longer;
  struct param p[] = {{.name = "x", .slot = x}, {.name = "y", .slot = y}};
  return st ? st : ai_emit(t, "maximum", p, 2, c->out, 1);
}

static ane_status scatter(struct translation *t, const struct call *c, const char *type, const char *mode,
                          const struct slot *axis) {
  struct param p[] = {{.name = "data", .slot = c->in[0]},
                      {.name = "indices", .slot = c->in[1]},
                      {.name = "updates", .slot = c->in[2]},
                      {.name = "mode", .value = ai_text(t, mode)},
                      {.name = "axis", .slot = axis}};
  return ai_emit(t, type, p, axis ? 5 : 4, c->out, 1);
}

/* The region of the operation combines the old element with the new one. Only regions that return the new element are
 * supported. */
static ane_status scatter_nd(struct translation *t, const struct call *c) {
  const struct ane_ai_function *f = c->op->body;
  if (!f || f->n_ops || f->n_inputs != 2 || f->n_outputs != 1 || f->outputs[0].value != f->inputs[1].value)
    return ai_fail(t, ANE_UNSUPPORTED, "its region does more than to replace elements");
  return scatter(t, c, "scatter_nd", "update", NULL);
}

static ane_status scatter_along(struct translation *t, const struct call *c) {
  static const char *const modes[] = {"update", "add", "sub", "mul", "div", "max", "min"};
  if (c->op->mode >= ANE_COUNT(modes)) return ai_fail(t, ANE_UNSUPPORTED, "its mode is not known");
  return scatter(t, c, "scatter_along_axis", modes[c->op->mode], c->in[3]);
}

/* ---- Weights and states --------------------------------------------------------------------------------------------*/

static bool all_zero(const struct ane_mil_value *v) {
  const uint8_t *p = v->data;
  uint8_t any = 0;
  for (uint64_t i = 0; i < v->bytes; i++) any |= p[i];
  return any == 0;
}

/* Returns the index of the scale of element i of a weight. Each block has one scale. */
static uint64_t block_of(const struct ane_mil_type *w, const struct ane_mil_type *scale, uint64_t i) {
  uint64_t at = 0, step = 1;
  for (int32_t k = w->rank - 1; k >= 0; k--) {
    uint64_t n = (uint64_t)w->dim[k], blocks = (uint64_t)scale->dim[k];
    at += i % n / (n / blocks) * step;
    step *= blocks;
    i /= n;
  }
  return at;
}

/* Computes scale * (codes - offset1) + offset2 of constants, as a constant of fp32. */
static ane_status dense(struct translation *t, const struct call *c) {
  const struct ane_mil_value *w = c->in[0]->raw, *scale = c->in[1]->raw, *first = c->in[2]->raw, *second = c->in[3]->raw;
  bool fits = scale->type.rank == w->type.rank && first->count == scale->count && second->count == scale->count;
  for (int32_t i = 0; fits && i < w->type.rank; i++) fits = scale->type.dim[i] > 0 && w->type.dim[i] % scale->type.dim[i] == 0;
  if (!fits) return ai_fail(t, ANE_SHAPE, "its scales do not fit the codes");
  struct ane_mil_value *v = ane_arena_alloc(t->arena, sizeof *v);
  float *y = v ? ai_copy(t, w->count * sizeof *y) : NULL;
  if (!y) return v ? t->err->code : ai_no_memory(t);
  for (uint64_t i = 0; i < w->count; i++) {
    uint64_t k = block_of(&w->type, &scale->type, i);
    y[i] = (float)(ane_mil_number(scale, k) * (ane_mil_number(w, i) - ane_mil_number(first, k)) + ane_mil_number(second, k));
  }
  *v = (struct ane_mil_value){.type = ane_mil_tensor_type(ANE_MIL_FP32, w->type.rank, w->type.dim),
                              .kind = ANE_MIL_NUMBERS,
                              .count = w->count,
                              .data = y,
                              .bytes = w->count * sizeof *y};
  return ai_emit_constant(t, v, c->out);
}

/* Emits scale * (codes - offset1) + offset2 for computed codes, as separate operations. The scale is broadcast; blocks are not
 * supported. */
static ane_status scaled(struct translation *t, const struct call *c) {
  struct slot x = {.type = c->out->type}, first = {.type = c->in[2]->type}, shifted = {.type = c->out->type}, product = shifted;
  for (int32_t i = 0; i < c->out->type.rank; i++)
    if (c->in[1]->type.dim[i] != 1 && c->in[1]->type.dim[i] != c->out->type.dim[i])
      return ai_fail(t, ANE_UNSUPPORTED, "blocks of computed values are not supported");
  first.type.dtype = x.type.dtype;
  const struct ane_mil_value *dtype = ai_text(t, ane_mil_dtype_name(x.type.dtype));
  struct param widen[] = {{.name = "x", .slot = c->in[0]}, {.name = "dtype", .value = dtype}};
  struct param offset[] = {{.name = "x", .slot = c->in[2]}, {.name = "dtype", .value = dtype}};
  ane_status st = ai_emit(t, "cast", widen, 2, &x, 1);
  if (!st) st = ai_emit(t, "cast", offset, 2, &first, 1);
  if (!st) st = ai_emit(t, "sub", (struct param[]){{.name = "x", .slot = &x}, {.name = "y", .slot = &first}}, 2, &shifted, 1);
  if (!st)
    st = ai_emit(t, "mul", (struct param[]){{.name = "x", .slot = &shifted}, {.name = "y", .slot = c->in[1]}}, 2, &product, 1);
  return st ? st
            : ai_emit(t, "add", (struct param[]){{.name = "x", .slot = &product}, {.name = "y", .slot = c->in[3]}}, 2, c->out, 1);
}

/* Finds the offsets in fp32 for which scale * (codes - offset) equals scale * codes + second exactly. *out NULL: there are none.
 */
static ane_status offsets_of(struct translation *t, const struct ane_mil_value *scale, const struct ane_mil_value *second,
                             struct ane_mil_value **out) {
  struct ane_mil_value *v = ane_arena_alloc(t->arena, sizeof *v);
  float *offset = v ? ai_copy(t, second->count * sizeof *offset) : NULL;
  *out = NULL;
  if (!offset) return v ? t->err->code : ai_no_memory(t);
  for (uint64_t i = 0; i < second->count; i++) {
    double s = ane_mil_number(scale, i), m = ane_mil_number(second, i);
    offset[i] = s != 0 ? (float)(-m / s) : 0;
    if ((double)offset[i] * s != -m) return ANE_OK;
  }
  *v = (struct ane_mil_value){.type = ane_mil_tensor_type(ANE_MIL_FP32, scale->type.rank, scale->type.dim),
                              .kind = ANE_MIL_NUMBERS,
                              .count = second->count,
                              .data = offset,
                              .bytes = second->count * sizeof *offset};
  *out = v;
  return ANE_OK;
}

static ane_status blockwise(struct translation *t, const struct call *c) {
  const struct ane_mil_value *data = c->in[0]->raw, *scale = c->in[1]->raw, *first = c->in[2]->raw, *second = c->in[3]->raw;
  if (!data || !scale || !first || !second) return scaled(t, c);
  ane_mil_dtype d = data->type.dtype;
  bool codes = d == ANE_MIL_INT8 || d == ANE_MIL_UINT8 || d == ANE_MIL_INT4 || d == ANE_MIL_UINT4;
  struct ane_mil_value *offset = NULL;
  bool zero = all_zero(second), can = codes && all_zero(first) && second->count == scale->count;
  ane_status st = zero || !can ? ANE_OK : offsets_of(t, scale, second, &offset);
  if (st) return st;
  if (!codes || (!zero && !offset)) return dense(t, c);
  struct param p[] = {
      {.name = "data", .value = data}, {.name = "scale", .value = scale}, {.name = "offset", .value = offset ? offset : first}};
  return ai_emit(t, "constexpr_blockwise_shift_scale", p, !offset && all_zero(first) ? 2 : 3, c->out, 1);
}

static ane_status lut(struct translation *t, const struct call *c) {
  const struct ane_mil_value *codes = c->in[0]->raw, *tables = c->in[1]->raw;
  if (!codes || !tables || tables->type.rank < 2) return ai_fail(t, ANE_UNSUPPORTED, "codes and tables must be constants");
  bool vectors = tables->type.dim[tables->type.rank - 1] > 1;
  if (vectors && !c->in[2]->raw) return ai_fail(t, ANE_UNSUPPORTED, "the axis must be a constant");
  struct param p[] = {
      {.name = "indices", .value = codes}, {.name = "lut", .value = tables}, {.name = "vector_axis", .value = c->in[2]->raw}};
  return ai_emit(t, "constexpr_lut_to_dense", p, vectors ? 3 : 2, c->out, 1);
}

/* Translates a sparse constant to one that the importer makes dense. */
static ane_status sparse(struct translation *t, const struct call *c) {
  if (!c->in[0]->raw || !c->in[1]->raw) return ai_fail(t, ANE_UNSUPPORTED, "its elements and bits must be constants");
  struct param p[] = {{.name = "nonzero_data", .value = c->in[0]->raw}, {.name = "mask", .value = c->in[1]->raw}};
  return ai_emit(t, "constexpr_sparse_to_dense", p, 2, c->out, 1);
}

static ane_status read_state(struct translation *t, const struct call *c) {
  struct param p = {.name = "input", .slot = c->in[0]};
  return c->in[0]->type.kind == ANE_MIL_STATE ? ai_emit(t, "read_state", &p, 1, c->out, 1)
                                              : ai_fail(t, ANE_FORMAT, "the operand is not a state");
}

static ane_status write_state(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "input", .slot = c->in[0]}, {.name = "data", .slot = c->in[1]}};
  return c->in[0]->type.kind == ANE_MIL_STATE ? ai_emit(t, "write_state", p, 2, NULL, 0)
                                              : ai_fail(t, ANE_FORMAT, "the operand is not a state");
}

/* ---- All operations ------------------------------------------------------------------------------------------------*/

ane_status ai_translate_op(struct translation *t, const struct call *c) {
  bool done = false;
  ane_status st = plain_op(t, c, &done);
  if (done) return st;
  switch (c->op->id) {
    case ANE_AI_LOG: return epsilon_op(t, c, "log");
    case ANE_AI_RSQRT: return epsilon_op(t, c, "rsqrt");
    case ANE_AI_GELU: return gelu(t, c);
    case ANE_AI_CAST: return cast(t, c);
    case ANE_AI_CONV2D:
    case ANE_AI_CONV3D: return conv(t, c);
    case ANE_AI_CONV_TRANSPOSE2D:
    case ANE_AI_CONV_TRANSPOSE3D:
    case ANE_AI_MAX_POOL2D:
    case ANE_AI_MAX_POOL3D:
    case ANE_AI_SUM_POOL2D:
    case ANE_AI_SUM_POOL3D:
    case ANE_AI_INTERPOLATE: return ai_translate_window(t, c);
    case ANE_AI_SOFTMAX: return softmax(t, c);
    case ANE_AI_ARGMAX: return argmax(t, c);
    case ANE_AI_ARGSORT: return sorted(t, c, true);
    case ANE_AI_SORT: return sorted(t, c, false);
    case ANE_AI_SCAN: return scan(t, c);
    case ANE_AI_ANY: return quantified(t, c, "reduce_max");
    case ANE_AI_ALL: return quantified(t, c, "reduce_min");
    case ANE_AI_REDUCE_PRODUCT: return reduce(t, c, "reduce_prod");
    case ANE_AI_REDUCE_SUM: return reduce(t, c, "reduce_sum");
    case ANE_AI_REDUCE_MEAN: return reduce(t, c, "reduce_mean");
    case ANE_AI_REDUCE_MAX: return reduce(t, c, "reduce_max");
    case ANE_AI_REDUCE_MIN: return reduce(t, c, "reduce_min");
    case ANE_AI_RESHAPE: return reshape(t, c, "reshape", "shape");
    case ANE_AI_EXPAND_DIMS: return reshape(t, c, "expand_dims", "axes");
    case ANE_AI_SHRINK_DIMS: return reshape(t, c, "squeeze", "axes");
    case ANE_AI_TRANSPOSE: return transpose(t, c);
    case ANE_AI_GATHER_ALONG_AXIS: return along(t, c);
    case ANE_AI_SLICE: return slice(t, c);
    case ANE_AI_SLICE_UPDATE: return slice_update(t, c);
    case ANE_AI_BROADCAST_TO:
    case ANE_AI_BROADCAST_IN_DIMS: return broadcast_to(t, c);
    case ANE_AI_PAD: return pad(t, c);
    case ANE_AI_TILE:
    case ANE_AI_TILE2: return tile(t, c);
    case ANE_AI_SPLIT: return split(t, c);
    case ANE_AI_GET_SHAPE:
    case ANE_AI_GET_SHAPE2: return shape(t, c);
    case ANE_AI_BROADCAST_SHAPES: return broadcast_shapes(t, c);
    case ANE_AI_SCATTER_ND: return scatter_nd(t, c);
    case ANE_AI_SCATTER_ALONG_AXIS: return scatter_along(t, c);
    case ANE_AI_BUILD_SPARSE: return sparse(t, c);
    case ANE_AI_BLOCKWISE: return blockwise(t, c);
    case ANE_AI_LUT: return lut(t, c);
    case ANE_AI_SPARSE_TO_DENSE:
    case ANE_AI_COPY_PLAIN:
    case ANE_AI_COPY_LAID_OUT: return c->out->name = c->in[0]->name, c->out->raw = c->in[0]->raw, ANE_OK;
    case ANE_AI_CREATE_TOKEN: return ANE_OK;
    case ANE_AI_READ_HANDLE: return read_state(t, c);
    case ANE_AI_WRITE_HANDLE: return write_state(t, c);
    default: return ai_fail(t, ANE_UNSUPPORTED, "unknown operation");
  }
}
