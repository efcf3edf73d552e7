/* Translates the functions of a Core AI program to operations of MIL, which the interpreter runs. Calls are inlined, and so are
 * the bodies of unknown operations. Integers wider than a byte become int32. */
#include "interp/interp_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Limits, because inlining can expand a small file. */
enum { MAX_OPS = 1 << 20, MAX_DEPTH = 32, MAX_PARAMS = 8 };

/* A value of the function that is being translated. */
struct slot {
  const char *name;                /* NULL: a token */
  const struct ane_mil_value *raw; /* of a constant */
  struct ane_mil_type type;
};

struct translation {
  struct ane_arena *arena;
  const struct ane_ai_program *program;
  const struct ane_ai_op *op; /* the operation, for messages */
  struct ane_buffer ops;      /* of struct ane_mil_op */
  uint32_t n_names, n_ops;    /* in all functions: new names, translated operations */
  uint64_t bytes;             /* of constants that were copied */
  int depth;
  struct ane_error *err;
};

static ane_status no_memory(struct translation *t) { return ane_fail(t->err, ANE_NOMEM, "no memory for the program"); }

static ane_status fail(struct translation *t, ane_status code, const char *format, ...) ANE_PRINTF(3, 4);
static ane_status fail(struct translation *t, ane_status code, const char *format, ...) {
  char text[256];
  va_list ap;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  return ane_fail(t->err, code, "operation %.64s: %s", t->op->name, text);
}

/* ---- Types and constants ---------------------------------------------------------------------------------------------*/

static ane_mil_dtype dtype_of(ane_ai_dtype t) {
  switch (t) {
    case ANE_AI_BOOL: return ANE_MIL_BOOL;
    case ANE_AI_FP16: return ANE_MIL_FP16;
    case ANE_AI_FP32: return ANE_MIL_FP32;
    case ANE_AI_BF16: return ANE_MIL_BF16;
    case ANE_AI_FP64: return ANE_MIL_FP64;
    case ANE_AI_INT4: return ANE_MIL_INT4;
    case ANE_AI_UINT4: return ANE_MIL_UINT4;
    case ANE_AI_UINT2: return ANE_MIL_UINT2;
    case ANE_AI_INT8: return ANE_MIL_INT8;
    case ANE_AI_UINT8: return ANE_MIL_UINT8;
    case ANE_AI_INT16:
    case ANE_AI_UINT16:
    case ANE_AI_INT32:
    case ANE_AI_UINT32:
    case ANE_AI_INT64:
    case ANE_AI_UINT64: return ANE_MIL_INT32;
    default: return ANE_MIL_STRING; /* not supported */
  }
}

static ane_status type_of(struct translation *t, const struct ane_ai_type *from, struct ane_mil_type *out) {
  ane_mil_dtype d = dtype_of(from->dtype);
  if (d == ANE_MIL_STRING) return ane_fail(t->err, ANE_UNSUPPORTED, "elements of type %s", ane_ai_dtype_name(from->dtype));
  *out = ane_mil_tensor_type(d, from->rank, from->dim);
  if (from->kind == ANE_AI_HANDLE) out->kind = ANE_MIL_STATE;
  return ANE_OK;
}

static const struct ane_mil_value *keep_value(struct translation *t, struct ane_mil_type type, const void *data, uint64_t count) {
  struct ane_mil_value *v = ane_arena_alloc(t->arena, sizeof *v);
  uint64_t bytes = 0;
  (void)ane_mil_bytes(type.dtype, count, &bytes);
  void *copy = v ? ane_arena_alloc(t->arena, (size_t)bytes + 1) : NULL;
  if (!copy) return NULL;
  if (bytes) memcpy(copy, data, (size_t)bytes);
  *v = (struct ane_mil_value){.type = type, .kind = ANE_MIL_NUMBERS, .count = count, .data = copy, .bytes = bytes};
  return v;
}

static const struct ane_mil_value *ints(struct translation *t, const int32_t *v, int64_t n) {
  return keep_value(t, ane_mil_tensor_type(ANE_MIL_INT32, 1, &n), v, (uint64_t)n);
}
static const struct ane_mil_value *integer(struct translation *t, int32_t v) {
  return keep_value(t, ane_mil_tensor_type(ANE_MIL_INT32, 0, NULL), &v, 1);
}
static const struct ane_mil_value *flag(struct translation *t, bool v) {
  uint8_t byte = v;
  return keep_value(t, ane_mil_tensor_type(ANE_MIL_BOOL, 0, NULL), &byte, 1);
}
static const struct ane_mil_value *real(struct translation *t, float v) {
  return keep_value(t, ane_mil_tensor_type(ANE_MIL_FP32, 0, NULL), &v, 1);
}

static const struct ane_mil_value *text(struct translation *t, const char *s) {
  struct ane_mil_value *v = ane_arena_alloc(t->arena, sizeof *v);
  const char **list = v ? ane_arena_alloc(t->arena, sizeof *list) : NULL;
  if (!list) return NULL;
  *list = s;
  *v = (struct ane_mil_value){
      .type = ane_mil_tensor_type(ANE_MIL_STRING, 0, NULL), .kind = ANE_MIL_STRINGS, .count = 1, .strings = list};
  return v;
}

/* ---- Operations of MIL --------------------------------------------------------------------------------------------------*/

/* A parameter: a slot, a value or a list of slots. None of them: the parameter is omitted. */
struct param {
  const char *name;
  const struct slot *slot;
  const struct ane_mil_value *value;
  const struct slot *const *list;
  uint32_t n;
};

static const char *new_name(struct translation *t) {
  char name[24];
  int len = snprintf(name, sizeof name, "%%%" PRIu32, t->n_names++);
  return ane_arena_strndup(t->arena, name, (size_t)len);
}

static ane_status bind(struct translation *t, const struct param *p, struct ane_mil_arg *out) {
  uint32_t n = p->list ? p->n : 1;
  struct ane_mil_binding *b = ane_arena_array(t->arena, (size_t)n + 1, sizeof *b);
  if (!b) return no_memory(t);
  for (uint32_t i = 0; i < n; i++) {
    const struct slot *s = p->list ? p->list[i] : p->slot;
    if (s && !s->name) return fail(t, ANE_FORMAT, "an operand is a token, wanted a tensor");
    if (s)
      b[i].name = s->name;
    else
      b[i].value = p->value;
  }
  *out = (struct ane_mil_arg){p->name, b, n};
  return ANE_OK;
}

/* Appends an operation and names its results. out: n_out slots with their types set. */
static ane_status emit(struct translation *t, const char *type, const struct param *params, uint32_t n, struct slot *out,
                       uint32_t n_out) {
  struct ane_mil_op op = {.type = type, .n_outputs = n_out};
  struct ane_mil_arg *args = ane_arena_array(t->arena, (size_t)n + 1, sizeof *args);
  struct ane_mil_named_type *outputs = ane_arena_array(t->arena, (size_t)n_out + 1, sizeof *outputs);
  if (!args || !outputs) return no_memory(t);
  for (uint32_t i = 0; i < n; i++) {
    if (!params[i].slot && !params[i].value && !params[i].list) return no_memory(t); /* out of memory while the value was made */
    ane_status st = bind(t, &params[i], &args[op.n_inputs++]);
    if (st) return st;
  }
  for (uint32_t i = 0; i < n_out; i++) {
    /* analyser: out is NULL only where n_out is 0. */
    if (!(out[i].name = new_name(t))) return no_memory(t);
    outputs[i] = (struct ane_mil_named_type){out[i].name, out[i].type};
  }
  op.inputs = args;
  op.outputs = outputs;
  return ane_buffer_append(&t->ops, &op, sizeof op) ? ANE_OK : no_memory(t);
}

static ane_status emit_constant(struct translation *t, const struct ane_mil_value *v, struct slot *out) {
  struct ane_mil_attr *a = ane_arena_alloc(t->arena, sizeof *a);
  struct ane_mil_named_type *o = ane_arena_alloc(t->arena, sizeof *o);
  if (!v || !a || !o) return no_memory(t);
  *out = (struct slot){new_name(t), v, v->type};
  if (!out->name) return no_memory(t);
  *a = (struct ane_mil_attr){"val", *v};
  *o = (struct ane_mil_named_type){out->name, v->type};
  struct ane_mil_op op = {.type = "const", .outputs = o, .attrs = a, .n_outputs = 1, .n_attrs = 1};
  return ane_buffer_append(&t->ops, &op, sizeof op) ? ANE_OK : no_memory(t);
}

/* ---- Constants ------------------------------------------------------------------------------------------------------------*/

/* Element i of stored integers, clamped to int32. */
static int32_t narrow(ane_ai_dtype t, const uint8_t *p, uint64_t i) {
  int64_t v = 0;
  switch (t) {
    case ANE_AI_INT16: v = (int16_t)ane_load_u16(p + 2 * i); break;
    case ANE_AI_UINT16: v = ane_load_u16(p + 2 * i); break;
    case ANE_AI_INT32: v = (int32_t)ane_load_u32(p + 4 * i); break;
    case ANE_AI_UINT32: v = ane_load_u32(p + 4 * i); break;
    default: v = (int64_t)ane_load_u64(p + 8 * i); break;
  }
  return v < INT32_MIN ? INT32_MIN : v > INT32_MAX ? INT32_MAX : (int32_t)v;
}

enum { MAX_BYTES = 1 << 30, MAX_INLINE = 1 << 26 }; /* limits of copied constants: of all, and of those outside resources */

/* Allocates memory for the copy of a constant. NULL: the error is set. */
static void *copy_of(struct translation *t, uint64_t bytes) {
  void *p = NULL;
  if (bytes > MAX_BYTES - t->bytes)
    (void)fail(t, ANE_UNSUPPORTED, "constants that must be converted have more than %d bytes", (int)MAX_BYTES);
  else if (!(p = ane_arena_alloc(t->arena, (size_t)bytes + 1)))
    (void)no_memory(t);
  else
    t->bytes += bytes;
  return p;
}

/* Expands the one value of a splat to `count` elements. */
static void spread(const struct ane_ai_op *op, uint64_t count, uint8_t *out) {
  uint32_t bits = ane_ai_dtype_bits(op->out->type.dtype);
  const uint8_t *one = op->data.data;
  for (uint64_t i = 0; bits >= 8 && i < count; i++) memcpy(out + i * (bits / 8), one, bits / 8);
  for (uint64_t i = 0; bits < 8 && i < count; i++)
    out[i * bits / 8] |= (uint8_t)((one[0] & ((1u << bits) - 1)) << (i * bits % 8));
}

static ane_status translate_constant(struct translation *t, const struct ane_ai_op *op, struct slot *out) {
  const struct ane_ai_type *from = &op->out->type;
  struct ane_mil_value *v = ane_arena_alloc(t->arena, sizeof *v);
  uint64_t count, bytes;
  struct ane_mil_type type;
  if (!v) return no_memory(t);
  ane_status st = type_of(t, from, &type);
  if (st) return st;
  if (!op->data.data || !ane_ai_count(from, &count) || !ane_ai_bytes(from->dtype, count, &bytes))
    return fail(t, ANE_FORMAT, "a constant without data");
  const uint8_t *data = op->data.data;
  *v = (struct ane_mil_value){.type = type, .kind = ANE_MIL_NUMBERS, .count = count};
  (void)ane_mil_bytes(type.dtype, count, &v->bytes);
  if (op->data.splat || ((uintptr_t)data % 16 && bytes < MAX_INLINE)) { /* elements outside resources are not aligned */
    uint8_t *all = copy_of(t, bytes);
    if (!all) return t->err->code;
    if (op->data.splat)
      spread(op, count, all);
    else if (bytes)
      memcpy(all, data, (size_t)bytes);
    data = all;
  }
  if (type.dtype == ANE_MIL_INT32 && from->dtype != ANE_AI_INT32) {
    int32_t *wide = copy_of(t, v->bytes);
    if (!wide) return t->err->code;
    for (uint64_t i = 0; i < count; i++) wide[i] = narrow(from->dtype, data, i);
    data = (const uint8_t *)wide;
  }
  v->data = data;
  return emit_constant(t, v, out);
}

/* Reads the numbers of a constant slot: *n of them, at most `most`. */
static bool constant_ints(const struct slot *s, int32_t *out, int64_t most, int64_t *n) {
  if (!s->raw || s->raw->type.dtype != ANE_MIL_INT32 || s->raw->count > (uint64_t)most) return false;
  *n = (int64_t)s->raw->count;
  for (int64_t i = 0; i < *n; i++) out[i] = (int32_t)ane_mil_integer(s->raw, (uint64_t)i);
  return true;
}

/* ---- Single operations ------------------------------------------------------------------------------------------------------*/

/* An operation with its operands and results as slots. */
struct call {
  const struct ane_ai_op *op;
  const struct slot *in[MAX_PARAMS];
  struct slot *out;
};

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
    {ANE_AI_WHERE, "select", {"cond", "a", "b"}},
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
    return emit(t, plain[i].type, params, n, c->out, 1);
  }
  return ANE_OK;
}

static ane_status epsilon_op(struct translation *t, const struct call *c, const char *type) {
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = "epsilon", .value = real(t, 0)}};
  return emit(t, type, p, 2, c->out, 1);
}

static ane_status gelu(struct translation *t, const struct call *c) {
  static const char *const modes[] = {"EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"};
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = "mode", .value = text(t, modes[c->op->gelu])}};
  return emit(t, "gelu", p, 2, c->out, 1);
}

static ane_status pad(struct translation *t, const struct call *c) {
  static const char *const modes[] = {NULL, "constant", "reflect", "replicate", NULL, NULL};
  if (!modes[c->op->pad]) return fail(t, ANE_UNSUPPORTED, "its mode is not supported");
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "pad", .slot = c->in[1]},
                      {.name = "mode", .value = text(t, modes[c->op->pad])},
                      {.name = "constant_val", .slot = c->in[2]}};
  return emit(t, "pad", p, 4, c->out, 1);
}

static ane_status cast(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "dtype", .value = text(t, ane_mil_dtype_name(c->out->type.dtype))}};
  return emit(t, "cast", p, 2, c->out, 1);
}

static ane_status conv(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]},       {.name = "weight", .slot = c->in[1]},
                      {.name = "strides", .slot = c->in[2]}, {.name = "dilations", .slot = c->in[3]},
                      {.name = "groups", .slot = c->in[4]},  {.name = "pad_type", .value = text(t, "valid")}};
  return emit(t, "conv", p, ANE_COUNT(p), c->out, 1);
}

static ane_status softmax(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = "axis", .slot = c->in[1]}};
  return emit(t, "softmax", p, 2, c->out, 1);
}

static ane_status argmax(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]},
                      {.name = "axis", .slot = c->in[1]},
                      {.name = "keep_dims", .value = flag(t, true)},
                      {.name = "output_dtype", .value = text(t, "int32")}};
  return emit(t, "reduce_argmax", p, 4, c->out, 1);
}

static ane_status reduce(struct translation *t, const struct call *c, const char *type) {
  struct param p[] = {
      {.name = "x", .slot = c->in[0]}, {.name = "axes", .slot = c->in[1]}, {.name = "keep_dims", .value = flag(t, true)}};
  return emit(t, type, p, 3, c->out, 1);
}

/* argsort is topk with k = the size of the axis. descending: largest first. */
static ane_status argsort(struct translation *t, const struct call *c) {
  int32_t axis;
  int64_t n;
  const struct ane_mil_value *order = c->in[2]->raw;
  if (!constant_ints(c->in[1], &axis, 1, &n) || n != 1 || !order || order->count != 1 || order->type.dtype != ANE_MIL_BOOL)
    return fail(t, ANE_UNSUPPORTED, "its axis and order must be constants");
  struct slot two[2] = {{.type = c->in[0]->type}, {.type = c->out->type}};
  struct param p[] = {
      {.name = "x", .slot = c->in[0]},          {.name = "k", .value = integer(t, -1)},
      {.name = "axis", .slot = c->in[1]},       {.name = "ascending", .value = flag(t, *(const uint8_t *)order->data == 0)},
      {.name = "sort", .value = flag(t, true)}, {.name = "output_indices_dtype", .value = text(t, "int32")}};
  ane_status st = emit(t, "topk", p, ANE_COUNT(p), two, 2);
  c->out->name = two[1].name;
  return st;
}

/* Reshapes to the declared shape of the result. */
static ane_status reshape_to(struct translation *t, const struct slot *x, struct slot *out) {
  int32_t dim[ANE_MIL_RANK];
  for (int32_t i = 0; i < out->type.rank; i++) {
    if (out->type.dim[i] < 0 || out->type.dim[i] > INT32_MAX) return fail(t, ANE_UNSUPPORTED, "its shape is unknown");
    dim[i] = (int32_t)out->type.dim[i];
  }
  struct param p[] = {{.name = "x", .slot = x}, {.name = "shape", .value = ints(t, dim, out->type.rank)}};
  return emit(t, "reshape", p, 2, out, 1);
}

static ane_status transpose(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = "perm", .slot = c->in[1]}};
  return emit(t, "transpose", p, 2, c->out, 1);
}

static ane_status along(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "x", .slot = c->in[0]}, {.name = "indices", .slot = c->in[1]}, {.name = "axis", .slot = c->in[2]}};
  return emit(t, "gather_along_axis", p, 3, c->out, 1);
}

static ane_status concat(struct translation *t, const struct slot *const *in, uint32_t n, struct slot *out) {
  struct param p[] = {{.name = "axis", .slot = in[0]},
                      {.name = "interleave", .value = flag(t, false)},
                      {.name = "values", .list = in + 1, .n = n - 1}};
  return emit(t, "concat", p, 3, out, 1);
}

/* Broadcasts: tiles the axes of size 1. */
static ane_status broadcast_to(struct translation *t, const struct call *c) {
  const struct ane_mil_type *x = &c->in[0]->type, *y = &c->out->type;
  struct slot same = {.type = *x};
  int32_t reps[ANE_MIL_RANK];
  int32_t added = y->rank - x->rank;
  if (added < 0) return fail(t, ANE_SHAPE, "it has more dimensions than its result");
  same.type.rank = y->rank;
  for (int32_t i = 0; i < y->rank; i++) {
    int64_t own = same.type.dim[i] = i < added ? 1 : x->dim[i - added];
    if (own < 0 || y->dim[i] < 0 || y->dim[i] > INT32_MAX || (own != 1 && own != y->dim[i]))
      return fail(t, ANE_SHAPE, "its shape does not fit the shape of its result");
    reps[i] = own == 1 ? (int32_t)y->dim[i] : 1;
  }
  ane_status st = reshape_to(t, c->in[0], &same);
  struct param p[] = {{.name = "x", .slot = &same}, {.name = "reps", .value = ints(t, reps, y->rank)}};
  return st ? st : emit(t, "tile", p, 2, c->out, 1);
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
  bool known = constant_ints(in[1], begin, ANE_MIL_RANK, &n) && n == rank && constant_ints(in[2], end, ANE_MIL_RANK, &n) &&
               n == rank && constant_ints(in[3], stride, ANE_MIL_RANK, &n) && n == rank;
  p[0] = (struct param){.name = "x", .slot = in[0]};
  p[1] = (struct param){.name = "begin", .slot = in[1]};
  p[2] = (struct param){.name = "end", .slot = in[2]};
  p[3] = (struct param){.name = "stride", .slot = in[3]};
  for (int64_t i = 0; known && i < rank; i++) {
    bool open = false;
    if (!clamp(in[0]->type.dim[i], stride[i], &begin[i], &end[i], &open))
      return fail(t, ANE_UNSUPPORTED, "its bounds must be constants");
    mask[i] = open;
  }
  if (known) {
    p[1] = (struct param){.name = "begin", .value = ints(t, begin, rank)};
    p[2] = (struct param){.name = "end", .value = ints(t, end, rank)};
  }
  p[4] = (struct param){.name = "end_mask",
                        .value = keep_value(t, ane_mil_tensor_type(ANE_MIL_BOOL, 1, &rank), mask, (uint64_t)rank)};
  return ANE_OK;
}

static ane_status slice(struct translation *t, const struct call *c) {
  struct param p[5];
  ane_status st = slice_params(t, c->in, p);
  return st ? st : emit(t, "slice_by_index", p, 5, c->out, 1);
}

static ane_status slice_update(struct translation *t, const struct call *c) {
  struct param p[7];
  ane_status st = slice_params(t, c->in, p);
  p[5] = (struct param){.name = "update", .slot = c->in[4]};
  p[6] = (struct param){.name = "clip", .value = keep_value(t, ane_mil_tensor_type(ANE_MIL_BOOL, 0, NULL), &(uint8_t){1}, 1)};
  return st ? st : emit(t, "slice_update", p, 7, c->out, 1);
}

/* ---- Weights and states --------------------------------------------------------------------------------------------*/

static bool all_zero(const struct ane_mil_value *v) {
  const uint8_t *p = v->data;
  uint8_t any = 0;
  for (uint64_t i = 0; i < v->bytes; i++) any |= p[i];
  return any == 0;
}

/* scale * (codes - offset1) + offset2 for computed codes, as separate operations. The scale is broadcast; blocks are not
 * supported.
 */
static ane_status scaled(struct translation *t, const struct call *c) {
  struct slot x = {.type = c->out->type}, first = {.type = c->in[2]->type}, shifted = {.type = c->out->type}, product = shifted;
  for (int32_t i = 0; i < c->out->type.rank; i++)
    if (c->in[1]->type.dim[i] != 1 && c->in[1]->type.dim[i] != c->out->type.dim[i])
      return fail(t, ANE_UNSUPPORTED, "blocks of computed values are not supported");
  first.type.dtype = x.type.dtype;
  const struct ane_mil_value *dtype = text(t, ane_mil_dtype_name(x.type.dtype));
  struct param widen[] = {{.name = "x", .slot = c->in[0]}, {.name = "dtype", .value = dtype}};
  struct param offset[] = {{.name = "x", .slot = c->in[2]}, {.name = "dtype", .value = dtype}};
  ane_status st = emit(t, "cast", widen, 2, &x, 1);
  if (!st) st = emit(t, "cast", offset, 2, &first, 1);
  if (!st) st = emit(t, "sub", (struct param[]){{.name = "x", .slot = &x}, {.name = "y", .slot = &first}}, 2, &shifted, 1);
  if (!st)
    st = emit(t, "mul", (struct param[]){{.name = "x", .slot = &shifted}, {.name = "y", .slot = c->in[1]}}, 2, &product, 1);
  return st ? st
            : emit(t, "add", (struct param[]){{.name = "x", .slot = &product}, {.name = "y", .slot = c->in[3]}}, 2, c->out, 1);
}

static ane_status blockwise(struct translation *t, const struct call *c) {
  const struct ane_mil_value *data = c->in[0]->raw, *scale = c->in[1]->raw, *first = c->in[2]->raw, *second = c->in[3]->raw;
  if (!data || !scale || !first || !second || !all_zero(second)) return scaled(t, c);
  struct param p[] = {{.name = "data", .value = data}, {.name = "scale", .value = scale}, {.name = "offset", .value = first}};
  return emit(t, "constexpr_blockwise_shift_scale", p, all_zero(first) ? 2 : 3, c->out, 1);
}

static ane_status lut(struct translation *t, const struct call *c) {
  const struct ane_mil_value *codes = c->in[0]->raw, *tables = c->in[1]->raw;
  if (!codes || !tables || tables->type.rank < 2) return fail(t, ANE_UNSUPPORTED, "codes and tables must be constants");
  bool vectors = tables->type.dim[tables->type.rank - 1] > 1;
  if (vectors && !c->in[2]->raw) return fail(t, ANE_UNSUPPORTED, "the axis must be a constant");
  struct param p[] = {
      {.name = "indices", .value = codes}, {.name = "lut", .value = tables}, {.name = "vector_axis", .value = c->in[2]->raw}};
  return emit(t, "constexpr_lut_to_dense", p, vectors ? 3 : 2, c->out, 1);
}

static ane_status read_state(struct translation *t, const struct call *c) {
  struct param p = {.name = "input", .slot = c->in[0]};
  return c->in[0]->type.kind == ANE_MIL_STATE ? emit(t, "read_state", &p, 1, c->out, 1)
                                              : fail(t, ANE_FORMAT, "the operand is not a state");
}

static ane_status write_state(struct translation *t, const struct call *c) {
  struct param p[] = {{.name = "input", .slot = c->in[0]}, {.name = "data", .slot = c->in[1]}};
  return c->in[0]->type.kind == ANE_MIL_STATE ? emit(t, "write_state", p, 2, NULL, 0)
                                              : fail(t, ANE_FORMAT, "the operand is not a state");
}

/* ---- Functions -----------------------------------------------------------------------------------------------------*/

static ane_status translate_op(struct translation *t, const struct call *c) {
  bool done = false;
  ane_status st = plain_op(t, c, &done);
  if (done) return st;
  switch (c->op->id) {
    case ANE_AI_LOG: return epsilon_op(t, c, "log");
    case ANE_AI_RSQRT: return epsilon_op(t, c, "rsqrt");
    case ANE_AI_GELU: return gelu(t, c);
    case ANE_AI_CAST: return cast(t, c);
    case ANE_AI_CONV2D: return conv(t, c);
    case ANE_AI_SOFTMAX: return softmax(t, c);
    case ANE_AI_ARGMAX: return argmax(t, c);
    case ANE_AI_ARGSORT: return argsort(t, c);
    case ANE_AI_REDUCE_SUM: return reduce(t, c, "reduce_sum");
    case ANE_AI_REDUCE_MEAN: return reduce(t, c, "reduce_mean");
    case ANE_AI_REDUCE_MAX: return reduce(t, c, "reduce_max");
    case ANE_AI_REDUCE_MIN: return reduce(t, c, "reduce_min");
    case ANE_AI_RESHAPE:
    case ANE_AI_EXPAND_DIMS:
    case ANE_AI_SHRINK_DIMS: return reshape_to(t, c->in[0], c->out);
    case ANE_AI_TRANSPOSE: return transpose(t, c);
    case ANE_AI_GATHER_ALONG_AXIS: return along(t, c);
    case ANE_AI_SLICE: return slice(t, c);
    case ANE_AI_SLICE_UPDATE: return slice_update(t, c);
    case ANE_AI_BROADCAST_TO:
    case ANE_AI_BROADCAST_IN_DIMS: return broadcast_to(t, c);
    case ANE_AI_PAD: return pad(t, c);
    case ANE_AI_BLOCKWISE: return blockwise(t, c);
    case ANE_AI_LUT: return lut(t, c);
    case ANE_AI_COPY_PLAIN:
    case ANE_AI_COPY_LAID_OUT: return c->out->name = c->in[0]->name, c->out->raw = c->in[0]->raw, ANE_OK;
    case ANE_AI_CREATE_TOKEN: return ANE_OK;
    case ANE_AI_READ_HANDLE: return read_state(t, c);
    case ANE_AI_WRITE_HANDLE: return write_state(t, c);
    default: return fail(t, ANE_UNSUPPORTED, "unknown operation");
  }
}

static ane_status translate_body(struct translation *t, const struct ane_ai_function *f, const struct slot *const *in,
                                 struct slot *slots);

/* Inlines a function or body: its results become those of the operation. */
static ane_status inlined(struct translation *t, const struct ane_ai_function *f, const struct ane_ai_op *op,
                          const struct slot *const *in, struct slot *out) {
  struct slot *slots = ane_arena_array(t->arena, (size_t)f->n_values + 1, sizeof *slots);
  if (!slots) return no_memory(t);
  if (f->n_inputs != op->n_in || f->n_outputs != op->n_out)
    return fail(t, ANE_FORMAT, "its operands or results differ from those of its body");
  if (++t->depth > MAX_DEPTH) return fail(t, ANE_UNSUPPORTED, "calls are nested too deep");
  ane_status st = translate_body(t, f, in, slots);
  t->depth--;
  t->op = op;
  for (uint32_t i = 0; i < op->n_out && !st; i++) {
    const struct slot *from = &slots[f->outputs[i].value->number];
    if (op->out[i].type.kind == ANE_AI_TENSOR && !from->name)
      return fail(t, ANE_FORMAT, "its body returns a token instead of a tensor");
    out[i] = *from;
  }
  return st;
}

static ane_status translate_any(struct translation *t, const struct ane_ai_op *op, struct slot *slots) {
  const struct slot **in = ane_arena_array(t->arena, (size_t)op->n_in + MAX_PARAMS, sizeof *in);
  struct slot *out = op->n_out ? &slots[op->out[0].number] : NULL;
  if (!in) return no_memory(t);
  t->op = op;
  if (t->n_ops++ >= MAX_OPS) return ane_fail(t->err, ANE_UNSUPPORTED, "more than %d operations", (int)MAX_OPS);
  for (uint32_t i = 0; i < op->n_in; i++) in[i] = &slots[op->in[i]->number];
  for (uint32_t i = 0; i < op->n_out; i++) {
    ane_status st = op->out[i].type.kind == ANE_AI_TOKEN ? ANE_OK : type_of(t, &op->out[i].type, &out[i].type);
    if (st) return st;
  }
  if (op->id == ANE_AI_CONSTANT) return op->n_out == 1 ? translate_constant(t, op, out) : fail(t, ANE_FORMAT, "has no result");
  if (op->id == ANE_AI_INVOKE) {
    const struct ane_ai_function *f = ane_ai_function(t->program, op->callee);
    return f ? inlined(t, f, op, in, out) : fail(t, ANE_FORMAT, "calls a function that is not in the asset");
  }
  if (op->id == ANE_AI_OPS) return op->body ? inlined(t, op->body, op, in, out) : fail(t, ANE_UNSUPPORTED, "unknown operation");
  if (!ane_ai_fits(op->id, op->n_in, op->n_out)) return fail(t, ANE_FORMAT, "has a wrong number of operands or results");
  struct call c = {.op = op, .out = out};
  if (op->id == ANE_AI_CONCAT) return concat(t, in, op->n_in, out);
  for (uint32_t i = 0; i < MAX_PARAMS; i++) c.in[i] = i < op->n_in ? in[i] : NULL;
  return translate_op(t, &c);
}

static ane_status translate_body(struct translation *t, const struct ane_ai_function *f, const struct slot *const *in,
                                 struct slot *slots) {
  ane_status st = ANE_OK;
  for (uint32_t i = 0; i < f->n_inputs; i++) slots[f->inputs[i].value->number] = *in[i];
  for (uint32_t i = 0; i < f->n_ops && !st; i++) st = translate_any(t, f->ops[i], slots);
  return st;
}

/* ---- The model -----------------------------------------------------------------------------------------------------*/

static struct ane_mil_feature feature(const char *name, const struct ane_mil_type *type) {
  struct ane_mil_feature f = {
      .name = name, .description = "", .kind = type->kind == ANE_MIL_STATE ? ANE_MIL_ARRAY_STATE : ANE_MIL_ARRAY};
  f.dtype = type->dtype;
  f.shape.rank = type->rank;
  memcpy(f.shape.dim, type->dim, sizeof f.shape.dim);
  return f;
}

/* Lists of a function, as long as they may become. */
struct lists {
  struct ane_mil_named_type *inputs;
  struct ane_mil_feature *in, *out, *states;
  const char **outputs;
  struct slot *given, *slots;
  const struct slot **args;
};

static bool make_lists(struct translation *t, const struct ane_ai_function *f, struct lists *l) {
  size_t n = (size_t)f->n_inputs + 1, k = (size_t)f->n_outputs + 1;
  l->inputs = ane_arena_array(t->arena, n, sizeof *l->inputs);
  l->in = ane_arena_array(t->arena, n, sizeof *l->in);
  l->states = ane_arena_array(t->arena, n, sizeof *l->states);
  l->out = ane_arena_array(t->arena, k, sizeof *l->out);
  l->outputs = ane_arena_array(t->arena, k, sizeof *l->outputs);
  l->given = ane_arena_array(t->arena, n, sizeof *l->given);
  l->args = ane_arena_array(t->arena, n, sizeof *l->args);
  l->slots = ane_arena_array(t->arena, (size_t)f->n_values + 1, sizeof *l->slots);
  return l->inputs && l->in && l->states && l->out && l->outputs && l->given && l->args && l->slots;
}

/* The function's results under their own names. */
static ane_status name_outputs(struct translation *t, const struct ane_ai_function *f, struct lists *l,
                               struct ane_mil_function *to, struct ane_mil_interface *d) {
  ane_status st = ANE_OK;
  for (uint32_t i = 0; i < f->n_outputs && !st; i++) {
    const struct slot *s = &l->slots[f->outputs[i].value->number];
    if (f->outputs[i].value->type.kind != ANE_AI_TENSOR) continue;
    struct slot named = {.type = s->type};
    struct param p = {.name = "x", .slot = s};
    if (!s->name) return ane_fail(t->err, ANE_FORMAT, "output %.64s is not a tensor", f->outputs[i].name);
    st = emit(t, "identity", &p, 1, &named, 1);
    if (st) return st;
    struct ane_mil_op *op = (struct ane_mil_op *)(void *)t->ops.data + (t->ops.size / sizeof *op - 1);
    ((struct ane_mil_named_type *)(uintptr_t)op->outputs)->name = f->outputs[i].name;
    l->out[d->n_outputs++] = feature(f->outputs[i].name, &s->type);
    l->outputs[to->block.n_outputs++] = f->outputs[i].name;
  }
  return st;
}

static ane_status translate_function(struct translation *t, const struct ane_ai_function *f, struct ane_mil_function *to,
                                     struct ane_mil_interface *d) {
  struct lists l;
  ane_status st = make_lists(t, f, &l) ? ANE_OK : no_memory(t);
  *to = (struct ane_mil_function){.name = f->name, .opset = "CoreML8"};
  *d = (struct ane_mil_interface){.name = f->name, .predicted = "", .probabilities = ""};
  for (uint32_t i = 0; i < f->n_inputs && !st; i++) {
    const struct ane_ai_type *type = &f->inputs[i].value->type;
    if (type->kind == ANE_AI_TOKEN) return ane_fail(t->err, ANE_UNSUPPORTED, "input %.64s is a token", f->inputs[i].name);
    st = type_of(t, type, &l.given[i].type);
    l.given[i].name = f->inputs[i].name;
    l.args[i] = &l.given[i];
    l.inputs[to->n_inputs++] = (struct ane_mil_named_type){f->inputs[i].name, l.given[i].type};
    if (type->kind == ANE_AI_HANDLE)
      l.states[d->n_states++] = feature(f->inputs[i].name, &l.given[i].type);
    else
      l.in[d->n_inputs++] = feature(f->inputs[i].name, &l.given[i].type);
  }
  if (!st) st = translate_body(t, f, l.args, l.slots);
  if (!st) st = name_outputs(t, f, &l, to, d);
  struct ane_mil_op *ops = st ? NULL : ane_arena_array(t->arena, t->ops.size / sizeof *ops + 1, sizeof *ops);
  if (!st && !ops) st = no_memory(t);
  if (!st && t->ops.size) memcpy(ops, t->ops.data, t->ops.size);
  to->block.ops = ops;
  to->block.n_ops = (uint32_t)(t->ops.size / sizeof *ops);
  to->block.outputs = l.outputs;
  to->inputs = l.inputs;
  d->inputs = l.in;
  d->outputs = l.out;
  d->states = l.states;
  t->ops.size = 0;
  return st;
}

ane_status ane_interp_mil_of_ai(struct ane_arena *arena, const struct ane_ai_program *p, struct ane_mil_model **out,
                                struct ane_error *err) {
  struct translation t = {.arena = arena, .program = p, .err = err};
  struct ane_mil_model *m = ane_arena_alloc(arena, sizeof *m);
  struct ane_mil_function *list = ane_arena_array(arena, (size_t)p->n_functions + 1, sizeof *list);
  struct ane_mil_interface *faces = ane_arena_array(arena, (size_t)p->n_functions + 1, sizeof *faces);
  if (!m || !list || !faces) return no_memory(&t);
  *m = (struct ane_mil_model){.version = 9, .interfaces = faces, .multi = true, .default_function = "main"};
  m->metadata = (struct ane_mil_metadata){.description = "", .version = "", .author = "", .license = ""};
  m->program.functions = list;
  ane_status st = ANE_OK;
  for (uint32_t i = 0; i < p->n_functions && !st; i++) {
    if (p->functions[i].local) continue;
    st = translate_function(&t, &p->functions[i], &list[m->program.n_functions], &faces[m->n_interfaces]);
    if (st) ane_fail_in(err, st, "function %.64s", p->functions[i].name);
    m->program.n_functions++;
    m->n_interfaces++;
  }
  ane_buffer_free(&t.ops);
  if (st) return st;
  if (!m->program.n_functions) return ane_fail(err, ANE_FORMAT, "the asset has no function that can be called");
  if (!ane_mil_function(m, "main")) m->default_function = list[0].name;
  *out = m;
  return ANE_OK;
}
