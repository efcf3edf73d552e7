/* Turns a row of logits into a token: the best ids, log probabilities, the chain of filters, and the random draw.
 *
 * A row is `n` floats, one per token id. NaN counts as less than every number. Of equal values the lower id is better. */
#ifndef ANE_SAMPLING_SAMPLING_H
#define ANE_SAMPLING_SAMPLING_H

#include "base/status.h"

struct ane_ranked {
  int32_t id; /* 0-based */
  float value;
};

/* Writes the k best of row[0..n) to out[0..k), best first. 0 <= k <= n <= INT32_MAX. Allocates nothing. Takes O(n log k) time;
 * for rows in random order about O(n + k log k log(n / k)). */
void ane_topk(const float *row, int32_t n, int32_t k, struct ane_ranked *out);

/* Sorts list[0..n), best first. */
void ane_rank(struct ane_ranked *list, int32_t n);

/* The best of row[0..n), n >= 1. */
struct ane_ranked ane_best(const float *row, int32_t n);

/* log(sum(exp(row))): row[i] minus this is the log probability of i. -infinity if no entry is above -infinity. */
double ane_log_sum_exp(const float *row, int32_t n);

/* out = softmax(row / temperature), n >= 1, temperature > 0; out may be row. All zeros if no entry is above -infinity. */
void ane_softmax(const float *row, int32_t n, float temperature, float *out);

/* Compares two rows for the same token: log(sum(exp())) and best id of each, and the Kullback-Leibler divergence sum p_a log(p_a
 * / p_b) of their softmaxes, in nats. The divergence is 0 if the rows are equal, infinite if p_b is 0 and p_a is not, and NaN if
 * a row has no entry above -infinity. n >= 1. */
struct ane_divergence {
  double whole_a, whole_b; /* log(sum(exp())) */
  int32_t best_a, best_b;
  double kl;
};
struct ane_divergence ane_diverge(const float *a, const float *b, int32_t n);

/* Four random words for (seed, position): Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as
 * 1, 2, 3; SC 2011) with key = seed and counter = position. */
void ane_philox(uint64_t seed, uint64_t position, uint32_t out[4]);

/* The random number of a position, in [0, 1), with 53 bits. It depends only on seed and position, so that a seed gives the same
 * text however the earlier tokens were computed. */
double ane_random(uint64_t seed, uint64_t position);

struct ane_bias {
  int32_t id;
  float value; /* added to the logit; -infinity bans, +infinity forces */
};

/* Filters in order of application. Each comment begins with the value that disables the filter. */
struct ane_sampling {
  float repeat_penalty; /* 1; > 0. Keskar et al. 2019 (CTRL): logits of recent ids are divided by it, or multiplied if negative */
  const struct ane_bias *bias; /* NULL; each id at most once; ids >= n are skipped */
  int32_t n_bias;
  float temperature; /* 0 = the best token; else logits / temperature */
  int32_t top_k;     /* 0; keep the k best */
  float top_p;       /* 1; of what top_k left, keep the fewest best tokens whose mass reaches p (Holtzman et al. 2020) */
  float min_p;       /* 0; keep tokens with at least min_p times the probability of the best (Nguyen et al. 2024) */
  uint64_t seed;
};

/* Draws the token for `position`. recent[0..n_recent): ids that the penalty applies to, once each even if repeated; may be NULL.
 * work: n floats, used if penalty or bias change the row. ranked: n entries, used if temperature > 0. *out: the id and its logit
 * after penalty and bias. ANE_INVALID: every token is banned (all -infinity or NaN). */
ane_status ane_sample(const float *row, int32_t n, const struct ane_sampling *how, const int32_t *recent, size_t n_recent,
                      uint64_t position, float *work, struct ane_ranked *ranked, struct ane_ranked *out, struct ane_error *err);

#endif
