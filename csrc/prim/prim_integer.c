/* Products of 8-bit codes with int32 results: ONNX's DynamicQuantizeLinear and MatMulInteger.
 *
 * Weights are packed as the layout I8 holds them, and the kernels for 8-bit activations multiply them. These keep sums in
 * float32, which is exact below 2^24. A part of CHUNK columns stays below it: 1024 * 128 * 128 = 2^24. Parts are added as
 * integers. */
#include "prim/prim_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { CHUNK = 1024, RUN = 128 }; /* columns of a part; tokens that are multiplied at once */

/* ---- DynamicQuantizeLinear -----------------------------------------------------------------------------------------*/

ane_status prim_dynamic_quantize(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0];
  float low = 0, high = 0;
  char text[ANE_DYN_TEXT];
  if (!prim_is_float(x->dtype)) return prim_fail(c, ANE_INVALID, "x must be floats, but is %s", ane_dyn_text(x, text));
  const float *v = prim_f32(c, x);
  if (!v) return c->status;
  for (int64_t i = 0; i < x->count; i++) {
    low = v[i] < low ? v[i] : low;
    high = v[i] > high ? v[i] : high;
  }
  float scale = low == high ? 1 : (high - low) / 255, zero = fminf(fmaxf(rintf(-low / scale), 0), 255);
  uint8_t *codes = prim_wanted(c, 0) ? prim_out(c, 0, ANE_U8, x->rank, x->dim) : NULL;
  float *scales = prim_wanted(c, 1) ? prim_out(c, 1, ANE_F32, 0, NULL) : NULL;
  uint8_t *zeros = prim_wanted(c, 2) ? prim_out(c, 2, ANE_U8, 0, NULL) : NULL;
  if (c->status) return c->status;
  if (scales) *scales = scale;
  if (zeros) *zeros = (uint8_t)zero; /* fmaxf has replaced NaN */
  for (int64_t i = 0; codes && i < x->count; i++) codes[i] = (uint8_t)fminf(fmaxf(rintf(v[i] / scale) + zero, 0), 255);
  return c->status;
}

/* ---- MatMulInteger -------------------------------------------------------------------------------------------------*/

struct code_packing {
  const struct prim_matrix *m;
  const uint8_t *codes; /* [cols, rows] of this part */
  uint8_t flip;         /* 128: uint8 becomes int8 */
  uint8_t *columns;     /* 16 rows for each thread */
};

static void pack_codes(void *arg, int64_t from, int64_t to, int thread) {
  const struct code_packing *p = arg;
  const struct prim_matrix *m = p->m;
  uint8_t *rows = p->columns + (size_t)thread * ANE_GROUP * CHUNK;
  float *sums = (float *)(uintptr_t)m->scales;
  for (int64_t g = from; g < to; g++) {
    int64_t first = g * ANE_GROUP, n = ANE_MIN(m->rows - first, ANE_GROUP);
    for (int64_t k = 0; k < m->cols; k++)
      for (int64_t r = 0; r < n; r++) rows[r * m->cols + k] = p->codes[k * m->rows + first + r] ^ p->flip;
    for (int64_t r = 0; r < n; r++) {
      int32_t sum = 0;
      for (int64_t k = 0; k < m->cols; k++) sum += (int8_t)rows[r * m->cols + k];
      sums[first + r] = (float)sum;
    }
    ane_pack_rows(&m->packed, ANE_I8, rows, (size_t)m->cols, (int)n, g);
  }
}

/* Packs a part of y [k, n]. Its sums of each row are in `scales`. */
static ane_status pack_part(struct ane_prim_call *c, struct prim_matrix *m, struct code_packing *p, int64_t n, int64_t cols) {
  size_t data;
  m->rows = n, m->cols = cols;
  m->packed = (struct ane_packed){.layout = ANE_LAYOUT_I8, .dtype = ANE_I8, .rows = n, .cols = cols};
  m->packed.groups = (n + ANE_GROUP - 1) / ANE_GROUP;
  bool fits = ane_layout_group_bytes(ANE_LAYOUT_I8, cols, &m->packed.group_bytes) && ane_packed_bytes(&m->packed, &data);
  if (!fits) return prim_fail(c, ANE_RANGE, "weights of %" PRId64 " rows are too large", n);
  uint64_t padded = (uint64_t)m->packed.groups * ANE_GROUP * sizeof(float), at = ane_align_up(data, 64);
  uint8_t *memory = prim_matrix_memory(c, m, at + 2 * padded);
  if (!memory) return c->status;
  float *ones = (float *)(void *)(memory + at);
  for (int64_t i = 0; i < m->packed.groups * ANE_GROUP; i++) ones[i] = 1;
  m->scales = ones + m->packed.groups * ANE_GROUP;
  ane_packed_place(&m->packed, memory);
  m->packed.row_scale = ones;
  p->m = m;
  prim_parallel(c, m->packed.groups, (double)n * (double)cols, pack_codes, p);
  return c->status;
}

ane_status prim_prepare_matmul_integer(struct ane_prim_call *c, struct ane_prim_state **state) {
  const struct ane_dyn *y = prim_in(c, "y");
  if (!y || y->rank != 2 || !prim_is_code(y) || y->count == 0) return c->status;
  int64_t k = y->dim[0], n = y->dim[1], parts = (k - 1) / CHUNK + 1;
  if (parts > INT32_MAX / 2) return prim_fail(c, ANE_RANGE, "y has %" PRId64 " rows", k);
  struct code_packing p = {.flip = y->dtype == ANE_U8 ? 128 : 0,
                           .columns = prim_temp(c, (uint64_t)prim_threads(c) * ANE_GROUP * CHUNK)};
  if (!p.columns || !(*state = prim_state_new(c, (int)parts))) return c->status;
  for (int i = 0; i < parts && !c->status; i++) {
    p.codes = (const uint8_t *)y->data + (int64_t)i * CHUNK * n;
    pack_part(c, &(*state)->m[i], &p, n, ANE_MIN(CHUNK, k - (int64_t)i * CHUNK));
  }
  return c->status;
}

/* Sets the codes of n tokens for a part of the columns, whose `cols` codes of each token are at x + t * ld. -128 is 0 with the
 * residual code -1, since not all kernels multiply it. */
static void set_codes(const struct ane_activations *a, const uint8_t *x, int64_t ld, int64_t n, uint8_t flip) {
  int64_t nb = (a->cols + ANE_BLOCK - 1) / ANE_BLOCK;
  memset((uint8_t *)(uintptr_t)a->outlier, 0, (size_t)(nb * a->outlier_ld));
  for (int64_t t = 0; t < n; t++)
    for (int64_t b = 0; b < nb; b++) {
      int64_t at = t * nb + b, other = b * a->outlier_ld + t, width = ANE_MIN(ANE_BLOCK, a->cols - b * ANE_BLOCK);
      int8_t *q = (int8_t *)(uintptr_t)a->q + at * ANE_BLOCK, *residual = (int8_t *)(uintptr_t)a->residual + other * ANE_BLOCK;
      int32_t *sum = (int32_t *)(uintptr_t)a->isum + 2 * at, *rest = (int32_t *)(uintptr_t)a->residual_isum + 2 * other;
      uint8_t *outlier = (uint8_t *)(uintptr_t)a->outlier + other;
      sum[0] = sum[1] = 0;
      memset(q, 0, ANE_BLOCK);
      for (int64_t i = 0; i < width; i++) {
        int8_t v = (int8_t)(x[t * ld + b * ANE_BLOCK + i] ^ flip);
        if (v == -128) {
          if (!*outlier) memset(residual, 0, ANE_BLOCK), rest[0] = rest[1] = 0;
          *outlier |= (uint8_t)(1u << i / 4);
          residual[i] = -1;
          rest[i / 16]--;
          v = 0;
        }
        q[i] = v;
        sum[i / 16] += v;
      }
      ((float *)(uintptr_t)a->d)[at] = 1;
      ((float *)(uintptr_t)a->dsum)[at] = (float)(sum[0] + sum[1]);
      ((int32_t *)(uintptr_t)a->minus_sum)[at] = -sum[0] - sum[1];
      ((float *)(uintptr_t)a->d_residual)[other] = 128;
    }
}

/* The product of some tokens. With the codes v = x - sx and w = y - sy (s: 128 for uint8), cx = sx - zero point of x and cy
 * likewise for y: sum (v + cx) (w + cy) = sum v w + cx sum w + cy sum v + k cx cy. All wraps at 32 bits. */
struct integer_product {
  const struct ane_kernels *kernels;
  const struct ane_prim_state *s;
  const struct ane_activations *x; /* of each part */
  int64_t tokens, n, k;
  const uint32_t *sums, *cx; /* of each token: sum v, cx */
  const int64_t *zeros;      /* of y, `step` apart */
  int64_t step, sy;
  float *part; /* [tokens][n] */
  uint32_t *y; /* [tokens][n] */
  uint8_t *scratch;
  size_t scratch_bytes;
};

static void multiply_codes(void *arg, int64_t from, int64_t to, int thread) {
  const struct integer_product *p = arg;
  int64_t r0 = from * ANE_GROUP, r1 = ANE_MIN(to * ANE_GROUP, p->n);
  for (int64_t t = 0; t < p->tokens; t++)
    for (int64_t r = r0; r < r1; r++) {
      uint32_t cy = (uint32_t)(p->sy - p->zeros[r * p->step]);
      p->y[t * p->n + r] = cy * p->sums[t] + (uint32_t)p->k * p->cx[t] * cy;
    }
  for (int i = 0; i < p->s->n; i++) {
    const struct prim_matrix *m = &p->s->m[i];
    p->kernels->matmul[ANE_LAYOUT_I8][ANE_ACTIVATION_I8](&m->packed, &p->x[i], from, to, p->part, p->n,
                                                         p->scratch + (size_t)thread * p->scratch_bytes);
    for (int64_t t = 0; t < p->tokens; t++)
      for (int64_t r = r0; r < r1; r++)
        p->y[t * p->n + r] += (uint32_t)(int32_t)p->part[t * p->n + r] + p->cx[t] * (uint32_t)(int32_t)m->scales[r];
  }
}

/* Multiplies x by the packed y. xz: one zero point or one for each row of x (x_step 1). */
static ane_status by_codes(struct ane_prim_call *c, const struct ane_prim_state *s, const int64_t *xz, int64_t x_step,
                           const int64_t *yz, int64_t y_step) {
  const struct ane_dyn *x = c->in[0], *y = c->in[1];
  int64_t k = y->dim[0], n = y->dim[1], tokens = x->count / k, run = ANE_MIN(tokens, RUN), dim[ANE_DYN_RANK];
  uint8_t flip = x->dtype == ANE_U8 ? 128 : 0;
  memcpy(dim, x->dim, sizeof dim);
  dim[x->rank - 1] = n;
  const int64_t part[] = {run, n};
  struct integer_product p = {.kernels = c->kernels, .s = s, .n = n, .k = k, .zeros = yz, .step = y_step};
  p.sy = y->dtype == ANE_U8 ? 128 : 0;
  uint32_t *out = prim_out(c, 0, ANE_I32, x->rank, dim);
  if (c->status || tokens == 0) return c->status;
  p.part = prim_temp_array(c, sizeof *p.part, 2, part);
  p.scratch_bytes = ane_align_up(ane_matmul_scratch(&s->m[0].packed), 64);
  p.scratch = prim_temp(c, (uint64_t)prim_threads(c) * p.scratch_bytes);
  struct ane_activations *a = prim_temp(c, (uint64_t)s->n * sizeof *a);
  uint32_t *sums = prim_temp(c, (uint64_t)run * sizeof *sums), *cx = prim_temp(c, (uint64_t)run * sizeof *cx);
  uint8_t *memory = prim_temp(c, (uint64_t)s->n * ane_activations_bytes(ANE_ACTIVATION_I8, run, ANE_MIN(k, CHUNK)));
  if (c->status) return c->status;
  p.x = a, p.sums = sums, p.cx = cx;
  for (int64_t from = 0; from < tokens; from += run) {
    const uint8_t *codes = (const uint8_t *)x->data + from * k;
    uint8_t *at = memory;
    p.tokens = ANE_MIN(run, tokens - from);
    p.y = out + from * n;
    for (int64_t t = 0; t < p.tokens; t++) {
      uint32_t sum = 0;
      for (int64_t i = 0; i < k; i++) sum += (uint32_t)(int8_t)(codes[t * k + i] ^ flip);
      sums[t] = sum;
      cx[t] = (uint32_t)((flip ? 128 : 0) - xz[(from + t) * x_step]);
    }
    for (int i = 0; i < s->n; i++) {
      ane_activations_place(&a[i], ANE_ACTIVATION_I8, p.tokens, s->m[i].cols, at);
      set_codes(&a[i], codes + (int64_t)i * CHUNK, k, p.tokens, flip);
      at += ane_activations_bytes(ANE_ACTIVATION_I8, p.tokens, s->m[i].cols);
    }
    prim_parallel(c, (n + ANE_GROUP - 1) / ANE_GROUP, (double)n * (double)k * (double)p.tokens / 4, multiply_codes, &p);
  }
  return c->status;
}

/* Subtracts the zero points of rows of `row` elements each. */
static const int64_t *shifted(struct ane_prim_call *c, const struct ane_dyn *t, const int64_t *zero, int64_t by_row,
                              int64_t by_col, int64_t row) {
  const int64_t *v = prim_i64(c, t);
  int64_t *out = prim_temp(c, (uint64_t)t->count * sizeof *out);
  for (int64_t i = 0; v && out && i < t->count; i++) out[i] = v[i] - zero[i / row * by_row + i % row * by_col];
  return v ? out : NULL;
}

ane_status prim_matmul_integer(struct ane_prim_call *c) {
  static const int64_t none[1] = {0};
  const struct ane_dyn *x = c->in[0], *y = c->in[1], *xz = prim_in(c, "x_zero_point"), *yz = prim_in(c, "y_zero_point");
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  if (!prim_is_code(x) || !prim_is_code(y) || (xz && !prim_is_code(xz)) || (yz && !prim_is_code(yz)))
    return prim_fail(c, ANE_SHAPE, "x is %s and y %s, but they and the zero points must be int8 or uint8", ane_dyn_text(x, a),
                     ane_dyn_text(y, b));
  int64_t k = x->rank ? x->dim[x->rank - 1] : 0, n = y->rank > 1 ? y->dim[y->rank - 1] : 1;
  bool fits = x->rank >= 1 && y->rank >= 1 && y->dim[ANE_MAX(y->rank - 2, 0)] == k;
  if (!fits) return prim_fail(c, ANE_SHAPE, "%s times %s", ane_dyn_text(x, a), ane_dyn_text(y, b));
  int64_t rows = k ? x->count / k : 0, x_step = xz && xz->count != 1, y_step = yz && yz->count != 1;
  if ((x_step && xz->count != rows) || (y_step && (yz->count != n || y->rank < 2)))
    return prim_fail(c, ANE_SHAPE, "zero points must be one number, %" PRId64 " for x or %" PRId64 " for y", rows, n);
  const int64_t *px = xz ? prim_i64(c, xz) : none, *py = yz ? prim_i64(c, yz) : none;
  if (c->status) return c->status;
  struct ane_prim_state *own = NULL;
  if (!c->state && prim_prepare_matmul_integer(c, &own)) {
    ane_prim_state_free(own);
    return c->status;
  }
  const struct ane_prim_state *s = c->state ? c->state : own;
  if (s) {
    by_codes(c, s, px, x_step, py, y_step);
  } else {
    const int64_t *v = shifted(c, x, px, x_step, 0, ANE_MAX(k, 1)), *w = shifted(c, y, py, 0, y_step, ANE_MAX(n, 1));
    if (v && w) prim_multiply_i64(c, v, w);
  }
  ane_prim_state_free(own);
  return c->status;
}
