/* Kernels of recurrent blocks. A call computes one head, token by token, so a state does not depend on how the tokens are split
 * into calls. A state is [n][width]; a lane owns a column. Partial sums over n go to four accumulators, by n modulo 4, and are
 * added as (a0 + a1) + (a2 + a3). Rows of tokens are `*_ld` floats apart. Arrays do not overlap. */
#ifndef ANE_KERNELS_RECURRENT_H
#define ANE_KERNELS_RECURRENT_H

#include "platform/platform.h"

#include <stdint.h>

/* Mamba-2 (Dao and Gu 2024, "Transformers are SSMs"): S[i] = fma(b[i], dt x, decay S[i]); y = fma(d, x, sum of fma(c[i], S[i])).
 */
struct ane_scan {
  int64_t tokens, n, width; /* n: state size; width: of the head */
  float *state;             /* [n][width] */
  const float *x, *b, *c;   /* [tokens][width]; [tokens][n] */
  int64_t ld;               /* of x, b and c */
  const float *dt, *decay;  /* [tokens] */
  float d;
  float *y; /* [tokens][width] */
  int64_t y_ld;
};

/* Gated delta rule (Yang et al. 2024, "Gated Delta Networks"): S = decay S; e = beta (v - sum of fma(k[i], S[i]));
 * S[i] = fma(k[i], e, S[i]); y = sum of fma(q[i], S[i]). */
struct ane_delta {
  int64_t tokens, n, width; /* n: of a key; width: of a value */
  float *state;             /* [n][width] */
  const float *q, *k;       /* [tokens][n], dense */
  const float *v;           /* [tokens][width] */
  int64_t v_ld;
  const float *beta, *decay; /* [tokens] */
  float *y;                  /* [tokens][width] */
  int64_t y_ld;
};

struct ane_recurrent_kernels {
  void (*scan)(const struct ane_scan *a);
  void (*delta)(const struct ane_delta *a);
};

/* Returns the kernels of a level. */
struct ane_recurrent_kernels ane_recurrent_kernels(ane_isa isa);

/* The kernels of each level (ref/, x86/, arm/). */
extern const struct ane_recurrent_kernels ane_recurrent_ref, ane_recurrent_avx2, ane_recurrent_avx512, ane_recurrent_neon;

#endif
