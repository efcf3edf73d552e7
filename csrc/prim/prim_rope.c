/* Rotary embedding (Su et al., "RoFormer", 2021), as com.microsoft and opset 23 define it. */
#include "prim/prim_internal.h"

#include <inttypes.h>
#include <string.h>

void prim_rotate(float *x, const float *cos, const float *sin, int64_t dims, bool interleaved) {
  int64_t half = dims / 2;
  for (int64_t i = 0; i < half; i++) {
    float *a = x + (interleaved ? 2 * i : i), *b = interleaved ? a + 1 : a + half, u = *a, v = *b;
    *a = u * cos[i] - v * sin[i];
    *b = v * cos[i] + u * sin[i];
  }
}

struct rope {
  int64_t batch, heads, n, d; /* x */
  int64_t b_stride, h_stride, n_stride;
  int64_t dims, rows;       /* rotated channels; rows of a table */
  const float *cos, *sin;   /* [rows, dims / 2], or [batch, n, dims / 2] if positions is NULL */
  const int64_t *positions; /* [batch, n], or one number: the position of the first token */
  bool one;
};

static ane_status read_x(struct ane_prim_call *c, const struct ane_dyn *x, int64_t heads, int64_t half, int64_t dim,
                         struct rope *r) {
  char text[ANE_DYN_TEXT];
  if (x->rank == 4) {
    *r = (struct rope){.batch = x->dim[0], .heads = x->dim[1], .n = x->dim[2], .d = x->dim[3]};
    r->n_stride = r->d, r->h_stride = r->n * r->d;
  } else if (x->rank == 3) {
    int64_t d = heads > 0 ? (x->dim[2] % heads ? 0 : x->dim[2] / heads) : 2 * half;
    if (d < 1 || x->dim[2] % d) return prim_fail(c, ANE_SHAPE, "x is %s, no whole heads", ane_dyn_text(x, text));
    *r = (struct rope){.batch = x->dim[0], .heads = x->dim[2] / d, .n = x->dim[1], .d = d};
    r->h_stride = d, r->n_stride = x->dim[2];
  } else {
    return prim_fail(c, ANE_SHAPE, "x must have three or four dimensions, but is %s", ane_dyn_text(x, text));
  }
  r->b_stride = r->n * r->heads * r->d;
  r->dims = dim > 0 ? dim : ANE_MIN(r->d, 2 * half);
  if (r->dims != 2 * half || r->dims > r->d)
    return prim_fail(c, ANE_SHAPE, "%" PRId64 " of %" PRId64 " channels rotate, but the tables have %" PRId64 " columns", r->dims,
                     r->d, half);
  return c->status;
}

static ane_status check_positions(struct ane_prim_call *c, const struct ane_dyn *p, struct rope *r) {
  r->one = p->count == 1 && p->rank <= 1;
  if (!r->one && p->count != r->batch * r->n)
    return prim_fail(c, ANE_SHAPE, "position_ids has %" PRId64 " elements, but must have %" PRId64, p->count, r->batch * r->n);
  if (!(r->positions = prim_i64(c, p))) return c->status;
  for (int64_t i = 0; i < p->count; i++) {
    int64_t last = r->positions[i] + (r->one ? ANE_MAX(r->n - 1, 0) : 0);
    if (r->positions[i] < 0 || last >= r->rows || last < 0)
      return prim_fail(c, ANE_RANGE, "position %" PRId64 " is outside of tables of %" PRId64 " rows", last, r->rows);
  }
  return c->status;
}

ane_status prim_rotary_embedding(struct ane_prim_call *c) {
  const struct ane_dyn *x = c->in[0], *cos = c->in[1], *sin = c->in[2], *p = prim_in(c, "position_ids");
  bool interleaved = prim_bool(c, "interleaved", false);
  float scale = prim_float(c, "scale", 1);
  int64_t heads = prim_int(c, "num_heads", 0), dim = prim_int(c, "dim", 0), half = cos->rank ? cos->dim[cos->rank - 1] : 0;
  struct rope r = {0};
  if (half < 1 || sin->rank != cos->rank || sin->count != cos->count || cos->rank < 2)
    return prim_fail(c, ANE_SHAPE, "cos and sin are not tables of the same shape");
  if (c->status || read_x(c, x, heads, half, dim, &r)) return c->status;
  r.rows = cos->count / half;
  if (p && check_positions(c, p, &r)) return c->status;
  if (!p && r.rows != r.batch * r.n)
    return prim_fail(c, ANE_SHAPE, "without position_ids the tables have a row for each of %" PRId64 " positions, not %" PRId64,
                     r.batch * r.n, r.rows);
  r.cos = prim_f32(c, cos), r.sin = prim_f32(c, sin);
  const float *v = prim_f32(c, x);
  float *y = prim_out(c, 0, ANE_F32, x->rank, x->dim);
  if (c->status) return c->status;
  for (int64_t i = 0; i < x->count; i++) y[i] = v[i] * scale;
  for (int64_t b = 0; x->count && b < r.batch; b++)
    for (int64_t n = 0; n < r.n; n++) {
      /* analyser: where positions are given, they are set. */
      int64_t row = !p ? b * r.n + n : r.one ? r.positions[0] + n : r.positions[b * r.n + n];
      for (int64_t h = 0; h < r.heads; h++)
        prim_rotate(y + b * r.b_stride + h * r.h_stride + n * r.n_stride, r.cos + row * half, r.sin + row * half, r.dims,
                    interleaved);
    }
  return c->status;
}
