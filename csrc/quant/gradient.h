/* Gradients of a decoder's operations, for tuning a rounded model as a whole (ane.quantise.tune). The chain rule runs from the
 * logits back: each function takes dy, the gradient of the loss with respect to an output, and gives those of the inputs. Arrays
 * are row-major, [tokens][channels]. Results do not depend on the number of threads. */
#ifndef ANE_QUANT_GRADIENT_H
#define ANE_QUANT_GRADIENT_H

#include "platform/platform.h"
#include "tensor/tensor.h"

/* Scratch memory that calls use one after the other. Zero-initialised = empty. It grows as needed. Free it with
 * ane_gradient_space_free. */
struct ane_gradient_space {
  float *data;
  size_t count;
};
/* Sets *out to room for `count` floats, whose values are unspecified. The room of an earlier call is then invalid. Errors:
 * ANE_NOMEM. */
ane_status ane_gradient_take(struct ane_gradient_space *s, size_t count, float **out, struct ane_error *err);
void ane_gradient_space_free(struct ane_gradient_space *s);

/* y = x W': dx [tokens][cols] = dy [tokens][rows] W. W is a matrix of any type that has a decoder. Errors: ANE_NOMEM;
 * ANE_UNSUPPORTED (W has no decoder). */
ane_status ane_gradient_product(struct ane_pool *pool, struct ane_gradient_space *space, const struct ane_tensor *w,
                                const float *dy, int64_t tokens, float *dx, struct ane_error *err);

/* RMSNorm, or LayerNorm (centred), of groups of cols / groups channels. dw [cols / groups] receives the gradient of the weight in
 * addition to its present values; NULL: it is not wanted. */
struct ane_gradient_norm {
  int64_t tokens, cols, groups;
  const float *weight; /* [cols / groups], offset included; NULL: ones */
  float eps;
  bool centred;
};
void ane_gradient_norm(struct ane_pool *pool, const struct ane_gradient_norm *n, const float *x, const float *dy, float *dx,
                       float *dw);

/* Causal attention of all tokens of one sequence: q, dy, dq [tokens][heads * dim], k, v, dk, dv [tokens][kv_heads * dim]. The
 * query at p sees the keys p - window < j <= p; window 0: all up to p. softcap c > 0: scores are c tanh(s / c). sinks [heads], or
 * NULL: scores without a value. ANE_NOMEM. */
struct ane_gradient_attention {
  int64_t tokens, heads, kv_heads, dim, window;
  float scale, softcap;
  const float *sinks;
};
ane_status ane_gradient_attention(struct ane_pool *pool, struct ane_gradient_space *space, const struct ane_gradient_attention *a,
                                  const float *q, const float *k, const float *v, const float *dy, float *dq, float *dk,
                                  float *dv, struct ane_error *err);

/* Rope of the first r channels of each head by a table [tokens][r]: r / 2 cosines, then the sines. */
void ane_gradient_rope(const float *table, int64_t tokens, int64_t cols, int64_t heads, int64_t r, bool interleaved,
                       const float *dy, float *dx);

/* The number of the act of this name (op.def), or -1. */
int ane_gradient_act(const char *name);
/* y = act(x) u; u and du NULL: y = act(x). n numbers. */
void ane_gradient_glu(struct ane_pool *pool, int act, const float *x, const float *u, const float *dy, float *dx, float *du,
                      int64_t n);

/* Gradients of a loss with respect to the logits got, for rows of n logits. The loss of a row is (1 - share) KL(softmax(want) ||
 * softmax(got)) - share ln softmax(got)[label]: row r of dy [rows][n] is softmax(got[r]) - (1 - share) softmax(want[r]) - share
 * at the label. kl[r] is the divergence in nats. log_want[r] and log_got[r]: ln of the sum of the exponentials; a logit minus
 * that is a log probability. Errors: ANE_NOMEM. */
struct ane_gradient_logits {
  const float *const *want, *const *got; /* [rows][n] */
  const int32_t *label;                  /* [rows] the next tokens; -1: none, the loss is the divergence */
  double share;                          /* 0 to 1 */
  int64_t rows, n;
  float *dy;                       /* [rows][n] */
  double *kl, *log_want, *log_got; /* [rows] */
};
ane_status ane_gradient_divergence(struct ane_pool *pool, struct ane_gradient_space *space, const struct ane_gradient_logits *l,
                                   struct ane_error *err);

#endif
