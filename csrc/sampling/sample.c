/* Softmax, filters, and the random draw. */
#include "sampling/sampling.h"

#include <math.h>
#include <string.h>

/* Below this number exp() counts as 0. */
enum { LEAST = -87 };

/* exp(x) for x <= 0, within 2 units in the last place; 0 below LEAST. Uses the range reduction and polynomial of Cephes' expf
 * (Moshier). It has no branches, so that compilers vectorise loops over it, and gives the same result on every machine. */
static inline float exp_negative(float x) {
  const float rounder = 0x1.8p23f, log2e = 1.44269504088896341f, ln2_hi = 0.693359375f, ln2_lo = -2.12194440e-4f;
  float inside = x > LEAST ? x : LEAST; /* NaN too */
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
  return x > LEAST ? p * power.f : 0.0f;
}

/* exp((v - max) * scale). It is 1 if v equals max, even if both are infinite (a forced token), and 0 for NaN. */
static inline float weight(float v, float max, float scale) {
  float w = exp_negative((v - max) * scale);
  return v == max ? 1.0f : w;
}

/* Numbers that are computed together. Compilers vectorise the inner loops. */
enum { LANES = 8 };

/* The sum of all weights. The order of the additions depends on n alone. */
static ANE_WIDE double mass(const float *row, int32_t n, float max, float scale) {
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

static ANE_WIDE void divide(const float *row, int32_t n, float max, float scale, double sum, float *out) {
  for (int32_t i = 0; i < n; i++) out[i] = (float)((double)weight(row[i], max, scale) / sum);
}

void ane_softmax(const float *row, int32_t n, float temperature, float *out) {
  float max = ane_best(row, n).value;
  if (!(max > -INFINITY)) {
    memset(out, 0, (size_t)n * sizeof *out);
    return;
  }
  float scale = 1 / temperature;
  divide(row, n, max, scale, mass(row, n, max, scale), out);
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

/* The first of `count` ranked tokens whose weight lifts the sum above `goal`; -1 if none does. The sum begins with `seen`. */
static int32_t reach(const struct ane_ranked *ranked, int32_t count, float max, float scale, double seen, double goal) {
  for (int32_t i = 0; i < count; i++) {
    seen += (double)weight(ranked[i].value, max, scale);
    if (seen > goal) return i;
  }
  return -1;
}

/* All tokens of a row with a weight above 0, in buckets. Bucket i has those whose scaled logit is i / FINE to (i + 1) / FINE
 * below the best, so all tokens of a bucket rank above those of the next one. */
enum { FINE = 16, BUCKETS = -LEAST * FINE + 1 };
struct buckets {
  const float *row;
  int32_t n;
  float max, scale;
  int32_t end, end_count;   /* top_p and min_p keep only this number of bucket `end`, and none of later ones */
  double mass[BUCKETS + 1]; /* of the tokens that are kept; the last has those without weight */
};

/* The bucket of a value; BUCKETS: its weight is 0. */
static inline int32_t bucket_of(float v, float max, float scale) {
  float x = (v - max) * scale, inside = x > LEAST ? x : LEAST;
  int32_t at = x > LEAST ? (int32_t)(inside * -(float)FINE) : BUCKETS;
  return v == max ? 0 : at;
}

static void add(struct buckets *b, float v) { b->mass[bucket_of(v, b->max, b->scale)] += (double)weight(v, b->max, b->scale); }

static ANE_WIDE void fill(struct buckets *b) {
  memset(b->mass, 0, sizeof b->mass);
  b->end = BUCKETS;
  int32_t i = 0;
  for (; i + LANES <= b->n; i += LANES) {
    float w[LANES];
    int32_t at[LANES];
    for (int j = 0; j < LANES; j++) w[j] = weight(b->row[i + j], b->max, b->scale);
    for (int j = 0; j < LANES; j++) at[j] = bucket_of(b->row[i + j], b->max, b->scale);
    for (int j = 0; j < LANES; j++) b->mass[at[j]] += (double)w[j];
  }
  for (; i < b->n; i++) add(b, b->row[i]);
}

/* Ranks the tokens of a bucket that are kept. Returns their number. */
static int32_t rank(const struct buckets *b, int32_t at, struct ane_ranked *ranked) {
  int32_t count = 0;
  for (int32_t i = 0; i < b->n; i++)
    if (bucket_of(b->row[i], b->max, b->scale) == at) ranked[count++] = (struct ane_ranked){i, b->row[i]};
  ane_rank(ranked, count);
  return at == b->end ? ANE_MIN(count, b->end_count) : count;
}

/* Applies top_p and min_p. Returns the mass of the tokens that are kept. */
static double cut(struct buckets *b, const struct ane_sampling *how, double total, struct ane_ranked *ranked) {
  double most = how->top_p < 1 ? (double)how->top_p * total : INFINITY, kept = 0;
  for (int32_t at = 0; at < BUCKETS; at++) {
    if (b->mass[at] == 0) continue;
    float least = exp_negative((float)(at + 2) / -(float)FINE); /* less than each weight of the bucket */
    if (kept + b->mass[at] < most && least >= how->min_p) {
      kept += b->mass[at];
      continue;
    }
    int32_t count = rank(b, at, ranked);
    double before = kept;
    for (int32_t i = 0; i < count; i++) {
      double w = (double)weight(ranked[i].value, b->max, b->scale);
      bool is_best = at == 0 && i == 0;
      if (!is_best && (w < (double)how->min_p || kept >= most)) {
        b->end = at;
        b->end_count = i;
        b->mass[at] = kept - before;
        return kept;
      }
      kept += w;
    }
  }
  return kept;
}

/* Draws from all tokens. They are taken in order of rank, but only the bucket of the token that is drawn has to be ranked. */
static struct ane_ranked draw_from_all(const float *row, int32_t n, const struct ane_sampling *how, float max, double total,
                                       double u, struct ane_ranked *ranked) {
  struct buckets b = {.row = row, .n = n, .max = max, .scale = 1 / how->temperature};
  fill(&b);
  bool filtered = how->top_p < 1 || how->min_p > 0;
  double goal = u * (filtered ? cut(&b, how, total, ranked) : total), seen = 0;
  int32_t last = 0;
  for (int32_t at = 0; at < BUCKETS && at <= b.end; at++) {
    if (b.mass[at] == 0) continue;
    last = at;
    if (seen + b.mass[at] > goal) {
      int32_t i = reach(ranked, rank(&b, at, ranked), max, b.scale, seen, goal);
      if (i >= 0) return ranked[i];
    }
    seen += b.mass[at];
  }
  return ranked[rank(&b, last, ranked) - 1]; /* rounding left the sum below the random number */
}

/* A few tokens have most of the mass, so the FIRST best are ranked at first. Most draws end with them. */
enum { FIRST = 64 };

static struct ane_ranked draw(const float *row, int32_t n, const struct ane_sampling *how, float max, double u,
                              struct ane_ranked *ranked) {
  bool has_limit = how->top_k > 0 && how->top_k < n, filtered = how->top_p < 1 || how->min_p > 0, whole;
  int32_t m = has_limit ? how->top_k : ANE_MIN(FIRST, n);
  float scale = 1 / how->temperature;
  double total = has_limit ? 0 : mass(row, n, max, scale), kept;
  ane_topk(row, n, m, ranked);
  for (int32_t i = 0; has_limit && i < m; i++) total += (double)weight(ranked[i].value, max, scale);
  int32_t count = keep(ranked, m, how, total, &kept, &whole);
  whole = whole || has_limit || m == n;
  if (whole || !filtered) {
    int32_t i = reach(ranked, count, max, scale, 0, u * (filtered || has_limit ? kept : total));
    if (i >= 0) return ranked[i];
    if (whole) return ranked[count - 1]; /* rounding left the sum below the random number */
  }
  return draw_from_all(row, n, how, max, total, u, ranked);
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
