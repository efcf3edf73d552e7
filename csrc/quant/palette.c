/* Optimal k-means in one dimension. Clusters of sorted values are intervals. The best split into k intervals follows from the
 * best splits of all prefixes into k - 1, and the split point grows with the end (Wu, 1991: Optimal quantization by matrix
 * searching), so divide and conquer finds a row of splits in n log n steps. */
#include "quant/palette.h"

#include "tensor/half.h"

#include <math.h>
#include <string.h>

enum { MOST = ANE_PALETTE_MAX, RUNS = 2048, ROUNDS = 64 };

uint32_t ane_palette_key(float x) {
  uint32_t h = ane_f32_f16(x);
  return h & 0x8000 ? 0xFFFF - h : h | 0x8000;
}

static float value_of(uint32_t key) { return ane_f16_f32((uint16_t)(key & 0x8000 ? key & 0x7FFF : 0xFFFF - key)); }

/* Points in ascending order with prefix sums: points [0, i) have the weight w[i] and the weighted sum s[i]. Values are
 * relative to the mean, so that sums of squares keep their precision. */
struct points {
  int n;
  double mean;
  double *x, *w, *s;
};

struct memory {
  double x[ANE_PALETTE_KEYS], w[ANE_PALETTE_KEYS + 1], s[ANE_PALETTE_KEYS + 1];
  int edge[RUNS + 1]; /* runs are points [edge[i], edge[i + 1]) */
  double run_w[RUNS + 1], run_s[RUNS + 1];
  double gain[2][RUNS];
  uint16_t from[MOST][RUNS];
};

size_t ane_palette_scratch(void) { return sizeof(struct memory); }

static struct points gather(const uint64_t weight[ANE_PALETTE_KEYS], struct memory *m) {
  struct points p = {0, 0, m->x, m->w, m->s};
  double sum = 0, total = 0;
  for (uint32_t k = 0; k < ANE_PALETTE_KEYS; k++) {
    if (!weight[k]) continue;
    double x = value_of(k), w = (double)weight[k];
    p.x[p.n] = x, p.w[++p.n] = w;
    sum += w * x, total += w;
  }
  p.mean = total > 0 ? sum / total : 0;
  p.w[0] = p.s[0] = 0;
  for (int i = 0; i < p.n; i++) {
    p.x[i] -= p.mean;
    p.s[i + 1] = p.s[i] + p.w[i + 1] * p.x[i];
    p.w[i + 1] += p.w[i];
  }
  return p;
}

/* Merges neighbours into runs. A new run begins at each 680th of the range, of the weight, and of the points. */
static int make_runs(const struct points *p, struct memory *m) {
  enum { PARTS = RUNS / 3 - 2 };
  double range = p->x[p->n - 1] - p->x[0], total = p->w[p->n];
  int n = 0, old[3] = {-1, -1, -1};
  for (int i = 0; i < p->n; i++) {
    int now[3] = {(int)fmin(PARTS - 1, PARTS * ((p->x[i] - p->x[0]) / range)), (int)fmin(PARTS - 1, PARTS * (p->w[i] / total)),
                  (int)((int64_t)i * PARTS / p->n)};
    if (p->n > RUNS && !memcmp(now, old, sizeof now)) continue;
    memcpy(old, now, sizeof old);
    m->edge[n] = i, m->run_w[n] = p->w[i], m->run_s[n] = p->s[i];
    n++;
  }
  m->edge[n] = p->n, m->run_w[n] = p->w[p->n], m->run_s[n] = p->s[p->n];
  return n;
}

/* By how much one entry for runs [i, j] reduces the sum of squares. */
static inline double gain_of(const struct memory *m, int i, int j) {
  double w = m->run_w[j + 1] - m->run_w[i], s = m->run_s[j + 1] - m->run_s[i];
  return s * s / w;
}

/* Row `k` of the splits, for ends [lo, hi] whose last intervals begin in [from, to]. */
static void split(struct memory *m, int k, int lo, int hi, int from, int to) {
  if (lo > hi) return;
  const double *before = m->gain[(k + 1) & 1];
  int mid = (lo + hi) / 2, best = -1;
  double most = -1;
  for (int i = ANE_MAX(from, k); i <= ANE_MIN(mid, to); i++) {
    double g = before[i - 1] + gain_of(m, i, mid);
    if (g > most) most = g, best = i;
  }
  m->gain[k & 1][mid] = most, m->from[k][mid] = (uint16_t)best;
  split(m, k, lo, mid - 1, from, best);
  split(m, k, mid + 1, hi, best, to);
}

/* First points of the `entries` intervals; needs n >= entries runs. */
static void best_split(struct memory *m, int n, int entries, int first[MOST + 1]) {
  for (int j = 0; j < n; j++) m->gain[0][j] = gain_of(m, 0, j);
  for (int k = 1; k < entries; k++) split(m, k, k, n - 1, k, n - 1);
  int end = n - 1;
  for (int k = entries - 1; k > 0; k--) {
    int i = m->from[k][end];
    first[k] = m->edge[i];
    end = i - 1;
  }
  first[0] = 0, first[entries] = m->edge[n];
}

/* First point above `at`. */
static int above(const struct points *p, double at) {
  int lo = 0, hi = p->n;
  while (lo < hi) {
    int mid = (lo + hi) / 2;
    if (p->x[mid] > at)
      hi = mid;
    else
      lo = mid + 1;
  }
  return lo;
}

static void means(const struct points *p, int entries, const int first[MOST + 1], double centre[MOST]) {
  for (int k = 0; k < entries; k++) {
    double w = p->w[first[k + 1]] - p->w[first[k]];
    if (w > 0) centre[k] = (p->s[first[k + 1]] - p->s[first[k]]) / w;
  }
}

static void lloyd(const struct points *p, int entries, int first[MOST + 1], double centre[MOST]) {
  means(p, entries, first, centre);
  bool moved = true;
  for (int round = 0; moved && round < ROUNDS; round++) {
    moved = false;
    for (int k = 1; k < entries; k++) {
      int at = above(p, 0.5 * (centre[k - 1] + centre[k]));
      moved |= at != first[k];
      first[k] = at;
    }
    means(p, entries, first, centre);
  }
}

void ane_palette(const uint64_t weight[ANE_PALETTE_KEYS], int entries, void *scratch, uint16_t *lut) {
  struct memory *m = scratch;
  struct points p = gather(weight, m);
  double centre[MOST] = {0};
  if (p.n > entries) {
    int first[MOST + 1];
    best_split(m, make_runs(&p, m), entries, first);
    lloyd(&p, entries, first, centre);
  } else {
    for (int k = 0; p.n > 0 && k < entries; k++) centre[k] = p.x[ANE_MIN(k, p.n - 1)];
  }
  for (int k = 0; k < entries; k++) lut[k] = ane_f32_f16((float)(centre[k] + p.mean));
}

void ane_palette_assign(const float *x, int64_t n, const uint16_t *lut, int entries, uint8_t *index) {
  float edge[MOST - 1];
  for (int k = 0; k < entries - 1; k++) edge[k] = 0.5f * (ane_f16_f32(lut[k]) + ane_f16_f32(lut[k + 1]));
  enum { WIDE = 16 };
  for (int64_t i = 0; i < n; i += WIDE) {
    float v[WIDE] = {0};
    int count[WIDE] = {0}, left = (int)ANE_MIN(n - i, WIDE);
    memcpy(v, x + i, (size_t)left * sizeof *v);
    for (int k = 0; k < entries - 1; k++)
      for (int j = 0; j < WIDE; j++) count[j] += v[j] > edge[k];
    for (int j = 0; j < left; j++) index[i + j] = (uint8_t)count[j];
  }
}
