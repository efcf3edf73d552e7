/* Class "ane.tensor": methods to examine numbers: slices, arithmetic, comparison, counts and means of parts. */
#include "binding/tensor/bind_tensor.h"
#include "sampling/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t product(const int64_t *dim, uint32_t n) {
  uint64_t p = 1;
  for (uint32_t i = 0; i < n; i++) p *= (uint64_t)dim[i];
  return p;
}

/* Returns an end of a range of `size` entries, 0-based. The argument counts from 1, or if negative from the end. */
static int64_t check_end(lua_State *L, int arg, lua_Integer def, int64_t size, int64_t low) {
  lua_Integer i = luaL_optinteger(L, arg, def);
  int64_t at = i < 0 ? i + size : i - 1;
  if (i == 0 || at < low || at >= size) {
    const char *msg = lua_pushfstring(L, "%I is outside %I .. %I (or -1 from the end)", (LUAI_UACINT)i, (LUAI_UACINT)(low + 1),
                                      (LUAI_UACINT)size);
    luaL_argerror(L, arg, msg);
  }
  return at;
}

/* slice(dim [, from [, to]]) -> copy of the entries from .. to (both included; default all) of dimension dim (1: the
 * outermost) */
static int meth_slice(lua_State *L) {
  const struct bind_tensor *t = bind_check_tensor(L, 1);
  uint32_t dim = (uint32_t)bind_integer(L, 2, 1, t->shape.rank) - 1;
  int64_t size = t->shape.dim[dim];
  int64_t from = check_end(L, 3, 1, size, 0), to = check_end(L, 4, -1, size, from);
  struct ane_shape shape = t->shape;
  shape.dim[dim] = to - from + 1;
  float *out = bind_tensor_new(L, &shape);
  uint64_t outer = product(t->shape.dim, dim), inner = product(t->shape.dim + dim + 1, t->shape.rank - dim - 1);
  uint64_t n = (uint64_t)shape.dim[dim] * inner;
  for (uint64_t i = 0; n && i < outer; i++)
    memcpy(out + i * n, t->data + (i * (uint64_t)size + (uint64_t)from) * inner, n * sizeof *out);
  return 1;
}

/* reshape(shape) -> copy with other dimensions of the same product */
static int meth_reshape(lua_State *L) {
  const struct bind_tensor *t = bind_check_tensor(L, 1);
  struct ane_shape s = {0, {0}};
  uint64_t count;
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_Unsigned rank = lua_rawlen(L, 2);
  luaL_argcheck(L, rank <= ANE_MAX_RANK, 2, "a shape has at most 5 dimensions");
  for (s.rank = 0; s.rank < rank; s.rank++) {
    lua_rawgeti(L, 2, (lua_Integer)s.rank + 1);
    s.dim[s.rank] = lua_tointegerx(L, -1, NULL);
    lua_pop(L, 1);
  }
  luaL_argcheck(L, ane_shape_count(&s, &count) && count == t->count, 2, "the shape must have as many elements as the tensor");
  float *out = bind_tensor_new(L, &s);
  if (t->count) memcpy(out, t->data, t->count * sizeof *out);
  return 1;
}

/* ---- Arithmetic --------------------------------------------------------------------------------------------------*/

typedef enum { ADD, SUB, MUL, DIV } operation;

static float apply(operation op, float a, float b) {
  switch (op) {
    case ADD: return a + b;
    case SUB: return a - b;
    case MUL: return a * b;
    default: return a / b;
  }
}

static const struct bind_tensor *same_shape(lua_State *L, const struct bind_tensor *a, int arg) {
  const struct bind_tensor *b = bind_check_tensor(L, arg);
  if (!ane_shape_equal(&a->shape, &b->shape)) {
    char x[ANE_SHAPE_TEXT], y[ANE_SHAPE_TEXT];
    luaL_error(L, "tensors of shapes %s and %s: they must be the same", ane_shape_text(&a->shape, x),
               ane_shape_text(&b->shape, y));
  }
  return b;
}

/* Computes an operation of two tensors of one shape, or of a tensor and a number. */
static int arith(lua_State *L, operation op) {
  bool left = lua_isnumber(L, 1), right = lua_isnumber(L, 2);
  float x = left ? (float)lua_tonumber(L, 1) : 0, y = right ? (float)lua_tonumber(L, 2) : 0;
  const struct bind_tensor *a = left ? NULL : bind_check_tensor(L, 1);
  const struct bind_tensor *b = right ? NULL : a ? same_shape(L, a, 2) : bind_check_tensor(L, 2);
  const struct bind_tensor *t = a ? a : b;
  float *out = bind_tensor_new(L, &t->shape);
  /* analyser: Lua calls this where one operand is a tensor at least. */
  for (uint64_t i = 0; i < t->count; i++) out[i] = apply(op, a ? a->data[i] : x, b ? b->data[i] : y);
  return 1;
}

static int meta_add(lua_State *L) { return arith(L, ADD); }
static int meta_sub(lua_State *L) { return arith(L, SUB); }
static int meta_mul(lua_State *L) { return arith(L, MUL); }
static int meta_div(lua_State *L) { return arith(L, DIV); }

static int meta_unm(lua_State *L) {
  const struct bind_tensor *t = bind_check_tensor(L, 1);
  float *out = bind_tensor_new(L, &t->shape);
  for (uint64_t i = 0; i < t->count; i++) out[i] = -t->data[i];
  return 1;
}

static int meth_abs(lua_State *L) {
  const struct bind_tensor *t = bind_check_tensor(L, 1);
  float *out = bind_tensor_new(L, &t->shape);
  for (uint64_t i = 0; i < t->count; i++) out[i] = fabsf(t->data[i]);
  return 1;
}

/* sort() -> copy whose rows (runs along the last dimension) ascend; -0 before 0, NaN last */
static int by_value(const void *x, const void *y) {
  float a = *(const float *)x, b = *(const float *)y;
  if (isnan(a) || isnan(b)) return (isnan(a) != 0) - (isnan(b) != 0);
  if (a == b) return (signbit(b) != 0) - (signbit(a) != 0); /* in equal numbers, qsort may differ between C libraries */
  return (a > b) - (a < b);
}

static int meth_sort(lua_State *L) {
  const struct bind_tensor *t = bind_check_tensor(L, 1);
  uint64_t n = t->shape.rank ? (uint64_t)t->shape.dim[t->shape.rank - 1] : 1;
  float *out = bind_tensor_new(L, &t->shape);
  if (t->count) memcpy(out, t->data, t->count * sizeof *out);
  for (uint64_t i = 0; n > 1 && i < t->count; i += n) qsort(out + i, n, sizeof *out, by_value);
  return 1;
}

/* ---- Comparison --------------------------------------------------------------------------------------------------*/

/* Returns the share of rows whose largest element has the same index in both tensors. */
static double argmax_agree(const struct bind_tensor *a, const struct bind_tensor *b) {
  uint64_t n = a->shape.rank ? (uint64_t)a->shape.dim[a->shape.rank - 1] : 1, same = 0;
  if (a->count == 0 || n > INT32_MAX) return 1;
  for (uint64_t i = 0; i < a->count; i += n) same += ane_best(a->data + i, (int32_t)n).id == ane_best(b->data + i, (int32_t)n).id;
  return (double)same / (double)(a->count / n);
}

/* compare(other) -> {max_abs, max_scaled = largest |d| / (1 + |other|), rms, cosine, worst = index of max_abs as a list,
 * argmax_agree = share of the rows (along the last dimension) with the same argmax} */
static int meth_compare(lua_State *L) {
  const struct bind_tensor *a = bind_check_tensor(L, 1), *b = same_shape(L, a, 2);
  struct ane_difference d = ane_compare_f32(a->data, b->data, a->count);
  lua_createtable(L, 0, 6);
  bind_set_number(L, "max_abs", d.max_abs);
  bind_set_number(L, "max_scaled", d.max_scaled);
  bind_set_number(L, "rms", d.rms);
  bind_set_number(L, "cosine", d.cosine);
  bind_set_number(L, "argmax_agree", argmax_agree(a, b));
  lua_createtable(L, (int)a->shape.rank, 0);
  uint64_t at = d.worst;
  for (uint32_t i = a->shape.rank; a->count && i > 0; i--) {
    lua_pushinteger(L, (lua_Integer)(at % (uint64_t)a->shape.dim[i - 1]) + 1);
    lua_rawseti(L, -2, i);
    at /= (uint64_t)a->shape.dim[i - 1];
  }
  lua_setfield(L, -2, "worst");
  return 1;
}

/* dot(other) -> sum of the products of elements */
static int meth_dot(lua_State *L) {
  const struct bind_tensor *a = bind_check_tensor(L, 1), *b = same_shape(L, a, 2);
  double sum = 0;
  for (uint64_t i = 0; i < a->count; i++) sum += (double)a->data[i] * b->data[i];
  lua_pushnumber(L, sum);
  return 1;
}

/* Returns the sum of n products, computed as four partial sums. */
static double dot_of(const float *a, const float *b, int64_t n) {
  double sum[4] = {0};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int j = 0; j < 4; j++) sum[j] += (double)a[i + j] * (double)b[i + j];
  for (; i < n; i++) sum[0] += (double)a[i] * (double)b[i];
  return sum[0] + sum[1] + (sum[2] + sum[3]);
}

/* times(x) of a matrix [N, C] and a vector [C] -> tensor [N]: the dot product of each row and x */
static int meth_times(lua_State *L) {
  const struct bind_tensor *m = bind_check_tensor(L, 1), *x = bind_check_tensor(L, 2);
  luaL_argcheck(L, m->shape.rank == 2, 1, "must be a matrix");
  int64_t n = m->shape.dim[0], c = m->shape.dim[1];
  luaL_argcheck(L, x->count == (uint64_t)c, 2, "must be a vector with an element for each column of the matrix");
  struct ane_shape s = {1, {n}};
  float *out = bind_tensor_new(L, &s);
  for (int64_t i = 0; i < n; i++) out[i] = (float)dot_of(m->data + i * c, x->data, c);
  return 1;
}

/* ---- Plots -------------------------------------------------------------------------------------------------------*/

/* bins(n, low, high) -> list: elements in each of n equal parts of [low, high] (high belongs to the last) */
static int meth_bins(lua_State *L) {
  const struct bind_tensor *t = bind_check_tensor(L, 1);
  lua_Integer bins = bind_integer(L, 2, 1, 4096);
  double low = luaL_checknumber(L, 3), high = luaL_checknumber(L, 4);
  luaL_argcheck(L, high > low, 4, "high must be above low");
  luaL_argcheck(L, isfinite(high - low), 4, "low, high and the width between them must be finite");
  uint64_t *counts = lua_newuserdatauv(L, (size_t)bins * sizeof *counts, 0);
  memset(counts, 0, (size_t)bins * sizeof *counts);
  for (uint64_t i = 0; i < t->count; i++) {
    double v = t->data[i];
    if (v >= low && v <= high) counts[ANE_MIN((lua_Integer)((v - low) / (high - low) * (double)bins), bins - 1)]++;
  }
  lua_createtable(L, (int)bins, 0);
  for (lua_Integer i = 0; i < bins; i++) {
    lua_pushinteger(L, (lua_Integer)counts[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* pool(rows, columns) -> tensor of means, at most [rows, columns]: the tensor, seen as a matrix (all dimensions but the last are
 * rows), is divided into at most `rows` parts along its rows and `columns` parts along its columns; each part gives the mean of
 * its elements */
static int meth_pool(lua_State *L) {
  const struct bind_tensor *t = bind_check_tensor(L, 1);
  if (t->count == 0) return luaL_error(L, "the tensor has no elements");
  int64_t width = t->shape.rank ? t->shape.dim[t->shape.rank - 1] : 1, height = (int64_t)(t->count / (uint64_t)width);
  struct ane_shape s = {2, {bind_integer(L, 2, 1, 4096), bind_integer(L, 3, 1, 4096)}};
  s.dim[0] = ANE_MIN(s.dim[0], height);
  s.dim[1] = ANE_MIN(s.dim[1], width);
  float *out = bind_tensor_new(L, &s);
  for (int64_t r = 0; r < s.dim[0]; r++)
    for (int64_t c = 0; c < s.dim[1]; c++) {
      int64_t r0 = r * height / s.dim[0], r1 = (r + 1) * height / s.dim[0], c0 = c * width / s.dim[1],
              c1 = (c + 1) * width / s.dim[1];
      double sum = 0;
      for (int64_t i = r0; i < r1; i++)
        for (int64_t j = c0; j < c1; j++) sum += t->data[i * width + j];
      out[r * s.dim[1] + c] = (float)(sum / (double)((r1 - r0) * (c1 - c0)));
    }
  return 1;
}

void bind_tensor_math(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"slice", meth_slice}, {"reshape", meth_reshape}, {"abs", meth_abs},   {"sort", meth_sort},   {"compare", meth_compare},
      {"dot", meth_dot},     {"bins", meth_bins},       {"pool", meth_pool}, {"times", meth_times}, {NULL, NULL},
  };
  static const luaL_Reg meta[] = {
      {"__add", meta_add}, {"__sub", meta_sub}, {"__mul", meta_mul}, {"__div", meta_div}, {"__unm", meta_unm}, {NULL, NULL},
  };
  luaL_setfuncs(L, methods, 0);
  lua_pushvalue(L, -2);
  luaL_setfuncs(L, meta, 0);
  lua_pop(L, 1);
}
