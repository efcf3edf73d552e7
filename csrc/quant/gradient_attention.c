/* The gradient of attention. The queries of a head are processed in blocks of 32, whose scores are computed again for each block
 * and not kept. All products run over the panels of wide.h. */
#include "quant/gradient.h"
#include "quant/exponential.h"
#include "quant/wide.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { QUERIES = ANE_PANEL };

struct attention_call {
  const struct ane_gradient_attention *a;
  const float *q, *k, *v, *dy;
  float *dq, *dk, *dv;
  int64_t n, d;   /* tokens and channels of a head, to whole panels */
  float *parts;   /* dk and dv of each head: [heads][2][n][d] */
  float *scratch; /* of each thread: struct head */
  _Atomic int64_t next;
};

/* The values of one head. Blocks: 32 tokens of all channels, [n / 32][d][32]. Panels: 32 channels of all tokens, [d / 32][n][32].
 * The padding after the last token and channel is 0. */
struct head {
  float *q_blocks, *dy_blocks, *k_blocks, *v_blocks, *q_panels, *dy_panels, *k_panels;
  float *p;       /* [32][n]: scores of a block of queries, then their probabilities */
  float *dp;      /* [32][n]: gradients of the probabilities, then of the scores */
  float *across;  /* [n][32]: the gradients of the scores, transposed */
  float *slopes;  /* [n]: what gradients of a query's scores are multiplied by */
  float *dq;      /* [32][d] */
  float *dk, *dv; /* [n][d], one after the other */
};

static size_t scratch_floats(int64_t n, int64_t d) { return (size_t)(7 * n * d + 3 * QUERIES * n + n + QUERIES * d); }

static struct head head_of(const struct attention_call *t, int64_t head, int thread) {
  const int64_t size = t->n * t->d, tile = QUERIES * t->n;
  float *at = t->scratch + (size_t)thread * scratch_floats(t->n, t->d), *parts = t->parts + 2 * head * size;
  return (struct head){.q_blocks = at,
                       .dy_blocks = at + size,
                       .k_blocks = at + 2 * size,
                       .v_blocks = at + 3 * size,
                       .q_panels = at + 4 * size,
                       .dy_panels = at + 5 * size,
                       .k_panels = at + 6 * size,
                       .p = at + 7 * size,
                       .dp = at + 7 * size + tile,
                       .across = at + 7 * size + 2 * tile,
                       .slopes = at + 7 * size + 3 * tile,
                       .dq = at + 7 * size + 3 * tile + t->n,
                       .dk = parts,
                       .dv = parts + size};
}

/* One head of x [tokens][ld], from its first channel on, as blocks and as panels (NULL: not wanted). */
static void spread(const struct attention_call *t, const float *x, int64_t ld, float *blocks, float *panels) {
  const size_t bytes = (size_t)(t->n * t->d) * sizeof *blocks;
  memset(blocks, 0, bytes);
  if (panels) memset(panels, 0, bytes);
  for (int64_t j = 0; j < t->a->tokens; j++, x += ld) {
    float *block = blocks + j / ANE_PANEL * t->d * ANE_PANEL + j % ANE_PANEL;
    for (int64_t c = 0; c < t->a->dim; c++) block[c * ANE_PANEL] = x[c];
    for (int64_t c = 0; panels && c < t->a->dim; c += ANE_PANEL)
      memcpy(panels + c * t->n + j * ANE_PANEL, x + c, (size_t)ANE_MIN(t->a->dim - c, ANE_PANEL) * sizeof *x);
  }
}

/* out [32][n] = products of the queries of a block [d][32] with the keys [from, to): those of whole blocks. */
static void multiply(const struct attention_call *t, const float *queries, const float *keys, float *out, int64_t from,
                     int64_t to) {
  for (int64_t r = 0; r < QUERIES; r++) memset(out + r * t->n + from, 0, (size_t)(to - from) * sizeof *out);
  for (int64_t j = from; j < to; j += ANE_PANEL)
    for (int64_t r = 0; r < QUERIES; r += ANE_STRIP)
      ane_strip(out + r * t->n + j, t->n, queries + r, QUERIES, keys + j * t->d, t->d);
}

/* Keys [from, to) of dk or dv += p' x: p [32][n], x the panels of q or dy. i: the first query of the block. */
static void add_to_keys(const struct attention_call *t, const float *p, const float *panels, float *out, int64_t i, int64_t from,
                        int64_t to) {
  for (int64_t j = from; j < to; j += ANE_STRIP)
    for (int64_t c = 0; c < t->d; c += ANE_PANEL)
      ane_strip(out + j * t->d + c, t->d, p + j, t->n, panels + c * t->n + i * ANE_PANEL, QUERIES);
}

/* dq of the block = the gradients of the scores times the keys [from, to). */
static void multiply_keys(const struct attention_call *t, const struct head *s, int64_t from, int64_t to) {
  for (int64_t r = 0; r < QUERIES; r++)
    for (int64_t j = from; j < to; j++) s->across[j * QUERIES + r] = s->dp[r * t->n + j];
  memset(s->dq, 0, (size_t)(QUERIES * t->d) * sizeof *s->dq);
  for (int64_t r = 0; r < QUERIES; r += ANE_STRIP)
    for (int64_t c = 0; c < t->d; c += ANE_PANEL)
      ane_strip(s->dq + r * t->d + c, t->d, s->across + from * QUERIES + r, QUERIES, s->k_panels + c * t->n + from * ANE_PANEL,
                to - from);
}

/* Scores to probabilities p [from, to); slopes: the scale, and what a soft cap multiplies gradients by. */
static void normalise(const struct ane_gradient_attention *a, int64_t head, float *p, float *slopes, int64_t from, int64_t to) {
  float most = a->sinks ? a->sinks[head] : -INFINITY;
  for (int64_t j = from; j < to; j++) {
    float s = p[j] * a->scale;
    slopes[j] = a->scale;
    if (a->softcap > 0) {
      float t = (float)ane_tanh((double)s / a->softcap);
      s = a->softcap * t;
      slopes[j] *= 1 - t * t;
    }
    p[j] = s;
    most = s > most ? s : most;
  }
  double sum = a->sinks ? ane_exp((double)(a->sinks[head] - most)) : 0;
  sum += ane_exp_row(p + from, to - from, most, p + from);
  for (int64_t j = from; j < to; j++) p[j] = (float)(p[j] / sum);
}

/* The first key that query i sees. */
static int64_t first_key(const struct ane_gradient_attention *a, int64_t i) {
  return a->window > 0 && i >= a->window ? i - a->window + 1 : 0;
}

/* Query i, for keys [from, to): scores p to probabilities, and their gradients dp to those of the scores. Keys that it does not
 * see have probability 0. */
static void finish_query(const struct attention_call *t, int64_t head, int64_t i, float *p, float *dp, float *slopes,
                         int64_t from, int64_t to) {
  const bool exists = i < t->a->tokens; /* the last block may have fewer queries */
  const int64_t first = exists ? first_key(t->a, i) : to, end = exists ? i + 1 : to;
  for (int part = 0; part < 2; part++) {
    float *row = part ? dp : p;
    memset(row + from, 0, (size_t)(first - from) * sizeof *row);
    memset(row + end, 0, (size_t)(to - end) * sizeof *row);
  }
  if (!exists) return;
  normalise(t->a, head, p, slopes, first, end);
  double mean = 0;
  for (int64_t j = first; j < end; j++) mean += (double)p[j] * dp[j];
  for (int64_t j = first; j < end; j++) dp[j] = p[j] * (dp[j] - (float)mean) * slopes[j];
}

/* The queries of a block, the first of which is i. */
static void add_block(const struct attention_call *t, const struct head *s, int64_t head, int64_t i) {
  const struct ane_gradient_attention *a = t->a;
  const int64_t from = first_key(a, i) / ANE_PANEL * ANE_PANEL, to = i + QUERIES;
  multiply(t, s->q_blocks + i * t->d, s->k_blocks, s->p, from, to);
  multiply(t, s->dy_blocks + i * t->d, s->v_blocks, s->dp, from, to);
  for (int64_t r = 0; r < QUERIES; r++) finish_query(t, head, i + r, s->p + r * t->n, s->dp + r * t->n, s->slopes, from, to);
  add_to_keys(t, s->p, s->dy_panels, s->dv, i, from, to);
  add_to_keys(t, s->dp, s->q_panels, s->dk, i, from, to);
  multiply_keys(t, s, from, to);
  for (int64_t r = i; r < ANE_MIN(to, a->tokens); r++)
    memcpy(t->dq + (r * a->heads + head) * a->dim, s->dq + (r - i) * t->d, (size_t)a->dim * sizeof *t->dq);
}

static void add_heads(void *arg, int thread, int threads) {
  struct attention_call *t = arg;
  const struct ane_gradient_attention *a = t->a;
  const int64_t wide = a->heads * a->dim, narrow = a->kv_heads * a->dim;
  (void)threads;
  for (int64_t h; (h = atomic_fetch_add(&t->next, 1)) < a->heads;) {
    const int64_t kv = h / (a->heads / a->kv_heads);
    struct head s = head_of(t, h, thread);
    memset(s.dk, 0, (size_t)(2 * t->n * t->d) * sizeof *s.dk);
    spread(t, t->q + h * a->dim, wide, s.q_blocks, s.q_panels);
    spread(t, t->dy + h * a->dim, wide, s.dy_blocks, s.dy_panels);
    spread(t, t->k + kv * a->dim, narrow, s.k_blocks, s.k_panels);
    spread(t, t->v + kv * a->dim, narrow, s.v_blocks, NULL);
    for (int64_t i = 0; i < a->tokens; i += QUERIES) add_block(t, &s, h, i);
  }
}

/* Sums the gradients of all heads that share a kv head, in the order of heads. */
static void add_up(const struct attention_call *t) {
  const int64_t size = t->n * t->d, dim = t->a->dim, group = t->a->heads / t->a->kv_heads, narrow = t->a->kv_heads * dim;
  for (int64_t h = 0; h < t->a->heads; h++) {
    const float *dk = t->parts + 2 * h * size, *dv = dk + size;
    for (int64_t j = 0; j < t->a->tokens; j++)
      for (int64_t c = 0, at = j * narrow + h / group * dim; c < dim; c++) {
        t->dk[at + c] += dk[j * t->d + c];
        t->dv[at + c] += dv[j * t->d + c];
      }
  }
}

ane_status ane_gradient_attention(struct ane_pool *pool, struct ane_gradient_space *space, const struct ane_gradient_attention *a,
                                  const float *q, const float *k, const float *v, const float *dy, float *dq, float *dk,
                                  float *dv, struct ane_error *err) {
  struct attention_call t = {.a = a, .q = q, .k = k, .v = v, .dy = dy, .dq = dq, .dk = dk, .dv = dv};
  t.n = (a->tokens + ANE_PANEL - 1) / ANE_PANEL * ANE_PANEL;
  t.d = (a->dim + ANE_PANEL - 1) / ANE_PANEL * ANE_PANEL;
  const size_t parts = (size_t)(2 * a->heads * t.n * t.d), keys = (size_t)(a->tokens * a->kv_heads * a->dim) * sizeof *dk;
  ane_status st = ane_gradient_take(space, parts + (size_t)ane_pool_threads(pool) * scratch_floats(t.n, t.d), &t.parts, err);
  if (st) return st;
  t.scratch = t.parts + parts;
  memset(dk, 0, keys);
  memset(dv, 0, keys);
  ane_pool_run(pool, add_heads, &t);
  add_up(&t);
  return ANE_OK;
}
