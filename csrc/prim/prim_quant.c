/* Quantised codes: dequantize, quantize, products with codes, gather from tables of codes. */
#include "prim/prim_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static bool power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

/* ---- dequantize, quantize ------------------------------------------------------------------------------------------*/

/* Which scale an element uses. x is [outer, n, inner] around the axis. Element (o, i, j) uses scale number (o * blocks + i /
 * block) * inner + j with blocks along the axis, scale i with one for each index of the axis, scale 0 with a single one. */
struct grid {
  int64_t n, inner, blocks, block; /* block 0: one scale for each index of the axis; n 0: a single one */
  int axis;
};

static ane_status read_grid(struct ane_prim_call *c, const struct ane_dyn *x, const struct ane_dyn *scale,
                            const struct ane_dyn *zero, struct grid *g) {
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  int64_t block = prim_int(c, "block_size", 0);
  *g = (struct grid){.inner = 1};
  if (zero && zero->count != scale->count)
    return prim_fail(c, ANE_SHAPE, "zero_point has %" PRId64 " elements, scale %" PRId64, zero->count, scale->count);
  if (block < 0) return prim_fail(c, ANE_INVALID, "block_size is %" PRId64, block);
  if (scale->rank == 0 || (scale->count == 1 && block == 0))
    return scale->count == 1 ? c->status : prim_fail(c, ANE_SHAPE, "scale is empty");
  int axis = prim_axis(c, "axis", 1, x->rank);
  if (c->status) return c->status;
  g->axis = axis;
  g->n = x->dim[axis];
  for (int i = axis + 1; i < x->rank; i++) g->inner *= x->dim[i];
  if (block == 0) {
    if (scale->rank == 1 && scale->count == g->n) return c->status;
    return prim_fail(c, ANE_SHAPE, "scale must have %" PRId64 " elements for axis %d of %s, but is %s", g->n, axis,
                     ane_dyn_text(x, b), ane_dyn_text(scale, a));
  }
  g->block = block;
  g->blocks = g->n / block + (g->n % block != 0);
  bool fits = scale->rank == x->rank;
  for (int i = 0; fits && i < x->rank; i++) fits = scale->dim[i] == (i == axis ? g->blocks : x->dim[i]);
  return fits ? c->status
              : prim_fail(c, ANE_SHAPE, "scale is %s for blocks of %" PRId64 " on axis %d of %s", ane_dyn_text(scale, a), block,
                          axis, ane_dyn_text(x, b));
}

static int64_t scale_of(const struct grid *g, int64_t i) {
  if (g->n == 0) return 0;
  int64_t at = i / g->inner % g->n;
  return g->block ? (i / (g->inner * g->n) * g->blocks + at / g->block) * g->inner + i % g->inner : at;
}

ane_status prim_dequantize(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *scale = c->in[1], *zero = prim_in(c, "zero_point");
  struct grid g;
  if (read_grid(c, x, scale, zero, &g)) return c->status;
  const float *v = prim_f32(c, x), *s = prim_f32(c, scale), *z = zero ? prim_f32(c, zero) : NULL;
  float *y = prim_out(c, 0, ANE_F32, x->rank, x->dim);
  for (int64_t i = 0; !c->status && i < x->count; i++) {
    int64_t k = scale_of(&g, i);
    y[i] = (v[i] - (z ? z[k] : 0)) * s[k];
  }
  return c->status;
}

/* Quantises. The result has the type of the zero point, else output_dtype, else uint8. 4-bit types stay in whole bytes. */
ane_status prim_quantize(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *scale = c->in[1], *zero = prim_in(c, "zero_point");
  struct grid g;
  ane_dtype t = zero ? zero->dtype : prim_dtype(c, "output_dtype", ANE_U8);
  if (c->status || read_grid(c, x, scale, zero, &g)) return c->status;
  if (t != ANE_U8 && t != ANE_I8 && t != ANE_U16 && t != ANE_I16)
    return prim_fail(c, ANE_UNSUPPORTED, "codes of type %s", ane_dtype_info(t)->name);
  double lo = t == ANE_I8    ? -128
              : t == ANE_I16 ? -32768
                             : 0,
         hi = t == ANE_U8    ? 255
              : t == ANE_I8  ? 127
              : t == ANE_U16 ? 65535
                             : 32767;
  const float *v = prim_f32(c, x), *s = prim_f32(c, scale), *z = zero ? prim_f32(c, zero) : NULL;
  char *y = prim_out(c, 0, t, x->rank, x->dim);
  for (int64_t i = 0; !c->status && i < x->count; i++) {
    int64_t k = scale_of(&g, i);
    double q = rint((double)(v[i] / s[k])) + (z ? (double)z[k] : 0);
    int64_t code = isnan(q) ? 0 : (int64_t)fmin(fmax(q, lo), hi);
    prim_store(t, y + (size_t)i * prim_width(t), &code, 1);
  }
  return c->status;
}

/* ---- matmul(x, dequantize(data)) -----------------------------------------------------------------------------------*/

static int code_bits(ane_dtype t) { return t == ANE_I4 || t == ANE_U4 ? 4 : t == ANE_I8 || t == ANE_U8 ? 8 : 0; }

/* Prepares the matrix of data [k, n]: row r of the matrix is column r of data. */
ane_status prim_prepare_matmul_dequantize(struct ane_prim_call *c, struct ane_prim_state **state) {
  const struct ane_dyn *data = prim_in(c, "data"), *scale = prim_in(c, "scale"), *zero = prim_in(c, "zero_point");
  struct grid g;
  if (!data || !scale) return c->status;
  if (data->rank != 2 || !code_bits(data->dtype))
    return prim_fail(c, ANE_UNSUPPORTED, "data of %d dimensions and type %s", data->rank, ane_dtype_info(data->dtype)->name);
  if (read_grid(c, data, scale, zero, &g)) return c->status;
  const float *s = prim_f32(c, scale), *z = zero ? prim_f32(c, zero) : NULL;
  float *scales, *zeros;
  if (c->status || !(*state = prim_state_new(c, 1))) return c->status;
  struct prim_matrix *m = &(*state)->m[0];
  if (prim_matrix_scales(c, m, scale->count, z != NULL, &scales, &zeros)) return c->status;
  memcpy(scales, s, (size_t)scale->count * sizeof *s);
  if (z) memcpy(zeros, z, (size_t)scale->count * sizeof *z);
  int64_t n = data->dim[1], k = data->dim[0];
  m->rows = n, m->cols = k, m->codes = data->data;
  m->bits = code_bits(data->dtype), m->is_signed = data->dtype == ANE_I4 || data->dtype == ANE_I8;
  m->row_stride = 1, m->col_stride = n, m->row_block = 1, m->block = 1;
  if (g.n == 0) return c->status;                                                         /* one scale */
  if (g.block == 0) return *(g.axis == 1 ? &m->scale_row : &m->scale_col) = 1, c->status; /* for each n; for each k */
  if (g.axis == 1)
    m->row_block = g.block, m->scale_row = 1, m->scale_col = g.blocks; /* blocks along n */
  else
    m->block = g.block, m->scale_row = 1, m->scale_col = n; /* blocks along k */
  return c->status;
}

/* Prepares the state of this call, if constants did not give one. The caller frees *own. */
static const struct ane_prim_state *state_of(struct ane_prim_call *c, prim_prepare_fn prepare, struct ane_prim_state **own) {
  *own = NULL;
  if (c->state) return c->state;
  if (!prepare(c, own) && !*own) prim_fail(c, ANE_INVALID, "an input is missing");
  return *own;
}

static ane_status times_codes(struct ane_prim_call *c, prim_prepare_fn prepare, const struct ane_dyn *bias) {
  const struct ane_dyn *x = c->in[0];
  struct ane_prim_state *own;
  const struct ane_prim_state *s = state_of(c, prepare, &own);
  char text[ANE_DYN_TEXT];
  int64_t dim[ANE_DYN_RANK], t = 1;
  if (!c->status && (x->rank < 1 || x->dim[x->rank - 1] != s->m[0].cols))
    prim_fail(c, ANE_SHAPE, "x is %s, but the weights have %" PRId64 " inputs", ane_dyn_text(x, text), s->m[0].cols);
  if (!c->status && bias && bias->count != s->m[0].rows)
    prim_fail(c, ANE_SHAPE, "bias has %" PRId64 " elements, but must have %" PRId64, bias->count, s->m[0].rows);
  if (!c->status) {
    memcpy(dim, x->dim, sizeof dim);
    dim[x->rank - 1] = s->m[0].rows;
    for (int i = 0; i + 1 < x->rank; i++) t *= x->dim[i];
    const float *v = prim_f32(c, x), *b = bias ? prim_f32(c, bias) : NULL;
    float *y = prim_out(c, 0, ANE_F32, x->rank, dim);
    if (!c->status) prim_multiply(c, &s->m[0], v, t, s->m[0].cols, b, y, s->m[0].rows);
  }
  ane_prim_state_free(own);
  return c->status;
}

ane_status prim_matmul_dequantize(struct ane_prim_call *c) { return times_codes(c, prim_prepare_matmul_dequantize, NULL); }

/* ---- MatMulNBits ---------------------------------------------------------------------------------------------------*/

/* Reads the zero points: packed like the codes (uint8, each row padded to a whole byte), or one float for each block. */
static ane_status nbits_zeros(struct ane_prim_call *c, const struct ane_dyn *zero, int bits, int64_t n, int64_t nb, float *out) {
  int64_t row = (nb * bits + 7) / 8;
  bool packed = zero->dtype == ANE_U8;
  if (zero->count != (packed ? n * row : n * nb))
    return prim_fail(c, ANE_SHAPE, "zero_points has %" PRId64 " elements, but must have %" PRId64, zero->count,
                     packed ? n * row : n * nb);
  if (!packed) {
    const float *f = prim_is_float(zero->dtype) ? prim_f32(c, zero) : NULL;
    if (!f) return prim_fail(c, ANE_UNSUPPORTED, "zero_points of type %s", ane_dtype_info(zero->dtype)->name);
    memcpy(out, f, (size_t)zero->count * sizeof *f);
    return c->status;
  }
  for (int64_t r = 0; r < n; r++)
    for (int64_t b = 0; b < nb; b++) out[r * nb + b] = (float)prim_code((const uint8_t *)zero->data + r * row, bits, b);
  return c->status;
}

static ane_status nbits_g_idx(struct ane_prim_call *c, const struct ane_dyn *g, int64_t k, int64_t nb) {
  char text[ANE_DYN_TEXT];
  if (g->dtype != ANE_I32 || g->count < k)
    return prim_fail(c, ANE_SHAPE, "g_idx must have %" PRId64 " elements of int32, but is %s", k, ane_dyn_text(g, text));
  for (int64_t i = 0; i < k; i++) {
    int32_t v;
    memcpy(&v, (const uint8_t *)g->data + 4 * i, sizeof v);
    if (v < 0 || v >= nb) return prim_fail(c, ANE_RANGE, "g_idx holds %d, not one of %" PRId64 " blocks", (int)v, nb);
  }
  return c->status;
}

/* Makes m from codes [n, nb, block * bits / 8] with scales [n, nb] and zero points. */
static ane_status nbits_matrix(struct ane_prim_call *c, struct prim_matrix *m, const struct ane_dyn *codes,
                               const struct ane_dyn *scales, const struct ane_dyn *zero, int bits, int64_t block, int64_t n,
                               int64_t k) {
  int64_t nb = (k + block - 1) / block, want;
  if (codes->dtype != ANE_U8)
    return prim_fail(c, ANE_SHAPE, "codes must be uint8, but are %s", ane_dtype_info(codes->dtype)->name);
  if (__builtin_mul_overflow(n * nb, block * bits / 8, &want) || codes->count != want)
    return prim_fail(c, ANE_SHAPE, "codes have %" PRId64 " bytes, N %" PRId64 " and K %" PRId64 " want %" PRId64, codes->count, n,
                     k, want);
  if (scales->count != n * nb || !prim_is_float(scales->dtype))
    return prim_fail(c, ANE_SHAPE, "scales has %" PRId64 " elements, but must have %" PRId64, scales->count, n * nb);
  const float *s = prim_f32(c, scales);
  float *own, *zeros;
  if (!s || prim_matrix_scales(c, m, n * nb, zero != NULL, &own, &zeros)) return c->status;
  memcpy(own, s, (size_t)(n * nb) * sizeof *s);
  m->rows = n, m->cols = k, m->codes = codes->data, m->bits = bits;
  m->row_stride = nb * block, m->col_stride = 1, m->block = block, m->row_block = 1, m->scale_row = nb, m->scale_col = 1;
  m->zero_default = (float)(1 << (bits - 1));
  return zero ? nbits_zeros(c, zero, bits, n, nb, zeros) : c->status;
}

ane_status prim_prepare_matmul_nbits(struct ane_prim_call *c, struct ane_prim_state **state) {
  const struct ane_dyn *codes = prim_in(c, "codes"), *scales = prim_in(c, "scales"), *zero = prim_in(c, "zero_points"),
                       *g = prim_in(c, "g_idx");
  int64_t k = prim_int(c, "k", 0), n = prim_int(c, "n", 0), bits = prim_int(c, "bits", 4), block = prim_int(c, "block_size", 0);
  if (c->status) return c->status;
  if (bits != 2 && bits != 4 && bits != 8) return prim_fail(c, ANE_INVALID, "bits must be 2, 4 or 8, but is %" PRId64, bits);
  if (!power_of_two(block) || block < 16)
    return prim_fail(c, ANE_INVALID, "block_size must be a power of two of at least 16, but is %" PRId64, block);
  if (k < 1 || n < 1 || k > INT32_MAX || n > INT32_MAX || block > INT32_MAX)
    return prim_fail(c, ANE_INVALID, "K is %" PRId64 " and N is %" PRId64, k, n);
  if (!codes || !scales) return c->status;
  if (!(*state = prim_state_new(c, 1))) return c->status;
  struct prim_matrix *m = &(*state)->m[0];
  if (nbits_matrix(c, m, codes, scales, zero, (int)bits, block, n, k)) return c->status;
  if (g && !nbits_g_idx(c, g, k, (k + block - 1) / block)) m->g_idx = g->data;
  return c->status;
}

ane_status prim_matmul_nbits(struct ane_prim_call *c) { return times_codes(c, prim_prepare_matmul_nbits, prim_in(c, "bias")); }

/* ---- GatherBlockQuantized ------------------------------------------------------------------------------------------*/

struct table {
  const struct ane_dyn *data, *scales, *zero;
  int bits;
  bool is_signed, packed; /* packed: several codes in a byte of the last axis, each row of zero points padded to a whole byte */
  int64_t rows, n, block, nb; /* data [rows, n] codes, scales [rows, nb] */
  float *row_scales;          /* nb: of the current row, since the whole table may be large and of another type */
};

static ane_status read_table(struct ane_prim_call *c, struct table *t) {
  const struct ane_dyn *d = t->data;
  int64_t bits = prim_int(c, "bits", 4), block = prim_int(c, "block_size", 128);
  int ga = prim_axis(c, "gather_axis", 0, d->rank), qa = prim_axis(c, "quantize_axis", 1, d->rank);
  if (c->status) return c->status;
  t->packed = d->dtype == ANE_U8;
  t->is_signed = d->dtype == ANE_I4;
  if (!t->packed && d->dtype != ANE_U4 && d->dtype != ANE_I4)
    return prim_fail(c, ANE_UNSUPPORTED, "data of type %s", ane_dtype_info(d->dtype)->name);
  if (!t->packed) bits = 4;
  if (bits != 2 && bits != 4 && bits != 8) return prim_fail(c, ANE_INVALID, "bits must be 2, 4 or 8, but is %" PRId64, bits);
  if (!power_of_two(block) || block < 16 || block > INT32_MAX)
    return prim_fail(c, ANE_INVALID, "block_size must be a power of two of at least 16, but is %" PRId64, block);
  if (ga != 0 || qa != d->rank - 1 || d->rank < 2)
    return prim_fail(c, ANE_UNSUPPORTED, "gather_axis %d and quantize_axis %d of %d dimensions must be the first and the last",
                     ga, qa, d->rank);
  t->bits = (int)bits;
  t->block = block;
  t->n = d->dim[d->rank - 1] * (t->packed ? 8 / bits : 1);
  t->nb = (t->n + block - 1) / block;
  t->rows = 1;
  for (int i = 0; i + 1 < d->rank; i++) t->rows *= d->dim[i];
  if (t->scales->count != t->rows * t->nb)
    return prim_fail(c, ANE_SHAPE, "scales has %" PRId64 " elements, but must have %" PRId64, t->scales->count, t->rows * t->nb);
  int64_t zeros = t->packed ? t->rows * ((t->nb * bits + 7) / 8) : t->rows * t->nb;
  if (t->zero && (t->zero->count != zeros || t->zero->dtype != d->dtype))
    return prim_fail(c, ANE_SHAPE, "zero_points has %" PRId64 " elements, but must have %" PRId64, t->zero->count, zeros);
  if (!prim_is_float(t->scales->dtype))
    return prim_fail(c, ANE_UNSUPPORTED, "scales of type %s", ane_dtype_info(t->scales->dtype)->name);
  t->row_scales = prim_temp(c, (uint64_t)t->nb * sizeof *t->row_scales);
  return c->status;
}

static int sign_of(const struct table *t, int q) { return t->is_signed ? (q ^ 8) - 8 : q; }

static void table_row(const struct table *t, int64_t r, float *out) {
  int64_t zero_row = (t->nb * t->bits + 7) / 8;
  /* analyser: packed codes have 2, 4 or 8 bits. */
  int zero = t->packed ? 1 << (t->bits - 1) : 0;
  const char *scales = (const char *)t->scales->data + (size_t)(r * t->nb) * prim_width(t->scales->dtype);
  (void)ane_to_f32(t->scales->dtype, scales, t->row_scales, (uint64_t)t->nb, NULL); /* a float type: cannot fail */
  for (int64_t b = 0; b < t->nb; b++) {
    if (t->zero)
      zero = t->packed ? prim_code((const uint8_t *)t->zero->data + r * zero_row, t->bits, b)
                       : sign_of(t, prim_code(t->zero->data, 4, r * t->nb + b));
    for (int64_t i = b * t->block; i < ANE_MIN((b + 1) * t->block, t->n); i++)
      out[i] = (float)(sign_of(t, prim_code(t->data->data, t->bits, r * t->n + i)) - zero) * t->row_scales[b];
  }
}

/* Gathers rows along axis 0. An index outside gives zeros. */
ane_status prim_gather_block_quantized(struct ane_prim_call *c) {
  const struct ane_dyn *indices = c->in[1];
  struct table t = {.data = c->in[0], .scales = c->in[2], .zero = prim_in(c, "zero_points")};
  int64_t dim[2 * ANE_DYN_RANK], each = 1;
  int rank = 0;
  if (read_table(c, &t)) return c->status;
  for (int i = 0; i < indices->rank; i++) dim[rank++] = indices->dim[i];
  for (int i = 1; i < t.data->rank; i++) dim[rank++] = i == t.data->rank - 1 ? t.n : t.data->dim[i];
  for (int i = 1; i + 1 < t.data->rank; i++) each *= t.data->dim[i];
  const int64_t *index = prim_i64(c, indices);
  float *y = index ? prim_out(c, 0, ANE_F32, rank, dim) : NULL;
  int64_t n = t.data->dim[0];
  for (int64_t i = 0; y && c->out[0].count && i < indices->count; i++)
    for (int64_t e = 0; e < each; e++) {
      int64_t at = index[i] < 0 ? index[i] + n : index[i];
      float *row = y + (i * each + e) * t.n;
      if (at >= 0 && at < n)
        table_row(&t, at * each + e, row);
      else
        memset(row, 0, (size_t)t.n * sizeof *row);
    }
  return c->status;
}
