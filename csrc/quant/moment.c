/* Second moments of inputs. */
#include "quant/compensate.h"
#include "quant/wide.h"

#include "base/alloc.h"
#include "base/prefetch.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>

/* Tokens that are added at a time: their sums do not exceed 32 bits, and two panels of them stay in the L1 cache. */
enum { PIECE = ANE_CODE_TOKENS };

ane_status ane_moment_make(struct ane_moment *m, int64_t cols, struct ane_error *err) {
  *m = (struct ane_moment){.cols = cols, .padded = (cols + ANE_PANEL - 1) / ANE_PANEL * ANE_PANEL};
  size_t n;
  if (cols < 1 || cols > INT32_MAX || !ane_mul_size((size_t)m->padded, (size_t)m->padded, &n) || n > SIZE_MAX / sizeof(float))
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " columns", cols);
  m->sum = ane_calloc(n, sizeof *m->sum);
  return m->sum ? ANE_OK : ane_fail(err, ANE_NOMEM, "no memory for the second moment of %" PRId64 " columns", cols);
}

void ane_moment_free(struct ane_moment *m) {
  ane_free(m->sum);
  ane_free(m->drift);
  *m = (struct ane_moment){0};
}

void ane_moment_diagonal(const struct ane_moment *m, float *out) {
  for (int64_t c = 0; c < m->cols; c++) out[c] = m->sum[c * m->padded + c] / (float)ANE_MAX(m->tokens, 1);
}

/* Codes of n tokens: panels of 32 columns, [padded / 32][pairs][32][2]; two tokens of a column are side by side. */
struct codes {
  int16_t *code;
  float *scale; /* [padded]: a number is code * scale */
};

struct adding {
  struct ane_moment *m;
  const float *x;              /* [n][cols] */
  const float *source;         /* [n][cols], or NULL */
  struct codes inputs, drifts; /* of x, and of source - x */
  int64_t n, pairs;            /* tokens; pairs of them, the last one with zeros */
  float factor;                /* of the scales: the square root of the tokens' weight */
  int64_t n_panels;
  _Atomic int64_t next; /* panel to fill, or row of panels */
  _Atomic int bad;
};

/* Computes the codes of columns [from, from + 32) of x - less; less NULL: of x. false: a number is not finite. */
static bool fill_panel(const struct adding *k, const float *x, const float *less, int64_t from, const struct codes *to) {
  const int64_t cols = k->m->cols;
  bool fine = ane_codes_of(x + from, less ? less + from : NULL, cols, k->n, ANE_MIN(cols - from, ANE_PANEL),
                           to->code + from * k->pairs * 2, to->scale + from);
  for (int i = 0; i < ANE_PANEL; i++) to->scale[from + i] *= k->factor;
  return fine;
}

static void fill_panels(void *arg, int thread, int threads) {
  struct adding *k = arg;
  (void)thread, (void)threads;
  for (int64_t p; (p = atomic_fetch_add(&k->next, 1)) < k->n_panels;) {
    bool fine = fill_panel(k, k->x, NULL, p * ANE_PANEL, &k->inputs);
    if (k->source) fine &= fill_panel(k, k->source, k->x, p * ANE_PANEL, &k->drifts);
    if (!fine) atomic_store(&k->bad, 1);
  }
}

/* Adds to rows [32 p, 32 p + 32) of a sum, from panel `first` on, the products of the panels of `left` and those of x. The sums
 * of the next strip are prefetched, because the cache cannot hold all sums. */
static void add_rows(const struct adding *k, const struct codes *left, float *sum, int64_t p, int64_t first) {
  const int64_t ld = k->m->padded, size = k->pairs * 2 * ANE_PANEL;
  for (int64_t q = first; q < k->n_panels; q++) {
    float *to = sum + p * ANE_PANEL * ld + q * ANE_PANEL;
    for (int64_t r = 0; r < ANE_PANEL; r += ANE_STRIP) {
      const float *next = r + ANE_STRIP < ANE_PANEL ? to + (r + ANE_STRIP) * ld : to + ANE_PANEL;
      for (int i = 0; i < ANE_STRIP; i++) ane_prefetch_to_write(next + i * ld, ANE_PANEL * sizeof *next);
      ane_strip_codes(to + r * ld, ld, left->code + p * size + 2 * r, left->scale + p * ANE_PANEL + r, k->inputs.code + q * size,
                      k->inputs.scale + q * ANE_PANEL, k->pairs);
    }
  }
}

static void add_panels(void *arg, int thread, int threads) {
  struct adding *k = arg;
  (void)thread, (void)threads;
  for (int64_t p; (p = atomic_fetch_add(&k->next, 1)) < k->n_panels;) {
    add_rows(k, &k->inputs, k->m->sum, p, p);
    if (k->source) add_rows(k, &k->drifts, k->m->drift, p, 0);
  }
}

ane_status ane_moment_add(struct ane_moment *m, struct ane_pool *pool, const float *x, const float *source, int64_t tokens,
                          float weight, struct ane_error *err) {
  struct adding k = {.m = m, .factor = sqrtf(weight), .n_panels = m->padded / ANE_PANEL};
  const size_t cols = (size_t)m->padded, codes = cols * (size_t)(ANE_MIN(tokens, PIECE) + 1) / 2 * 2;
  if (source && !m->drift) m->drift = ane_calloc(cols * cols, sizeof *m->drift);
  float *memory = ane_malloc((source ? 2 : 1) * (cols * sizeof *memory + codes * sizeof *k.inputs.code));
  if (!memory || (source && !m->drift)) {
    ane_free(memory);
    return ane_fail(err, ANE_NOMEM, "no memory for panels of %" PRId64 " columns", m->cols);
  }
  k.inputs.scale = memory, k.drifts.scale = memory + cols; /* the drifts' are used only with a source */
  k.inputs.code = (int16_t *)(void *)(memory + (source ? 2 : 1) * cols), k.drifts.code = k.inputs.code + codes;
  for (int64_t t = 0; t < tokens && !k.bad; t += k.n) {
    k.n = ANE_MIN(tokens - t, PIECE), k.pairs = (k.n + 1) / 2;
    k.x = x + t * m->cols, k.source = source ? source + t * m->cols : NULL;
    atomic_store(&k.next, 0);
    ane_pool_run(pool, fill_panels, &k);
    if (k.bad) break;
    atomic_store(&k.next, 0);
    ane_pool_run(pool, add_panels, &k);
    m->tokens += (uint64_t)k.n;
  }
  ane_free(memory);
  return k.bad ? ane_fail(err, ANE_INVALID, "an input of the layer is not finite") : ANE_OK;
}
