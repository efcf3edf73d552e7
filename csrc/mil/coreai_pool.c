#include "mil/coreai_pool.h"

/* Far below any hidden state, and finite in fp16. */
#define LEAST (-40000.0)
/* The least square of a length: vectors of zeros stay zeros. */
#define LEAST_SQUARE 1e-24

static ane_ai_value number(struct ane_ai_build *b, ane_ai_value like, double v) { return ane_ai_number(b, like->type.dtype, v); }

/* 1 - x */
static ane_ai_value complement(struct ane_ai_build *b, ane_ai_value x) {
  return ane_ai_binary(b, ANE_AI_SUB, number(b, x, 1), x);
}

/* ---- Weights of the tokens -----------------------------------------------------------------------------------------------*/

/* Returns 1 at the first (last) token that counts, else 0, [1, T]: it counts, and its neighbour before (after) it does not. */
static ane_ai_value border(struct ane_ai_build *b, ane_ai_value seen, bool last) {
  int64_t t = ane_ai_dim(seen, 1);
  if (t == 1) return seen;
  ane_ai_value none = ane_ai_binary(b, ANE_AI_MUL, ane_ai_slice(b, seen, 1, 0, 1, 1), number(b, seen, 0));
  ane_ai_value kept = last ? ane_ai_slice(b, seen, 1, 1, t, 1) : ane_ai_slice(b, seen, 1, 0, t - 1, 1);
  ane_ai_value list[2] = {last ? kept : none, last ? none : kept};
  return ane_ai_binary(b, ANE_AI_MUL, seen, complement(b, ane_ai_concat(b, list, 2, 1)));
}

/* Returns the weight of each token, fp32 [1, T], 0 if it does not count. MEAN: 1 / n for n tokens that count; MEAN_SQRT:
 * 1 / sqrt(n); WEIGHTED_MEAN: the token's number, from 1, divided by the sum of these numbers. */
static ane_ai_value shares(struct ane_ai_build *b, ane_coreai_pooling how, ane_ai_value seen) {
  int64_t t = ane_ai_dim(seen, 1);
  ane_ai_value w = ane_ai_cast(b, seen, ANE_AI_FP32);
  if (how == ANE_COREAI_WEIGHTED_MEAN) {
    int64_t *place = ane_arena_array(b->arena, (size_t)t, sizeof *place);
    for (int64_t i = 0; place && i < t; i++) place[i] = i + 1;
    if (!place) return ane_ai_build_fail(b, ane_fail(b->err, ANE_NOMEM, "no memory for the program")), seen;
    ane_ai_value places = ane_ai_reshape(b, ane_ai_ints(b, ANE_AI_INT32, place, (int32_t)t), 2, (int64_t[]){1, t});
    w = ane_ai_binary(b, ANE_AI_MUL, w, ane_ai_cast(b, places, ANE_AI_FP32));
  }
  ane_ai_value sum = ane_ai_reduce(b, ANE_AI_REDUCE_SUM, w, 1);
  if (how == ANE_COREAI_MEAN_SQRT) sum = ane_ai_unary(b, ANE_AI_SQRT, sum);
  return ane_ai_binary(b, ANE_AI_DIVIDE, w, sum);
}

/* ---- Pooling -------------------------------------------------------------------------------------------------------------*/

/* Returns the largest number of each channel. Tokens that do not count get LEAST. */
static ane_ai_value largest(struct ane_ai_build *b, ane_ai_value x, ane_ai_value seen) {
  ane_ai_value hidden = ane_ai_binary(b, ANE_AI_MUL, complement(b, seen), number(b, seen, LEAST));
  hidden = ane_ai_reshape(b, hidden, 4, (int64_t[]){1, 1, ane_ai_dim(seen, 1), 1});
  return ane_ai_reduce(b, ANE_AI_REDUCE_MAX, ane_ai_binary(b, ANE_AI_ADD, x, hidden), 2);
}

/* Returns the weighted sum of the tokens, [1, C, 1, 1]. */
static ane_ai_value weighted(struct ane_ai_build *b, ane_ai_value x, ane_ai_value w) {
  int64_t c = ane_ai_dim(x, 1), t = ane_ai_dim(x, 2);
  x = ane_ai_reshape(b, x, 4, (int64_t[]){1, 1, c, t});
  w = ane_ai_reshape(b, ane_ai_cast(b, w, x->type.dtype), 4, (int64_t[]){1, 1, t, 1});
  return ane_ai_reshape(b, ane_ai_matmul(b, x, w), 4, (int64_t[]){1, c, 1, 1});
}

static ane_ai_value pooled(struct ane_ai_build *b, const struct ane_coreai_result *r, ane_coreai_pooling how, ane_ai_value x,
                           ane_ai_value seen) {
  switch (how) {
    case ANE_COREAI_CLS: return r->prompt_mask ? weighted(b, x, border(b, seen, false)) : ane_ai_slice(b, x, 2, 0, 1, 1);
    case ANE_COREAI_LAST: return weighted(b, x, border(b, seen, true));
    case ANE_COREAI_MAX: return largest(b, x, seen);
    default: return weighted(b, x, shares(b, how, seen));
  }
}

/* ---- After pooling ---------------------------------------------------------------------------------------------------------*/

static ane_ai_value through(struct ane_ai_build *b, const struct coreai_dense *d, bool tanh, ane_ai_value x) {
  x = ane_ai_conv(b, x, d->weight, 1);
  if (d->bias) x = ane_ai_binary(b, ANE_AI_ADD, x, d->bias);
  return tanh ? ane_ai_unary(b, ANE_AI_TANH, x) : x;
}

static ane_ai_value normalised(struct ane_ai_build *b, ane_ai_value x) {
  ane_ai_value wide = ane_ai_cast(b, x, ANE_AI_FP32);
  ane_ai_value square = ane_ai_reduce(b, ANE_AI_REDUCE_SUM, ane_ai_binary(b, ANE_AI_MUL, wide, wide), 1);
  square = ane_ai_binary(b, ANE_AI_MAXIMUM, square, number(b, square, LEAST_SQUARE));
  /* analyser: x is never NULL, see ane_ai_dim(). */
  return ane_ai_cast(b, ane_ai_binary(b, ANE_AI_MUL, wide, ane_ai_unary(b, ANE_AI_RSQRT, square)), x->type.dtype);
}

ane_ai_value coreai_pool(struct ane_ai_build *b, const struct ane_coreai_result *r, const struct coreai_dense *dense,
                         ane_ai_value x, ane_ai_value seen) {
  ane_ai_value parts[ANE_COREAI_POOLINGS] = {NULL};
  for (uint32_t i = 0; i < r->n_poolings && !b->status; i++) parts[i] = pooled(b, r, r->poolings[i], x, seen);
  if (b->status) return x;
  ane_ai_value y = r->n_poolings > 1 ? ane_ai_concat(b, parts, r->n_poolings, 1) : parts[0];
  for (uint32_t i = 0; i < r->n_dense && !b->status; i++) y = through(b, &dense[i], r->dense[i].tanh, y);
  if (b->status) return x;
  if (r->normalise) y = normalised(b, y);
  return ane_ai_reshape(b, y, 2, (int64_t[]){1, ane_ai_dim(y, 1)});
}
