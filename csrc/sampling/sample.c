/* Softmax, filters, and the random draw. */
#include "sampling/sampling.h"

#include <math.h>
#include <string.h>

/* exp(x) for x <= 0, within 2 units in the last place; 0 below -87. Uses the range reduction and polynomial of Cephes' expf
 * (Moshier). It has no branches, so that compilers vectorise loops over it, and gives the same result on every machine. */
static inline float exp_negative(float x) {
  const float rounder = 0x1.8p23f, log2e = 1.44269504088896341f, ln2_hi = 0.693359375f, ln2_lo = -2.12194440e-4f;
  float inside = x > -87.0f ? x : -87.0f; /* NaN too */
  float k = (inside * log2e + rounder) - rounder;
  float r = inside - k * ln2_hi - k * ln2_lo;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  union {
    int32_t i;
    float f;
  } power = {((int32_t)k + 127) * (1 << 23)};
  return x > -87.0f ? p * power.f : 0.0f;
}

/* exp((v - max) * scale). It is 1 if v equals max, even if both are infinite (a forced token), and 0 for NaN. */
static inline float weight(float v, float max, float scale) {
  float w = exp_negative((v - max) * scale);
  return v == max ? 1.0f : w;
}

static double mass(const float *row, int32_t n, float max, float scale) {
  enum { LANES = 8 };
  double sum[LANES] = {0}, whole = 0;
  int32_t i = 0;
  for (; i + LANES <= n; i += LANES)
    for (int j = 0; j < LANES; j++) sum[j] += (double)weight(row[i + j], max, scale);
  for (; i < n; i++) whole += (double)weight(row[i], max, scale);
  for (int j = 0; j < LANES; j++) whole += sum[j];
  return whole;
}

double ane_log_sum_exp(const float *row, int32_t n) {
  float max = ane_best(row, n).value;
  if (!(max > -INFINITY)) return -INFINITY;
  return (double)max + log(mass(row, n, max, 1));
}

void ane_softmax(const float *row, int32_t n, float temperature, float *out) {
  float max = ane_best(row, n).value;
  if (!(max > -INFINITY)) {
    memset(out, 0, (size_t)n * sizeof *out);
    return;
  }
  float scale = 1 / temperature;
  double sum = mass(row, n, max, scale);
  for (int32_t i = 0; i < n; i++) out[i] = (float)((double)weight(row[i], max, scale) / sum);
}

/* The row after penalty and bias: `row` itself if nothing changes, else a copy in `work`. */
static const float *adjust(const float *row, int32_t n, const struct ane_sampling *how, const int32_t *recent, size_t n_recent,
                           float *work) {
  bool penalise = how->repeat_penalty != 1 && n_recent > 0;
  if (!penalise && how->n_bias == 0) return row;
  memcpy(work, row, (size_t)n * sizeof *work);
  for (size_t i = 0; penalise && i < n_recent; i++) {
    int32_t id = recent[i]; /* work[id] is computed from row[id], so a repeated id has no further effect */
    if (id >= 0 && id < n) work[id] = row[id] > 0 ? row[id] / how->repeat_penalty : row[id] * how->repeat_penalty;
  }
  for (int32_t i = 0; i < how->n_bias; i++) {
    int32_t id = how->bias[i].id;
    if (id < 0 || id >= n) continue;
    work[id] = isinf(how->bias[i].value) ? how->bias[i].value : work[id] + how->bias[i].value; /* a ban also bans a NaN */
  }
  return work;
}

/* How many of the m best entries top_p and min_p keep. *kept: their mass. *whole: the kept set ends within the m, so that more
 * entries would not change it. total: the mass that top_p is relative to. */
static int32_t keep(const struct ane_ranked *ranked, int32_t m, const struct ane_sampling *how, double total, double *kept,
                    bool *whole) {
  double sum = 0;
  *whole = false;
  for (int32_t i = 0; i < m; i++) {
    double w = (double)weight(ranked[i].value, ranked[0].value, 1 / how->temperature);
    if (i > 0 && (w == 0 || w < (double)how->min_p || (how->top_p < 1 && sum >= (double)how->top_p * total))) {
      *whole = true;
      *kept = sum;
      return i;
    }
    sum += w;
  }
  *kept = sum;
  return m;
}

/* The draw walks the tokens from the best on. A few tokens have most of the mass, so FIRST of them are ranked at first, and more
 * only if the filters or the random number need them. */
enum { FIRST = 64, GROWTH = 8 };

static struct ane_ranked draw(const float *row, int32_t n, const struct ane_sampling *how, float max, double u,
                              struct ane_ranked *ranked) {
  int32_t limit = how->top_k > 0 && how->top_k < n ? how->top_k : n;
  float scale = 1 / how->temperature;
  bool filtered = how->top_p < 1 || how->min_p > 0;
  double total = limit == n ? mass(row, n, max, scale) : 0;
  for (int32_t m = limit < n ? limit : ANE_MIN(FIRST, n);; m = m > n / GROWTH ? n : m * GROWTH) {
    double kept, seen = 0;
    bool whole;
    ane_topk(row, n, m, ranked);
    if (limit < n) {
      for (int32_t i = 0; i < m; i++) total += (double)weight(ranked[i].value, max, scale);
    }
    int32_t count = keep(ranked, m, how, total, &kept, &whole);
    bool last = m == limit;
    if (filtered && !whole && !last) continue;
    double goal = u * (filtered || limit < n ? kept : total);
    for (int32_t i = 0; i < count; i++) {
      seen += (double)weight(ranked[i].value, max, scale);
      if (seen > goal) return ranked[i];
    }
    if (whole || last) return ranked[count - 1]; /* rounding left the sum below the random number */
  }
}

ane_status ane_sample(const float *row, int32_t n, const struct ane_sampling *how, const int32_t *recent, size_t n_recent,
                      uint64_t position, float *work, struct ane_ranked *ranked, struct ane_ranked *out, struct ane_error *err) {
  row = adjust(row, n, how, recent, n_recent, work);
  struct ane_ranked best = ane_best(row, n);
  if (!(best.value > -INFINITY))
    return ane_fail(err, ANE_INVALID, "every token is banned or has no number: nothing to choose from");
  *out = how->temperature > 0 ? draw(row, n, how, best.value, ane_random(how->seed, position), ranked) : best;
  return ANE_OK;
}
