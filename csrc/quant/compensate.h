/* Rounding that compensates its errors: GPTQ (Frantar et al. 2022, arXiv 2210.17323; Optimal Brain Surgeon before it: Hassibi and
 * Stork 1993).
 *
 * A row w is rounded to v so that E = (w - v) H (w - v)' is small, where H is the second moment of the inputs (mean of x' x).
 * With H = R R', R upper triangular, E is the sum over columns j of
 *
 *     R[j][j]^2 (t_j - v_j)^2,   t_j = w_j + sum over i < j of (w_i - v_i) R[i][j] / R[j][j]
 *
 * So columns are rounded in order, each to the value nearest to its target t_j. Whatever is chosen for a column, the terms of
 * later columns can still be zero. This is GPTQ without the inverse of H; it is Babai's nearest plane algorithm (Chen et al.
 * 2025, arXiv 2507.18553). The search for a scale knows the weight of column j's rounding error: R[j][j]^2.
 *
 * If the inputs x of a quantised model differ from those of its source, x + d, the row that fits the outputs of the source
 * best is w + w D (H + damping)^-1, where D is the mean of d' x. This row is rounded instead of w (GPTAQ: Li et al. 2025, arXiv
 * 2504.02692; QEP: Arai and Ichikawa 2025, arXiv 2504.09629).
 *
 * Some correlations in a few tokens are due to chance. With a prior of n tokens, H is what it would be if n more tokens with the
 * same mean squares and without correlations had been read: elements off the diagonal are multiplied by T / (T + n), where T is
 * the number of tokens that were read (shrinkage: Schaefer and Strimmer 2005, "A shrinkage approach to large-scale covariance
 * matrix estimation", target D). D is multiplied by the same factor: otherwise rows would follow the drift of a few tokens
 * several times over.
 *
 * Rows do not depend on each other. Threads divide them, and the bytes do not depend on the number of threads. */
#ifndef ANE_QUANT_COMPENSATE_H
#define ANE_QUANT_COMPENSATE_H

#include "quant/weight_schemes.h"

/* The widest vectors that inner loops may use, in bytes: 64. Specs set 32 and 16: results are the same. */
extern int ane_wide_most;

/* ---- Second moments ----------------------------------------------------------------------------------------------------*/

/* Sum of x' x over tokens, in float32. x has codes of 13 bits: in each piece of 128 tokens, the step of a column is 1 / 4095 of
 * its largest number, so the products of a piece are summed up exactly in 32 bits (wide.h). */
struct ane_moment {
  int64_t cols, padded; /* padded: the next multiple of 32 */
  uint64_t tokens;
  float *sum;   /* [padded][padded]: panels of 32 columns on and right of the diagonal are filled */
  float *drift; /* [padded][padded], all filled: sum of d' x; NULL: none */
};
/* Makes an empty moment of cols columns. Free it with ane_moment_free, also after an error. Errors: ANE_NOMEM. */
ane_status ane_moment_make(struct ane_moment *m, int64_t cols, struct ane_error *err);
/* Adds x [tokens][cols] on all threads of the pool. source: the inputs of the source [tokens][cols], whose differences to x are
 * added to the drift; NULL: none. Either all calls give one or none does. weight: above 0; the products of each token are
 * multiplied by it, and m->tokens counts each token once. Errors: ANE_NOMEM; ANE_INVALID (x is not finite; the pieces of 128
 * tokens before that token are added). */
ane_status ane_moment_add(struct ane_moment *m, struct ane_pool *pool, const float *x, const float *source, int64_t tokens,
                          float weight, struct ane_error *err);
/* Writes the means of squares to out [cols]. */
void ane_moment_diagonal(const struct ane_moment *m, float *out);
void ane_moment_free(struct ane_moment *m); /* a zeroed one is fine */

/* ---- Factors -----------------------------------------------------------------------------------------------------------*/

/* The order of columns and the factor R of a second moment. */
struct ane_factor {
  int64_t cols;
  int32_t group, sub; /* columns with common parameters stay together: groups, and their parts */
  int32_t *order;     /* [cols] position -> column */
  float *ratio;       /* R[i][j] / R[j][j]: strips of 4 columns j, each [j / 4 * 4 + 4][4] (ane_factor_strip) */
  float *weight;      /* [cols] R[j][j]^2 by position, divided by the mean of all */
  float *importance;  /* [cols] mean squares by column */
  float *moment;      /* H by positions, damped: H[i][j] in strips of 4 columns j, each [cols][4] */
  float *drift;       /* D times a strength, in the same way; NULL: none */
  float damp;         /* the damping that was needed, as a multiple of the mean of the diagonal */
};
/* Where the strip of columns 4 p .. 4 p + 3 begins. */
static inline int64_t ane_factor_strip(int64_t p) { return 8 * p * (p + 1); }

/* Factors m. Columns are ordered by descending mean square (the activation order of GPTQ): groups of `group` columns by their
 * sum, then parts of `sub` columns within a group, then columns within a part. group and sub are 1, or group is a multiple of sub
 * and cols a multiple of group. damp: the number added to the diagonal, as a multiple of its mean; if m then has no factor, damp
 * is multiplied by ten, at most 7 times. The factor is computed in double precision. strength: fraction of the drift, if m has
 * one: 0 (none) .. 1. prior: tokens, 0 or more. Free the factor with ane_factor_free. Errors: ANE_NOMEM; ANE_SHAPE (groups);
 * ANE_INVALID (m has no tokens, is not finite, or has no factor). */
struct ane_factor_options {
  int32_t group, sub;
  double damp, strength, prior;
};
ane_status ane_factor_make(struct ane_factor *f, struct ane_pool *pool, const struct ane_moment *m,
                           const struct ane_factor_options *opts, struct ane_error *err);
void ane_factor_free(struct ane_factor *f); /* a zeroed one is fine */

/* ---- Rounding ----------------------------------------------------------------------------------------------------------*/

/* Sets *group and *sub to the numbers of columns that share parameters in a block of a type or scheme, and in its parts: 256 and
 * 32 for q4_k; 1 and 1 if whole rows share them. false: the type cannot be written with compensation. */
bool ane_compensate_groups(ane_dtype t, int32_t *group, int32_t *sub);
void ane_compensate_scheme_groups(struct ane_weight_spec s, int32_t *group, int32_t *sub);

/* Rows that are rounded together: the lanes of vectors. */
enum { ANE_COMPENSATE_ROWS = 32 };
/* Bytes of scratch memory that one thread needs. The memory may have any alignment. */
size_t ane_compensate_scratch(const struct ane_factor *f);

/* Encodes rows [n][cols], n <= 32, to bytes of type t, row after row (`stride` bytes apart). f has the groups of t. */
void ane_compensate_rows(const struct ane_factor *f, ane_dtype t, const float *rows, int n, void *dst, size_t stride,
                         void *scratch);
/* The same for a scheme, as a tile. It begins with the tables and largest values of ane_weight_encode_tile. search: the scratch
 * memory of that function. */
void ane_compensate_tile(const struct ane_factor *f, const struct ane_weight_fit *fit, const float *rows, int n, void *search,
                         struct ane_weight_tile *out, void *scratch);

#endif
