/* Gradients of products, norms, ropes, acts and logits. */
#include "quant/gradient.h"
#include "quant/exponential.h"
#include "quant/quant.h"
#include "quant/wide.h"

#include "base/alloc.h"
#include "tensor/rows.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* ---- Memory ------------------------------------------------------------------------------------------------------------*/

ane_status ane_gradient_take(struct ane_gradient_space *s, size_t count, float **out, struct ane_error *err) {
  if (count > s->count) {
    ane_gradient_space_free(s);
    s->data = ane_malloc(count * sizeof *s->data);
    if (!s->data) return ane_fail(err, ANE_NOMEM, "no memory for gradients: %zu floats", count);
    s->count = count;
  }
  *out = s->data;
  return ANE_OK;
}

void ane_gradient_space_free(struct ane_gradient_space *s) {
  ane_free(s->data);
  *s = (struct ane_gradient_space){0};
}

/* ---- Products ----------------------------------------------------------------------------------------------------------*/

/* CHUNK: rows of W that are multiplied together; their sums do not exceed 32 bits (wide.h). LINE: floats of a cache line. */
enum { CHUNK = ANE_CODE_TOKENS, LINE = 16 };

/* dx' = W' dy': panels of 32 tokens, whose sums are [cols][32] each. Both factors are codes, with a scale for each column of W
 * and each token in a chunk of rows. */
struct product {
  const struct ane_tensor *w;
  ane_decode_fn decode;
  const float *dy;
  float *dx;
  int64_t tokens, rows, cols, padded, panels; /* padded: cols, to whole panels */
  float *weights, *weight_scales;             /* [CHUNK][padded], [padded] */
  float *left, *left_scales;                  /* of each panel of tokens: rows of dy' [CHUNK][32]; [32] */
  float *sums;                                /* [panels][padded][32] */
  int16_t *weight_codes;                      /* [padded / 32][CHUNK / 2][32][2] */
  int16_t *left_codes;                        /* [panels][CHUNK / 2][32][2] */
  uint8_t *stored;                            /* [CHUNK][row_bytes]: rows as they are stored */
  size_t row_bytes;
  int64_t from, n; /* rows of W of this step */
  _Atomic int64_t next;
};

enum { PANEL_CODES = CHUNK * ANE_PANEL };

static void decode_rows(void *arg, int thread, int threads) {
  struct product *p = arg;
  (void)thread, (void)threads;
  for (int64_t r; (r = atomic_fetch_add(&p->next, 1)) < p->n;) {
    float *to = p->weights + r * p->padded;
    if (p->w->gather)
      ane_gather_floats(p->w, p->from + r, to);
    else
      p->decode(ane_tensor_rows(p->w, p->from + r, 1, p->row_bytes, p->stored + (size_t)r * p->row_bytes), to, (uint64_t)p->cols);
  }
}

/* Rows [from, from + n) of dy' of a panel of tokens. */
static void transpose_in(const struct product *p, int64_t panel, float *to) {
  const float *dy = p->dy + panel * ANE_PANEL * p->rows + p->from;
  const int64_t tokens = ANE_MIN(p->tokens - panel * ANE_PANEL, ANE_PANEL);
  for (int64_t from = 0; from < p->n; from += LINE)
    for (int64_t l = 0; l < tokens; l++)
      for (int64_t r = from; r < ANE_MIN(from + LINE, p->n); r++) to[r * ANE_PANEL + l] = dy[l * p->rows + r];
}

/* If the panel has numbers that are not finite, makes all its scales, and so all its sums, NaN. */
static void mark(bool fine, float *scales) {
  for (int i = 0; !fine && i < ANE_PANEL; i++) scales[i] = NAN;
}

static void make_codes(void *arg, int thread, int threads) {
  struct product *p = arg;
  const int64_t of_weights = p->padded / ANE_PANEL;
  (void)thread, (void)threads;
  for (int64_t q; (q = atomic_fetch_add(&p->next, 1)) < of_weights + p->panels;) {
    if (q < of_weights) {
      const int64_t c = q * ANE_PANEL;
      mark(ane_codes_of(p->weights + c, NULL, p->padded, p->n, ANE_MIN(p->cols - c, ANE_PANEL), p->weight_codes + q * PANEL_CODES,
                        p->weight_scales + c),
           p->weight_scales + c);
    } else {
      const int64_t panel = q - of_weights;
      float *left = p->left + panel * PANEL_CODES, *scales = p->left_scales + panel * ANE_PANEL;
      transpose_in(p, panel, left);
      mark(ane_codes_of(left, NULL, ANE_PANEL, p->n, ANE_MIN(p->tokens - panel * ANE_PANEL, ANE_PANEL),
                        p->left_codes + panel * PANEL_CODES, scales),
           scales);
    }
  }
}

static void add_products(void *arg, int thread, int threads) {
  struct product *p = arg;
  const int64_t parts = p->padded / ANE_PANEL;
  (void)thread, (void)threads;
  for (int64_t task; (task = atomic_fetch_add(&p->next, 1)) < parts * p->panels;) {
    const int64_t q = task / parts, c = task % parts;
    const int16_t *w = p->weight_codes + c * PANEL_CODES, *left = p->left_codes + q * PANEL_CODES;
    float *sums = p->sums + (q * p->padded + c * ANE_PANEL) * ANE_PANEL;
    if (p->from == 0) memset(sums, 0, ANE_PANEL * ANE_PANEL * sizeof *sums);
    for (int k = 0; k < ANE_PANEL; k += ANE_STRIP)
      ane_strip_codes(sums + k * ANE_PANEL, ANE_PANEL, w + 2 * k, p->weight_scales + c * ANE_PANEL + k, left,
                      p->left_scales + q * ANE_PANEL, (p->n + 1) / 2);
  }
}

static void transpose_out(void *arg, int thread, int threads) {
  struct product *p = arg;
  (void)thread, (void)threads;
  for (int64_t q; (q = atomic_fetch_add(&p->next, 1)) < p->panels;) {
    const float *from = p->sums + q * p->padded * ANE_PANEL;
    float *dx = p->dx + q * ANE_PANEL * p->cols;
    int64_t n = ANE_MIN(p->tokens - q * ANE_PANEL, ANE_PANEL);
    for (int64_t first = 0; first < p->cols; first += LINE)
      for (int64_t l = 0; l < n; l++)
        for (int64_t c = first; c < ANE_MIN(first + LINE, p->cols); c++) dx[l * p->cols + c] = from[c * ANE_PANEL + l];
  }
}

static void run_step(struct ane_pool *pool, struct product *p, ane_pool_fn fn) {
  atomic_store(&p->next, 0);
  ane_pool_run(pool, fn, p);
}

static void multiply_all(struct ane_pool *pool, struct product *p) {
  for (p->from = 0; p->from < p->rows; p->from += CHUNK) {
    p->n = ANE_MIN(p->rows - p->from, CHUNK);
    run_step(pool, p, decode_rows);
    run_step(pool, p, make_codes);
    run_step(pool, p, add_products);
  }
  run_step(pool, p, transpose_out);
}

/* Places the arrays of p in a block of floats. Returns the number of floats. at NULL: only counts them. */
static size_t place(struct product *p, float *at) {
  const size_t padded = (size_t)p->padded, panels = (size_t)p->panels;
  const size_t counts[] = {CHUNK * padded,
                           padded,
                           panels * PANEL_CODES,
                           panels * ANE_PANEL,
                           panels * padded * ANE_PANEL,
                           CHUNK * padded / 2,
                           panels * PANEL_CODES / 2,
                           CHUNK * p->row_bytes / sizeof(float) + 1};
  float *parts[8] = {0};
  size_t size = 0;
  for (int i = 0; i < 8; size += counts[i++])
    if (at) parts[i] = at + size;
  p->weights = parts[0], p->weight_scales = parts[1], p->left = parts[2], p->left_scales = parts[3], p->sums = parts[4];
  p->weight_codes = (int16_t *)(void *)parts[5], p->left_codes = (int16_t *)(void *)parts[6];
  p->stored = (uint8_t *)(void *)parts[7];
  return size;
}

ane_status ane_gradient_product(struct ane_pool *pool, struct ane_gradient_space *space, const struct ane_tensor *w,
                                const float *dy, int64_t tokens, float *dx, struct ane_error *err) {
  struct product p = {.w = w, .dy = dy, .dx = dx, .tokens = tokens, .rows = w->shape.dim[0], .cols = w->shape.dim[1]};
  uint64_t bytes;
  float *memory = NULL;
  p.decode = ane_decoder(w->dtype);
  p.padded = (p.cols + ANE_PANEL - 1) / ANE_PANEL * ANE_PANEL;
  p.panels = (tokens + ANE_PANEL - 1) / ANE_PANEL;
  if (!p.decode || !ane_dtype_bytes(w->dtype, (uint64_t)p.cols, &bytes))
    return ane_fail(err, ANE_UNSUPPORTED, "no gradient of products with %s", ane_dtype_info(w->dtype)->name);
  p.row_bytes = (size_t)bytes;
  ane_status st = ane_gradient_take(space, place(&p, NULL), &memory, err);
  if (st) return st;
  place(&p, memory);
  multiply_all(pool, &p);
  return ANE_OK;
}

/* ---- Norms -------------------------------------------------------------------------------------------------------------*/

struct norming {
  const struct ane_gradient_norm *n;
  const float *x, *dy;
  float *dx, *dw;
  int64_t width;
  _Atomic int64_t next;
};

/* The mean (0 if the norm does not subtract it) and 1 / deviation of a group. */
static void moments_of(const struct norming *k, const float *x, float *mean, float *inverse) {
  double sum = 0, squares = 0;
  for (int64_t c = 0; k->n->centred && c < k->width; c++) sum += x[c];
  *mean = (float)(sum / (double)k->width);
  for (int64_t c = 0; c < k->width; c++) squares += (double)(x[c] - *mean) * (x[c] - *mean);
  *inverse = (float)(1 / sqrt(squares / (double)k->width + k->n->eps));
}

static void norm_group(const struct norming *k, const float *x, const float *dy, float *dx) {
  float mean, inverse;
  double along = 0, sum = 0;
  moments_of(k, x, &mean, &inverse);
  for (int64_t c = 0; c < k->width; c++) {
    double g = k->n->weight ? (double)dy[c] * k->n->weight[c] : dy[c];
    along += g * ((x[c] - mean) * inverse);
    if (k->n->centred) sum += g;
  }
  along /= (double)k->width, sum /= (double)k->width;
  for (int64_t c = 0; c < k->width; c++) {
    float g = k->n->weight ? dy[c] * k->n->weight[c] : dy[c];
    dx[c] = inverse * (g - (float)sum - (x[c] - mean) * inverse * (float)along);
  }
}

static void norm_tokens(void *arg, int thread, int threads) {
  struct norming *k = arg;
  (void)thread, (void)threads;
  for (int64_t t; (t = atomic_fetch_add(&k->next, 1)) < k->n->tokens;)
    for (int64_t c = 0; c < k->n->cols; c += k->width)
      norm_group(k, k->x + t * k->n->cols + c, k->dy + t * k->n->cols + c, k->dx + t * k->n->cols + c);
}

void ane_gradient_norm(struct ane_pool *pool, const struct ane_gradient_norm *n, const float *x, const float *dy, float *dx,
                       float *dw) {
  struct norming k = {.n = n, .x = x, .dy = dy, .dx = dx, .dw = dw, .width = n->cols / n->groups};
  atomic_store(&k.next, 0);
  ane_pool_run(pool, norm_tokens, &k);
  for (int64_t at = 0; dw && at < n->tokens * n->cols; at += k.width) {
    float mean, inverse;
    moments_of(&k, x + at, &mean, &inverse);
    for (int64_t c = 0; c < k.width; c++) dw[c] += dy[at + c] * ((x[at + c] - mean) * inverse);
  }
}

/* ---- Ropes and acts ------------------------------------------------------------------------------------------------------*/

void ane_gradient_rope(const float *table, int64_t tokens, int64_t cols, int64_t heads, int64_t r, bool interleaved,
                       const float *dy, float *dx) {
  int64_t half = r / 2, width = cols / heads, step = interleaved ? 2 : 1, gap = interleaved ? 1 : half;
  memcpy(dx, dy, (size_t)(tokens * cols) * sizeof *dx);
  for (int64_t t = 0; t < tokens; t++)
    for (int64_t h = 0; h < heads; h++) {
      const float *c = table + t * r, *s = c + half;
      float *to = dx + t * cols + h * width;
      for (int64_t i = 0; i < half; i++) {
        float a = to[i * step], b = to[i * step + gap];
        to[i * step] = a * c[i] + b * s[i];
        to[i * step + gap] = b * c[i] - a * s[i];
      }
    }
}

enum {
#define ANE_ACT(id, name) id,
#include "tensor/act.def"
#undef ANE_ACT
  N_ACTS
};

int ane_gradient_act(const char *name) {
  static const char *const names[N_ACTS] = {
#define ANE_ACT(id, name) #name,
#include "tensor/act.def"
#undef ANE_ACT
  };
  for (int i = 0; i < N_ACTS; i++)
    if (strcmp(name, names[i]) == 0) return i;
  return -1;
}

/* The value of an act at x; *slope: its derivative. */
static float act_at(int act, float x, float *slope) {
  const double root = 0.7978845608028654, cubic = 0.044715; /* sqrt(2 / pi); Hendrycks and Gimpel 2016 */
  double v = x, s;
  switch (act) {
    case SILU:
      s = 1 / (1 + ane_exp(-v));
      *slope = (float)(s * (1 + v * (1 - s)));
      return (float)(v * s);
    case SIGMOID:
      s = 1 / (1 + ane_exp(-v));
      *slope = (float)(s * (1 - s));
      return (float)s;
    case GELU_TANH:
      s = ane_tanh(root * (v + cubic * v * v * v));
      *slope = (float)(0.5 * (1 + s) + 0.5 * v * (1 - s * s) * root * (1 + 3 * cubic * v * v));
      return (float)(0.5 * v * (1 + s));
    case GELU_ERF:
      s = 0.5 * (1 + ane_erf(v * 0.7071067811865476));
      *slope = (float)(s + v * ane_exp(-0.5 * v * v) * 0.3989422804014327);
      return (float)(v * s);
    default: *slope = x > 0 ? 1 : 0; return x > 0 ? x : 0;
  }
}

struct gating {
  int act;
  const float *x, *u, *dy;
  float *dx, *du;
  int64_t n;
  _Atomic int64_t next;
};

static void gate(void *arg, int thread, int threads) {
  struct gating *k = arg;
  enum { PIECE = 4096 };
  (void)thread, (void)threads;
  for (int64_t from; (from = atomic_fetch_add(&k->next, PIECE)) < k->n;)
    for (int64_t i = from; i < ANE_MIN(from + PIECE, k->n); i++) {
      float slope, y = act_at(k->act, k->x[i], &slope);
      k->dx[i] = k->dy[i] * slope * (k->u ? k->u[i] : 1);
      if (k->u) k->du[i] = k->dy[i] * y;
    }
}

void ane_gradient_glu(struct ane_pool *pool, int act, const float *x, const float *u, const float *dy, float *dx, float *du,
                      int64_t n) {
  struct gating k = {.act = act, .x = x, .u = u, .dy = dy, .dx = dx, .du = du, .n = n};
  atomic_store(&k.next, 0);
  ane_pool_run(pool, gate, &k);
}

/* ---- Logits ------------------------------------------------------------------------------------------------------------*/

/* out = exp(x - the largest x). Returns ln of the sum of exp(x); *scale is what makes `out` a distribution. */
static double exponentials(const float *x, int64_t n, float *out, double *scale) {
  float most = x[0];
  for (int64_t i = 1; i < n; i++) most = x[i] > most ? x[i] : most;
  const double sum = ane_exp_row(x, n, most, out);
  *scale = 1 / sum;
  return log(sum) + most;
}

struct diverging {
  const struct ane_gradient_logits *l;
  float *other; /* of each thread: [n] */
  _Atomic int64_t next;
};

/* KL = sum of p ((want - got) - (ln of want's sum - ln of got's)), and p adds up to 1. */
static void diverge_rows(void *arg, int thread, int threads) {
  struct diverging *k = arg;
  const int64_t n = k->l->n;
  float *q = k->other + thread * n;
  (void)threads;
  for (int64_t r; (r = atomic_fetch_add(&k->next, 1)) < k->l->rows;) {
    const float *want = k->l->want[r], *got = k->l->got[r];
    float *p = k->l->dy + r * n;
    const int32_t label = k->l->label[r];
    const double share = label < 0 ? 0 : k->l->share;
    double by_p, by_q, mean = 0;
    const double log_want = exponentials(want, n, p, &by_p), log_got = exponentials(got, n, q, &by_q);
    for (int64_t i = 0; i < n; i++) {
      if (p[i] > 0) mean += p[i] * ((double)want[i] - got[i]); /* not 0 times infinity */
      p[i] = (float)(q[i] * by_q - (1 - share) * p[i] * by_p);
    }
    if (label >= 0) p[label] -= (float)share;
    k->l->kl[r] = mean * by_p - (log_want - log_got);
    k->l->log_want[r] = log_want, k->l->log_got[r] = log_got;
  }
}

ane_status ane_gradient_divergence(struct ane_pool *pool, struct ane_gradient_space *space, const struct ane_gradient_logits *l,
                                   struct ane_error *err) {
  struct diverging k = {.l = l};
  ane_status st = ane_gradient_take(space, (size_t)ane_pool_threads(pool) * (size_t)l->n, &k.other, err);
  if (!st) ane_pool_run(pool, diverge_rows, &k);
  return st;
}
