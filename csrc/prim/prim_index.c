/* Gather and scatter. Negative indices count from the end. */
#include "prim/prim_internal.h"

#include <inttypes.h>
#include <string.h>

/* Resolves an index into n elements. false if it is outside; c->status is then set. */
static bool resolve(struct ane_prim_call *c, int64_t i, int64_t n, int64_t *out) {
  *out = i < 0 ? i + n : i;
  if (*out >= 0 && *out < n) return true;
  prim_fail(c, ANE_RANGE, "index %" PRId64 " is outside of %" PRId64 " elements", i, n);
  return false;
}

/* ---- gather --------------------------------------------------------------------------------------------------------*/

/* Gathers from x [batch, outer, n, inner] by indices [batch, m] to [batch, outer, m, inner]. Rows are copied as stored and
 * converted to floats afterwards, since x may be a large constant of another float type. */
static ane_status gather_rows(struct ane_prim_call *c, const struct ane_dyn *x, const int64_t *index, int64_t batch,
                              int64_t outer, int64_t n, int64_t inner, int64_t m, int rank, const int64_t *dim) {
  bool floats = prim_is_float(x->dtype), direct = ane_dtype_info(x->dtype)->block == 1;
  ane_dtype t = floats ? ANE_F32 : x->dtype;
  const char *v = x->coded ? "" : direct ? x->data : prim_elements(c, x, &t);
  char *y = v ? prim_out(c, 0, t, rank, dim) : NULL;
  if (!y || c->out[0].count == 0) return c->status;
  size_t from = prim_width(direct ? x->dtype : t), to = prim_width(t);
  for (int64_t b = 0; b < batch; b++)
    for (int64_t o = 0; o < outer; o++)
      for (int64_t i = 0; i < m; i++) {
        int64_t at;
        if (!resolve(c, index[b * m + i], n, &at)) return c->status;
        int64_t first = ((b * outer + o) * n + at) * inner;
        char *dst = y + (size_t)(((b * outer + o) * m + i) * inner) * to;
        const char *row = x->coded ? v : v + (size_t)first * from;
        if (x->coded)
          ane_coded_read(x->coded, first, inner, (float *)(void *)dst);
        else if (!floats || x->dtype == ANE_F32)
          memcpy(dst, row, (size_t)inner * to);
        else if (ane_to_f32(x->dtype, row, (float *)(void *)dst, (uint64_t)inner, NULL))
          return prim_fail(c, ANE_UNSUPPORTED, "elements of type %s", ane_dtype_info(x->dtype)->name);
      }
  return c->status;
}

ane_status prim_gather(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *indices = c->in[1];
  int axis = prim_axis(c, "axis", 0, x->rank), rank = 0;
  int64_t bd = prim_int(c, "batch_dims", 0), dim[2 * ANE_DYN_RANK], batch = 1, outer = 1, inner = 1, m = 1;
  const int64_t *index = prim_i64(c, indices);
  if (c->status) return c->status;
  if (bd < 0 || bd > axis || bd > indices->rank) return prim_fail(c, ANE_INVALID, "batch_dims is %" PRId64, bd);
  for (int i = 0; i < bd; i++) {
    if (x->dim[i] != indices->dim[i]) return prim_fail(c, ANE_SHAPE, "x and indices differ in batch dimension %d", i + 1);
    batch *= x->dim[i];
  }
  for (int i = 0; i < axis; i++) dim[rank++] = x->dim[i], outer *= i >= bd ? x->dim[i] : 1;
  for (int i = (int)bd; i < indices->rank; i++) dim[rank++] = indices->dim[i], m *= indices->dim[i];
  for (int i = axis + 1; i < x->rank; i++) dim[rank++] = x->dim[i], inner *= x->dim[i];
  return gather_rows(c, x, index, batch, outer, x->dim[axis], inner, m, rank, dim);
}

ane_status prim_gather_columns(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *indices = c->in[1];
  int64_t dim[ANE_DYN_RANK + 1];
  if (x->rank != 2) return prim_fail(c, ANE_SHAPE, "x has %d dimensions, but must have two", x->rank);
  bool direct = ane_dtype_info(x->dtype)->block == 1 && !x->coded;
  ane_dtype t = prim_is_float(x->dtype) ? ANE_F32 : x->dtype;
  const char *v = direct ? x->data : prim_elements(c, x, &t);
  const int64_t *index = prim_i64(c, indices);
  memcpy(dim, indices->dim, (size_t)indices->rank * sizeof *dim);
  dim[indices->rank] = x->dim[0];
  char *y = v && index ? prim_out(c, 0, t, indices->rank + 1, dim) : NULL;
  size_t from = prim_width(direct ? x->dtype : t), to = prim_width(t);
  for (int64_t i = 0; y && i < indices->count; i++) {
    int64_t at;
    if (!resolve(c, index[i], x->dim[1], &at)) break;
    for (int64_t r = 0; r < x->dim[0]; r++, y += to) {
      const char *p = v + (size_t)(r * x->dim[1] + at) * from;
      if (direct && t == ANE_F32)
        (void)ane_to_f32(x->dtype, p, (float *)(void *)y, 1, NULL); /* a float type: cannot fail */
      else
        memcpy(y, p, to);
    }
  }
  return c->status;
}

/* ---- By coordinates ------------------------------------------------------------------------------------------------*/

/* Advances the coordinates `at` within dim, row-major; false at the end. */
static bool next_coordinates(int rank, const int64_t *dim, int64_t *at) {
  for (int i = rank - 1; i >= 0; i--) {
    if (++at[i] < dim[i]) return true;
    at[i] = 0;
  }
  return false;
}

static bool smaller(struct ane_prim_call *c, const struct ane_dyn *x, const struct ane_dyn *indices, int axis) {
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  bool ok = x->rank == indices->rank;
  for (int i = 0; ok && i < x->rank; i++) ok = i == axis || indices->dim[i] <= x->dim[i];
  if (!ok) prim_fail(c, ANE_SHAPE, "indices %s do not fit %s", ane_dyn_text(indices, b), ane_dyn_text(x, a));
  return ok;
}

/* Returns the offset in x of the coordinates `at` of indices, with `index` along axis. */
static int64_t offset_at(int rank, const int64_t *stride, const int64_t *at, int axis, int64_t index) {
  int64_t o = 0;
  for (int i = 0; i < rank; i++) o += (i == axis ? index : at[i]) * stride[i];
  return o;
}

ane_status prim_gather_along_axis(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *indices = c->in[1];
  int axis = prim_axis(c, "axis", 0, ANE_MAX(x->rank, 1));
  int64_t stride[ANE_DYN_RANK], at[ANE_DYN_RANK] = {0};
  ane_dtype t;
  if (c->status || !smaller(c, x, indices, axis)) return c->status;
  const int64_t *index = prim_i64(c, indices);
  const char *v = prim_elements(c, x, &t);
  char *y = index && v ? prim_out(c, 0, t, indices->rank, indices->dim) : NULL;
  prim_strides(x->rank, x->dim, stride);
  for (int64_t i = 0; y && i < indices->count; i++, next_coordinates(indices->rank, indices->dim, at)) {
    int64_t k;
    if (!resolve(c, index[i], x->rank ? x->dim[axis] : 1, &k)) break;
    memcpy(y + (size_t)i * prim_width(t), v + (size_t)offset_at(x->rank, stride, at, axis, k) * prim_width(t), prim_width(t));
  }
  return c->status;
}

ane_status prim_gather_nd(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *indices = c->in[1];
  int64_t bd = prim_int(c, "batch_dims", 0), dim[2 * ANE_DYN_RANK], stride[ANE_DYN_RANK], inner = 1, each = 1, batch = 1;
  int rank = 0;
  if (c->status) return c->status;
  int64_t q = indices->rank ? indices->dim[indices->rank - 1] : 0;
  if (bd < 0 || bd >= indices->rank || q < 1 || bd + q > x->rank)
    return prim_fail(c, ANE_SHAPE, "indices of %" PRId64 " parts with batch_dims %" PRId64, q, bd);
  for (int i = 0; i < bd; i++) {
    if (x->dim[i] != indices->dim[i]) return prim_fail(c, ANE_SHAPE, "x and indices differ in batch dimension %d", i + 1);
    batch *= x->dim[i];
  }
  for (int i = 0; i + 1 < indices->rank; i++) dim[rank++] = indices->dim[i], each *= i >= bd ? indices->dim[i] : 1;
  for (int i = (int)(bd + q); i < x->rank; i++) dim[rank++] = x->dim[i], inner *= x->dim[i];
  ane_dtype t;
  const int64_t *index = prim_i64(c, indices);
  const char *v = prim_elements(c, x, &t);
  char *y = index && v ? prim_out(c, 0, t, rank, dim) : NULL;
  prim_strides(x->rank, x->dim, stride);
  for (int64_t i = 0; y && inner && i < batch * each; i++) {
    int64_t from = bd ? i / each * stride[bd - 1] : 0, k;
    for (int j = 0; j < q; j++) {
      if (!resolve(c, index[i * q + j], x->dim[bd + j], &k)) return c->status;
      from += k * stride[bd + j];
    }
    memcpy(y + (size_t)(i * inner) * prim_width(t), v + (size_t)from * prim_width(t), (size_t)inner * prim_width(t));
  }
  return c->status;
}

/* ---- scatter -------------------------------------------------------------------------------------------------------*/

enum mode { SET, ADD, SUB, MUL, DIV, MAX, MIN, UNKNOWN };

static enum mode read_mode(struct ane_prim_call *c) {
  static const char *const names[] = {"update", "add", "sub", "mul", "div", "max", "min"};
  char text[PRIM_TEXT];
  const char *s = prim_text(c, "mode", "update", text);
  if (strcmp(s, "none") == 0) return SET;
  for (int i = 0; i < UNKNOWN; i++)
    if (strcmp(s, names[i]) == 0) return (enum mode)i;
  prim_fail(c, ANE_INVALID, "mode is \"%s\"; known are none, update, add, sub, mul, div, max, min", s);
  return UNKNOWN;
}

static void merge_f32(enum mode m, float *y, const float *u, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    float a = y[i], b = u[i];
    switch (m) {
      case ADD: y[i] = a + b; break;
      case SUB: y[i] = a - b; break;
      case MUL: y[i] = a * b; break;
      case DIV: y[i] = a / b; break;
      case MAX: y[i] = a > b ? a : b; break;
      case MIN: y[i] = a < b ? a : b; break;
      default: y[i] = b; break;
    }
  }
}
/* Combines updates with elements. Integers wrap; a quotient is truncated to zero, and is 0 if the divisor is 0. */
static void merge_i64(enum mode m, int64_t *y, const int64_t *u, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    int64_t a = y[i], b = u[i];
    uint64_t ua = (uint64_t)a, ub = (uint64_t)b;
    switch (m) {
      case ADD: y[i] = (int64_t)(ua + ub); break;
      case SUB: y[i] = (int64_t)(ua - ub); break;
      case MUL: y[i] = (int64_t)(ua * ub); break;
      case DIV: y[i] = b == 0 ? 0 : b == -1 ? (int64_t)(0 - ua) : a / b; break;
      case MAX: y[i] = a > b ? a : b; break;
      case MIN: y[i] = a < b ? a : b; break;
      default: y[i] = b; break;
    }
  }
}

/* A writable copy of data, and the updates, both as floats or as 64-bit integers. */
struct scatter {
  bool floats;
  enum mode mode;
  void *y; /* the result, or what is converted to it */
  const void *u;
};

static bool begin_scatter(struct ane_prim_call *c, const struct ane_dyn *data, const struct ane_dyn *updates, struct scatter *s) {
  s->mode = read_mode(c);
  s->floats = prim_is_float(data->dtype);
  const void *from = s->floats ? (const void *)prim_f32(c, data) : prim_i64(c, data);
  s->u = s->floats ? (const void *)prim_f32(c, updates) : prim_i64(c, updates);
  size_t size = s->floats ? sizeof(float) : sizeof(int64_t);
  s->y = s->floats ? prim_out(c, 0, ANE_F32, data->rank, data->dim) : prim_temp(c, (uint64_t)data->count * size);
  if (c->status) return false;
  memcpy(s->y, from, (size_t)data->count * size);
  return true;
}

static void merge(const struct scatter *s, int64_t to, int64_t from, int64_t n) {
  if (s->floats)
    merge_f32(s->mode, (float *)s->y + to, (const float *)s->u + from, n);
  else
    merge_i64(s->mode, (int64_t *)s->y + to, (const int64_t *)s->u + from, n);
}

static ane_status end_scatter(struct ane_prim_call *c, const struct ane_dyn *data, const struct scatter *s) {
  if (c->status || s->floats) return c->status;
  ane_dtype t = data->dtype == ANE_I4 ? ANE_I8 : data->dtype == ANE_U4 ? ANE_U8 : data->dtype;
  void *y = prim_out(c, 0, t, data->rank, data->dim);
  if (y) prim_store(t, y, s->y, data->count);
  return c->status;
}

ane_status prim_scatter_along_axis(struct ane_prim_call *c) {
  const struct ane_dyn *data = c->in[0], *indices = c->in[1], *updates = c->in[2];
  int axis = prim_axis(c, "axis", 0, ANE_MAX(data->rank, 1));
  int64_t stride[ANE_DYN_RANK], at[ANE_DYN_RANK] = {0};
  struct scatter s;
  if (c->status || !smaller(c, data, indices, axis)) return c->status;
  if (updates->rank != indices->rank || memcmp(updates->dim, indices->dim, (size_t)indices->rank * sizeof *stride) != 0)
    return prim_fail(c, ANE_SHAPE, "updates and indices differ in shape");
  const int64_t *index = prim_i64(c, indices);
  if (!index || !begin_scatter(c, data, updates, &s)) return c->status;
  prim_strides(data->rank, data->dim, stride);
  for (int64_t i = 0; i < indices->count; i++, next_coordinates(indices->rank, indices->dim, at)) {
    int64_t k;
    if (!resolve(c, index[i], data->rank ? data->dim[axis] : 1, &k)) break;
    merge(&s, offset_at(data->rank, stride, at, axis, k), i, 1);
  }
  return end_scatter(c, data, &s);
}

ane_status prim_scatter_nd(struct ane_prim_call *c) {
  const struct ane_dyn *data = c->in[0], *indices = c->in[1], *updates = c->in[2];
  int64_t stride[ANE_DYN_RANK], inner = 1, n = 1, all, q = indices->rank ? indices->dim[indices->rank - 1] : 0;
  struct scatter s;
  if (q < 1 || q > data->rank) return prim_fail(c, ANE_SHAPE, "indices of %" PRId64 " parts for %d dimensions", q, data->rank);
  for (int i = 0; i + 1 < indices->rank; i++) n *= indices->dim[i];
  for (int i = (int)q; i < data->rank; i++) inner *= data->dim[i];
  if (__builtin_mul_overflow(n, inner, &all) || updates->count != all)
    return prim_fail(c, ANE_SHAPE, "updates has %" PRId64 " elements, but must have %" PRId64 " times %" PRId64, updates->count,
                     n, inner);
  const int64_t *index = prim_i64(c, indices);
  if (!index || !begin_scatter(c, data, updates, &s)) return c->status;
  prim_strides(data->rank, data->dim, stride);
  for (int64_t i = 0; i < n && !c->status; i++) {
    int64_t to = 0, k;
    for (int j = 0; j < q; j++)
      if (resolve(c, index[i * q + j], data->dim[j], &k)) to += k * stride[j];
    if (!c->status) merge(&s, to, i * inner, inner);
  }
  return end_scatter(c, data, &s);
}

/* Gives the indices of the elements that are not 0, in order: [n, rank]. */
ane_status prim_non_zero(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  bool floats = prim_is_float(x->dtype);
  ane_dtype t = prim_dtype(c, "output_dtype", ANE_I32);
  const float *f = floats ? prim_f32(c, x) : NULL;
  const int64_t *v = floats ? NULL : prim_i64(c, x);
  int64_t at[ANE_DYN_RANK] = {0}, dim[2] = {0, x->rank};
  if (c->status) return c->status;
  if (t != ANE_I32 && t != ANE_I64) return prim_fail(c, ANE_INVALID, "output_dtype is neither int32 nor int64");
  for (int64_t i = 0; i < x->count; i++) dim[0] += floats ? f[i] != 0 : v[i] != 0;
  char *y = prim_out(c, 0, t, 2, dim);
  for (int64_t i = 0; y && i < x->count; i++, next_coordinates(x->rank, x->dim, at)) {
    if (floats ? f[i] == 0 : v[i] == 0) continue;
    prim_store(t, y, at, x->rank);
    y += (size_t)x->rank * prim_width(t);
  }
  return c->status;
}

/* Writes update [batch, .., s, ..] to rows of past [batch, .., n, ..] along the axis; those of batch entry b begin at
 * write_indices[b], or at 0. circular: rows beyond the last continue with the first. */
ane_status prim_tensor_scatter(struct ane_prim_call *c) {
  const struct ane_dyn *past = c->in[0], *update = c->in[1], *starts = prim_in(c, "write_indices");
  char text[PRIM_TEXT], a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  const char *mode = prim_text(c, "mode", "linear", text);
  bool circular = strcmp(mode, "circular") == 0;
  int axis = prim_axis(c, "axis", -2, past->rank);
  if (c->status) return c->status;
  if (!circular && strcmp(mode, "linear") != 0)
    return prim_fail(c, ANE_INVALID, "mode is \"%s\"; known are linear and circular", mode);
  bool fits = axis > 0 && update->rank == past->rank && (!starts || starts->count == past->dim[0]);
  for (int i = 0; fits && i < past->rank; i++) fits = i == axis ? update->dim[i] <= past->dim[i] : update->dim[i] == past->dim[i];
  if (!fits)
    return prim_fail(c, ANE_SHAPE, "past is %s, update %s, axis %d, and there are %" PRId64 " write_indices",
                     ane_dyn_text(past, a), ane_dyn_text(update, b), axis, starts ? starts->count : 0);
  ane_dtype t, tu;
  const void *old = prim_elements(c, past, &t);
  const char *v = prim_elements(c, update, &tu);
  const int64_t *start = starts ? prim_i64(c, starts) : NULL;
  if (!c->status && t != tu) prim_fail(c, ANE_SHAPE, "past is %s, update %s", ane_dtype_info(t)->name, ane_dtype_info(tu)->name);
  char *y = c->status ? NULL : prim_out(c, 0, t, past->rank, past->dim);
  if (!y || past->count == 0) return c->status;
  memcpy(y, old, (size_t)past->count * prim_width(t));
  int64_t n = past->dim[axis], s = update->dim[axis], inner = 1, outer = 1;
  for (int i = axis + 1; i < past->rank; i++) inner *= past->dim[i];
  for (int i = 1; i < axis; i++) outer *= past->dim[i];
  size_t row = (size_t)inner * prim_width(t);
  for (int64_t k = 0; k < past->dim[0] * outer; k++) {
    int64_t from = start ? start[k / outer] : 0;
    if (circular ? from < 0 : from < 0 || from > n - s)
      return prim_fail(c, ANE_RANGE, "write_indices holds %" PRId64 " for %" PRId64 " of %" PRId64 " rows", from, s, n);
    for (int64_t i = 0; i < s; i++) memcpy(y + (size_t)(k * n + (from % n + i) % n) * row, v + (size_t)(k * s + i) * row, row);
  }
  return c->status;
}
