/* From a row of logits to a token: the best ids, log probabilities, the chain of filters, and the draw.
 *
 * A row is `n` floats, one per token id. NaN is less than every number. Of equal values the lower id is better. */
#ifndef ANE_SAMPLING_SAMPLING_H
#define ANE_SAMPLING_SAMPLING_H

#include "base/status.h"

struct ane_ranked {
  int32_t id; /* 0-based */
  float value;
};

/* The k best of row[0..n) into out[0..k), best first. 0 <= k <= n <= INT32_MAX. Allocates nothing. Time O(n log k); for rows in
 * random order about O(n + k log k log(n / k)). */
void ane_topk(const float *row, int32_t n, int32_t k, struct ane_ranked *out);

/* The best of row[0..n), n >= 1. */
struct ane_ranked ane_best(const float *row, int32_t n);

/* log(sum(exp(row))): row[i] minus this is the log probability of i. -infinity where no entry is above -infinity. */
double ane_log_sum_exp(const float *row, int32_t n);

/* out = softmax(row / temperature), n >= 1, temperature > 0; out may be row. All zeros where no entry is above -infinity. */
void ane_softmax(const float *row, int32_t n, float temperature, float *out);

/* Compares two rows for the same token: log(sum(exp())) and best id of each, and the Kullback-Leibler divergence
 * sum p_a log(p_a / p_b) of their softmaxes, in nats: 0 where they are equal, infinite where p_b is 0 and p_a is not, NaN where a
 * row has no entry above -infinity. n >= 1. */
struct ane_divergence {
  double whole_a, whole_b;
  int32_t best_a, best_b;
  double kl;
};
struct ane_divergence ane_diverge(const float *a, const float *b, int32_t n);

/* Four random words for (seed, position): Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as
 * 1, 2, 3; SC 2011) with key = seed and counter = position. */
void ane_philox(uint64_t seed, uint64_t position, uint32_t out[4]);

/* The random number of a position, in [0, 1), 53 bits. It depends on seed and position only, so a seed gives the same text
 * however the earlier tokens were computed. */
double ane_random(uint64_t seed, uint64_t position);

struct ane_bias {
  int32_t id;
  float value; /* added to the logit; -infinity bans, +infinity forces */
};

/* Filters in the order of application. Each comment begins with the neutral value. */
struct ane_sampling {
  float repeat_penalty; /* 1; > 0. Keskar et al. 2019 (CTRL): logits of recent ids are divided by it, or multiplied if negative */
  const struct ane_bias *bias; /* NULL; each id at most once; ids >= n are skipped */
  int32_t n_bias;
  float temperature; /* 0 = the best token; else logits / temperature */
  int32_t top_k;     /* 0; keep the k best */
  float top_p;       /* 1; of what top_k left, keep the fewest best whose mass reaches p (Holtzman et al. 2020) */
  float min_p;       /* 0; keep those with at least min_p times the probability of the best (Nguyen et al. 2024) */
  uint64_t seed;
};

/* Draws the token for `position`. recent[0..n_recent): ids that get the penalty, repeats once; NULL where there are none. work: n
 * floats, used where penalty or bias change the row. ranked: n entries, used where temperature > 0. *out: the id and its logit
 * after penalty and bias. ANE_INVALID: every token is banned (all -infinity or NaN). */
ane_status ane_sample(const float *row, int32_t n, const struct ane_sampling *how, const int32_t *recent, size_t n_recent,
                      uint64_t position, float *work, struct ane_ranked *ranked, struct ane_ranked *out, struct ane_error *err);

#endif
