/* Reductions, cumulative sums, top k. Sums of floats are kept in float64. */
#include "prim/prim_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Over several axes ---------------------------------------------------------------------------------------------*/

/* A tensor as kept axes (outer) and reduced axes (inner), each with its strides in the input. */
struct reduction {
  int n_kept, n_gone, rank; /* rank of the result */
  int64_t kept[ANE_DYN_RANK], kept_stride[ANE_DYN_RANK], gone[ANE_DYN_RANK], gone_stride[ANE_DYN_RANK], dim[ANE_DYN_RANK];
  int64_t inner; /* elements that go into one result */
};

static ane_status plan(struct ane_prim_call *c, const struct ane_dyn *x, uint32_t mask, bool keep, struct reduction *r) {
  int64_t stride[ANE_DYN_RANK];
  *r = (struct reduction){.inner = 1};
  prim_strides(x->rank, x->dim, stride);
  for (int i = 0; i < x->rank; i++) {
    bool gone = mask >> i & 1;
    if (gone)
      r->gone[r->n_gone] = x->dim[i], r->gone_stride[r->n_gone++] = stride[i], r->inner *= x->dim[i];
    else
      r->kept[r->n_kept] = x->dim[i], r->kept_stride[r->n_kept++] = stride[i];
    if (!gone || keep) r->dim[r->rank++] = gone ? 1 : x->dim[i];
  }
  return c->status;
}

/* Advances to the next index of a set of axes and updates *offset. */
static void step(int n, const int64_t *dim, const int64_t *stride, int64_t *at, int64_t *offset) {
  for (int i = n - 1; i >= 0; i--) {
    *offset += stride[i];
    if (++at[i] < dim[i]) return;
    *offset -= stride[i] * dim[i];
    at[i] = 0;
  }
}

enum kind { SUM, MEAN, MAX, MIN, PROD, SUM_SQUARE, L1, L2, LOG_SUM, LOG_SUM_EXP };

static float reduce_f32(enum kind kind, const float *x, const struct reduction *r) {
  int64_t at[ANE_DYN_RANK] = {0}, o = 0;
  double acc = kind == PROD ? 1 : kind == MAX || kind == LOG_SUM_EXP ? -INFINITY : kind == MIN ? INFINITY : 0, top = 0;
  if (kind == LOG_SUM_EXP) {
    struct reduction copy = *r;
    top = (double)reduce_f32(MAX, x, &copy);
    if (isinf(top)) return (float)top;
    acc = 0;
  }
  for (int64_t i = 0; i < r->inner; i++, step(r->n_gone, r->gone, r->gone_stride, at, &o)) {
    double v = (double)x[o];
    switch (kind) {
      case SUM:
      case MEAN:
      case LOG_SUM: acc += v; break;
      case MAX: acc = isnan(v) || v > acc ? v : acc; break;
      case MIN: acc = isnan(v) || v < acc ? v : acc; break;
      case PROD: acc *= v; break;
      case SUM_SQUARE:
      case L2: acc += v * v; break;
      case L1: acc += fabs(v); break;
      case LOG_SUM_EXP: acc += exp(v - top); break;
    }
  }
  if (kind == MEAN) acc /= (double)r->inner;
  if (kind == L2) acc = sqrt(acc);
  if (kind == LOG_SUM) acc = log(acc);
  if (kind == LOG_SUM_EXP) acc = log(acc) + top;
  return (float)acc;
}

/* Returns the smallest number of an integer type, and the largest; of uint64 as its 64 bits. */
static int64_t least(ane_dtype t) {
  return t == ANE_I64 ? INT64_MIN : t == ANE_I32 ? INT32_MIN : t == ANE_I16 ? INT16_MIN : t == ANE_I8 ? INT8_MIN : 0;
}
static int64_t most(ane_dtype t) {
  if (t == ANE_BOOL) return 1;
  return t == ANE_U64 ? -1 : t == ANE_U32 ? UINT32_MAX : t == ANE_U16 ? UINT16_MAX : t == ANE_U8 ? UINT8_MAX : -1 - least(t);
}

/* `start`: the result of no elements. */
static int64_t reduce_i64(enum kind kind, const int64_t *x, const struct reduction *r, int64_t start) {
  int64_t at[ANE_DYN_RANK] = {0}, o = 0;
  int64_t acc = r->inner == 0 ? start : kind == PROD ? 1 : kind == MAX ? INT64_MIN : kind == MIN ? INT64_MAX : 0;
  for (int64_t i = 0; i < r->inner; i++, step(r->n_gone, r->gone, r->gone_stride, at, &o)) {
    uint64_t v = (uint64_t)x[o], a = (uint64_t)acc;
    switch (kind) {
      case MAX: acc = ANE_MAX(acc, x[o]); break;
      case MIN: acc = ANE_MIN(acc, x[o]); break;
      case PROD: acc = (int64_t)(a * v); break;
      case SUM_SQUARE: acc = (int64_t)(a + v * v); break;
      case L1: acc = (int64_t)(a + (x[o] < 0 ? 0 - v : v)); break;
      default: acc = (int64_t)(a + v); break;
    }
  }
  return kind == MEAN && r->inner ? acc / r->inner : acc;
}

static ane_status reduce(struct ane_prim_call *c, enum kind kind) {
  const struct ane_dyn *x = c->in[0];
  struct reduction r;
  const struct ane_dyn *axes = prim_in(c, "axes");
  uint32_t mask = prim_axes(c, "axes", x->rank);
  bool keep = prim_bool(c, "keep_dims", false), floats = prim_is_float(x->dtype);
  if (prim_in(c, "noop") && (!axes || axes->count == 0)) mask = prim_bool(c, "noop", false) ? 0 : (1u << x->rank) - 1;
  if (c->status || plan(c, x, mask, keep, &r)) return c->status;
  if (!floats && (kind == L2 || kind == LOG_SUM || kind == LOG_SUM_EXP))
    return prim_fail(c, ANE_UNSUPPORTED, "integers of type %s", ane_dtype_info(x->dtype)->name);
  const void *v = floats ? (const void *)prim_f32(c, x) : prim_i64(c, x);
  void *y = prim_out(c, 0, floats ? ANE_F32 : x->dtype, r.rank, r.dim);
  if (!v || !y) return c->status;
  int64_t at[ANE_DYN_RANK] = {0}, o = 0, n = c->out[0].count;
  int64_t start = kind == PROD ? 1 : kind == MAX ? least(x->dtype) : kind == MIN ? most(x->dtype) : 0;
  for (int64_t i = 0; i < n; i++, step(r.n_kept, r.kept, r.kept_stride, at, &o)) {
    if (floats) {
      ((float *)y)[i] = reduce_f32(kind, (const float *)v + o, &r);
    } else {
      int64_t z = reduce_i64(kind, (const int64_t *)v + o, &r, start);
      prim_store(x->dtype, (char *)y + (size_t)i * prim_width(x->dtype), &z, 1);
    }
  }
  return c->status;
}

ane_status prim_reduce_sum(struct ane_prim_call *c) { return reduce(c, SUM); }
ane_status prim_reduce_mean(struct ane_prim_call *c) { return reduce(c, MEAN); }
ane_status prim_reduce_max(struct ane_prim_call *c) { return reduce(c, MAX); }
ane_status prim_reduce_min(struct ane_prim_call *c) { return reduce(c, MIN); }
ane_status prim_reduce_prod(struct ane_prim_call *c) { return reduce(c, PROD); }
ane_status prim_reduce_sum_square(struct ane_prim_call *c) { return reduce(c, SUM_SQUARE); }
ane_status prim_reduce_l1_norm(struct ane_prim_call *c) { return reduce(c, L1); }
ane_status prim_reduce_l2_norm(struct ane_prim_call *c) { return reduce(c, L2); }
ane_status prim_reduce_log_sum(struct ane_prim_call *c) { return reduce(c, LOG_SUM); }
ane_status prim_reduce_log_sum_exp(struct ane_prim_call *c) { return reduce(c, LOG_SUM_EXP); }

/* ---- Along one axis ------------------------------------------------------------------------------------------------*/

/* x seen as [outer, n, inner] around an axis. */
struct lines {
  int64_t outer, n, inner;
};
static struct lines lines_of(const struct ane_dyn *x, int axis) {
  struct lines l = {1, x->rank ? x->dim[axis] : 1, 1};
  for (int i = 0; i < axis; i++) l.outer *= x->dim[i];
  for (int i = axis + 1; i < x->rank; i++) l.inner *= x->dim[i];
  return l;
}

/* Compares a with b: -1, 0 or 1; NaN is above all numbers. */
static int compare_f32(float a, float b) {
  if (a != a || b != b) return (a != a) - (b != b);
  return (a > b) - (a < b);
}

static ane_status arg_best(struct ane_prim_call *c, bool largest) {
  const struct ane_dyn *x = c->in[0];
  int axis = prim_axis(c, "axis", -1, ANE_MAX(x->rank, 1));
  bool keep = prim_bool(c, "keep_dims", false), last = prim_bool(c, "last", false), floats = prim_is_float(x->dtype);
  ane_dtype t = prim_dtype(c, "output_dtype", ANE_I32);
  if (c->status) return c->status;
  if (t == ANE_F32 || t == ANE_BOOL) return prim_fail(c, ANE_INVALID, "output_dtype is not an integer type");
  struct lines l = lines_of(x, axis);
  int64_t dim[ANE_DYN_RANK];
  int rank = 0;
  for (int i = 0; i < x->rank; i++)
    if (i != axis || keep) dim[rank++] = i == axis ? 1 : x->dim[i];
  if (l.n == 0) return prim_fail(c, ANE_SHAPE, "the axis has no elements");
  const float *f = floats ? prim_f32(c, x) : NULL;
  const int64_t *v = floats ? NULL : prim_i64(c, x);
  char *y = prim_out(c, 0, t, rank, dim);
  if (c->status) return c->status;
  for (int64_t o = 0; o < l.outer * l.inner; o++) {
    int64_t base = o / l.inner * l.n * l.inner + o % l.inner, best = 0;
    for (int64_t i = 1; i < l.n; i++) {
      int64_t p = base + i * l.inner, q = base + best * l.inner;
      int way = floats ? compare_f32(f[p], f[q]) : (v[p] > v[q]) - (v[p] < v[q]);
      if (largest ? way > 0 : way < 0)
        best = i;
      else if (last && way == 0)
        best = i;
    }
    prim_store(t, y + (size_t)o * prim_width(t), &best, 1);
  }
  return c->status;
}
ane_status prim_reduce_argmax(struct ane_prim_call *c) { return arg_best(c, true); }
ane_status prim_reduce_argmin(struct ane_prim_call *c) { return arg_best(c, false); }

ane_status prim_cumsum(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  int axis = prim_axis(c, "axis", 0, ANE_MAX(x->rank, 1));
  bool exclusive = prim_bool(c, "exclusive", false), reverse = prim_bool(c, "reverse", false), floats = prim_is_float(x->dtype);
  struct lines l = lines_of(x, axis);
  const float *f = floats ? prim_f32(c, x) : NULL;
  const int64_t *v = floats ? NULL : prim_i64(c, x);
  void *y = prim_out(c, 0, floats ? ANE_F32 : x->dtype, x->rank, x->dim);
  int64_t *z = floats ? NULL : prim_temp(c, (uint64_t)x->count * sizeof *z);
  if (c->status || x->count == 0) return c->status;
  for (int64_t o = 0; o < l.outer * l.inner; o++) {
    double sum = 0;
    uint64_t whole = 0;
    for (int64_t i = 0; i < l.n; i++) {
      int64_t p = o / l.inner * l.n * l.inner + o % l.inner + (reverse ? l.n - 1 - i : i) * l.inner;
      double before = sum;
      uint64_t whole_before = whole;
      if (floats)
        sum += (double)f[p], ((float *)y)[p] = (float)(exclusive ? before : sum);
      else
        whole += (uint64_t)v[p], z[p] = (int64_t)(exclusive ? whole_before : whole);
    }
  }
  if (!floats) prim_store(x->dtype, y, z, x->count);
  return c->status;
}

/* ---- Top k ---------------------------------------------------------------------------------------------------------*/

struct candidate {
  float f;
  int64_t v, index;
};

static int by_value(const struct candidate *a, const struct candidate *b, bool ascending) {
  int way = compare_f32(a->f, b->f);
  if (way == 0) way = (a->v > b->v) - (a->v < b->v);
  if (ascending) way = -way;
  return way ? -way : (a->index > b->index) - (a->index < b->index);
}
static int descending(const void *a, const void *b) { return by_value(a, b, false); }
static int ascending(const void *a, const void *b) { return by_value(a, b, true); }
static int by_index(const void *a, const void *b) {
  const struct candidate *p = a, *q = b;
  return (p->index > q->index) - (p->index < q->index);
}

ane_status prim_topk(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  int axis = prim_axis(c, "axis", -1, ANE_MAX(x->rank, 1));
  int64_t k = prim_int(c, "k", 1), dim[ANE_DYN_RANK];
  bool up = prim_bool(c, "ascending", false), sort = prim_bool(c, "sort", true), floats = prim_is_float(x->dtype);
  ane_dtype t = prim_dtype(c, "output_indices_dtype", ANE_I32);
  struct lines l = lines_of(x, axis);
  if (k == -1) k = l.n;
  if (!c->status && (k < 0 || k > l.n))
    prim_fail(c, ANE_RANGE, "k is %lld, but the axis has %lld elements", (long long)k, (long long)l.n);
  if (c->status) return c->status;
  for (int i = 0; i < x->rank; i++) dim[i] = i == axis ? k : x->dim[i];
  const float *f = floats ? prim_f32(c, x) : NULL;
  const int64_t *v = floats ? NULL : prim_i64(c, x);
  char *y = prim_out(c, 0, floats ? ANE_F32 : x->dtype, x->rank, dim), *z = c->n_out > 1 ? prim_out(c, 1, t, x->rank, dim) : NULL;
  struct candidate *list = prim_temp(c, (uint64_t)l.n * sizeof *list);
  if (c->status || c->out[0].count == 0) return c->status;
  for (int64_t o = 0; o < l.outer * l.inner; o++) {
    int64_t base = o / l.inner * l.n * l.inner + o % l.inner, to = o / l.inner * k * l.inner + o % l.inner;
    for (int64_t i = 0; i < l.n; i++)
      list[i] = (struct candidate){floats ? f[base + i * l.inner] : 0, floats ? 0 : v[base + i * l.inner], i};
    qsort(list, (size_t)l.n, sizeof *list, up ? ascending : descending);
    if (!sort) qsort(list, (size_t)k, sizeof *list, by_index);
    for (int64_t i = 0; i < k; i++, to += l.inner) {
      if (floats)
        ((float *)(void *)y)[to] = list[i].f;
      else
        prim_store(x->dtype, y + (size_t)to * prim_width(x->dtype), &list[i].v, 1);
      if (z) prim_store(t, z + (size_t)to * prim_width(t), &list[i].index, 1);
    }
  }
  return c->status;
}
