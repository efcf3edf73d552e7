/* Pools the rows of a run into one vector (ane_pooling). Sums are accumulated in double precision. */
#include "exec/session_internal.h"

#include <math.h>
#include <string.h>

enum { CHANNELS = 256 }; /* channels summed in one pass over the rows */

/* Sums channels [c, c + n) over rows [from, to). weighted: each row r is multiplied by r + 1. */
static void sum_rows(const float *x, int64_t width, int64_t from, int64_t to, int64_t c, int64_t n, bool weighted, double *sum) {
  memset(sum, 0, (size_t)n * sizeof *sum);
  for (int64_t r = from; r < to; r++) {
    double factor = weighted ? (double)(r + 1) : 1;
    for (int64_t i = 0; i < n; i++) sum[i] += factor * (double)x[r * width + c + i];
  }
}

/* Sets out[c] to the maximum of channel c over rows [from, to). */
static void max_rows(const float *x, int64_t width, int64_t from, int64_t to, float *out) {
  memcpy(out, x + from * width, (size_t)width * sizeof *out);
  for (int64_t r = from + 1; r < to; r++)
    for (int64_t i = 0; i < width; i++) out[i] = ANE_MAX(out[i], x[r * width + i]);
}

bool ane_session_pooled(const struct ane_session *s, ane_pooling pooling, int64_t from, float *out) {
  const float *x = ane_session_logits(s, 0);
  int64_t width = s->program->vocab, n = s->rows - from;
  if (!x || from < 0 || n < 1) return false;
  if (pooling == ANE_POOLING_CLS || pooling == ANE_POOLING_LAST) {
    memcpy(out, x + (pooling == ANE_POOLING_CLS ? from : s->rows - 1) * width, (size_t)width * sizeof *out);
    return true;
  }
  if (pooling == ANE_POOLING_MAX) {
    max_rows(x, width, from, s->rows, out);
    return true;
  }
  bool weighted = pooling == ANE_POOLING_WEIGHTED_MEAN;
  double divisor = pooling == ANE_POOLING_MEAN ? (double)n : sqrt((double)n);
  if (weighted) divisor = (double)n * (double)(from + 1 + s->rows) / 2; /* the sum of the factors from + 1 .. s->rows */
  double sum[CHANNELS];
  for (int64_t c = 0; c < width; c += CHANNELS) {
    int64_t channels = ANE_MIN(CHANNELS, width - c);
    sum_rows(x, width, from, s->rows, c, channels, weighted, sum);
    for (int64_t i = 0; i < channels; i++) out[c + i] = (float)(sum[i] / divisor);
  }
  return true;
}
