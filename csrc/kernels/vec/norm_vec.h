/* Norms for any vector length; included by norm_<isa>.c after vec_<isa>.h. The 16 lanes of a sum are V_PARTS vectors. */
#include "kernels/kernels_internal.h"

#include <math.h>

/* The number of elements of x from i on that belong to part p of the last, incomplete 16. */
#define LEFT(p) (c - i - (p)*VL)

static float sum_squares(const float *x, int64_t c) {
  vf l[V_PARTS];
  int64_t i = 0;
  for (int p = 0; p < V_PARTS; p++) l[p] = v_set(0);
  for (; i + 16 <= c; i += 16)
    for (int p = 0; p < V_PARTS; p++) l[p] = v_fma(v_load(x + i + p * VL), v_load(x + i + p * VL), l[p]);
  if (i < c)
    for (int p = 0; p < V_PARTS; p++) {
      vf v = v_load_n(x + i + p * VL, LEFT(p));
      l[p] = v_fma(v, v, l[p]);
    }
  return v_fold(l);
}

V_FN void rms_norm_at(const float *x, vf r, const float *w, float *y, int64_t i, int64_t n) {
  vf v = v_mul(v_load_n(x + i, n), r);
  v_store_n(y + i, w ? v_mul(v, v_load_n(w + i, n)) : v, n);
}

static void rms_norm(const float *x, int64_t ldx, const float *w, float eps, float *y, int64_t ldy, int64_t n, int64_t c) {
  for (int64_t t = 0; t < n; t++, x += ldx, y += ldy) {
    const vf r = v_set(1.0f / sqrtf(sum_squares(x, c) / (float)c + eps));
    int64_t i = 0;
    for (; i + VL <= c; i += VL) rms_norm_at(x, r, w, y, i, VL);
    if (i < c) rms_norm_at(x, r, w, y, i, c - i);
  }
}

static float sum(const float *x, int64_t c) {
  vf l[V_PARTS];
  int64_t i = 0;
  for (int p = 0; p < V_PARTS; p++) l[p] = v_set(0);
  for (; i + 16 <= c; i += 16)
    for (int p = 0; p < V_PARTS; p++) l[p] = v_add(l[p], v_load(x + i + p * VL));
  if (i < c)
    for (int p = 0; p < V_PARTS; p++) l[p] = v_add(l[p], v_load_n(x + i + p * VL, LEFT(p)));
  return v_fold(l);
}

static float sum_deviations(const float *x, vf mean, int64_t c) {
  vf l[V_PARTS];
  int64_t i = 0;
  for (int p = 0; p < V_PARTS; p++) l[p] = v_set(0);
  for (; i + 16 <= c; i += 16)
    for (int p = 0; p < V_PARTS; p++) {
      vf v = v_sub(v_load(x + i + p * VL), mean);
      l[p] = v_fma(v, v, l[p]);
    }
  if (i < c)
    for (int p = 0; p < V_PARTS; p++) {
      vf v = v_keep_n(v_sub(v_load_n(x + i + p * VL, LEFT(p)), mean), LEFT(p));
      l[p] = v_fma(v, v, l[p]);
    }
  return v_fold(l);
}

V_FN void layer_norm_at(const float *x, vf mean, vf r, const float *w, const float *b, float *y, int64_t i, int64_t n) {
  vf v = v_mul(v_sub(v_load_n(x + i, n), mean), r);
  if (w) v = v_mul(v, v_load_n(w + i, n));
  if (b) v = v_add(v, v_load_n(b + i, n));
  v_store_n(y + i, v, n);
}

static void layer_norm(const float *x, int64_t ldx, const float *w, const float *b, float eps, float *y, int64_t ldy, int64_t n,
                       int64_t c) {
  for (int64_t t = 0; t < n; t++, x += ldx, y += ldy) {
    const float mean = sum(x, c) / (float)c;
    const vf m = v_set(mean), r = v_set(1.0f / sqrtf(sum_deviations(x, m, c) / (float)c + eps));
    int64_t i = 0;
    for (; i + VL <= c; i += VL) layer_norm_at(x, m, r, w, b, y, i, VL);
    if (i < c) layer_norm_at(x, m, r, w, b, y, i, c - i);
  }
}

#undef LEFT
