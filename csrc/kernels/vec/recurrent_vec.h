/* Recurrent blocks for any vector length; included by recurrent_<isa>.c after vec_<isa>.h. A slice of VL columns of the state
 * processes all tokens before the next slice starts, so that it stays in the L1 cache. */
#include "kernels/recurrent.h"

V_FN vf four(const vf a[4]) { return v_add(v_add(a[0], a[1]), v_add(a[2], a[3])); }

/* Computes columns [at, at + m) of a scan. */
V_FN void scan_columns(const struct ane_scan *a, int64_t at, int64_t m) {
  for (int64_t t = 0; t < a->tokens; t++) {
    const float *b = a->b + t * a->ld, *c = a->c + t * a->ld;
    vf x = v_load_n(a->x + t * a->ld + at, m), u = v_mul(v_set(a->dt[t]), x), decay = v_set(a->decay[t]);
    vf sum[4] = {v_set(0), v_set(0), v_set(0), v_set(0)};
    float *s = a->state + at;
    for (int64_t i = 0; i < a->n; i++, s += a->width) {
      vf y = v_fma(v_set(b[i]), u, v_mul(decay, v_load_n(s, m)));
      v_store_n(s, y, m);
      sum[i & 3] = v_fma(v_set(c[i]), y, sum[i & 3]);
    }
    v_store_n(a->y + t * a->y_ld + at, v_fma(v_set(a->d), x, four(sum)), m);
  }
}

static void scan(const struct ane_scan *a) {
  int64_t at = 0;
  for (; at + VL <= a->width; at += VL) scan_columns(a, at, VL);
  if (at < a->width) scan_columns(a, at, a->width - at);
}

/* Computes columns [at, at + m) of a delta rule. */
V_FN void delta_columns(const struct ane_delta *a, int64_t at, int64_t m) {
  for (int64_t t = 0; t < a->tokens; t++) {
    const float *q = a->q + t * a->n, *k = a->k + t * a->n;
    vf decay = v_set(a->decay[t]), seen[4] = {v_set(0), v_set(0), v_set(0), v_set(0)}, sum[4];
    float *s = a->state + at;
    for (int64_t i = 0; i < a->n; i++, s += a->width) {
      vf y = v_mul(decay, v_load_n(s, m));
      v_store_n(s, y, m);
      seen[i & 3] = v_fma(v_set(k[i]), y, seen[i & 3]);
    }
    vf e = v_mul(v_set(a->beta[t]), v_sub(v_load_n(a->v + t * a->v_ld + at, m), four(seen)));
    for (int i = 0; i < 4; i++) sum[i] = v_set(0);
    s = a->state + at;
    for (int64_t i = 0; i < a->n; i++, s += a->width) {
      vf y = v_fma(v_set(k[i]), e, v_load_n(s, m));
      v_store_n(s, y, m);
      sum[i & 3] = v_fma(v_set(q[i]), y, sum[i & 3]);
    }
    v_store_n(a->y + t * a->y_ld + at, four(sum), m);
  }
}

static void delta(const struct ane_delta *a) {
  int64_t at = 0;
  for (; at + VL <= a->width; at += VL) delta_columns(a, at, VL);
  if (at < a->width) delta_columns(a, at, a->width - at);
}
