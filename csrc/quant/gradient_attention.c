/* The gradient of attention: scores are computed again, row by row, and not kept. */
#include "quant/gradient.h"
#include "quant/wide.h"

#include "base/alloc.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

struct attention_call {
  const struct ane_gradient_attention *a;
  const float *q, *k, *v, *dy;
  float *dq, *dk, *dv;
  float *transposed; /* k' and v' of each kv head: [kv_heads][2][dim][tokens] */
  float *parts;      /* dk and dv of each head: [heads][2][tokens][dim] */
  float *scratch;    /* of each thread: probabilities, their gradients and slopes [3][tokens] */
  _Atomic int64_t next;
};

/* out[j] += sum over c of x[c] m[c][j], j in [from, to) */
static ANE_WIDER void add_rows(float *out, const float *x, const float *m, int64_t ld, int64_t dim, int64_t from, int64_t to) {
  for (int64_t c = 0; c < dim; c++) {
    const float by = x[c], *row = m + c * ld;
    for (int64_t j = from; j < to; j++) out[j] += by * row[j];
  }
}

/* Row j of out += by[j] x, j in [from, to) */
static ANE_WIDER void add_outer(float *out, const float *by, const float *x, int64_t dim, int64_t from, int64_t to) {
  for (int64_t j = from; j < to; j++) {
    const float b = by[j];
    float *row = out + j * dim;
    for (int64_t c = 0; c < dim; c++) row[c] += b * x[c];
  }
}

/* out[c] += sum over j of by[j] m[j][c] */
static ANE_WIDER void add_weighted(float *out, const float *by, const float *m, int64_t ld, int64_t dim, int64_t from,
                                   int64_t to) {
  for (int64_t j = from; j < to; j++) {
    const float b = by[j], *row = m + j * ld;
    for (int64_t c = 0; c < dim; c++) out[c] += b * row[c];
  }
}

/* Scores to probabilities p [from, to); slopes: what a soft cap multiplies gradients by. */
static void normalise(const struct ane_gradient_attention *a, int64_t head, float *p, float *slopes, int64_t from, int64_t to) {
  float most = a->sinks ? a->sinks[head] : -INFINITY;
  for (int64_t j = from; j < to; j++) {
    float s = p[j] * a->scale;
    slopes[j] = a->scale;
    if (a->softcap > 0) {
      float t = tanhf(s / a->softcap);
      s = a->softcap * t;
      slopes[j] *= 1 - t * t;
    }
    p[j] = s;
    most = s > most ? s : most;
  }
  double sum = a->sinks ? exp((double)(a->sinks[head] - most)) : 0;
  for (int64_t j = from; j < to; j++) {
    p[j] = expf(p[j] - most);
    sum += p[j];
  }
  for (int64_t j = from; j < to; j++) p[j] = (float)(p[j] / sum);
}

/* What one head needs. */
struct head {
  const float *kt, *vt;
  float *dk, *dv, *p, *dp, *slopes;
};

static struct head head_of(const struct attention_call *t, int64_t head, int thread) {
  int64_t n = t->a->tokens, size = n * t->a->dim, kv = head / (t->a->heads / t->a->kv_heads);
  float *scratch = t->scratch + thread * 3 * n;
  return (struct head){.kt = t->transposed + 2 * kv * size,
                       .vt = t->transposed + (2 * kv + 1) * size,
                       .dk = t->parts + 2 * head * size,
                       .dv = t->parts + (2 * head + 1) * size,
                       .p = scratch,
                       .dp = scratch + n,
                       .slopes = scratch + 2 * n};
}

static void add_query(const struct attention_call *t, const struct head *s, int64_t kv, int64_t head, int64_t i) {
  const struct ane_gradient_attention *a = t->a;
  const int64_t d = a->dim, wide = a->heads * d, narrow = a->kv_heads * d;
  const int64_t from = a->window > 0 && i >= a->window ? i - a->window + 1 : 0, to = i + 1;
  const float *q = t->q + i * wide + head * d, *dy = t->dy + i * wide + head * d;
  memset(s->p + from, 0, (size_t)(to - from) * sizeof(float));
  memset(s->dp + from, 0, (size_t)(to - from) * sizeof(float));
  add_rows(s->p, q, s->kt, a->tokens, d, from, to);
  add_rows(s->dp, dy, s->vt, a->tokens, d, from, to);
  normalise(a, head, s->p, s->slopes, from, to);
  add_outer(s->dv, s->p, dy, d, from, to);
  double mean = 0;
  for (int64_t j = from; j < to; j++) mean += (double)s->p[j] * s->dp[j];
  for (int64_t j = from; j < to; j++) s->p[j] *= (s->dp[j] - (float)mean) * s->slopes[j];
  add_weighted(t->dq + i * wide + head * d, s->p, t->k + kv * d, narrow, d, from, to);
  add_outer(s->dk, s->p, q, d, from, to);
}

static void transpose(void *arg, int thread, int threads) {
  struct attention_call *t = arg;
  const int64_t n = t->a->tokens, d = t->a->dim, narrow = t->a->kv_heads * d;
  (void)thread, (void)threads;
  for (int64_t kv; (kv = atomic_fetch_add(&t->next, 1)) < t->a->kv_heads;) {
    float *kt = t->transposed + 2 * kv * n * d, *vt = kt + n * d;
    for (int64_t j = 0; j < n; j++)
      for (int64_t c = 0; c < d; c++) {
        kt[c * n + j] = t->k[j * narrow + kv * d + c];
        vt[c * n + j] = t->v[j * narrow + kv * d + c];
      }
  }
}

static void add_heads(void *arg, int thread, int threads) {
  struct attention_call *t = arg;
  (void)threads;
  for (int64_t h; (h = atomic_fetch_add(&t->next, 1)) < t->a->heads;) {
    struct head s = head_of(t, h, thread);
    for (int64_t i = 0; i < t->a->tokens; i++) add_query(t, &s, h / (t->a->heads / t->a->kv_heads), h, i);
  }
}

/* Adds up the heads of each kv head, in their order. */
static void add_up(const struct attention_call *t) {
  const int64_t n = t->a->tokens, d = t->a->dim, group = t->a->heads / t->a->kv_heads, narrow = t->a->kv_heads * d;
  for (int64_t h = 0; h < t->a->heads; h++) {
    const float *dk = t->parts + 2 * h * n * d, *dv = dk + n * d;
    for (int64_t j = 0; j < n; j++)
      for (int64_t c = 0, at = j * narrow + h / group * d; c < d; c++) {
        t->dk[at + c] += dk[j * d + c];
        t->dv[at + c] += dv[j * d + c];
      }
  }
}

ane_status ane_gradient_attention(struct ane_pool *pool, const struct ane_gradient_attention *a, const float *q, const float *k,
                                  const float *v, const float *dy, float *dq, float *dk, float *dv, struct ane_error *err) {
  struct attention_call t = {.a = a, .q = q, .k = k, .v = v, .dy = dy, .dq = dq, .dk = dk, .dv = dv};
  size_t size = (size_t)(a->tokens * a->dim), kv_heads = (size_t)a->kv_heads, heads = (size_t)a->heads;
  t.transposed = ane_malloc(2 * kv_heads * size * sizeof *t.transposed);
  t.parts = ane_calloc(2 * heads * size, sizeof *t.parts);
  t.scratch = ane_malloc((size_t)ane_pool_threads(pool) * 3 * (size_t)a->tokens * sizeof *t.scratch);
  bool fine = t.transposed && t.parts && t.scratch;
  if (fine) {
    memset(dq, 0, heads * size * sizeof *dq);
    memset(dk, 0, kv_heads * size * sizeof *dk);
    memset(dv, 0, kv_heads * size * sizeof *dv);
    ane_pool_run(pool, transpose, &t);
    atomic_store(&t.next, 0);
    ane_pool_run(pool, add_heads, &t);
    add_up(&t);
  }
  ane_free(t.transposed);
  ane_free(t.parts);
  ane_free(t.scratch);
  return fine ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for the gradient of attention");
}
