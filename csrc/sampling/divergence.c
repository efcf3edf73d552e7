/* Kullback-Leibler divergence of two rows of logits. */
#include "sampling/sampling.h"

#include "base/elementary.h"

#include <math.h>

struct ane_divergence ane_diverge(const float *a, const float *b, int32_t n) {
  struct ane_divergence d = {ane_log_sum_exp(a, n), ane_log_sum_exp(b, n), ane_best(a, n).id, ane_best(b, n).id, 0};
  if (!(d.whole_a > -INFINITY) || !(d.whole_b > -INFINITY)) {
    d.kl = NAN;
    return d;
  }
  double kl = 0;
  for (int32_t i = 0; i < n; i++) {
    double log_a = (double)a[i] - d.whole_a;
    if (log_a > -100) kl += (double)ane_expf((float)log_a) * (log_a - ((double)b[i] - d.whole_b)); /* e^-100 is subnormal */
  }
  d.kl = kl > 0 || isnan(kl) ? kl : 0; /* rounding may make it slightly negative */
  return d;
}
