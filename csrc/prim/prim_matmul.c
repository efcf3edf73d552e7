/* Matrix products. Constant weights are packed. All other products are summed in float64, ascending along the common axis. */
#include "prim/prim_internal.h"

#include <inttypes.h>
#include <string.h>

/* An operand as [batch..., rows, cols]: 1-D x is a row, 1-D y a column. */
struct side {
  int64_t rows, cols, row_stride, col_stride, batch_stride[ANE_DYN_RANK];
};

static struct side side_of(const struct ane_dyn *t, bool transposed, bool left) {
  struct side s = {1, 1, 0, 0, {0}};
  int64_t a = t->rank >= 2 ? t->dim[t->rank - 2]
              : left       ? 1
                           : t->dim[0],
          b = t->rank >= 2 ? t->dim[t->rank - 1]
              : left       ? t->dim[0]
                           : 1;
  s.rows = transposed ? b : a;
  s.cols = transposed ? a : b;
  s.row_stride = transposed ? 1 : b;
  s.col_stride = transposed ? b : 1;
  return s;
}

struct matmul {
  struct side x, y;
  int64_t m, n, k;
  int rank; /* of the batch */
  int64_t batch[ANE_DYN_RANK], batches;
  int out_rank;
  int64_t out[ANE_DYN_RANK];
};

static ane_status plan(struct ane_prim_call *c, const struct ane_dyn *x, const struct ane_dyn *y, bool tx, bool ty,
                       struct matmul *p) {
  char a[ANE_DYN_TEXT], b[ANE_DYN_TEXT];
  if (x->rank < 1 || y->rank < 1) return prim_fail(c, ANE_SHAPE, "%s times %s", ane_dyn_text(x, a), ane_dyn_text(y, b));
  *p = (struct matmul){.x = side_of(x, tx && x->rank >= 2, true), .y = side_of(y, ty && y->rank >= 2, false), .batches = 1};
  int rx = ANE_MAX(x->rank - 2, 0), ry = ANE_MAX(y->rank - 2, 0);
  bool fits = p->x.cols == p->y.rows && prim_broadcast(rx, x->dim, ry, y->dim, &p->rank, p->batch);
  if (!fits) return prim_fail(c, ANE_SHAPE, "%s times %s", ane_dyn_text(x, a), ane_dyn_text(y, b));
  struct ane_dyn bx = {.rank = rx}, by = {.rank = ry};
  memcpy(bx.dim, x->dim, (size_t)rx * sizeof *bx.dim);
  memcpy(by.dim, y->dim, (size_t)ry * sizeof *by.dim);
  prim_broadcast_strides(&bx, p->rank, p->batch, p->x.batch_stride);
  prim_broadcast_strides(&by, p->rank, p->batch, p->y.batch_stride);
  p->m = p->x.rows, p->n = p->y.cols, p->k = p->x.cols;
  for (int i = 0; i < p->rank; i++) {
    p->x.batch_stride[i] *= p->x.rows * p->x.cols;
    p->y.batch_stride[i] *= p->y.rows * p->y.cols;
    p->out[p->out_rank++] = p->batch[i];
  }
  if (x->rank >= 2) p->out[p->out_rank++] = p->m;
  if (y->rank >= 2) p->out[p->out_rank++] = p->n;
  int64_t all;
  if (!ane_dyn_count(p->out_rank, p->out, &all)) return prim_fail(c, ANE_RANGE, "the result has too many elements");
  for (int i = 0; i < p->rank; i++) p->batches *= p->batch[i];
  return c->status;
}

static void batch_offsets(const struct matmul *p, int64_t b, int64_t *ox, int64_t *oy) {
  *ox = *oy = 0;
  for (int i = p->rank - 1; i >= 0; i--) {
    *ox += b % p->batch[i] * p->x.batch_stride[i];
    *oy += b % p->batch[i] * p->y.batch_stride[i];
    b /= p->batch[i];
  }
}

struct job {
  const struct matmul *p;
  const float *x, *y;
  float *out;
  double *sums; /* n for each thread */
};

static void rows_f32(void *arg, int64_t from, int64_t to, int thread) {
  const struct job *j = arg;
  const struct matmul *p = j->p;
  double *sum = j->sums + (int64_t)thread * p->n;
  for (int64_t i = from; i < to; i++) {
    int64_t ox, oy;
    batch_offsets(p, i / p->m, &ox, &oy);
    const float *x = j->x + ox + i % p->m * p->x.row_stride, *y = j->y + oy;
    memset(sum, 0, (size_t)p->n * sizeof *sum);
    if (p->y.col_stride == 1) {
      for (int64_t k = 0; k < p->k; k++) {
        double v = (double)x[k * p->x.col_stride];
        const float *row = y + k * p->y.row_stride;
        for (int64_t n = 0; n < p->n; n++) sum[n] += v * (double)row[n];
      }
    } else {
      for (int64_t n = 0; n < p->n; n++)
        for (int64_t k = 0; k < p->k; k++)
          sum[n] += (double)x[k * p->x.col_stride] * (double)y[k * p->y.row_stride + n * p->y.col_stride];
    }
    for (int64_t n = 0; n < p->n; n++) j->out[i * p->n + n] = (float)sum[n];
  }
}

/* Multiplies the elements a of x by the elements b of y; the result has type t. */
static ane_status integers(struct ane_prim_call *c, ane_dtype t, const int64_t *a, const int64_t *b, const struct matmul *p) {
  /* analyser: plan() sets the shape, or returns what is not ANE_OK. */
  void *out = prim_out(c, 0, t, p->out_rank, p->out);
  if (c->status) return c->status;
  for (int64_t i = 0; i < p->batches * p->m * p->n; i++) {
    int64_t ox, oy, row = i / p->n % p->m, col = i % p->n;
    uint64_t sum = 0;
    batch_offsets(p, i / (p->n * p->m), &ox, &oy);
    for (int64_t k = 0; k < p->k; k++)
      sum += (uint64_t)a[ox + row * p->x.row_stride + k * p->x.col_stride] *
             (uint64_t)b[oy + k * p->y.row_stride + col * p->y.col_stride];
    int64_t v = (int64_t)sum;
    prim_store(t, (char *)out + (size_t)i * prim_width(t), &v, 1);
  }
  return c->status;
}

ane_status prim_multiply_i64(struct ane_prim_call *c, const int64_t *x, const int64_t *y) {
  struct matmul p;
  return plan(c, c->in[0], c->in[1], false, false, &p) ? c->status : integers(c, ANE_I32, x, y, &p);
}

/* Multiplies x [..., k] by a packed matrix [n, k]. */
static ane_status by_matrix(struct ane_prim_call *c, const struct ane_dyn *x, const struct prim_matrix *m,
                            const struct ane_dyn *bias) {
  char a[ANE_DYN_TEXT];
  int64_t dim[ANE_DYN_RANK], k = x->rank ? x->dim[x->rank - 1] : 0;
  if (x->rank < 1 || k != m->cols)
    return prim_fail(c, ANE_SHAPE, "%s times weights of %" PRId64 " inputs", ane_dyn_text(x, a), m->cols);
  if (bias && bias->count != m->rows)
    return prim_fail(c, ANE_SHAPE, "bias has %" PRId64 " elements, but must have %" PRId64, bias->count, m->rows);
  memcpy(dim, x->dim, sizeof dim);
  dim[x->rank - 1] = m->rows;
  const float *v = prim_f32(c, x), *b = bias ? prim_f32(c, bias) : NULL;
  float *y = prim_out(c, 0, ANE_F32, x->rank, dim);
  if (c->status) return c->status;
  int64_t t = 1;
  for (int i = 0; i + 1 < x->rank; i++) t *= x->dim[i];
  return prim_multiply(c, m, v, t, k, b, y, m->rows);
}

ane_status prim_matmul(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *y = c->in[1];
  bool tx = prim_bool(c, "transpose_x", false), ty = prim_bool(c, "transpose_y", false);
  struct matmul p;
  if (c->status) return c->status;
  bool floats = prim_is_float(x->dtype) || prim_is_float(y->dtype);
  if (c->state && (!tx || x->rank < 2) && floats) return by_matrix(c, x, &c->state->m[0], NULL);
  if (plan(c, x, y, tx, ty, &p)) return c->status;
  if (!floats) {
    const int64_t *a = prim_i64(c, x), *b = prim_i64(c, y);
    return a && b ? integers(c, x->dtype, a, b, &p) : c->status;
  }
  const int64_t sums[] = {prim_threads(c), p.n};
  struct job j = {&p, prim_f32(c, x), prim_f32(c, y), prim_out(c, 0, ANE_F32, p.out_rank, p.out),
                  prim_temp_array(c, sizeof *j.sums, 2, sums)};
  if (!c->status && c->out[0].count)
    prim_parallel(c, p.batches * p.m, (double)p.batches * (double)p.m * (double)p.n * (double)p.k, rows_f32, &j);
  return c->status;
}

/* Packs a constant of floats [k, n] (transposed: [n, k]) as a matrix [n, k]. */
ane_status prim_prepare_matmul(struct ane_prim_call *c, struct ane_prim_state **state) {
  const struct ane_dyn *y = prim_in(c, c->op == ANE_PRIM_linear ? "weight" : "y");
  bool transposed = c->op == ANE_PRIM_linear || prim_bool(c, "transpose_y", false);
  if (c->status || !y || y->rank != 2 || !prim_is_float(y->dtype) || y->count == 0) return c->status;
  int64_t n = y->dim[!transposed], k = y->dim[transposed], row = transposed ? k : 1, col = transposed ? 1 : n;
  if (y->coded && transposed) {
    if ((*state = prim_state_new(c, 1))) prim_matrix_coded(c, &(*state)->m[0], y->coded, n, k);
    return c->status;
  }
  bool as_is = !y->coded && (y->dtype == ANE_F32 || y->dtype == ANE_F16 || y->dtype == ANE_BF16);
  const void *data = as_is ? y->data : prim_f32(c, y);
  if (!data || !(*state = prim_state_new(c, 1))) return c->status;
  return prim_matrix_float(c, &(*state)->m[0], as_is ? y->dtype : ANE_F32, data, n, k, row, col);
}

ane_status prim_linear(struct ane_prim_call *c) {
  const struct ane_dyn *w = c->in[1];
  struct ane_prim_state *own = NULL;
  if (w->rank != 2) return prim_fail(c, ANE_SHAPE, "weight has %d dimensions, but must have two", w->rank);
  if (!c->state && prim_prepare_matmul(c, &own)) {
    ane_prim_state_free(own);
    return c->status;
  }
  const struct ane_prim_state *s = c->state ? c->state : own;
  ane_status st = s ? by_matrix(c, c->in[0], &s->m[0], prim_in(c, "bias"))
                    : prim_fail(c, ANE_UNSUPPORTED, "weight of type %s", ane_dtype_info(w->dtype)->name);
  ane_prim_state_free(own);
  return st;
}
