/* Norms in scalar C. The other levels are tested against this file. */
#include "kernels/kernels_internal.h"

#include <math.h>

enum { LANES = 16 };

/* Adds 16 partial sums by halves: 8 + 8, 4 + 4, 2 + 2, 1 + 1. */
static float fold(float l[LANES]) {
  for (int w = LANES / 2; w; w /= 2)
    for (int i = 0; i < w; i++) l[i] += l[i + w];
  return l[0];
}

static void rms_norm(const float *x, int64_t ldx, const float *w, float eps, float *y, int64_t ldy, int64_t n, int64_t c) {
  for (int64_t t = 0; t < n; t++, x += ldx, y += ldy) {
    float l[LANES] = {0};
    for (int64_t i = 0; i < c; i++) l[i % LANES] = fmaf(x[i], x[i], l[i % LANES]);
    float r = 1.0f / sqrtf(fold(l) / (float)c + eps);
    for (int64_t i = 0; i < c; i++) y[i] = w ? x[i] * r * w[i] : x[i] * r;
  }
}

static void layer_norm(const float *x, int64_t ldx, const float *w, const float *b, float eps, float *y, int64_t ldy, int64_t n,
                       int64_t c) {
  for (int64_t t = 0; t < n; t++, x += ldx, y += ldy) {
    float l[LANES] = {0}, s[LANES] = {0};
    for (int64_t i = 0; i < c; i++) l[i % LANES] += x[i];
    float mean = fold(l) / (float)c;
    for (int64_t i = 0; i < c; i++) s[i % LANES] = fmaf(x[i] - mean, x[i] - mean, s[i % LANES]);
    float r = 1.0f / sqrtf(fold(s) / (float)c + eps);
    for (int64_t i = 0; i < c; i++) {
      float v = (x[i] - mean) * r;
      if (w) v *= w[i];
      y[i] = b ? v + b[i] : v;
    }
  }
}

void ane_norm_ref(struct ane_kernels *k) {
  k->rms_norm = rms_norm;
  k->layer_norm = layer_norm;
}
