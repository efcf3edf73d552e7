/* Pools the rows of a run into one vector (ane_pooling). Sums are accumulated in double precision. */
#include "exec/session_internal.h"

#include <math.h>
#include <string.h>

enum { CHANNELS = 256 }; /* channels summed in one pass over the rows */

/* Sums of channels [c, c + n) over rows [from, to). weighted: each row r is multiplied by r + 1. */
static void sum_rows(const float *x, int64_t width, int64_t from, int64_t to, int64_t c, int64_t n, bool weighted, double *sum) {
  memset(sum, 0, (size_t)n * sizeof *sum);
  for (int64_t r = from; r < to; r++) {
    double by = weighted ? (double)(r + 1) : 1;
    for (int64_t i = 0; i < n; i++) sum[i] += by * (double)x[r * width + c + i];
  }
}

/* out[c]: the maximum of channel c over rows [from, to). */
static void largest(const float *x, int64_t width, int64_t from, int64_t to, float *out) {
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
    largest(x, width, from, s->rows, out);
    return true;
  }
  bool weighted = pooling == ANE_POOLING_WEIGHTED_MEAN;
  double sum[CHANNELS], by = weighted                      ? (double)n * (double)(from + 1 + s->rows) / 2
                             : pooling == ANE_POOLING_MEAN ? (double)n
                                                           : sqrt((double)n);
  for (int64_t c = 0; c < width; c += CHANNELS) {
    int64_t some = ANE_MIN(CHANNELS, width - c);
    sum_rows(x, width, from, s->rows, c, some, weighted, sum);
    for (int64_t i = 0; i < some; i++) out[c + i] = (float)(sum[i] / by);
  }
  return true;
}
