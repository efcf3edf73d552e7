/* Translates each MIL primitive into operations of Core AI, by the table at the end. Axes, bounds and shapes are constants: the
 * function of a row reads those of MIL, and the builder makes those of Core AI. Core AI has no norm operation, so norms are
 * expanded in fp32. */
#include "mil/coreai.h"

#include "tensor/half.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A name of the MIL function: a value, or an operation that is translated when the name is first used (see is_lazy). */
struct coreai_named {
  ane_ai_value v;
  const struct ane_mil_op *op; /* whose result it is; NULL: an input */
};

/* ---- Names and types -------------------------------------------------------------------------------------------------*/

struct coreai_scope coreai_scope_begin(struct ane_ai_build *b, struct ane_arena *arena) {
  return (struct coreai_scope){.b = b, .arena = arena};
}

void coreai_scope_free(struct coreai_scope *s) {
  ane_strmap_free(&s->names);
  ane_buffer_free(&s->values);
}

static void no_memory(struct coreai_scope *s) {
  if (!s->b->status) ane_ai_build_fail(s->b, ane_fail(s->b->err, ANE_NOMEM, "no memory for the program"));
}

static void put(struct coreai_scope *s, const char *name, struct coreai_named x) {
  uint32_t at = (uint32_t)(s->values.size / sizeof x);
  if (!ane_buffer_append(&s->values, &x, sizeof x) || !ane_strmap_put(&s->names, name, strlen(name), at, NULL)) no_memory(s);
}

void coreai_bind(struct coreai_scope *s, const char *name, ane_ai_value x) { put(s, name, (struct coreai_named){.v = x}); }

/* Finds a name. NULL: it is unknown. */
static struct coreai_named *find(const struct coreai_scope *s, const char *name) {
  uint32_t at = ane_strmap_get(&s->names, name, strlen(name));
  return at == UINT32_MAX ? NULL : (struct coreai_named *)(void *)s->values.data + at;
}

static bool dtype_of(ane_mil_dtype t, ane_ai_dtype *out) {
  static const struct {
    ane_mil_dtype mil;
    ane_ai_dtype ai;
  } pairs[] = {{ANE_MIL_BOOL, ANE_AI_BOOL},     {ANE_MIL_FP16, ANE_AI_FP16},     {ANE_MIL_FP32, ANE_AI_FP32},
               {ANE_MIL_INT32, ANE_AI_INT32},   {ANE_MIL_UINT32, ANE_AI_UINT32}, {ANE_MIL_INT8, ANE_AI_INT8},
               {ANE_MIL_UINT8, ANE_AI_UINT8},   {ANE_MIL_INT4, ANE_AI_INT4},     {ANE_MIL_UINT4, ANE_AI_UINT4},
               {ANE_MIL_UINT16, ANE_AI_UINT16}, {ANE_MIL_INT16, ANE_AI_INT16},   {ANE_MIL_UINT2, ANE_AI_UINT2},
               {ANE_MIL_UINT3, ANE_AI_UINT3},   {ANE_MIL_UINT6, ANE_AI_UINT6}};
  for (size_t i = 0; i < ANE_COUNT(pairs); i++)
    if (pairs[i].mil == t) return *out = pairs[i].ai, true;
  return false;
}

struct ane_ai_type coreai_type(const struct ane_mil_type *t) {
  ane_ai_dtype dtype = ANE_AI_FP16;
  (void)dtype_of(t->dtype, &dtype);
  return ane_ai_tensor(dtype, t->rank, t->dim);
}

/* ---- Constants -------------------------------------------------------------------------------------------------------*/

/* Makes a constant with the elements of c in another shape. */
static ane_ai_value constant_as(struct coreai_scope *s, const struct ane_mil_value *c, int32_t rank, const int64_t *dim) {
  struct ane_mil_type type = ane_mil_tensor_type(c->type.dtype, rank, dim);
  struct ane_ai_type t = coreai_type(&type);
  return c->kind == ANE_MIL_BLOB ? ane_ai_resource(s->b, t, (int32_t)c->offset) : ane_ai_constant(s->b, t, c->data);
}

static ane_ai_value constant(struct coreai_scope *s, const struct ane_mil_value *c) {
  return constant_as(s, c, c->type.rank, c->type.dim);
}

/* Returns the constant that a parameter is bound to, or an attribute. NULL: the parameter is absent or computed. */
static const struct ane_mil_value *constant_param(const struct coreai_scope *s, const struct ane_mil_op *op, const char *name) {
  const struct ane_mil_arg *a = ane_mil_op_arg(op, name);
  if (!a || a->n_bindings != 1) return ane_mil_op_attr(op, name);
  if (a->bindings[0].value) return a->bindings[0].value;
  const struct coreai_named *x = find(s, a->bindings[0].name);
  return x && x->op && strcmp(x->op->type, "const") == 0 ? ane_mil_op_attr(x->op, "val") : NULL;
}

static int64_t int_param(const struct coreai_scope *s, const struct ane_mil_op *op, const char *name, uint32_t i,
                         int64_t otherwise) {
  const struct ane_mil_value *c = constant_param(s, op, name);
  return c && i < c->count ? ane_mil_integer(c, i) : otherwise;
}

static double float_param(const struct coreai_scope *s, const struct ane_mil_op *op, const char *name) {
  const struct ane_mil_value *c = constant_param(s, op, name);
  return c && c->count ? ane_mil_number(c, 0) : 0;
}

static void translate_lazily(struct coreai_scope *s, const struct ane_mil_op *op, struct coreai_named *x);

ane_ai_value coreai_value(struct coreai_scope *s, const char *name) {
  struct coreai_named *x = find(s, name);
  if (!x) {
    if (!s->b->status) ane_ai_build_fail(s->b, ane_fail(s->b->err, ANE_INVALID, "value %.64s is not defined", name));
    return ane_ai_int(s->b, ANE_AI_INT32, 0);
  }
  if (!x->v) translate_lazily(s, x->op, x);
  /* analyser: the name was found above, and names stay in the list. */
  return find(s, name)->v;
}

/* Returns the value of a parameter; NULL: it is absent. */
static ane_ai_value arg(struct coreai_scope *s, const struct ane_mil_op *op, const char *name) {
  const struct ane_mil_arg *a = ane_mil_op_arg(op, name);
  if (!a || a->n_bindings != 1) return NULL;
  return a->bindings[0].value ? constant(s, a->bindings[0].value) : coreai_value(s, a->bindings[0].name);
}

/* ---- Elementwise -------------------------------------------------------------------------------------------------------*/

typedef ane_ai_value (*row_fn)(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id);

static ane_ai_value unary(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)op;
  return ane_ai_unary(s->b, (ane_ai_op_id)id, x);
}

static ane_ai_value binary(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  return ane_ai_binary(s->b, (ane_ai_op_id)id, x, arg(s, op, "y"));
}

static ane_ai_value number(struct coreai_scope *s, ane_ai_value like, double v) {
  return ane_ai_number(s->b, like->type.dtype, v);
}

static ane_ai_value plus(struct coreai_scope *s, ane_ai_value x, double v) {
  return ane_ai_binary(s->b, ANE_AI_ADD, x, number(s, x, v));
}

static ane_ai_value rsqrt(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  return ane_ai_unary(s->b, ANE_AI_RSQRT, plus(s, x, float_param(s, op, "epsilon")));
}

/* Computes log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), in fp32: in fp16, 1 + e^x loses small results. */
static ane_ai_value softplus(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)op, (void)id;
  ane_ai_value wide = ane_ai_cast(s->b, x, ANE_AI_FP32);
  ane_ai_value below = ane_ai_binary(s->b, ANE_AI_SUB, number(s, wide, 0), ane_ai_unary(s->b, ANE_AI_ABS, wide));
  ane_ai_value log = ane_ai_unary(s->b, ANE_AI_LOG, plus(s, ane_ai_unary(s->b, ANE_AI_EXP, below), 1));
  return ane_ai_cast(s->b, ane_ai_binary(s->b, ANE_AI_ADD, ane_ai_unary(s->b, ANE_AI_RELU, wide), log), x->type.dtype);
}

static ane_ai_value clip(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  x = ane_ai_binary(s->b, ANE_AI_MAXIMUM, x, number(s, x, float_param(s, op, "alpha")));
  return ane_ai_binary(s->b, ANE_AI_MINIMUM, x, number(s, x, float_param(s, op, "beta")));
}

static ane_ai_value cast(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  return ane_ai_cast(s->b, x, coreai_type(&op->outputs[0].type).dtype);
}

static ane_ai_value gelu(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  const struct ane_mil_value *mode = constant_param(s, op, "mode");
  bool exact = !mode || mode->kind != ANE_MIL_STRINGS || strcmp(mode->strings[0], "TANH_APPROXIMATION") != 0;
  return ane_ai_gelu(s->b, exact ? ANE_AI_GELU_ERF : ANE_AI_GELU_TANH, x);
}

static ane_ai_value identity(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)s, (void)op, (void)id;
  return x;
}

/* ---- Along an axis -------------------------------------------------------------------------------------------------------*/

static int32_t axis_of(const struct coreai_scope *s, const struct ane_mil_op *op, const char *name, ane_ai_value x) {
  int64_t axis = int_param(s, op, name, 0, 0);
  return (int32_t)(axis < 0 ? axis + x->type.rank : axis);
}

static ane_ai_value softmax(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  return ane_ai_softmax(s->b, x, axis_of(s, op, "axis", x));
}

static ane_ai_value reduce(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  return ane_ai_reduce(s->b, (ane_ai_op_id)id, x, axis_of(s, op, "axes", x));
}

/* Computes (x - mean) * rsqrt(variance + eps), in fp32: squares of fp16 values may overflow. */
static ane_ai_value layer_norm(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  int32_t axis = axis_of(s, op, "axes", x);
  ane_ai_value wide = ane_ai_cast(s->b, x, ANE_AI_FP32);
  wide = ane_ai_binary(s->b, ANE_AI_SUB, wide, ane_ai_reduce(s->b, ANE_AI_REDUCE_MEAN, wide, axis));
  ane_ai_value square = ane_ai_reduce(s->b, ANE_AI_REDUCE_MEAN, ane_ai_binary(s->b, ANE_AI_MUL, wide, wide), axis);
  ane_ai_value scale = ane_ai_unary(s->b, ANE_AI_RSQRT, plus(s, square, float_param(s, op, "epsilon")));
  return ane_ai_cast(s->b, ane_ai_binary(s->b, ANE_AI_MUL, wide, scale), x->type.dtype);
}

static ane_ai_value reshape_to(struct coreai_scope *s, ane_ai_value x, const struct ane_mil_type *t) {
  return ane_ai_reshape(s->b, x, t->rank, t->dim);
}

static ane_ai_value argmax(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  ane_ai_value best = ane_ai_cast(s->b, ane_ai_argmax(s->b, x, axis_of(s, op, "axis", x)), ANE_AI_INT32);
  return reshape_to(s, best, &op->outputs[0].type);
}

/* Computes the indices only. Lowerings do not use the values, topk's other result. */
static ane_ai_value topk(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  int32_t axis = axis_of(s, op, "axis", x);
  return ane_ai_slice(s->b, ane_ai_argsort(s->b, x, axis, true), axis, 0, int_param(s, op, "k", 0, 1), 1);
}

static ane_ai_value concat(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value none, int id) {
  (void)none, (void)id;
  const struct ane_mil_arg *values = ane_mil_op_arg(op, "values");
  ane_ai_value *list = ane_arena_array(s->arena, values->n_bindings + 1, sizeof *list);
  if (!list) return no_memory(s), ane_ai_int(s->b, ANE_AI_INT32, 0);
  for (uint32_t i = 0; i < values->n_bindings; i++) list[i] = coreai_value(s, values->bindings[i].name);
  int32_t axis = axis_of(s, op, "axis", list[0]);
  if (values->n_bindings == 1) return list[0];
  if (!int_param(s, op, "interleave", 0, 0)) return ane_ai_concat(s->b, list, values->n_bindings, axis);
  /* interleaved: joined along a new axis after `axis` */
  for (uint32_t i = 0; i < values->n_bindings; i++) {
    struct ane_ai_type t = list[i]->type;
    for (int32_t d = t.rank; d > axis + 1; d--) t.dim[d] = t.dim[d - 1];
    t.dim[axis + 1] = 1;
    list[i] = ane_ai_reshape(s->b, list[i], t.rank + 1, t.dim);
  }
  return reshape_to(s, ane_ai_concat(s->b, list, values->n_bindings, axis + 1), &op->outputs[0].type);
}

static ane_ai_value tile(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  for (int32_t axis = 0; axis < x->type.rank; axis++) {
    int64_t times = int_param(s, op, "reps", (uint32_t)axis, 1);
    if (times == 1) continue;
    ane_ai_value *list = ane_arena_array(s->arena, (size_t)times, sizeof *list);
    if (!list) return no_memory(s), x;
    for (int64_t i = 0; i < times; i++) list[i] = x;
    x = ane_ai_concat(s->b, list, (uint32_t)times, axis);
  }
  return x;
}

/* ---- Parts of a tensor ---------------------------------------------------------------------------------------------------*/

static ane_ai_value slice(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  for (int32_t axis = 0, rank = x->type.rank; axis < rank; axis++) {
    uint32_t i = (uint32_t)axis;
    int64_t n = x->type.dim[axis], from = int_param(s, op, "begin", i, 0), to = int_param(s, op, "end", i, 0),
            stride = int_param(s, op, "stride", i, 1);
    if (int_param(s, op, "begin_mask", i, 0)) from = 0;
    if (int_param(s, op, "end_mask", i, 0)) to = n;
    if (from < 0) from += n;
    if (to < 0) to += n;
    if (from != 0 || to != n || stride != 1) x = ane_ai_slice(s->b, x, axis, from, to, stride);
  }
  return reshape_to(s, x, &op->outputs[0].type); /* MIL may squeeze an axis */
}

static ane_ai_value int32s(struct coreai_scope *s, const int64_t *v, int32_t n) { return ane_ai_ints(s->b, ANE_AI_INT32, v, n); }

/* Reads element i of a parameter that is a constant or a concat of constants. false: it is computed. */
static bool joined_int(const struct coreai_scope *s, const struct ane_mil_op *op, const char *name, uint32_t i, int64_t *out) {
  const struct ane_mil_value *c = constant_param(s, op, name);
  const struct ane_mil_arg *a = ane_mil_op_arg(op, name);
  const struct coreai_named *x = a && a->n_bindings == 1 && a->bindings[0].name ? find(s, a->bindings[0].name) : NULL;
  if (c) return i < c->count ? *out = ane_mil_integer(c, i), true : false;
  if (!x || !x->op || strcmp(x->op->type, "concat") != 0) return false;
  const struct ane_mil_arg *values = ane_mil_op_arg(x->op, "values");
  for (uint32_t j = 0; j < values->n_bindings; j++) {
    const struct coreai_named *part = find(s, values->bindings[j].name);
    c = part && part->op && strcmp(part->op->type, "const") == 0 ? ane_mil_op_attr(part->op, "val") : NULL;
    if (!c) return false;
    if (i < c->count) return *out = ane_mil_integer(c, i), true;
    i -= (uint32_t)c->count;
  }
  return false;
}

static ane_ai_value slice_size(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  struct ane_ai_type type = coreai_type(&op->outputs[0].type);
  int64_t from[ANE_AI_RANK];
  bool fixed = true;
  for (int32_t i = 0; i < type.rank; i++) fixed &= joined_int(s, op, "begin", (uint32_t)i, &from[i]);
  for (int32_t i = 0; fixed && i < type.rank; i++)
    if (type.dim[i] != x->type.dim[i]) x = ane_ai_slice(s->b, x, i, from[i], from[i] + type.dim[i], 1);
  if (fixed) return x;
  ane_ai_value begin = arg(s, op, "begin"), end = ane_ai_binary(s->b, ANE_AI_ADD, begin, int32s(s, type.dim, type.rank));
  return ane_ai_slice_at(s->b, x, begin, end, type);
}

/* In MIL a masked end means the end of the axis. The axis's size is added to `end` there; Core AI clamps what lies beyond it. */
static ane_ai_value slice_update(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  int64_t rest[ANE_AI_RANK];
  for (int32_t i = 0; i < x->type.rank; i++) rest[i] = int_param(s, op, "end_mask", (uint32_t)i, 0) ? x->type.dim[i] : 0;
  ane_ai_value end = ane_ai_binary(s->b, ANE_AI_ADD, arg(s, op, "end"), int32s(s, rest, x->type.rank));
  return ane_ai_slice_update(s->b, x, arg(s, op, "begin"), end, arg(s, op, "update"));
}

static ane_ai_value reshape(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  return reshape_to(s, x, &op->outputs[0].type);
}

static ane_ai_value transpose(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  int32_t perm[ANE_AI_RANK];
  for (int32_t i = 0; i < x->type.rank; i++) perm[i] = (int32_t)int_param(s, op, "perm", (uint32_t)i, i);
  return ane_ai_transpose(s->b, x, perm);
}

/* Moves axis `from` of x to position `to`. */
static ane_ai_value move_axis(struct coreai_scope *s, ane_ai_value x, int32_t from, int32_t to) {
  int32_t perm[ANE_AI_RANK], n = 0;
  if (from == to) return x;
  for (int32_t i = 0; i < x->type.rank; i++) {
    if (i == to) {
      perm[i] = from;
      continue;
    }
    if (n == from) n++;
    perm[i] = n++;
  }
  return ane_ai_transpose(s->b, x, perm);
}

/* Gathers. Computed indices beyond the end, those of padding after the last position, take the last element. */
static ane_ai_value gather(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  int32_t axis = axis_of(s, op, "axis", x);
  ane_ai_value indices = arg(s, op, "indices");
  if (!constant_param(s, op, "indices"))
    indices = ane_ai_binary(s->b, ANE_AI_MINIMUM, indices, ane_ai_int(s->b, indices->type.dtype, ane_ai_dim(x, axis) - 1));
  return move_axis(s, ane_ai_gather(s->b, move_axis(s, x, axis, 0), indices), 0, axis);
}

/* Translates range_1d to a constant 0 .. n - 1: T is static. */
static ane_ai_value range(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value none, int id) {
  (void)none, (void)id;
  int64_t n = op->outputs[0].type.dim[0], *v = ane_arena_array(s->arena, (size_t)n + 1, sizeof *v);
  if (!v) return no_memory(s), ane_ai_int(s->b, ANE_AI_INT32, 0);
  for (int64_t i = 0; i < n; i++) v[i] = i;
  return int32s(s, v, (int32_t)n);
}

/* ---- Products and weights --------------------------------------------------------------------------------------------------*/

/* Exchanges the last two axes of x. */
static ane_ai_value swap_last_axes(struct coreai_scope *s, ane_ai_value x) {
  int32_t perm[ANE_AI_RANK], r = x->type.rank;
  for (int32_t i = 0; i < r; i++) perm[i] = i < r - 2 ? i : 2 * r - 3 - i;
  return ane_ai_transpose(s->b, x, perm);
}

static ane_ai_value matmul(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  ane_ai_value y = arg(s, op, "y");
  return ane_ai_matmul(s->b, x, int_param(s, op, "transpose_y", 0, 0) ? swap_last_axes(s, y) : y);
}

static ane_ai_value conv(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value x, int id) {
  (void)id;
  ane_ai_value bias = arg(s, op, "bias"), y = ane_ai_conv(s->b, x, arg(s, op, "weight"), int_param(s, op, "groups", 0, 1));
  if (!bias) return y;
  return ane_ai_binary(s->b, ANE_AI_ADD, y, ane_ai_reshape(s->b, bias, 4, (int64_t[]){1, ane_ai_dim(y, 1), 1, 1}));
}

/* Translates int8 codes with one scale, or one per row. */
static ane_ai_value affine(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value none, int id) {
  (void)none, (void)id;
  const struct ane_mil_value *codes = constant_param(s, op, "quantized_data"), *scale = constant_param(s, op, "scale");
  int64_t dim[ANE_MIL_RANK];
  for (int32_t i = 0; i < codes->type.rank; i++) dim[i] = i == 0 ? (int64_t)scale->count : 1;
  return ane_ai_blockwise(s->b, constant(s, codes), constant_as(s, scale, codes->type.rank, dim), NULL);
}

static ane_ai_value blockwise(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value none, int id) {
  (void)none, (void)id;
  const struct ane_mil_value *minimum = constant_param(s, op, "minimum");
  return ane_ai_blockwise(s->b, constant(s, constant_param(s, op, "data")), constant(s, constant_param(s, op, "scale")),
                          minimum ? constant(s, minimum) : NULL);
}

static ane_ai_value lut(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value none, int id) {
  (void)none, (void)id;
  return ane_ai_lut(s->b, constant(s, constant_param(s, op, "indices")), constant(s, constant_param(s, op, "lut")));
}

/* ---- States ------------------------------------------------------------------------------------------------------------*/

static const struct coreai_state *state_of(struct coreai_scope *s, const struct ane_mil_op *op) {
  const char *name = ane_mil_op_arg(op, "input")->bindings[0].name;
  for (uint32_t i = 0; i < s->n_states; i++)
    if (strcmp(s->states[i].name, name) == 0) return &s->states[i];
  if (!s->b->status) ane_ai_build_fail(s->b, ane_fail(s->b->err, ANE_INVALID, "state %.64s is not defined", name));
  return NULL;
}

static ane_ai_value current(struct coreai_scope *s, struct coreai_store *store) {
  if (!store->now) store->now = ane_ai_read(s->b, store->state);
  return store->now;
}

static void change(struct coreai_store *store, ane_ai_value x) {
  store->now = x;
  store->changed = true;
}

void coreai_store_end(struct ane_ai_build *b, struct coreai_store *store) {
  if (store->changed) ane_ai_write(b, store->state, store->now);
}

/* Returns the state's tensor as MIL has it, [1, n, S, d]. */
static ane_ai_value read_state(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value none, int id) {
  (void)none, (void)id;
  const struct coreai_state *st = state_of(s, op);
  const struct ane_mil_type *t = &op->outputs[0].type;
  if (!st) return ane_ai_int(s->b, ANE_AI_INT32, 0);
  ane_ai_value all = current(s, st->store);
  if (!st->stacked) return all;
  ane_ai_value layer = ane_ai_dim(all, 0) == 1 ? all : ane_ai_slice(s->b, all, 0, st->layer, st->layer + 1, 1);
  return swap_last_axes(s, ane_ai_reshape(s->b, layer, 4, (int64_t[]){1, t->dim[1], t->dim[3], t->dim[2]}));
}

/* Returns the slice_update that makes the written data; NULL: another operation does. */
static const struct ane_mil_op *row_update(struct coreai_scope *s, const struct ane_mil_op *write) {
  const struct coreai_named *data = find(s, ane_mil_op_arg(write, "data")->bindings[0].name);
  return data && data->op && strcmp(data->op->type, "slice_update") == 0 ? data->op : NULL;
}

/* Writes positions begin .. begin + T - 1 of a layer: rows [1, n, T, d] become [1, 1, C, 1, T]. */
static void write_columns(struct coreai_scope *s, const struct coreai_state *st, const struct ane_mil_op *update) {
  ane_ai_value rows = arg(s, update, "update"), begin = arg(s, update, "begin"), all = current(s, st->store);
  int64_t t = ane_ai_dim(rows, 2), c = ane_ai_dim(rows, 1) * ane_ai_dim(rows, 3);
  ane_ai_value columns = ane_ai_reshape(s->b, swap_last_axes(s, rows), 5, (int64_t[]){1, 1, c, 1, t});
  ane_ai_value at[] = {int32s(s, (int64_t[]){st->layer, 0, 0, 0}, 4), ane_ai_slice(s->b, begin, 0, 2, 3, 1)};
  ane_ai_value from = ane_ai_concat(s->b, at, 2, 0);
  ane_ai_value to = ane_ai_binary(s->b, ANE_AI_ADD, from, int32s(s, (int64_t[]){1, 1, c, 1, t}, 5));
  change(st->store, ane_ai_slice_update(s->b, all, from, to, columns));
}

static ane_ai_value write_state(struct coreai_scope *s, const struct ane_mil_op *op, ane_ai_value none, int id) {
  (void)none, (void)id;
  const struct coreai_state *st = state_of(s, op);
  const struct ane_mil_op *update = row_update(s, op);
  if (st && !st->stacked)
    change(st->store, arg(s, op, "data"));
  else if (st && update)
    write_columns(s, st, update);
  else if (st && !s->b->status)
    ane_ai_build_fail(s->b, ane_fail(s->b->err, ANE_UNSUPPORTED, "a stacked state is written as a whole"));
  return NULL;
}

/* ---- The table ----------------------------------------------------------------------------------------------------------*/

static const struct row {
  const char *type;
  row_fn translate;
  int id;
} rows[] = {
    {"add", binary, ANE_AI_ADD},
    {"sub", binary, ANE_AI_SUB},
    {"mul", binary, ANE_AI_MUL},
    {"real_div", binary, ANE_AI_DIVIDE},
    {"minimum", binary, ANE_AI_MINIMUM},
    {"maximum", binary, ANE_AI_MAXIMUM},
    {"equal", binary, ANE_AI_EQUAL},
    {"sigmoid", unary, ANE_AI_SIGMOID},
    {"silu", unary, ANE_AI_SILU},
    {"relu", unary, ANE_AI_RELU},
    {"tanh", unary, ANE_AI_TANH},
    {"exp", unary, ANE_AI_EXP},
    {"softplus", softplus, 0},
    {"gelu", gelu, 0},
    {"rsqrt", rsqrt, 0},
    {"clip", clip, 0},
    {"cast", cast, 0},
    {"identity", identity, 0},
    {"softmax", softmax, 0},
    {"layer_norm", layer_norm, 0},
    {"reduce_mean", reduce, ANE_AI_REDUCE_MEAN},
    {"reduce_sum", reduce, ANE_AI_REDUCE_SUM},
    {"reduce_max", reduce, ANE_AI_REDUCE_MAX},
    {"reduce_argmax", argmax, 0},
    {"topk", topk, 0},
    {"concat", concat, 0},
    {"tile", tile, 0},
    {"slice_by_index", slice, 0},
    {"slice_by_size", slice_size, 0},
    {"slice_update", slice_update, 0},
    {"reshape", reshape, 0},
    {"transpose", transpose, 0},
    {"gather", gather, 0},
    {"range_1d", range, 0},
    {"matmul", matmul, 0},
    {"conv", conv, 0},
    {"constexpr_affine_dequantize", affine, 0},
    {"constexpr_blockwise_shift_scale", blockwise, 0},
    {"constexpr_lut_to_dense", lut, 0},
    {"read_state", read_state, 0},
    {"write_state", write_state, 0},
};

/* Is the operation translated only when its result is used? Constants are, since Core AI needs few of MIL's; so are read_state
 * and slice_update, which a write of positions replaces. Lowerings use what they read before the state's next write, so the order
 * is kept. */
static bool is_lazy(const struct ane_mil_op *op) {
  return strcmp(op->type, "const") == 0 || strcmp(op->type, "slice_update") == 0 || strcmp(op->type, "read_state") == 0;
}

static ane_ai_value translate(struct coreai_scope *s, const struct ane_mil_op *op) {
  for (size_t i = 0; i < ANE_COUNT(rows); i++)
    if (strcmp(rows[i].type, op->type) == 0) return rows[i].translate(s, op, arg(s, op, "x"), rows[i].id);
  if (!s->b->status)
    ane_ai_build_fail(s->b, ane_fail(s->b->err, ANE_UNSUPPORTED, "%.64s has no counterpart in Core AI", op->type));
  return ane_ai_int(s->b, ANE_AI_INT32, 0);
}

static void translate_lazily(struct coreai_scope *s, const struct ane_mil_op *op, struct coreai_named *x) {
  ane_ai_value v = strcmp(op->type, "const") == 0 ? constant(s, ane_mil_op_attr(op, "val")) : translate(s, op);
  x = find(s, op->outputs[0].name); /* the list may have moved */
  /* analyser: the op is in the list by the name of its first output. */
  x->v = v;
}

void coreai_lower(struct coreai_scope *s, const struct ane_mil_function *f) {
  for (uint32_t i = 0; i < f->block.n_ops && !s->b->status; i++) {
    const struct ane_mil_op *op = &f->block.ops[i];
    ane_ai_value v = is_lazy(op) ? NULL : translate(s, op);
    if (s->b->status && op->n_outputs) ane_fail_in(s->b->err, s->b->status, "%s", op->outputs[0].name);
    /* the last result: of topk, its indices */
    if (op->n_outputs) put(s, op->outputs[op->n_outputs - 1].name, (struct coreai_named){v, op});
  }
}
