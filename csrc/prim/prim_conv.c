/* Convolutions and pooling: MIL's conv (cross-correlation), conv_transpose, max_pool, avg_pool and l2_pool, with 1 to 3 spatial
 * dimensions, and ONNX Runtime's CausalConvWithState. */
#include "prim/prim_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { SPATIAL = 3 };

struct conv {
  int s;                                /* spatial dimensions */
  int64_t batch, in, out, groups, taps; /* taps: weights of one output for one input channel */
  int64_t x[SPATIAL], k[SPATIAL], y[SPATIAL], stride[SPATIAL], dilation[SPATIAL], before[SPATIAL], after[SPATIAL]; /* padding */
};

/* Reads a list parameter with one entry for each spatial dimension, all at least 1. Default: ones. */
static ane_status read_list(struct ane_prim_call *c, const char *name, int n, int64_t *out) {
  for (int i = 0; i < n; i++) out[i] = 1;
  int got = prim_ints(c, name, out, n);
  if (got >= 0 && got != n) prim_fail(c, ANE_SHAPE, "%s has %d entries for %d dimensions", name, got, n);
  for (int i = 0; i < n; i++)
    if (out[i] < 1 || out[i] > INT32_MAX) prim_fail(c, ANE_INVALID, "%s holds %" PRId64, name, out[i]);
  return c->status;
}

/* Reads the padding: `before` and the size of the result. "same": ceil(x / stride); an odd element is added at the end, with
 * same_lower before. */
static ane_status read_padding(struct ane_prim_call *c, struct conv *v) {
  char text[PRIM_TEXT];
  int64_t pad[2 * SPATIAL] = {0};
  const char *type = prim_text(c, "pad_type", "valid", text);
  bool custom = strcmp(type, "custom") == 0, lower = strcmp(type, "same_lower") == 0, same = lower || strcmp(type, "same") == 0;
  int n = prim_ints(c, "pad", pad, 2 * v->s);
  if (!custom && !same && strcmp(type, "valid") != 0)
    return prim_fail(c, ANE_INVALID, "pad_type is \"%s\"; known are valid, same, same_lower, custom", type);
  if (custom && n >= 0 && n != 2 * v->s) return prim_fail(c, ANE_SHAPE, "pad has %d entries for %d dimensions", n, v->s);
  for (int i = 0; i < v->s && !c->status; i++) {
    int64_t span = (v->k[i] - 1) * v->dilation[i] + 1, a = custom ? pad[2 * i] : 0, b = custom ? pad[2 * i + 1] : 0;
    if (same) {
      int64_t all = ANE_MAX(((v->x[i] + v->stride[i] - 1) / v->stride[i] - 1) * v->stride[i] + span - v->x[i], 0);
      a = lower ? all - all / 2 : all / 2;
      b = all - a;
    }
    if (a < 0 || b < 0 || a > INT32_MAX || b > INT32_MAX || v->x[i] + a + b < span)
      return prim_fail(c, ANE_SHAPE, "a kernel of %" PRId64 " on %" PRId64 " elements with pad %" PRId64 ", %" PRId64, span,
                       v->x[i], a, b);
    v->before[i] = a;
    v->after[i] = b;
    v->y[i] = (v->x[i] + a + b - span) / v->stride[i] + 1;
  }
  return c->status;
}

static ane_status read_conv(struct ane_prim_call *c, struct conv *v) {
  const struct ane_dyn *x = c->in[0], *w = c->in[1];
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  *v = (struct conv){.s = x->rank - 2, .groups = prim_int(c, "groups", 1), .taps = 1};
  if (c->status) return c->status;
  bool fits = v->s >= 1 && v->s <= SPATIAL && w->rank == x->rank && v->groups >= 1 && x->dim[1] % v->groups == 0 &&
              x->dim[1] / v->groups == w->dim[1] && w->dim[0] % v->groups == 0;
  if (!fits)
    return prim_fail(c, ANE_SHAPE, "x is %s, weight %s, groups %" PRId64, ane_dyn_text(x, a), ane_dyn_text(w, b), v->groups);
  v->batch = x->dim[0], v->in = x->dim[1], v->out = w->dim[0];
  for (int i = 0; i < v->s; i++) v->x[i] = x->dim[2 + i], v->k[i] = w->dim[2 + i], v->taps *= w->dim[2 + i];
  if (v->taps < 1 || v->taps > INT32_MAX) return prim_fail(c, ANE_SHAPE, "weight is %s", ane_dyn_text(w, b));
  if (read_list(c, "strides", v->s, v->stride) || read_list(c, "dilations", v->s, v->dilation)) return c->status;
  return read_padding(c, v);
}

/* Offset within a channel of x of what tap `tap` reads for output position `at`; -1: padding. */
static int64_t source(const struct conv *v, int64_t at, int64_t tap) {
  int64_t offset = 0, step = 1;
  for (int i = v->s - 1; i >= 0; i--) {
    int64_t p = at % v->y[i] * v->stride[i] + tap % v->k[i] * v->dilation[i] - v->before[i];
    if (p < 0 || p >= v->x[i]) return -1;
    offset += p * step;
    step *= v->x[i];
    at /= v->y[i];
    tap /= v->k[i];
  }
  return offset;
}

static int64_t product(int n, const int64_t *dim) {
  int64_t p = 1;
  for (int i = 0; i < n; i++) p *= dim[i];
  return p;
}

struct transpose {
  const float *x;
  float *y;
  int64_t rows, cols;
};

static void transpose_rows(void *arg, int64_t from, int64_t to, int thread ANE_UNUSED) {
  const struct transpose *t = arg;
  for (int64_t r = from; r < to; r++)
    for (int64_t c = 0; c < t->cols; c++) t->y[r * t->cols + c] = t->x[c * t->rows + r];
}

/* Transposes x [cols, rows] to y [rows, cols]. */
static void transpose(const struct ane_prim_call *c, const float *x, float *y, int64_t rows, int64_t cols) {
  struct transpose t = {x, y, rows, cols};
  prim_parallel(c, rows, (double)rows * (double)cols, transpose_rows, &t);
}

/* A kernel of one tap without padding is a matrix product over the positions of x. */
static bool is_product(const struct conv *v) {
  bool plain = v->taps == 1;
  for (int i = 0; i < v->s; i++) plain = plain && v->stride[i] == 1 && v->before[i] == 0 && v->y[i] == v->x[i];
  return plain;
}

static ane_status by_columns(struct ane_prim_call *c, const struct conv *v, const struct prim_matrix *m, const float *x,
                             const float *bias, float *y) {
  int64_t n = product(v->s, v->x);
  const int64_t ins[] = {n, v->in}, outs[] = {n, v->out};
  float *rows = n == 1 ? NULL : prim_temp_array(c, sizeof *rows, 2, ins),
        *out = n == 1 ? NULL : prim_temp_array(c, sizeof *out, 2, outs);
  for (int64_t b = 0; b < v->batch && !c->status; b++) {
    const float *from = x + b * v->in * n;
    float *to = y + b * v->out * n;
    if (n == 1) {
      prim_multiply(c, m, from, 1, v->in, bias, to, v->out);
      continue;
    }
    transpose(c, from, rows, n, v->in);
    if (!prim_multiply(c, m, rows, n, v->in, bias, out, v->out)) transpose(c, out, to, v->out, n);
  }
  return c->status;
}

/* Convolves without groups (im2col): the inputs of each output position become one row, and a matrix product takes the rows. */
static ane_status by_matrix(struct ane_prim_call *c, const struct conv *v, const struct prim_matrix *m, const float *x,
                            const float *bias, float *y) {
  int64_t positions = product(v->s, v->y), area = product(v->s, v->x), k = v->in * v->taps;
  const int64_t ins[] = {positions, v->in, v->taps}, outs[] = {positions, v->out};
  float *rows = prim_temp_array(c, sizeof *rows, 3, ins), *out = prim_temp_array(c, sizeof *out, 2, outs);
  for (int64_t b = 0; b < v->batch && !c->status; b++) {
    for (int64_t p = 0; p < positions; p++)
      for (int64_t i = 0; i < k; i++) {
        int64_t at = source(v, p, i % v->taps);
        rows[p * k + i] = at < 0 ? 0 : x[(b * v->in + i / v->taps) * area + at];
      }
    prim_multiply(c, m, rows, positions, k, bias, out, v->out);
    for (int64_t o = 0; o < v->out && !c->status; o++)
      for (int64_t p = 0; p < positions; p++) y[(b * v->out + o) * positions + p] = out[p * v->out + o];
  }
  return c->status;
}

static void grouped(const struct conv *v, const float *x, const float *w, const float *bias, float *y) {
  int64_t positions = product(v->s, v->y), area = product(v->s, v->x), in = v->in / v->groups, out = v->out / v->groups;
  for (int64_t i = 0; i < v->batch * v->out * positions; i++) {
    int64_t p = i % positions, o = i / positions % v->out, b = i / (positions * v->out);
    double sum = bias ? (double)bias[o] : 0;
    for (int64_t ch = 0; ch < in; ch++)
      for (int64_t t = 0; t < v->taps; t++) {
        int64_t at = source(v, p, t);
        if (at >= 0) sum += (double)x[(b * v->in + o / out * in + ch) * area + at] * (double)w[(o * in + ch) * v->taps + t];
      }
    y[i] = (float)sum;
  }
}

ane_status prim_conv(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *w = c->in[1], *bias = prim_in(c, "bias");
  struct conv v;
  int64_t dim[ANE_DYN_RANK];
  if (read_conv(c, &v)) return c->status;
  if (bias && bias->count != v.out)
    return prim_fail(c, ANE_SHAPE, "bias has %" PRId64 " elements, but must have %" PRId64, bias->count, v.out);
  dim[0] = v.batch, dim[1] = v.out;
  memcpy(dim + 2, v.y, sizeof v.y);
  const float *px = prim_f32(c, x), *pb = bias ? prim_f32(c, bias) : NULL;
  float *y = prim_out(c, 0, ANE_F32, x->rank, dim);
  if (c->status) return c->status;
  struct ane_prim_state *own = NULL;
  if (v.groups == 1 && !c->state && prim_prepare_conv(c, &own)) return ane_prim_state_free(own), c->status;
  const struct ane_prim_state *s = c->state ? c->state : own;
  if (v.groups == 1 && s)
    (is_product(&v) ? by_columns : by_matrix)(c, &v, &s->m[0], px, pb, y);
  else {
    const float *pw = prim_f32(c, w);
    if (pw) grouped(&v, px, pw, pb, y);
  }
  ane_prim_state_free(own);
  return c->status;
}

struct integer_conv {
  const struct conv *v;
  const int64_t *x, *w, *wz; /* wz: one for each output, or one (wz_step 0) */
  int64_t xz, wz_step;
  int32_t *y;
};

/* Sums wrap at 32 bits. */
static void integer_range(void *arg, int64_t from, int64_t to, int thread ANE_UNUSED) {
  const struct integer_conv *j = arg;
  const struct conv *v = j->v;
  int64_t positions = product(v->s, v->y), area = product(v->s, v->x), in = v->in / v->groups, out = v->out / v->groups;
  for (int64_t i = from; i < to; i++) {
    int64_t p = i % positions, o = i / positions % v->out, b = i / (positions * v->out), wz = j->wz[o * j->wz_step];
    uint64_t sum = 0;
    for (int64_t ch = 0; ch < in; ch++)
      for (int64_t t = 0; t < v->taps; t++) {
        int64_t at = source(v, p, t);
        if (at >= 0)
          sum +=
              (uint64_t)((j->x[(b * v->in + o / out * in + ch) * area + at] - j->xz) * (j->w[(o * in + ch) * v->taps + t] - wz));
      }
    int32_t narrow = (int32_t)(uint32_t)sum;
    memcpy(&j->y[i], &narrow, sizeof narrow);
  }
}

ane_status prim_conv_integer(struct ane_prim_call *c) {
  static const int64_t zero[1] = {0};
  const struct ane_dyn *x = c->in[0], *w = c->in[1], *xz = prim_in(c, "x_zero_point"), *wz = prim_in(c, "weight_zero_point");
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  struct conv v;
  int64_t dim[ANE_DYN_RANK];
  if (read_conv(c, &v)) return c->status;
  if (!prim_is_code(x) || !prim_is_code(w) || (xz && !prim_is_code(xz)) || (wz && !prim_is_code(wz)))
    return prim_fail(c, ANE_SHAPE, "x is %s and weight %s, but they and the zero points must be int8 or uint8",
                     ane_dyn_text(x, a), ane_dyn_text(w, b));
  if (wz && wz->count != 1 && wz->count != v.out)
    return prim_fail(c, ANE_SHAPE, "weight_zero_point has %" PRId64 " elements, but must have 1 or %" PRId64, wz->count, v.out);
  dim[0] = v.batch, dim[1] = v.out;
  memcpy(dim + 2, v.y, sizeof v.y);
  struct integer_conv j = {.v = &v, .xz = prim_int(c, "x_zero_point", 0), .wz_step = wz && wz->count != 1};
  j.x = prim_i64(c, x), j.w = prim_i64(c, w), j.wz = wz ? prim_i64(c, wz) : zero;
  j.y = prim_out(c, 0, ANE_I32, x->rank, dim);
  if (c->status || c->out[0].count == 0) return c->status;
  prim_parallel(c, c->out[0].count, (double)c->out[0].count * (double)v.taps * (double)(v.in / v.groups), integer_range, &j);
  return c->status;
}

/* Computes the gradient of a convolution: output position o gets x[i] weight[k] from all i and k for which
 * i stride + k dilation = o + before. */
static void transposed(const struct conv *v, const float *x, const float *w, const float *bias, float *y) {
  int64_t positions = product(v->s, v->y), area = product(v->s, v->x), in = v->in / v->groups, out = v->out / v->groups;
  for (int64_t i = 0; i < v->batch * v->out * positions; i++) {
    int64_t o = i / positions % v->out, b = i / (positions * v->out);
    double sum = bias ? (double)bias[o] : 0;
    for (int64_t t = 0; t < v->taps; t++) {
      int64_t at = i % positions, tap = t, offset = 0, step = 1;
      bool hit = true;
      for (int k = v->s - 1; k >= 0; k--) {
        int64_t p = at % v->y[k] + v->before[k] - tap % v->k[k] * v->dilation[k];
        hit = hit && p >= 0 && p % v->stride[k] == 0 && p / v->stride[k] < v->x[k];
        offset += p / v->stride[k] * step;
        step *= v->x[k];
        at /= v->y[k];
        tap /= v->k[k];
      }
      for (int64_t ch = 0; hit && ch < in; ch++) {
        int64_t from = o / out * in + ch;
        sum += (double)x[(b * v->in + from) * area + offset] * (double)w[(from * out + o % out) * v->taps + t];
      }
    }
    y[i] = (float)sum;
  }
}

/* Without output_shape the result has (x - 1) stride + span - padding elements along an axis. */
ane_status prim_conv_transpose(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *w = c->in[1], *bias = prim_in(c, "bias");
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT], text[PRIM_TEXT];
  int64_t pad[2 * SPATIAL] = {0}, dim[ANE_DYN_RANK] = {0}, given[ANE_DYN_RANK];
  struct conv v = {.s = x->rank - 2, .groups = prim_int(c, "groups", 1), .taps = 1};
  const char *type = prim_text(c, "pad_type", "valid", text);
  if (c->status) return c->status;
  bool custom = strcmp(type, "custom") == 0;
  if (!custom && strcmp(type, "valid") != 0)
    return prim_fail(c, ANE_UNSUPPORTED, "pad_type is \"%s\"; known are valid and custom", type);
  bool fits = v.s >= 1 && v.s <= SPATIAL && w->rank == x->rank && v.groups >= 1 && x->dim[1] == w->dim[0] &&
              x->dim[1] % v.groups == 0 && !__builtin_mul_overflow(w->dim[1], v.groups, &v.out) &&
              (!bias || bias->count == v.out);
  if (!fits)
    return prim_fail(c, ANE_SHAPE, "x is %s, weight %s, groups %" PRId64, ane_dyn_text(x, a), ane_dyn_text(w, b), v.groups);
  int n = prim_ints(c, "pad", pad, 2 * v.s), shaped = prim_ints(c, "output_shape", given, x->rank);
  if (custom && n >= 0 && n != 2 * v.s) return prim_fail(c, ANE_SHAPE, "pad has %d entries for %d dimensions", n, v.s);
  if (shaped >= 0 && shaped != x->rank) return prim_fail(c, ANE_SHAPE, "output_shape has %d entries", shaped);
  if (read_list(c, "strides", v.s, v.stride) || read_list(c, "dilations", v.s, v.dilation)) return c->status;
  v.batch = x->dim[0], v.in = x->dim[1];
  dim[0] = v.batch, dim[1] = v.out;
  for (int i = 0; i < v.s; i++) {
    v.x[i] = x->dim[2 + i], v.k[i] = w->dim[2 + i], v.taps *= w->dim[2 + i];
    int64_t before = custom ? pad[2 * i] : 0, after = custom ? pad[2 * i + 1] : 0;
    if (v.x[i] > INT32_MAX || v.k[i] < 1 || v.k[i] > INT32_MAX || before < 0 || after < 0 || before > INT32_MAX ||
        after > INT32_MAX)
      return prim_fail(c, ANE_SHAPE, "x is %s, weight %s", ane_dyn_text(x, a), ane_dyn_text(w, b));
    int64_t size = (v.x[i] - 1) * v.stride[i] + (v.k[i] - 1) * v.dilation[i] + 1 - before - after;
    v.before[i] = before;
    v.y[i] = dim[2 + i] = shaped >= 0 ? given[2 + i] : size;
    if (v.y[i] < 0 || v.y[i] > size + v.stride[i] + v.dilation[i] + after)
      return prim_fail(c, ANE_SHAPE, "the result has %" PRId64 " elements along axis %d", v.y[i], 2 + i);
  }
  const float *px = prim_f32(c, x), *pw = prim_f32(c, w), *pb = bias ? prim_f32(c, bias) : NULL;
  float *y = prim_out(c, 0, ANE_F32, x->rank, dim);
  if (!c->status && c->out[0].count) transposed(&v, px, pw, pb, y);
  return c->status;
}

/* ---- Pooling -------------------------------------------------------------------------------------------------------*/

/* Reads the sizes of pooling. With ceil_mode a last window that is not whole counts, if it begins before the padding at the end.
 */
static ane_status read_pool(struct ane_prim_call *c, struct conv *v) {
  const struct ane_dyn *x = c->in[0];
  char text[ANE_DYN_TEXT];
  *v = (struct conv){.s = x->rank - 2, .taps = 1};
  bool up = prim_bool(c, "ceil_mode", false);
  if (v->s < 1 || v->s > SPATIAL) return prim_fail(c, ANE_SHAPE, "x is %s", ane_dyn_text(x, text));
  v->batch = x->dim[0], v->in = v->out = x->dim[1];
  if (read_list(c, "kernel_sizes", v->s, v->k) || read_list(c, "strides", v->s, v->stride) ||
      read_list(c, "dilations", v->s, v->dilation))
    return c->status;
  for (int i = 0; i < v->s; i++) {
    v->x[i] = x->dim[2 + i];
    if (v->k[i] > INT32_MAX / v->taps) return prim_fail(c, ANE_SHAPE, "a window of more than %d elements", INT32_MAX);
    v->taps *= v->k[i];
  }
  if (read_padding(c, v)) return c->status;
  for (int i = 0; up && i < v->s; i++) {
    int64_t span = (v->k[i] - 1) * v->dilation[i] + 1;
    int64_t size = (v->x[i] + v->before[i] + v->after[i] - span + v->stride[i] - 1) / v->stride[i] + 1;
    v->y[i] = (size - 1) * v->stride[i] >= v->x[i] + v->before[i] ? size - 1 : size;
  }
  return c->status;
}

/* Taps [*from, *to) along axis i that read elements [low, high) of x, if tap 0 reads element `first`. */
static void taps_between(const struct conv *v, int i, int64_t first, int64_t low, int64_t high, int64_t *from, int64_t *to) {
  int64_t d = v->dilation[i];
  *from = first < low ? (low - first + d - 1) / d : 0;
  *to = first < high ? ANE_MIN((high - first + d - 1) / d, v->k[i]) : 0;
  if (*from > *to) *from = *to;
}

/* What a window reads: taps [from, to) along each axis, those in the padding left out. */
struct window {
  int64_t from[SPATIAL], to[SPATIAL], origin[SPATIAL]; /* origin: the element of tap 0, which may lie in the padding */
  int64_t divisor;                                     /* of an average */
};

/* The window of output position `at`. The divisor counts taps in x (inside), or in x with its padding. */
static struct window window_at(const struct conv *v, int64_t at, bool inside) {
  struct window w = {.divisor = 1};
  for (int i = v->s - 1; i >= 0; at /= v->y[i--]) {
    int64_t first = at % v->y[i] * v->stride[i] - v->before[i], from, to;
    w.origin[i] = first;
    taps_between(v, i, first, 0, v->x[i], &w.from[i], &w.to[i]);
    taps_between(v, i, first, inside ? 0 : -v->before[i], v->x[i] + (inside ? 0 : v->after[i]), &from, &to);
    w.divisor *= to - from;
  }
  return w;
}

enum pooling { LARGEST, AVERAGE, ROOT };

/* Adds up what a window reads of a channel, in the order of its elements (squares for ROOT), and finds the largest (or a NaN). */
static void read_window(const struct conv *v, const struct window *w, const float *x, enum pooling kind, double *sum,
                        float *top) {
  int64_t tap[SPATIAL];
  int last = v->s - 1;
  for (int i = 0; i <= last; i++) {
    if (w->from[i] == w->to[i]) return;
    tap[i] = w->from[i];
  }
  for (int i = 0; i >= 0;) {
    int64_t row = 0;
    for (int k = 0; k < last; k++) row = (row + w->origin[k] + tap[k] * v->dilation[k]) * v->x[k + 1];
    for (int64_t t = w->from[last]; t < w->to[last]; t++) {
      float one = x[row + w->origin[last] + t * v->dilation[last]];
      *sum += kind == ROOT ? (double)one * (double)one : (double)one;
      *top = one > *top || one != one ? one : *top;
    }
    for (i = last - 1; i >= 0 && ++tap[i] == w->to[i]; i--) tap[i] = w->from[i];
  }
}

static ane_status pool(struct ane_prim_call *c, enum pooling kind) {
  struct conv v;
  bool codes = prim_is_code(c->in[0]) && kind == LARGEST;
  int64_t dim[ANE_DYN_RANK];
  bool inside = kind == AVERAGE && prim_bool(c, "exclude_padding_from_average", false);
  if (c->status || read_pool(c, &v)) return c->status;
  dim[0] = v.batch, dim[1] = v.out;
  memcpy(dim + 2, v.y, sizeof v.y);
  if (!codes && !prim_is_float(c->in[0]->dtype))
    return prim_fail(c, ANE_UNSUPPORTED, "x is of type %s", ane_dtype_info(c->in[0]->dtype)->name);
  const float *x = prim_f32(c, c->in[0]);
  char *out = prim_out(c, 0, codes ? c->in[0]->dtype : ANE_F32, c->in[0]->rank, dim);
  if (c->status) return c->status;
  int64_t positions = product(v.s, v.y), area = product(v.s, v.x);
  for (int64_t i = 0; i < v.batch * v.in * positions; i++) {
    struct window w = window_at(&v, i % positions, inside);
    double sum = 0;
    float top = -INFINITY;
    read_window(&v, &w, x + i / positions * area, kind, &sum, &top);
    if (codes) {
      int64_t code = top > -INFINITY ? (int64_t)top : 0; /* a window of padding alone has no largest */
      prim_store(c->in[0]->dtype, out + i, &code, 1);
      continue;
    }
    ((float *)(void *)out)[i] = kind == LARGEST ? top : kind == ROOT ? (float)sqrt(sum) : (float)(sum / (double)w.divisor);
  }
  return c->status;
}

ane_status prim_max_pool(struct ane_prim_call *c) { return pool(c, LARGEST); }
ane_status prim_avg_pool(struct ane_prim_call *c) { return pool(c, AVERAGE); }
ane_status prim_l2_pool(struct ane_prim_call *c) { return pool(c, ROOT); }

/* ---- Preparation, causal convolution -------------------------------------------------------------------------------*/

/* Packs a weight without groups as a matrix [out, in * taps]. */
ane_status prim_prepare_conv(struct ane_prim_call *c, struct ane_prim_state **state) {
  const struct ane_dyn *w = prim_in(c, "weight");
  if (!w || !prim_is_float(w->dtype) || w->rank < 3 || w->count == 0 || prim_int(c, "groups", 1) != 1 || c->status)
    return c->status;
  int64_t cols = w->count / w->dim[0];
  if (w->coded) {
    if ((*state = prim_state_new(c, 1))) prim_matrix_coded(c, &(*state)->m[0], w->coded, w->dim[0], cols);
    return c->status;
  }
  bool as_is = w->dtype == ANE_F32 || w->dtype == ANE_F16 || w->dtype == ANE_BF16;
  const void *data = as_is ? w->data : prim_f32(c, w);
  if (!data || !(*state = prim_state_new(c, 1))) return c->status;
  return prim_matrix_float(c, &(*state)->m[0], as_is ? w->dtype : ANE_F32, data, w->dim[0], cols, cols, 1);
}

/* y[t] = sum over taps j of w[j] x[t - (k - 1) + j]. Positions before the first come from `past`, or are zeros. */
ane_status prim_causal_conv(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *w = c->in[1], *bias = prim_in(c, "bias"), *past = prim_in(c, "past");
  char text[PRIM_TEXT], a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  const char *act = prim_text(c, "activation", "none", text);
  bool silu = strcmp(act, "silu") == 0 || strcmp(act, "swish") == 0;
  if (!silu && strcmp(act, "none") != 0) return prim_fail(c, ANE_UNSUPPORTED, "activation is \"%s\"; known are none, silu", act);
  if (x->rank != 3 || w->rank != 3 || w->dim[0] != x->dim[1] || w->dim[1] != 1 || w->dim[2] < 1)
    return prim_fail(c, ANE_SHAPE, "x is %s, weight %s", ane_dyn_text(x, a), ane_dyn_text(w, b));
  int64_t n = x->dim[0] * x->dim[1], channels = x->dim[1], s = x->dim[2], k = w->dim[2], p = k - 1, states,
          present[3] = {x->dim[0], channels, p};
  if (!ane_dyn_count(3, present, &states))
    return prim_fail(c, ANE_RANGE, "a state of shape %s has too many elements", ane_dyn_dims(3, present, b));
  if (past && past->count != states)
    return prim_fail(c, ANE_SHAPE, "past must be %s, but is %s", ane_dyn_dims(3, present, b), ane_dyn_text(past, a));
  if (bias && bias->count != channels) return prim_fail(c, ANE_SHAPE, "bias is %s", ane_dyn_text(bias, a));
  const float *v = prim_f32(c, x), *pw = prim_f32(c, w), *pb = bias ? prim_f32(c, bias) : NULL,
              *old = past ? prim_f32(c, past) : NULL;
  float *line = prim_temp(c, (uint64_t)(p + s) * sizeof *line), *y = prim_out(c, 0, ANE_F32, 3, x->dim),
        *next = prim_wanted(c, 1) ? prim_out(c, 1, ANE_F32, 3, present) : NULL;
  if (c->status || (s == 0 && (!next || p == 0))) return c->status; /* the results are empty */
  for (int64_t i = 0; i < n; i++) {
    for (int64_t j = 0; j < p; j++) line[j] = old ? old[i * p + j] : 0;
    memcpy(line + p, v + i * s, (size_t)s * sizeof *line);
    for (int64_t t = 0; t < s; t++) {
      double sum = pb ? (double)pb[i % channels] : 0;
      for (int64_t j = 0; j < k; j++) sum += (double)pw[i % channels * k + j] * (double)line[t + j];
      float f = (float)sum;
      y[i * s + t] = silu ? f / (1 + expf(-f)) : f;
    }
    if (next) memcpy(next + i * p, line + s, (size_t)p * sizeof *next);
  }
  return c->status;
}
