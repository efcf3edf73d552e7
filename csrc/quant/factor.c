/* The factor of a second moment: order of columns, damping, Cholesky in blocks. */
#include "quant/compensate.h"
#include "quant/wide.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { BLOCK = 64, TRIES = 8 }; /* columns of a step; times that the damping grows */

/* ---- Order -------------------------------------------------------------------------------------------------------------*/

struct rank {
  double size; /* sum of mean squares */
  int32_t at;  /* unit */
};

static int by_size(const void *a, const void *b) {
  const struct rank *x = a, *y = b;
  if (x->size != y->size) return x->size > y->size ? -1 : 1;
  return x->at < y->at ? -1 : 1;
}

/* Sorts n units, each of `width` consecutive entries of `order`, by descending sums of the diagonal. */
static void sort_units(const float *diagonal, int32_t *order, int64_t n, int32_t width, struct rank *rank, int32_t *temp) {
  memcpy(temp, order, (size_t)(n * width) * sizeof *order);
  for (int64_t u = 0; u < n; u++) {
    rank[u] = (struct rank){0, (int32_t)u};
    for (int32_t i = 0; i < width; i++) rank[u].size += (double)diagonal[order[u * width + i]];
  }
  qsort(rank, (size_t)n, sizeof *rank, by_size);
  for (int64_t u = 0; u < n; u++) memcpy(order + u * width, temp + (int64_t)rank[u].at * width, (size_t)width * sizeof *order);
}

static bool make_order(struct ane_factor *f) {
  struct rank *rank = ane_malloc((size_t)f->cols * sizeof *rank);
  int32_t *temp = ane_malloc((size_t)f->cols * sizeof *temp);
  bool fine = rank && temp;
  for (int64_t c = 0; c < f->cols; c++) f->order[c] = (int32_t)c;
  if (fine && f->group > 1) {
    sort_units(f->importance, f->order, f->cols / f->group, f->group, rank, temp);
    for (int64_t g = 0; g < f->cols; g += f->group)
      sort_units(f->importance, f->order + g, f->group / f->sub, f->sub, rank, temp);
    for (int64_t g = 0; g < f->cols; g += f->sub) sort_units(f->importance, f->order + g, f->sub, 1, rank, temp);
  } else if (fine) {
    sort_units(f->importance, f->order, f->cols, 1, rank, temp);
  }
  ane_free(rank);
  ane_free(temp);
  return fine;
}

/* ---- Cholesky ----------------------------------------------------------------------------------------------------------*/

/* A = L L', rows and columns in reverse order, so that the transpose of L in reverse order is R. Padding is a unit matrix. */
struct cholesky {
  const struct ane_moment *m;
  const struct ane_factor *f;
  int64_t n;  /* a multiple of 64 */
  double *a;  /* [n][n]: the lower triangle becomes L */
  double *pt; /* [64][n]: the columns of the step, transposed */
  int64_t at; /* first column of the step */
  double shift;
  double shrink; /* entries off the diagonal are multiplied by this */
  _Atomic int64_t next;
};

static double moment_of(const struct cholesky *k, int64_t i, int64_t j) {
  int32_t r = k->f->order[k->f->cols - 1 - i], c = k->f->order[k->f->cols - 1 - j];
  if (r / ANE_PANEL > c / ANE_PANEL) { /* panels left of the diagonal are not filled */
    int32_t t = r;
    r = c, c = t;
  }
  double v = (double)k->m->sum[(int64_t)r * k->m->padded + c] / (double)k->m->tokens;
  return r == c ? v : v * k->shrink;
}

static void fill_rows(void *arg, int thread, int threads) {
  struct cholesky *k = arg;
  (void)thread, (void)threads;
  for (int64_t i; (i = atomic_fetch_add(&k->next, 1)) < k->n;)
    for (int64_t j = 0; j <= i; j++) {
      double v = i < k->f->cols ? moment_of(k, i, j) : 0;
      if (i == j) v = i < k->f->cols ? v + k->shift : 1;
      k->a[i * k->n + j] = v;
    }
}

/* Factors the diagonal block. false: it is not positive definite. */
static bool factor_block(struct cholesky *k) {
  for (int64_t i = k->at; i < k->at + BLOCK; i++)
    for (int64_t j = k->at; j <= i; j++) {
      double v = k->a[i * k->n + j];
      for (int64_t t = k->at; t < j; t++) v -= k->a[i * k->n + t] * k->a[j * k->n + t];
      if (i == j && !(v > 0)) return false;
      k->a[i * k->n + j] = i == j ? sqrt(v) : v / k->a[j * k->n + j];
    }
  return true;
}

/* Computes the step's columns of L for rows [64 b, 64 b + 64), below the diagonal block, and stores them transposed too. */
static ANE_WIDE void solve_rows(const struct cholesky *k, int64_t b) {
  int64_t row = b * BLOCK, n = k->n;
  for (int j = 0; j < BLOCK; j++) {
    double *to = k->pt + j * n + row;
    const double *l = k->a + (k->at + j) * n + k->at;
    for (int r = 0; r < BLOCK; r++) to[r] = k->a[(row + r) * n + k->at + j];
    for (int t = 0; t < j; t++) {
      const double *from = k->pt + t * n + row;
      for (int r = 0; r < BLOCK; r++) to[r] -= l[t] * from[r];
    }
    for (int r = 0; r < BLOCK; r++) to[r] /= l[j];
    for (int r = 0; r < BLOCK; r++) k->a[(row + r) * n + k->at + j] = to[r];
  }
}

static void solve_all(void *arg, int thread, int threads) {
  struct cholesky *k = arg;
  (void)thread, (void)threads;
  for (int64_t b; (b = atomic_fetch_add(&k->next, 1)) < k->n / BLOCK;) solve_rows(k, b);
}

/* Subtracts the step's product from rows [64 b, 64 b + 64), right of the step's columns. */
static void update_rows(const struct cholesky *k, int64_t b) {
  int64_t n = k->n, row = b * BLOCK;
  for (int64_t c = k->at + BLOCK; c < row + BLOCK; c += ANE_PANEL_D)
    for (int64_t r = row; r < row + BLOCK; r += ANE_STRIP) ane_strip_d(k->a + r * n + c, n, k->pt + r, k->pt + c, n, BLOCK);
}

static void update_all(void *arg, int thread, int threads) {
  struct cholesky *k = arg;
  (void)thread, (void)threads;
  for (int64_t b; (b = atomic_fetch_add(&k->next, 1)) < k->n / BLOCK;) update_rows(k, k->n / BLOCK - 1 - b + k->at / BLOCK + 1);
}

static void run(struct cholesky *k, struct ane_pool *pool, ane_pool_fn fn, int64_t from) {
  atomic_store(&k->next, from);
  ane_pool_run(pool, fn, k);
}

static bool factor(struct cholesky *k, struct ane_pool *pool) {
  run(k, pool, fill_rows, 0);
  for (k->at = 0; k->at < k->n; k->at += BLOCK) {
    if (!factor_block(k)) return false;
    int64_t below = k->at / BLOCK + 1;
    run(k, pool, solve_all, below);
    run(k, pool, update_all, below); /* the longest rows first */
  }
  return true;
}

/* ---- R -----------------------------------------------------------------------------------------------------------------*/

static void store_strips(void *arg, int thread, int threads) {
  struct cholesky *k = arg;
  struct ane_factor *f = (struct ane_factor *)k->f;
  int64_t last = f->cols - 1;
  (void)thread, (void)threads;
  for (int64_t p; (p = atomic_fetch_add(&k->next, 1)) * ANE_STRIP < f->cols;) {
    float *to = f->ratio + ane_factor_strip(p);
    for (int64_t i = 0; i < ANE_STRIP * (p + 1); i++)
      for (int64_t j = p * ANE_STRIP; j < (p + 1) * ANE_STRIP; j++) { /* R[i][j] = L[last - i][last - j] */
        bool inside = i < j && j <= last;
        *to++ = inside ? (float)(k->a[(last - i) * k->n + last - j] / k->a[(last - j) * k->n + last - j]) : 0;
      }
  }
}

static void store_weights(const struct cholesky *k, struct ane_factor *f) {
  int64_t last = f->cols - 1;
  for (int64_t j = 0; j <= last; j++) {
    double d = k->a[(last - j) * k->n + last - j];
    f->weight[j] = (float)(d * d);
  }
}

/* Stores the damped H by positions, in strips. */
static void store_moment(void *arg, int thread, int threads) {
  struct cholesky *k = arg;
  const struct ane_factor *f = k->f;
  int64_t last = f->cols - 1;
  (void)thread, (void)threads;
  for (int64_t p; (p = atomic_fetch_add(&k->next, 1)) * ANE_STRIP < f->cols;) {
    float *to = f->moment + p * ANE_STRIP * f->cols;
    for (int64_t i = 0; i < f->cols; i++)
      for (int64_t j = p * ANE_STRIP; j < (p + 1) * ANE_STRIP; j++)
        *to++ = j < f->cols ? (float)(moment_of(k, last - i, last - j) + (i == j ? k->shift : 0)) : 0;
  }
}

struct drifting {
  const struct ane_moment *m;
  struct ane_factor *f;
  double scale, shrink; /* factor of all entries; further factor of those off the diagonal */
  _Atomic int64_t next;
};

/* Element [i][j] of D by positions, as the factor stores it. */
static float drift_of(const struct drifting *k, int64_t i, int64_t j) {
  double v = k->scale * (double)k->m->drift[k->f->order[i] * k->m->padded + k->f->order[j]];
  return (float)(i == j ? v : v * k->shrink);
}

static void store_drift(void *arg, int thread, int threads) {
  struct drifting *k = arg;
  const struct ane_factor *f = k->f;
  (void)thread, (void)threads;
  for (int64_t p; (p = atomic_fetch_add(&k->next, 1)) * ANE_STRIP < f->cols;) {
    float *to = f->drift + p * ANE_STRIP * f->cols;
    for (int64_t i = 0; i < f->cols; i++)
      for (int64_t j = p * ANE_STRIP; j < (p + 1) * ANE_STRIP; j++) *to++ = j < f->cols ? drift_of(k, i, j) : 0;
  }
}

static ane_status make_drift(struct ane_factor *f, struct ane_pool *pool, const struct ane_moment *m, double strength,
                             double shrink, struct ane_error *err) {
  if (!m->drift || strength == 0) return ANE_OK;
  size_t strips = ((size_t)f->cols + ANE_STRIP - 1) / ANE_STRIP;
  f->drift = ane_malloc(strips * ANE_STRIP * (size_t)f->cols * sizeof *f->drift);
  if (!f->drift) return ane_fail(err, ANE_NOMEM, "no memory for the drift of %" PRId64 " columns", f->cols);
  struct drifting k = {.m = m, .f = f, .scale = strength / (double)m->tokens, .shrink = shrink};
  ane_pool_run(pool, store_drift, &k);
  return ANE_OK;
}

static double mean_diagonal(const struct ane_factor *f) {
  double sum = 0;
  for (int64_t c = 0; c < f->cols; c++) sum += (double)f->importance[c];
  return sum / (double)f->cols;
}

static bool factor_memory(struct ane_factor *f, struct cholesky *k) {
  size_t cols = (size_t)f->cols, n = (size_t)k->n, strips = (cols + ANE_STRIP - 1) / ANE_STRIP;
  f->order = ane_malloc(cols * sizeof *f->order);
  f->weight = ane_malloc(cols * sizeof *f->weight);
  f->importance = ane_malloc(cols * sizeof *f->importance);
  f->ratio = ane_malloc((size_t)ane_factor_strip((int64_t)strips) * sizeof *f->ratio);
  f->moment = ane_malloc(strips * ANE_STRIP * cols * sizeof *f->moment);
  k->a = ane_malloc(n * n * sizeof *k->a);
  k->pt = ane_malloc(BLOCK * n * sizeof *k->pt);
  return f->order && f->weight && f->importance && f->ratio && f->moment && k->a && k->pt;
}

ane_status ane_factor_make(struct ane_factor *f, struct ane_pool *pool, const struct ane_moment *m,
                           const struct ane_factor_options *opts, struct ane_error *err) {
  *f = (struct ane_factor){.cols = m->cols, .group = opts->group, .sub = opts->sub};
  struct cholesky k = {.m = m, .f = f, .n = (m->cols + BLOCK - 1) / BLOCK * BLOCK};
  ane_status st = ANE_OK;
  double mean, damp = opts->damp;
  bool done = false;
  if (m->tokens == 0) return ane_fail(err, ANE_INVALID, "the second moment has no tokens");
  if (f->group < 1 || f->sub < 1 || f->group % f->sub || m->cols % f->group)
    return ane_fail(err, ANE_SHAPE, "%" PRId64 " columns in groups of %d and %d", m->cols, (int)f->group, (int)f->sub);
  if (!factor_memory(f, &k)) {
    st = ane_fail(err, ANE_NOMEM, "no memory for a factor of %" PRId64 " columns", m->cols);
    goto out;
  }
  k.shrink = (double)m->tokens / ((double)m->tokens + opts->prior);
  ane_moment_diagonal(m, f->importance);
  mean = mean_diagonal(f);
  if (!isfinite(mean)) st = ane_fail(err, ANE_INVALID, "the second moment is not finite");
  if (!st && !make_order(f)) st = ane_fail(err, ANE_NOMEM, "no memory for the order of %" PRId64 " columns", m->cols);
  for (int i = 0; !st && !done && i < TRIES; i++, damp *= 10) {
    k.shift = (mean > 0 ? mean : 1) * damp;
    f->damp = (float)damp;
    done = factor(&k, pool);
  }
  if (!st && !done) st = ane_fail(err, ANE_INVALID, "the second moment has no factor");
  if (!st) {
    run(&k, pool, store_strips, 0);
    run(&k, pool, store_moment, 0);
    store_weights(&k, f);
    st = make_drift(f, pool, m, opts->strength, k.shrink, err);
  }
out:
  ane_free(k.a);
  ane_free(k.pt);
  return st;
}

void ane_factor_free(struct ane_factor *f) {
  ane_free(f->order);
  ane_free(f->ratio);
  ane_free(f->weight);
  ane_free(f->importance);
  ane_free(f->moment);
  ane_free(f->drift);
  *f = (struct ane_factor){0};
}
