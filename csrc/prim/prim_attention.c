/* Attention: the core that all variants share, MIL's scaled_dot_product_attention, and Attention of ONNX opset 23. */
#include "prim/prim_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- Core ----------------------------------------------------------------------------------------------------------*/

struct attention_job {
  const struct prim_attention_args *a;
  float *scores; /* t for each thread */
  double *sums;  /* dv for each thread */
};

/* Returns q k scale. */
static float product_of(const struct prim_attention_args *a, const float *q, const float *k) {
  double dot = 0;
  for (int64_t i = 0; i < a->d; i++) dot += (double)q[i] * (double)k[i];
  return (float)dot * a->scale;
}

static float score_of(const struct prim_attention_args *a, const float *q, const float *k, int64_t bias) {
  float s = product_of(a, q, k);
  if (a->softcap > 0) s = a->softcap * tanhf(s / a->softcap);
  if (a->bias) s += a->bias[bias];
  if (a->mask && !a->mask[bias]) s = -INFINITY;
  return s;
}

static void attention_row(const struct attention_job *j, int64_t b, int64_t h, int64_t i, float *score, double *sum) {
  const struct prim_attention_args *a = j->a;
  int64_t kv = h / (a->heads / a->kv_heads), from = a->first[b * a->s + i], to = a->last[b * a->s + i];
  const float *q = a->q + b * a->q_stride[0] + h * a->q_stride[1] + i * a->q_stride[2];
  const float *k = a->k + b * a->k_stride[0] + kv * a->k_stride[1], *v = a->v + b * a->v_stride[0] + kv * a->v_stride[1];
  float *y = a->y + b * a->y_stride[0] + h * a->y_stride[1] + i * a->y_stride[2];
  int64_t bias = b * a->bias_stride[0] + h * a->bias_stride[1] + i * a->bias_stride[2];
  float top = a->sink ? a->sink[h] : -INFINITY;
  for (int64_t t = from; t < to; t++) {
    score[t] = score_of(a, q, k + t * a->k_stride[2], bias + t * a->bias_stride[3]);
    top = fmaxf(top, score[t]);
  }
  memset(sum, 0, (size_t)a->dv * sizeof *sum);
  double total = 0;
  for (int64_t t = from; t < to && top > -INFINITY; t++) {
    double p = exp((double)score[t] - (double)top);
    const float *row = v + t * a->v_stride[2];
    total += p;
    for (int64_t d = 0; p > 0 && d < a->dv; d++) sum[d] += p * (double)row[d];
  }
  if (a->sink) total += exp((double)a->sink[h] - (double)top);
  for (int64_t t = 0; a->qk && t < a->t; t++) { /* the mode's stage of each score */
    bool seen = t >= from && t < to;
    float *z = a->qk + ((b * a->heads + h) * a->s + i) * a->t + t;
    if (a->qk_mode < 2)
      *z = product_of(a, q, k + t * a->k_stride[2]);
    else
      *z = seen ? score[t] : -INFINITY;
    if (a->qk_mode == 1 && a->softcap > 0) *z = a->softcap * tanhf(*z / a->softcap);
    if (a->qk_mode == 3) *z = seen && total > 0 ? (float)(exp((double)score[t] - (double)top) / total) : 0;
  }
  for (int64_t d = 0; d < a->dv; d++) y[d] = total > 0 ? (float)(sum[d] / total) : 0;
}

static void attention_range(void *arg, int64_t from, int64_t to, int thread) {
  const struct attention_job *j = arg;
  const struct prim_attention_args *a = j->a;
  for (int64_t n = from; n < to; n++)
    attention_row(j, n / (a->heads * a->s), n / a->s % a->heads, n % a->s, j->scores + thread * a->t, j->sums + thread * a->dv);
}

ane_status prim_attention_core(struct ane_prim_call *c, const struct prim_attention_args *a) {
  int threads = prim_threads(c);
  const int64_t keys[] = {threads, a->t}, widths[] = {threads, a->dv};
  struct attention_job j = {a, prim_temp_array(c, sizeof *j.scores, 2, keys), prim_temp_array(c, sizeof *j.sums, 2, widths)};
  bool empty = a->dv == 0 && (!a->qk || a->t == 0); /* there may be any number of heads then */
  if (c->status || empty) return c->status;
  int64_t n = a->batch * a->heads * a->s;
  prim_parallel(c, n, (double)n * (double)a->t * (double)(a->d + a->dv), attention_range, &j);
  return c->status;
}

/* ---- ONNX ----------------------------------------------------------------------------------------------------------*/

/* An operand of rank 3 or 4 as [batch, heads, positions, width], with its strides. */
struct part {
  int64_t batch, heads, n, d, stride[3];
};

static bool part_of(const struct ane_dyn *t, int64_t heads, struct part *p) {
  if (t->rank == 4) {
    *p = (struct part){
        t->dim[0], t->dim[1], t->dim[2], t->dim[3], {t->dim[1] * t->dim[2] * t->dim[3], t->dim[2] * t->dim[3], t->dim[3]}};
    return true;
  }
  if (t->rank != 3 || heads < 1 || t->dim[2] % heads) return false;
  int64_t d = t->dim[2] / heads;
  *p = (struct part){t->dim[0], heads, t->dim[1], d, {t->dim[1] * t->dim[2], d, t->dim[2]}};
  return true;
}

/* Returns present = concat(past, new), [batch, heads, past + n, d], in output `out`, or in temporary memory if nothing uses that
 * output. The caller checks c->status. */
static const float *extend(struct ane_prim_call *c, int out, const struct ane_dyn *past, const struct ane_dyn *t,
                           const struct part *p, int64_t *total) {
  int64_t n = past ? past->dim[2] : 0, dim[4] = {p->batch, p->heads, n + p->n, p->d};
  *total = dim[2];
  const float *v = prim_f32(c, t), *old = past ? prim_f32(c, past) : NULL;
  float *y = prim_wanted(c, out) ? prim_out(c, out, ANE_F32, 4, dim) : prim_temp_array(c, sizeof *y, 4, dim);
  if (c->status || *total == 0 || p->d == 0) return y;
  for (int64_t b = 0; b < p->batch; b++)
    for (int64_t h = 0; h < p->heads; h++) {
      float *to = y + (b * p->heads + h) * dim[2] * p->d;
      if (old) memcpy(to, old + (b * p->heads + h) * n * p->d, (size_t)(n * p->d) * sizeof *to);
      for (int64_t i = 0; i < p->n; i++)
        memcpy(to + (n + i) * p->d, v + b * p->stride[0] + h * p->stride[1] + i * p->stride[2], (size_t)p->d * sizeof *to);
    }
  return y;
}

static bool past_fits(const struct ane_dyn *past, const struct part *p) {
  return !past || (past->rank == 4 && past->dim[0] == p->batch && past->dim[1] == p->heads && past->dim[3] == p->d);
}

/* Reads a mask that broadcasts to [batch, heads, s, t]. It may have fewer keys, `limit` then: those beyond are hidden. */
static ane_status read_mask(struct ane_prim_call *c, const struct ane_dyn *m, struct prim_attention_args *a, int64_t *limit) {
  int64_t full[4] = {a->batch, a->heads, a->s, a->t}, dim[ANE_DYN_RANK];
  int rank;
  char x[ANE_DYN_TEXT], y[ANE_DYN_TEXT];
  *limit = a->t;
  if (m->rank > 0 && m->dim[m->rank - 1] > 1 && m->dim[m->rank - 1] < a->t) *limit = full[3] = m->dim[m->rank - 1];
  bool fits = m->rank <= 4 && prim_broadcast(m->rank, m->dim, 4, full, &rank, dim) && memcmp(dim, full, sizeof full) == 0;
  full[3] = a->t;
  if (!fits)
    return prim_fail(c, ANE_SHAPE, "attn_mask is %s, but must broadcast to %s", ane_dyn_text(m, x), ane_dyn_dims(4, full, y));
  full[3] = *limit;
  prim_broadcast_strides(m, 4, full, a->bias_stride);
  if (m->dtype == ANE_BOOL)
    a->mask = m->data;
  else
    a->bias = prim_f32(c, m);
  return c->status;
}

/* Which keys queries see. Query i of a batch entry is at position `before` + i, before valid[b] - s if `valid` is given. */
struct visible {
  bool causal;           /* keys up to the query's own position */
  int64_t before, limit; /* keys below the limit */
  int64_t left, right;   /* at most so many positions before and after the query's own; negative: any number */
  const int64_t *valid;  /* NULL, or for each batch entry the keys that count */
};

static ane_status set_visible(struct ane_prim_call *c, struct prim_attention_args *a, const struct visible *v) {
  int64_t n = a->batch * a->s, *first = prim_temp(c, (uint64_t)n * sizeof *first),
          *last = prim_temp(c, (uint64_t)n * sizeof *last);
  for (int64_t i = 0; !c->status && i < n; i++) {
    int64_t valid = v->valid ? ANE_MIN(ANE_MAX(v->valid[i / a->s], 0), a->t) : a->t;
    int64_t at = (v->valid ? valid - a->s : v->before) + i % a->s;
    first[i] = v->left >= 0 && v->left < at ? at - v->left : 0;
    last[i] = ANE_MIN(v->limit, valid);
    if (v->causal) last[i] = ANE_MIN(last[i], at + 1);
    if (v->right >= 0 && v->right < a->t) last[i] = ANE_MIN(last[i], at + v->right + 1);
  }
  a->first = first;
  a->last = last;
  return c->status;
}

/* Reads nonpad_kv_seqlen, the windows and what the fourth output holds. */
static ane_status read_options(struct ane_prim_call *c, const struct ane_dyn *past, struct prim_attention_args *j,
                               struct visible *v) {
  const struct ane_dyn *valid = prim_in(c, "nonpad_kv_seqlen");
  int64_t mode = prim_int(c, "qk_mode", 0), dim[4] = {j->batch, j->heads, j->s, j->t};
  v->left = prim_int(c, "left_window", -1), v->right = prim_int(c, "right_window", -1);
  if (c->status) return c->status;
  if (mode < 0 || mode > 3) return prim_fail(c, ANE_INVALID, "qk_matmul_output_mode is %" PRId64 ", not 0 to 3", mode);
  if (valid && past) return prim_fail(c, ANE_INVALID, "nonpad_kv_seqlen cannot be combined with past_key");
  if (valid && valid->count != j->batch)
    return prim_fail(c, ANE_SHAPE, "nonpad_kv_seqlen has %" PRId64 " elements for a batch of %" PRId64, valid->count, j->batch);
  v->valid = valid ? prim_i64(c, valid) : NULL;
  j->qk_mode = (int)mode;
  if (prim_wanted(c, 3)) j->qk = prim_out(c, 3, ANE_F32, 4, dim);
  return c->status;
}

ane_status prim_attention(struct ane_prim_call *c) {
  const struct ane_dyn *q = c->in[0], *k = c->in[1], *v = c->in[2], *mask = prim_in(c, "attn_mask"), *pk = prim_in(c, "past_key"),
                       *pv = prim_in(c, "past_value");
  int64_t qh = prim_int(c, "q_num_heads", 0), kh = prim_int(c, "kv_num_heads", 0), t, tv;
  struct visible seen = {.causal = prim_bool(c, "is_causal", false)};
  struct part a, b, d;
  char x[ANE_DYN_TEXT], y[ANE_DYN_TEXT];
  struct prim_attention_args j = {.softcap = prim_float(c, "softcap", 0)};
  if (c->status) return c->status;
  bool fits = part_of(q, qh, &a) && part_of(k, kh, &b) && part_of(v, kh, &d) && a.batch == b.batch && b.batch == d.batch &&
              a.d == b.d && b.heads == d.heads && b.n == d.n;
  if (!fits || b.heads < 1 || a.heads % b.heads || !past_fits(pk, &b) || !past_fits(pv, &d) || !pk != !pv ||
      (pk && pk->dim[2] != pv->dim[2]))
    return prim_fail(c, ANE_SHAPE, "query %s, key %s, %" PRId64 " and %" PRId64 " heads do not fit together", ane_dyn_text(q, x),
                     ane_dyn_text(k, y), qh, kh);
  j.batch = a.batch, j.heads = a.heads, j.kv_heads = b.heads, j.s = a.n, j.d = a.d, j.dv = d.d;
  j.scale = prim_float(c, "scale", 1 / sqrtf((float)ANE_MAX(a.d, 1)));
  j.k = extend(c, 1, pk, k, &b, &t);
  j.v = extend(c, 2, pv, v, &d, &tv);
  j.t = t;
  j.q = prim_f32(c, q);
  int64_t deep[4] = {a.batch, a.heads, a.n, d.d}, all;
  if (!ane_dyn_count(4, deep, &all))
    return prim_fail(c, ANE_RANGE, "a result of shape %s has too many elements", ane_dyn_dims(4, deep, x));
  int64_t flat[3] = {a.batch, a.n, a.heads * d.d};
  j.y = prim_out(c, 0, ANE_F32, q->rank, q->rank == 3 ? flat : deep);
  seen.before = t - b.n, seen.limit = t;
  if (c->status || read_options(c, pk, &j, &seen) || (mask && read_mask(c, mask, &j, &seen.limit)) || set_visible(c, &j, &seen))
    return c->status;
  memcpy(j.q_stride, a.stride, sizeof a.stride);
  int64_t ks[3] = {b.heads * t * b.d, t * b.d, b.d}, vs[3] = {b.heads * t * d.d, t * d.d, d.d};
  int64_t ys3[3] = {a.n * a.heads * d.d, d.d, a.heads * d.d}, ys4[3] = {a.heads * a.n * d.d, a.n * d.d, d.d};
  memcpy(j.k_stride, ks, sizeof ks);
  memcpy(j.v_stride, vs, sizeof vs);
  memcpy(j.y_stride, q->rank == 3 ? ys3 : ys4, sizeof ys3);
  return prim_attention_core(c, &j);
}

/* MIL's op: all operands have the same leading dimensions, and each query head has a key head of its own. */
ane_status prim_scaled_dot_product_attention(struct ane_prim_call *c) {
  const struct ane_dyn *q = c->in[0], *k = c->in[1], *v = c->in[2], *mask = prim_in(c, "attn_mask");
  int64_t n = 1, dim[ANE_DYN_RANK];
  bool fits = q->rank >= 3 && k->rank == q->rank && v->rank == q->rank;
  for (int i = 0; fits && i + 2 < q->rank; i++) fits = q->dim[i] == k->dim[i] && q->dim[i] == v->dim[i], n *= q->dim[i];
  int r = q->rank;
  if (!fits || q->dim[r - 1] != k->dim[r - 1] || k->dim[r - 2] != v->dim[r - 2])
    return prim_fail(c, ANE_SHAPE, "query, key and value do not fit together");
  memcpy(dim, q->dim, sizeof dim);
  dim[r - 1] = v->dim[r - 1];
  struct prim_attention_args j = {
      .batch = n, .heads = 1, .kv_heads = 1, .s = q->dim[r - 2], .t = k->dim[r - 2], .d = q->dim[r - 1], .dv = v->dim[r - 1]};
  j.scale = 1 / sqrtf((float)ANE_MAX(j.d, 1));
  j.q = prim_f32(c, q), j.k = prim_f32(c, k), j.v = prim_f32(c, v);
  j.y = prim_out(c, 0, ANE_F32, r, dim);
  j.q_stride[0] = j.s * j.d, j.q_stride[2] = j.d;
  j.k_stride[0] = j.t * j.d, j.k_stride[2] = j.d;
  j.v_stride[0] = j.t * j.dv, j.v_stride[2] = j.dv;
  j.y_stride[0] = j.s * j.dv, j.y_stride[2] = j.dv;
  if (mask) { /* broadcast to all leading dimensions: the core has strides for two of them only */
    int64_t full[ANE_DYN_RANK], out[ANE_DYN_RANK], stride[ANE_DYN_RANK];
    int rank;
    memcpy(full, q->dim, sizeof full);
    full[r - 1] = j.t;
    if (!prim_broadcast(mask->rank, mask->dim, r, full, &rank, out) || rank != r ||
        memcmp(out, full, (size_t)r * sizeof *out) != 0)
      return prim_fail(c, ANE_SHAPE, "attn_mask does not fit");
    ane_dtype t;
    const void *m = prim_elements(c, mask, &t);
    const int64_t all[3] = {n, j.s, j.t};
    void *spread = prim_temp_array(c, prim_width(t), 3, all);
    if (c->status) return c->status;
    prim_broadcast_strides(mask, r, full, stride);
    prim_copy(spread, m, prim_width(t), r, full, stride);
    if (t == ANE_BOOL)
      j.mask = spread;
    else if (t == ANE_F32)
      j.bias = spread;
    else
      return prim_fail(c, ANE_UNSUPPORTED, "attn_mask of type %s", ane_dtype_info(t)->name);
    j.bias_stride[0] = j.s * j.t, j.bias_stride[2] = j.t, j.bias_stride[3] = 1;
  }
  const struct visible all = {.limit = j.t, .left = -1, .right = -1};
  return set_visible(c, &j, &all) ? c->status : prim_attention_core(c, &j);
}
