/* Second moments of inputs. */
#include "quant/compensate.h"
#include "quant/wide.h"

#include "base/alloc.h"
#include "base/prefetch.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>

enum { PIECE = 256 }; /* tokens that are added at a time: panels of them stay in the cache */

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

struct adding {
  struct ane_moment *m;
  const float *x;      /* [n][cols] */
  const float *source; /* [n][cols], or NULL */
  float *panels;       /* [padded / 32][n][32] */
  float *drifts;       /* the same of source - x, or NULL */
  int64_t n;           /* tokens */
  int64_t n_panels;
  _Atomic int64_t next; /* panel to fill, or row of panels */
  _Atomic int bad;
};

/* Columns [from, from + 32) of x, to [n][32]; less: what is subtracted, or NULL. False: a number is not finite. */
static bool fill_panel(const struct adding *k, const float *x, const float *less, int64_t from, float *to) {
  int64_t width = ANE_MIN(k->m->cols - from, ANE_PANEL);
  float peak = 0;
  for (int64_t t = 0; t < k->n; t++, to += ANE_PANEL) {
    memcpy(to, x + t * k->m->cols + from, (size_t)width * sizeof *to);
    memset(to + width, 0, (size_t)(ANE_PANEL - width) * sizeof *to);
    for (int64_t c = 0; less && c < width; c++) to[c] -= less[t * k->m->cols + from + c];
    for (int64_t c = 0; c < width; c++) peak += fabsf(to[c]);
  }
  return isfinite(peak);
}

static void fill_panels(void *arg, int thread, int threads) {
  struct adding *k = arg;
  (void)thread, (void)threads;
  for (int64_t p; (p = atomic_fetch_add(&k->next, 1)) < k->n_panels;) {
    int64_t at = p * k->n * ANE_PANEL;
    bool fine = fill_panel(k, k->x, NULL, p * ANE_PANEL, k->panels + at);
    if (k->source) fine &= fill_panel(k, k->source, k->x, p * ANE_PANEL, k->drifts + at);
    if (!fine) atomic_store(&k->bad, 1);
  }
}

/* Rows [32 p, 32 p + 32) of a sum, from the panel `first` on: the panels of `left` times those of x. The sums of the next strip
 * are prefetched, since all of them do not stay in the cache. */
static void add_rows(const struct adding *k, const float *left, float *sum, int64_t p, int64_t first) {
  const float *a = left + p * k->n * ANE_PANEL;
  const int64_t ld = k->m->padded;
  for (int64_t q = first; q < k->n_panels; q++) {
    const float *b = k->panels + q * k->n * ANE_PANEL;
    float *to = sum + p * ANE_PANEL * ld + q * ANE_PANEL;
    for (int64_t r = 0; r < ANE_PANEL; r += ANE_STRIP) {
      const float *next = r + ANE_STRIP < ANE_PANEL ? to + (r + ANE_STRIP) * ld : to + ANE_PANEL;
      for (int i = 0; i < ANE_STRIP; i++) ane_prefetch_to_write(next + i * ld, ANE_PANEL * sizeof *next);
      ane_strip(to + r * ld, ld, a + r, ANE_PANEL, b, k->n);
    }
  }
}

static void add_panels(void *arg, int thread, int threads) {
  struct adding *k = arg;
  (void)thread, (void)threads;
  for (int64_t p; (p = atomic_fetch_add(&k->next, 1)) < k->n_panels;) {
    add_rows(k, k->panels, k->m->sum, p, p);
    if (k->source) add_rows(k, k->drifts, k->m->drift, p, 0);
  }
}

ane_status ane_moment_add(struct ane_moment *m, struct ane_pool *pool, const float *x, const float *source, int64_t tokens,
                          struct ane_error *err) {
  struct adding k = {.m = m, .n_panels = m->padded / ANE_PANEL};
  size_t panels = (size_t)(m->padded * ANE_MIN(tokens, PIECE)), all = (size_t)m->padded * (size_t)m->padded;
  if (source && !m->drift) m->drift = ane_calloc(all, sizeof *m->drift);
  k.panels = ane_malloc((source ? 2 : 1) * panels * sizeof *k.panels);
  if (!k.panels || (source && !m->drift)) {
    ane_free(k.panels);
    return ane_fail(err, ANE_NOMEM, "no memory for panels of %" PRId64 " columns", m->cols);
  }
  k.drifts = k.panels + panels;
  for (int64_t t = 0; t < tokens && !k.bad; t += k.n) {
    k.n = ANE_MIN(tokens - t, PIECE);
    k.x = x + t * m->cols, k.source = source ? source + t * m->cols : NULL;
    atomic_store(&k.next, 0);
    ane_pool_run(pool, fill_panels, &k);
    if (k.bad) break;
    atomic_store(&k.next, 0);
    ane_pool_run(pool, add_panels, &k);
    m->tokens += (uint64_t)k.n;
  }
  ane_free(k.panels);
  return k.bad ? ane_fail(err, ANE_INVALID, "an input of the layer is not finite") : ANE_OK;
}
