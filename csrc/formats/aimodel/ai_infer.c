/* Infers the result types of operations, with one function per rule of ai_op.def. Semantics: docstrings of coreai-core 1.0.0b3.
 */
#include "formats/aimodel/ai_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct inference {
  ane_ai_op_id id;
  const struct ane_ai_value *const *in;
  uint32_t n;
  struct ane_ai_type *out;
  struct ane_error *err;
};
typedef ane_status (*rule_fn)(struct inference *f);

/* Messages show the types of the first operands. */
enum { SHOWN = 3, OPERANDS_TEXT = SHOWN * (ANE_AI_TYPE_TEXT + 2) };

static const struct ane_ai_type *type(const struct inference *f, uint32_t i) { return &f->in[i]->type; }

static ane_status fail(const struct inference *f, ane_status code, const char *why) {
  char text[OPERANDS_TEXT], one[ANE_AI_TYPE_TEXT];
  int len = 0;
  text[0] = '\0';
  for (uint32_t i = 0; i < f->n && i < SHOWN; i++)
    len += snprintf(text + len, sizeof text - (size_t)len, "%s%s", i ? ", " : "", ane_ai_type_text(one, type(f, i)));
  return ane_fail(f->err, code, "%s of %s: %s", ai_rows[f->id].name, text, why);
}

static ane_status shapes(const struct inference *f) { return fail(f, ANE_SHAPE, "their shapes do not fit"); }
static ane_status types(const struct inference *f) { return fail(f, ANE_INVALID, "their element types do not fit"); }

static bool same_shape(const struct ane_ai_type *a, const struct ane_ai_type *b) {
  return a->rank == b->rank && memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) == 0;
}

static bool is_float(ane_ai_dtype t) { return t == ANE_AI_FP16 || t == ANE_AI_FP32 || t == ANE_AI_BF16 || t == ANE_AI_FP64; }

/* Is operand i a vector of n integers (n < 0: any number)? */
static bool is_vector(const struct inference *f, uint32_t i, int64_t n) {
  return type(f, i)->rank == 1 && (n < 0 || type(f, i)->dim[0] == n) && ane_ai_dtype_bits(type(f, i)->dtype) >= 8 &&
         !is_float(type(f, i)->dtype);
}

/* Element k of the constant operand i as an axis of `rank` dimensions. */
static bool axis_of(const struct inference *f, uint32_t i, uint64_t k, int32_t rank, int32_t *axis) {
  int64_t v;
  if (!ai_constant_int(f->in[i], k, &v) || v < -(int64_t)rank || v >= rank) return false;
  *axis = (int32_t)(v < 0 ? v + rank : v);
  return true;
}

/* ---- Rules ----------------------------------------------------------------------------------------------------------*/

/* The caller gives the result type. */
static ane_status rule_GIVEN(struct inference *f) {
  return ane_ai_dtype_bits(f->out[0].dtype) ? ANE_OK : fail(f, ANE_INVALID, "no result type is given");
}
static ane_status rule_SAME(struct inference *f) { return f->out[0] = *type(f, 0), ANE_OK; }

static ane_status rule_CAST(struct inference *f) {
  ane_ai_dtype t = f->out[0].dtype;
  f->out[0] = *type(f, 0);
  f->out[0].dtype = t;
  return ane_ai_dtype_bits(t) ? ANE_OK : fail(f, ANE_INVALID, "the new element type is not a type");
}

static ane_status rule_PAIR(struct inference *f) {
  if (type(f, 0)->dtype != type(f, 1)->dtype) return types(f);
  return same_shape(type(f, 0), type(f, 1)) ? rule_SAME(f) : shapes(f);
}

static ane_status as_bool(struct inference *f, ane_status st) {
  f->out[0].dtype = ANE_AI_BOOL;
  return st;
}

static ane_status rule_COMPARE(struct inference *f) { return as_bool(f, rule_PAIR(f)); }

static ane_status rule_WHERE(struct inference *f) {
  if (type(f, 0)->dtype != ANE_AI_BOOL || type(f, 1)->dtype != type(f, 2)->dtype) return types(f);
  if (!same_shape(type(f, 0), type(f, 1)) || !same_shape(type(f, 1), type(f, 2))) return shapes(f);
  return f->out[0] = *type(f, 1), ANE_OK;
}

/* Broadcasts two shapes, aligned at the right: out [max(n_a, n_b)]. False: they do not fit. */
static bool broadcast(const int64_t *a, int32_t n_a, const int64_t *b, int32_t n_b, int64_t *out) {
  int32_t n = ANE_MAX(n_a, n_b);
  for (int32_t i = 1; i <= n; i++) {
    int64_t x = i <= n_a ? a[n_a - i] : 1, y = i <= n_b ? b[n_b - i] : 1;
    if (x != y && x != 1 && y != 1) return false;
    out[n - i] = x == 1 ? y : x;
  }
  return true;
}

static ane_status rule_BROADCAST(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0), *y = type(f, 1);
  int64_t dim[ANE_AI_RANK];
  if (x->dtype != y->dtype) return types(f);
  if (!broadcast(x->dim, x->rank, y->dim, y->rank, dim)) return shapes(f);
  return f->out[0] = ane_ai_tensor(x->dtype, ANE_MAX(x->rank, y->rank), dim), ANE_OK;
}

static ane_status rule_BROADCAST_COMPARE(struct inference *f) { return as_bool(f, rule_BROADCAST(f)); }

static ane_status rule_BROADCAST_MATMUL(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0), *y = type(f, 1);
  int64_t dim[ANE_AI_RANK];
  int32_t rank = ANE_MAX(x->rank, y->rank);
  if (x->dtype != y->dtype) return types(f);
  if (x->rank < 2 || y->rank < 2 || x->dim[x->rank - 1] != y->dim[y->rank - 2] ||
      !broadcast(x->dim, x->rank - 2, y->dim, y->rank - 2, dim))
    return shapes(f);
  dim[rank - 2] = x->dim[x->rank - 2];
  dim[rank - 1] = y->dim[y->rank - 1];
  return f->out[0] = ane_ai_tensor(x->dtype, rank, dim), ANE_OK;
}

static ane_status rule_MATMUL(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0), *y = type(f, 1);
  ane_status st = rule_BROADCAST_MATMUL(f);
  if (st) return st;
  return x->rank == y->rank && memcmp(x->dim, y->dim, (size_t)(x->rank - 2) * sizeof *x->dim) == 0 ? ANE_OK : shapes(f);
}

static ane_status rule_CONV(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0), *w = type(f, 1);
  int64_t stride, dilation, groups, dim[4];
  if (x->dtype != w->dtype || !is_float(x->dtype)) return types(f);
  if (x->rank != 4 || w->rank != 4 || !is_vector(f, 2, 2) || !is_vector(f, 3, 2) || type(f, 4)->rank != 0) return shapes(f);
  if (!ai_constant_int(f->in[4], 0, &groups)) return fail(f, ANE_INVALID, "groups must be a constant");
  if (groups < 1 || groups > x->dim[1] || x->dim[1] % groups || w->dim[0] % groups || w->dim[1] != x->dim[1] / groups)
    return shapes(f);
  dim[0] = x->dim[0];
  dim[1] = w->dim[0];
  for (uint64_t i = 0; i < 2; i++) {
    if (!ai_constant_int(f->in[2], i, &stride) || !ai_constant_int(f->in[3], i, &dilation) || stride < 1 || dilation < 1 ||
        dilation > INT32_MAX || w->dim[2 + i] > INT32_MAX || w->dim[2 + i] < 1)
      return fail(f, ANE_INVALID, "stride and dilation must be constants above 0");
    int64_t extent = dilation * (w->dim[2 + i] - 1) + 1; /* of the dilated kernel */
    if (extent > x->dim[2 + i]) return shapes(f);
    dim[2 + i] = (x->dim[2 + i] - extent) / stride + 1;
  }
  return f->out[0] = ane_ai_tensor(x->dtype, 4, dim), ANE_OK;
}

static ane_status axis_or_fail(struct inference *f, int32_t *axis) {
  bool ok = type(f, 1)->rank == 0 && axis_of(f, 1, 0, type(f, 0)->rank, axis);
  return ok ? ANE_OK : fail(f, ANE_INVALID, "the axis must be a constant within the tensor's rank");
}

static ane_status rule_AXIS_SAME(struct inference *f) {
  int32_t axis;
  return f->out[0] = *type(f, 0), axis_or_fail(f, &axis);
}

static ane_status rule_ARGMAX(struct inference *f) {
  int32_t axis = 0;
  ane_status st = axis_or_fail(f, &axis);
  f->out[0] = *type(f, 0);
  f->out[0].dtype = ANE_AI_UINT32;
  f->out[0].dim[axis] = 1;
  return st;
}

static ane_status rule_ARGSORT(struct inference *f) {
  int32_t axis = 0;
  ane_status st = axis_or_fail(f, &axis);
  f->out[0] = *type(f, 0);
  f->out[0].dtype = ANE_AI_INT32;
  for (uint32_t i = 2; i < 4; i++)
    if (type(f, i)->rank != 0 || type(f, i)->dtype != ANE_AI_BOOL) return types(f);
  return st;
}

/* Marks the axes that the constant operand 1 lists. False: not a constant, out of range for `rank`, or listed twice. */
static bool listed_axes(const struct inference *f, int32_t rank, bool *marked) {
  if (!is_vector(f, 1, -1)) return false;
  for (int64_t i = 0; i < type(f, 1)->dim[0]; i++) {
    int32_t axis;
    if (!axis_of(f, 1, (uint64_t)i, rank, &axis) || marked[axis]) return false;
    marked[axis] = true;
  }
  return true;
}

static const char AXES[] = "the axes must be distinct constants within the tensor's rank";

static ane_status rule_REDUCE(struct inference *f) {
  bool marked[ANE_AI_RANK] = {0};
  if (f->in[1]->op == NULL && ane_ai_dtype_bits(f->out[0].dtype))
    return ANE_OK; /* inside a body, where the axes are an input: the caller gives the type */
  f->out[0] = *type(f, 0);
  if (!listed_axes(f, type(f, 0)->rank, marked)) return fail(f, ANE_INVALID, AXES);
  for (int32_t i = 0; i < type(f, 0)->rank; i++)
    if (marked[i]) f->out[0].dim[i] = 1;
  return ANE_OK;
}

static ane_status rule_EXPAND(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0);
  bool marked[ANE_AI_RANK] = {0};
  int64_t dim[ANE_AI_RANK], added = is_vector(f, 1, -1) ? type(f, 1)->dim[0] : 0;
  if (added > ANE_AI_RANK - x->rank) return fail(f, ANE_UNSUPPORTED, "too many dimensions");
  int32_t rank = x->rank + (int32_t)added, from = 0;
  if (!listed_axes(f, rank, marked)) return fail(f, ANE_INVALID, AXES);
  for (int32_t i = 0; i < rank; i++) dim[i] = marked[i] ? 1 : x->dim[from++];
  return f->out[0] = ane_ai_tensor(x->dtype, rank, dim), ANE_OK;
}

static ane_status rule_SHRINK(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0);
  bool marked[ANE_AI_RANK] = {0};
  int64_t dim[ANE_AI_RANK];
  int32_t rank = 0;
  if (!listed_axes(f, x->rank, marked)) return fail(f, ANE_INVALID, AXES);
  for (int32_t i = 0; i < x->rank; i++) {
    if (marked[i] && x->dim[i] != 1) return shapes(f);
    if (!marked[i]) dim[rank++] = x->dim[i];
  }
  return f->out[0] = ane_ai_tensor(x->dtype, rank, dim), ANE_OK;
}

/* Reads the shape from the constant operand 1. */
static bool constant_shape(const struct inference *f, int64_t *dim, int32_t *rank) {
  if (!is_vector(f, 1, -1) || type(f, 1)->dim[0] > ANE_AI_RANK) return false;
  *rank = (int32_t)type(f, 1)->dim[0];
  for (int32_t i = 0; i < *rank; i++)
    if (!ai_constant_int(f->in[1], (uint64_t)i, &dim[i])) return false;
  return true;
}

static const char SHAPE[] = "the shape must be a constant of at most 10 dimensions";

static ane_status rule_RESHAPE(struct inference *f) {
  int64_t dim[ANE_AI_RANK] = {0}, open = -1;
  int32_t rank = 0;
  uint64_t n = 0, known = 1;
  if (!constant_shape(f, dim, &rank)) return fail(f, ANE_INVALID, SHAPE);
  if (!ane_ai_count(type(f, 0), &n)) return shapes(f);
  for (int32_t i = 0; i < rank; i++) {
    if (dim[i] == -1 && open < 0)
      open = i;
    else if (dim[i] < 0 || (dim[i] && known > UINT64_MAX / (uint64_t)dim[i]))
      return shapes(f);
    else
      known *= (uint64_t)dim[i];
  }
  if (open >= 0 && known) dim[open] = (int64_t)(n / known);
  f->out[0] = ane_ai_tensor(type(f, 0)->dtype, rank, dim);
  return ane_ai_count(&f->out[0], &known) && known == n ? ANE_OK : shapes(f);
}

static ane_status rule_TO_SHAPE(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0);
  int64_t dim[ANE_AI_RANK] = {0}, both[ANE_AI_RANK];
  int32_t rank = 0;
  if (!constant_shape(f, dim, &rank)) return fail(f, ANE_INVALID, SHAPE);
  if (rank < x->rank || !broadcast(x->dim, x->rank, dim, rank, both) || memcmp(both, dim, (size_t)rank * sizeof *dim) != 0)
    return shapes(f);
  return f->out[0] = ane_ai_tensor(x->dtype, rank, dim), ANE_OK;
}

static ane_status rule_TRANSPOSE(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0);
  bool used[ANE_AI_RANK] = {0};
  f->out[0] = *x;
  for (int32_t i = 0; i < x->rank; i++) {
    int32_t axis;
    if (!is_vector(f, 1, x->rank) || !axis_of(f, 1, (uint64_t)i, x->rank, &axis) || used[axis])
      return fail(f, ANE_INVALID, "the permutation must be a constant that names each axis once");
    used[axis] = true;
    f->out[0].dim[i] = x->dim[axis];
  }
  return ANE_OK;
}

static ane_status rule_CONCAT(struct inference *f) {
  const struct ane_ai_type *x = type(f, 1);
  int32_t axis;
  if (type(f, 0)->rank != 0 || !axis_of(f, 0, 0, x->rank, &axis))
    return fail(f, ANE_INVALID, "the axis must be a constant within the tensors' rank");
  f->out[0] = *x;
  for (uint32_t i = 2; i < f->n; i++) {
    struct ane_ai_type y = *type(f, i);
    if (y.dtype != x->dtype) return types(f);
    if (y.rank != x->rank || y.dim[axis] < 0 || f->out[0].dim[axis] > INT64_MAX - y.dim[axis]) return shapes(f);
    f->out[0].dim[axis] += y.dim[axis];
    y.dim[axis] = x->dim[axis];
    if (!same_shape(x, &y)) return shapes(f);
  }
  return ANE_OK;
}

/* Number of elements of [begin : end : stride] along an axis of size n. Negative bounds have n added once; then all are clamped.
 */
static int64_t slice_size(int64_t n, int64_t begin, int64_t end, int64_t stride) {
  int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? n : n - 1;
  if (begin < 0) begin += n;
  if (end < low) end += n;
  begin = ANE_MIN(ANE_MAX(begin, (int64_t)0), high);
  end = ANE_MIN(ANE_MAX(end, low), high);
  int64_t length = stride > 0 ? end - begin : begin - end, step = stride > 0 ? stride : -stride;
  return length > 0 ? (length - 1) / step + 1 : 0;
}

/* Sizes of the slice with begin, end and stride in operands 1 .. 3. *known false: the bounds of some axis are computed. */
static ane_status slice_shape(struct inference *f, int64_t *dim, bool *known) {
  const struct ane_ai_type *x = type(f, 0);
  *known = true;
  for (uint32_t i = 1; i <= 3; i++)
    if (!is_vector(f, i, x->rank) || type(f, i)->dtype != type(f, 1)->dtype) return fail(f, ANE_SHAPE, "its bounds do not fit");
  for (int32_t i = 0; i < x->rank; i++) {
    int64_t begin, end, stride;
    uint64_t k = (uint64_t)i;
    if (!ai_constant_int(f->in[3], k, &stride)) return fail(f, ANE_INVALID, "the stride must be a constant");
    if (stride == 0 || stride == INT64_MIN || x->dim[i] < 0) return shapes(f);
    if (ai_constant_int(f->in[1], k, &begin) && ai_constant_int(f->in[2], k, &end) && begin > INT64_MIN / 2 &&
        end > INT64_MIN / 2)
      dim[i] = slice_size(x->dim[i], begin, end, stride);
    else
      *known = false;
  }
  return ANE_OK;
}

static ane_status rule_SLICE(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0);
  struct ane_ai_type given = f->out[0];
  int64_t dim[ANE_AI_RANK] = {0};
  bool known;
  ane_status st = slice_shape(f, dim, &known);
  if (st) return st;
  f->out[0] = ane_ai_tensor(x->dtype, x->rank, dim);
  if (known) return ANE_OK;
  if (given.rank != x->rank) return fail(f, ANE_INVALID, "its bounds are computed, and no result type is given");
  for (int32_t i = 0; i < x->rank; i++)
    if (given.dim[i] < 0 || given.dim[i] > x->dim[i]) return shapes(f);
  given.dtype = x->dtype;
  return f->out[0] = given, ANE_OK;
}

static ane_status rule_UPDATE(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0), *update = type(f, 4);
  int64_t dim[ANE_AI_RANK] = {0};
  bool known;
  ane_status st = slice_shape(f, dim, &known);
  if (st) return st;
  if (update->dtype != x->dtype) return types(f);
  if (update->rank != x->rank) return shapes(f);
  for (int32_t i = 0; i < x->rank; i++)
    if (update->dim[i] > x->dim[i] || (known && update->dim[i] != dim[i])) return shapes(f);
  return f->out[0] = *x, ANE_OK;
}

static ane_status rule_GATHER_ND(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0), *at = type(f, 1);
  int64_t dim[ANE_AI_RANK], indexed = at->rank ? at->dim[at->rank - 1] : 0; /* axes of x that an index selects */
  if (is_float(at->dtype)) return types(f);
  if (at->rank < 1 || indexed < 0 || indexed > x->rank) return shapes(f);
  int32_t rank = at->rank - 1 + x->rank - (int32_t)indexed, k = 0;
  if (rank > ANE_AI_RANK) return fail(f, ANE_UNSUPPORTED, "too many dimensions");
  for (int32_t i = 0; i < at->rank - 1; i++) dim[k++] = at->dim[i];
  for (int32_t i = (int32_t)indexed; i < x->rank; i++) dim[k++] = x->dim[i];
  return f->out[0] = ane_ai_tensor(x->dtype, rank, dim), ANE_OK;
}

static ane_status rule_ALONG(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0), *at = type(f, 1);
  int32_t axis;
  if (is_float(at->dtype)) return types(f);
  if (at->rank != x->rank || type(f, 2)->rank != 0 || !axis_of(f, 2, 0, x->rank, &axis)) return shapes(f);
  for (int32_t i = 0; i < x->rank; i++)
    if (i != axis && at->dim[i] != x->dim[i]) return shapes(f);
  f->out[0] = *at;
  return f->out[0].dtype = x->dtype, ANE_OK;
}

/* ---- Weights and states ---------------------------------------------------------------------------------------------*/

static ane_status rule_BLOCKWISE(struct inference *f) {
  const struct ane_ai_type *codes = type(f, 0), *scale = type(f, 1), *first = type(f, 2), *second = type(f, 3);
  if (!is_float(scale->dtype) || first->dtype != codes->dtype || !is_float(second->dtype)) return types(f);
  if (codes->rank != scale->rank || !same_shape(scale, first) || !same_shape(scale, second)) return shapes(f);
  for (int32_t i = 0; i < codes->rank; i++)
    if (scale->dim[i] < 1 || codes->dim[i] % scale->dim[i]) return shapes(f);
  f->out[0] = *codes;
  return f->out[0].dtype = second->dtype, ANE_OK;
}

static ane_status rule_LUT(struct inference *f) {
  const struct ane_ai_type *codes = type(f, 0), *tables = type(f, 1);
  uint32_t bits = ane_ai_dtype_bits(codes->dtype);
  int32_t rank = codes->rank, axis = 0;
  if (codes->dtype != ANE_AI_UINT8 &&
      (bits >= 8 || codes->dtype == ANE_AI_INT4 || codes->dtype == ANE_AI_INT2 || is_float(codes->dtype)))
    return types(f);
  if (tables->rank != rank + 2 || tables->dim[rank] != (int64_t)1 << bits || type(f, 2)->rank != 0) return shapes(f);
  if (rank && !axis_of(f, 2, 0, rank, &axis))
    return fail(f, ANE_INVALID, "the axis must be a constant within the rank of the codes");
  f->out[0] = *codes;
  f->out[0].dtype = tables->dtype;
  for (int32_t i = 0; i < rank; i++)
    if (tables->dim[i] < 1 || codes->dim[i] % tables->dim[i]) return shapes(f);
  if (tables->dim[rank + 1] < 1 || (rank && codes->dim[axis] > INT64_MAX / tables->dim[rank + 1])) return shapes(f);
  if (rank) f->out[0].dim[axis] *= tables->dim[rank + 1];
  return ANE_OK;
}

static ane_status rule_TOKEN(struct inference *f) {
  f->out[0] = (struct ane_ai_type){.kind = ANE_AI_TOKEN};
  return ANE_OK;
}

static ane_status rule_PLAIN(struct inference *f) {
  f->out[0] = *type(f, 0);
  memset(f->out[0].interleave, 0, sizeof f->out[0].interleave);
  return type(f, 0)->interleave[0] ? ANE_OK : fail(f, ANE_INVALID, "the tensor has no layout");
}

static ane_status rule_LAID_OUT(struct inference *f) {
  const struct ane_ai_type *x = type(f, 0);
  struct ane_ai_type given = f->out[0];
  bool fits = given.dtype == x->dtype && same_shape(&given, x);
  for (int32_t i = 0; fits && i < x->rank; i++) fits = given.interleave[i] >= 1 && given.interleave[i] <= x->dim[i];
  return fits && x->rank ? ANE_OK : fail(f, ANE_INVALID, "the layout does not fit");
}

static ane_status rule_READ(struct inference *f) {
  f->out[0] = *type(f, 0);
  f->out[0].kind = ANE_AI_TENSOR;
  f->out[1] = (struct ane_ai_type){.kind = ANE_AI_TOKEN};
  return type(f, 0)->kind == ANE_AI_HANDLE && type(f, 1)->kind == ANE_AI_TOKEN ? ANE_OK : types(f);
}

static ane_status rule_WRITE(struct inference *f) {
  struct ane_ai_type held = *type(f, 0);
  held.kind = ANE_AI_TENSOR;
  if (type(f, 0)->kind != ANE_AI_HANDLE || type(f, 2)->kind != ANE_AI_TOKEN) return types(f);
  return ane_ai_type_equal(&held, type(f, 1)) ? rule_TOKEN(f) : shapes(f);
}

/* ---- Interface ------------------------------------------------------------------------------------------------------*/

static const rule_fn rules[ANE_AI_OPS] = {
#define ANE_AI_OP(id, name, version, in, out, rule, body) [ANE_AI_##id] = rule_##rule,
#include "formats/aimodel/ai_op.def"
#undef ANE_AI_OP
};

static bool takes_states(ane_ai_op_id id) { return id == ANE_AI_READ_HANDLE || id == ANE_AI_WRITE_HANDLE; }

bool ane_ai_fits(ane_ai_op_id id, uint32_t n_in, uint32_t n_out) {
  const struct ai_row *row = &ai_rows[id];
  bool in = row->in < 0 ? n_in >= (uint32_t)-row->in : n_in == (uint32_t)row->in;
  return in && (row->out < 0 || n_out == (uint32_t)row->out);
}

ane_status ane_ai_infer(ane_ai_op_id id, const struct ane_ai_value *const *in, uint32_t n, struct ane_ai_type *out,
                        uint32_t n_out, struct ane_error *err) {
  struct inference f = {id, in, n, out, err};
  if (id >= ANE_AI_OPS) return ane_fail(err, ANE_UNSUPPORTED, "an operation without a rule");
  if (!ane_ai_fits(id, n, n_out))
    return ane_fail(err, ANE_INVALID, "%s: %u operands, %u results", ai_rows[id].name, (unsigned)n, (unsigned)n_out);
  for (uint32_t i = 0; i < n && !takes_states(id); i++)
    if (type(&f, i)->kind != ANE_AI_TENSOR) return fail(&f, ANE_INVALID, "an operand is not a tensor");
  return rules[id](&f);
}
