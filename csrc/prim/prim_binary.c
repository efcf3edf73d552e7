/* Elementwise ops of two or three operands, with NumPy's broadcasting. */
#include "prim/prim_internal.h"

#include <math.h>
#include <string.h>

/* Computes n results along the last axis. A step of 0 repeats the operand's element. */
typedef void (*run2)(const void *a, int64_t sa, const void *b, int64_t sb, void *y, int64_t n);

#define RUN(name, in, out, expr)                                                                                                 \
  static void name(const void *pa, int64_t sa, const void *pb, int64_t sb, void *py, int64_t n) {                                \
    const in *a = pa, *b = pb;                                                                                                   \
    out *z = py;                                                                                                                 \
    for (int64_t i = 0; i < n; i++) {                                                                                            \
      const in x = a[i * sa], y = b[i * sb];                                                                                     \
      z[i] = (out)(expr);                                                                                                        \
    }                                                                                                                            \
  }

/* Integers wrap. They are computed unsigned, since signed overflow is undefined. */
#define WRAP(op) ((int64_t)((uint64_t)x op(uint64_t) y))

static int64_t div_to_zero(int64_t x, int64_t y) { return y == 0 ? 0 : y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y; }
static int64_t rem_of_x(int64_t x, int64_t y) { return y == 0 || y == -1 ? 0 : x % y; }
static int64_t div_down(int64_t x, int64_t y) {
  int64_t q = div_to_zero(x, y);
  return y != 0 && rem_of_x(x, y) != 0 && (x < 0) != (y < 0) ? q - 1 : q;
}
static int64_t rem_of_y(int64_t x, int64_t y) {
  int64_t r = rem_of_x(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
static float fmod_of_y(float x, float y) {
  float r = fmodf(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
static int64_t int_pow(int64_t x, int64_t y) {
  uint64_t r = 1, base = (uint64_t)x;
  if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
  for (; y; y >>= 1, base *= base)
    if (y & 1) r *= base;
  return (int64_t)r;
}

RUN(add_f, float, float, x + y)
RUN(add_i, int64_t, int64_t, WRAP(+))
RUN(sub_f, float, float, x - y)
RUN(sub_i, int64_t, int64_t, WRAP(-))
RUN(mul_f, float, float, x *y)
RUN(mul_i, int64_t, int64_t, WRAP(*))
RUN(real_div_f, float, float, x / y)
RUN(real_div_i, int64_t, int64_t, div_to_zero(x, y))
RUN(floor_div_f, float, float, floorf(x / y))
RUN(floor_div_i, int64_t, int64_t, div_down(x, y))
RUN(mod_f, float, float, fmod_of_y(x, y))
RUN(mod_i, int64_t, int64_t, rem_of_y(x, y))
RUN(fmod_f, float, float, fmodf(x, y))
RUN(fmod_i, int64_t, int64_t, rem_of_x(x, y))
RUN(pow_f, float, float, y == 2 ? x * x : powf(x, y))
RUN(pow_i, int64_t, int64_t, int_pow(x, y))
RUN(maximum_f, float, float, x != x ? x : x > y ? x : y)
RUN(maximum_i, int64_t, int64_t, x > y ? x : y)
RUN(minimum_f, float, float, x != x ? x : x < y ? x : y)
RUN(minimum_i, int64_t, int64_t, x < y ? x : y)
RUN(equal_f, float, uint8_t, x == y)
RUN(equal_i, int64_t, uint8_t, x == y)
RUN(not_equal_f, float, uint8_t, x != y)
RUN(not_equal_i, int64_t, uint8_t, x != y)
RUN(less_f, float, uint8_t, x < y)
RUN(less_i, int64_t, uint8_t, x < y)
RUN(less_equal_f, float, uint8_t, x <= y)
RUN(less_equal_i, int64_t, uint8_t, x <= y)
RUN(greater_f, float, uint8_t, x > y)
RUN(greater_i, int64_t, uint8_t, x > y)
RUN(greater_equal_f, float, uint8_t, x >= y)
RUN(greater_equal_i, int64_t, uint8_t, x >= y)
RUN(logical_and_f, float, uint8_t, x != 0 && y != 0)
RUN(logical_and_i, int64_t, uint8_t, x != 0 && y != 0)
RUN(logical_or_f, float, uint8_t, x != 0 || y != 0)
RUN(logical_or_i, int64_t, uint8_t, x != 0 || y != 0)
RUN(logical_xor_f, float, uint8_t, (x != 0) != (y != 0))
RUN(logical_xor_i, int64_t, uint8_t, (x != 0) != (y != 0))
RUN(prelu_f, float, float, x < 0 ? y * x : x)
RUN(prelu_i, int64_t, int64_t, x < 0 ? WRAP(*) : x)
RUN(shift_left_i, int64_t, int64_t, (uint64_t)y > 63 ? 0 : (int64_t)((uint64_t)x << y))
RUN(shift_right_i, int64_t, int64_t, (uint64_t)y > 63 ? -(x < 0) : x >> y)
RUN(shift_right_u64, int64_t, int64_t, (uint64_t)y > 63 ? 0 : (int64_t)((uint64_t)x >> y))
RUN(bitwise_and_i, int64_t, int64_t, x &y)
RUN(bitwise_or_i, int64_t, int64_t, x | y)
RUN(bitwise_xor_i, int64_t, int64_t, x ^ y)

/* Calls `run` along the last axis for each index of the other axes. Sizes are bytes of an element. */
static void walk2(run2 run, int rank, const int64_t *dim, const void *a, const int64_t *sa, const void *b, const int64_t *sb,
                  size_t in, void *y, size_t out) {
  int64_t at[ANE_DYN_RANK] = {0}, outer = 1, n = rank ? dim[rank - 1] : 1, ia = 0, ib = 0;
  for (int i = 0; i + 1 < rank; i++) outer *= dim[i];
  for (int64_t k = 0; n > 0 && k < outer; k++) {
    run((const char *)a + (size_t)ia * in, rank ? sa[rank - 1] : 0, (const char *)b + (size_t)ib * in, rank ? sb[rank - 1] : 0,
        (char *)y + (size_t)(k * n) * out, n);
    for (int i = rank - 2; i >= 0; i--) {
      ia += sa[i], ib += sb[i];
      if (++at[i] < dim[i]) break;
      ia -= sa[i] * dim[i], ib -= sb[i] * dim[i], at[i] = 0;
    }
  }
}

static ane_status result_shape(struct ane_prim_call *c, const struct ane_dyn *a, const struct ane_dyn *b, int *rank,
                               int64_t *dim) {
  char ta[ANE_DYN_TEXT], tb[ANE_DYN_TEXT];
  if (prim_broadcast(a->rank, a->dim, b->rank, b->dim, rank, dim)) return ANE_OK;
  return prim_fail(c, ANE_SHAPE, "%s and %s do not fit together", ane_dyn_text(a, ta), ane_dyn_text(b, tb));
}

/* Runs an op of two operands. compare: the result is bool; else it has the type of the operands. */
static ane_status binary(struct ane_prim_call *c, run2 floats, run2 integers, bool compare) {
  const struct ane_dyn *a = c->in[0], *b = c->in[1];
  int64_t dim[ANE_DYN_RANK], sa[ANE_DYN_RANK], sb[ANE_DYN_RANK];
  int rank;
  if (result_shape(c, a, b, &rank, dim)) return c->status;
  bool f = prim_is_float(a->dtype) || prim_is_float(b->dtype);
  const void *pa = f ? (const void *)prim_f32(c, a) : prim_i64(c, a), *pb = f ? (const void *)prim_f32(c, b) : prim_i64(c, b);
  void *y = prim_out(c, 0, compare ? ANE_BOOL : f ? ANE_F32 : a->dtype, rank, dim);
  if (!pa || !pb || !y) return c->status;
  int64_t n = c->out[0].count;
  void *z = !f && !compare ? prim_temp(c, (uint64_t)n * sizeof(int64_t)) : y;
  if (!z) return c->status;
  prim_broadcast_strides(a, rank, dim, sa);
  prim_broadcast_strides(b, rank, dim, sb);
  if (a->count == n && b->count == n)
    rank = 1, dim[0] = n, sa[0] = sb[0] = 1;
  else if (b->count == 1 && a->count == n)
    rank = 1, dim[0] = n, sa[0] = 1, sb[0] = 0;
  walk2(f ? floats : integers, rank, dim, pa, sa, pb, sb, f ? sizeof(float) : sizeof(int64_t), z,
        compare ? 1
        : f     ? sizeof(float)
                : sizeof(int64_t));
  if (z != y) prim_store(a->dtype, y, z, n);
  return c->status;
}

#define BINARY(name, compare)                                                                                                    \
  ane_status prim_##name(struct ane_prim_call *c) { return binary(c, name##_f, name##_i, compare); }
BINARY(add, false)
BINARY(sub, false)
BINARY(mul, false)
BINARY(real_div, false)
BINARY(floor_div, false)
BINARY(mod, false)
BINARY(fmod, false)
BINARY(maximum, false)
BINARY(minimum, false)
BINARY(equal, true)
BINARY(not_equal, true)
BINARY(less, true)
BINARY(less_equal, true)
BINARY(greater, true)
BINARY(greater_equal, true)
BINARY(logical_and, true)
BINARY(logical_or, true)
BINARY(logical_xor, true)

#define BITWISE(name)                                                                                                            \
  ane_status prim_##name(struct ane_prim_call *c) {                                                                              \
    if (prim_is_float(c->in[0]->dtype) || prim_is_float(c->in[1]->dtype))                                                        \
      return prim_fail(c, ANE_INVALID, "operands are not integers");                                                             \
    return binary(c, NULL, name##_i, false);                                                                                     \
  }
BITWISE(bitwise_and)
BITWISE(bitwise_or)
BITWISE(bitwise_xor)

ane_status prim_bit_shift(struct ane_prim_call *c) {
  char text[PRIM_TEXT];
  const char *way = prim_text(c, "direction", "", text);
  bool left = strcmp(way, "LEFT") == 0;
  if (prim_is_float(c->in[0]->dtype) || prim_is_float(c->in[1]->dtype))
    return prim_fail(c, ANE_INVALID, "operands are not integers");
  if (!left && strcmp(way, "RIGHT") != 0) return prim_fail(c, ANE_INVALID, "direction is \"%s\"; known are LEFT and RIGHT", way);
  return binary(c, NULL, left ? shift_left_i : c->in[0]->dtype == ANE_U64 ? shift_right_u64 : shift_right_i, false);
}

/* The slope has at most the dimensions of x, and does not extend it. */
ane_status prim_prelu(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *slope = c->in[1];
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  int64_t dim[ANE_DYN_RANK];
  int rank;
  if (!prim_broadcast(x->rank, x->dim, slope->rank, slope->dim, &rank, dim) || rank != x->rank ||
      memcmp(dim, x->dim, (size_t)rank * sizeof *dim) != 0)
    return prim_fail(c, ANE_SHAPE, "slope is %s, but must broadcast to %s", ane_dyn_text(slope, b), ane_dyn_text(x, a));
  return binary(c, prelu_f, prelu_i, false);
}

/* The result has the type of the base: an integer to a float power is truncated. */
ane_status prim_pow(struct ane_prim_call *c) {
  ane_dtype t = c->in[0]->dtype;
  if (binary(c, pow_f, pow_i, false) || prim_is_float(t) || c->out[0].dtype != ANE_F32) return c->status;
  struct ane_dyn f = c->out[0];
  const int64_t *v = prim_i64(c, &f);
  c->out[0] = (struct ane_dyn){0};
  void *y = prim_out(c, 0, t, f.rank, f.dim);
  if (v && y) prim_store(t, y, v, f.count);
  ane_dyn_drop(c->memory, &f);
  return c->status;
}

/* Copies elements of the chosen operand. Both operands have the same element size. */
static void select_elements(const uint8_t *cond, const int64_t *sc, const char *a, const int64_t *sa, const char *b,
                            const int64_t *sb, size_t size, int rank, const int64_t *dim, char *y, int64_t n) {
  int64_t at[ANE_DYN_RANK] = {0}, ic = 0, ia = 0, ib = 0;
  for (int64_t k = 0; k < n; k++) {
    memcpy(y + (size_t)k * size, cond[ic] ? a + (size_t)ia * size : b + (size_t)ib * size, size);
    for (int i = rank - 1; i >= 0; i--) {
      ic += sc[i], ia += sa[i], ib += sb[i];
      if (++at[i] < dim[i]) break;
      ic -= sc[i] * dim[i], ia -= sa[i] * dim[i], ib -= sb[i] * dim[i], at[i] = 0;
    }
  }
}

/* Returns the elements of an operand in the common type of both, `as`: float32 if one of them is a float. */
static const void *operand(struct ane_prim_call *c, const struct ane_dyn *t, ane_dtype as) {
  if (as == ANE_F32) return prim_f32(c, t);
  if (t->dtype == as) return t->data;
  const int64_t *v = prim_i64(c, t);
  void *out = prim_temp(c, (uint64_t)t->count * prim_width(as));
  if (v && out) prim_store(as, out, v, t->count);
  return v ? out : NULL;
}

ane_status prim_select(struct ane_prim_call *c) {
  const struct ane_dyn *cond = c->in[0], *a = c->in[1], *b = c->in[2];
  int64_t dim[ANE_DYN_RANK], s[3][ANE_DYN_RANK];
  int rank;
  struct ane_dyn both = {.dtype = ANE_BOOL};
  if (result_shape(c, a, b, &both.rank, both.dim) || result_shape(c, cond, &both, &rank, dim)) return c->status;
  ane_dtype t = prim_is_float(a->dtype) || prim_is_float(b->dtype) ? ANE_F32 : a->dtype;
  if (ane_dtype_info(t)->block != 1) return prim_fail(c, ANE_UNSUPPORTED, "operands of type %s", ane_dtype_info(t)->name);
  const int64_t *wide = cond->dtype == ANE_BOOL ? NULL : prim_i64(c, cond);
  uint8_t *flags = wide ? prim_temp(c, (uint64_t)cond->count) : NULL;
  if (c->status) return c->status;
  for (int64_t i = 0; wide && i < cond->count; i++) flags[i] = wide[i] != 0;
  const void *pa = operand(c, a, t), *pb = operand(c, b, t);
  void *y = prim_out(c, 0, t, rank, dim);
  if (c->status) return c->status;
  prim_broadcast_strides(cond, rank, dim, s[0]);
  prim_broadcast_strides(a, rank, dim, s[1]);
  prim_broadcast_strides(b, rank, dim, s[2]);
  select_elements(wide ? flags : cond->data, s[0], pa, s[1], pb, s[2], prim_width(t), rank, dim, y, c->out[0].count);
  return c->status;
}
